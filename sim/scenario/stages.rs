//! `mesh.pp` and `[pipeline]` under FSDP2: how torchtitan cuts a model into stages (`distributed/pipeline_parallel.py` at
//! b5bcd76c, `_get_pipeline_metadata`, `_generate_llm_fqn_per_model_part`).

mod file;

pub(super) use file::is_file;

use std::borrow::Cow;

use toml::Spanned;

use super::change::Change;
use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys::row::Key;
use super::megatron::pipeline::{layers as written_layers, misfit};
use super::names::FSDP2;
use super::reader::Reader;
use super::written;
use crate::hardware::Topology;
use crate::model::ModelConfig;
use crate::near::did_you_mean;
use crate::runtime::Refusal;
use crate::runtime::train::TorchPlan;
use crate::runtime::train::pipeline::{self, Order, Pipeline, SCHEDULES};
use crate::schedule::{Batching, Entry, ScheduleError, Shape};

/// Stages on a rank: each has streams of its own, of which PyTorch has 32.
const MOST_STAGES: u32 = 32;
/// Stages of a model.
const MOST_IN_ALL: u32 = 1 << 12;

/// Stages that a schedule takes on each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stages {
    /// So many: one in a loop over one stage, and as many as a file says.
    Exactly(u32),
    /// Two or more.
    Several,
}

/// The ranks of the pipeline; 1 if there is none.
pub(super) fn ranks(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    (runtime, topology): (Runtime, &Topology),
) -> Result<u64, ScenarioError> {
    let Some(at) = &scenario.mesh.get_ref().pp else { return Ok(1) };
    if runtime != FSDP2 {
        let problem =
            format!("mesh.pp is an axis of runtime = \"megatron\" and of \"fsdp2\", and this is {}", runtime.name());
        return Err(reader.plan(at, problem, "remove it, or write runtime = \"fsdp2\""));
    }
    let ranks = reader.count(&written::Mesh::pp, at)?;
    let chips = u64::from(topology.ranks());
    if !chips.is_multiple_of(ranks) {
        let problem = format!("mesh.pp = {ranks} does not divide the {chips} chips of {}", topology.name);
        return Err(reader.plan(at, problem, "write a divisor, or change the topology's size"));
    }
    Ok(ranks)
}

/// The pipeline of `ranks` ranks, if it has more than one.
pub(super) fn stages(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (ranks, micro_batches): (u64, u64),
) -> Result<Option<Pipeline>, ScenarioError> {
    if ranks == 1 {
        return match &scenario.pipeline {
            None => Ok(None),
            Some(at) => {
                let problem = "[pipeline] says how stages take turns, and mesh.pp makes none";
                Err(reader.plan(at, problem, "write mesh.pp = 2 or more, or remove the table"))
            }
        };
    }
    let none = written::Pipeline::default();
    let table = scenario.pipeline.as_ref().map_or(&none, Spanned::get_ref);
    without_effect(reader, scenario, table)?;
    let ranks = ranks as u32;
    let each = Shape { ranks, virtual_stages: 1, microbatches: micro_batches as u32 };
    let (schedule, stages) = schedule(reader, table, each)?;
    let weights = match &table.layers {
        Some(_) => [0; 2],
        None => [
            weight(reader, &written::Pipeline::first_stage_less_layers, table.first_stage_less_layers.as_ref())?,
            weight(reader, &written::Pipeline::last_stage_less_layers, table.last_stage_less_layers.as_ref())?,
        ],
    };
    let virtual_stages = virtual_stages(reader, table, model, (ranks, &schedule, stages), weights)?;
    let shape = Shape { virtual_stages, ..each };
    bounds(reader, scenario, table, (schedule.name(), shape, stages))?;
    let count = u64::from(shape.stages());
    if let Order::Named(entry) = schedule {
        (entry.check)(shape).map_err(|error| unfit(reader, (scenario, table), (model, shape, weights), &error))?;
    }
    let layers = match &table.layers {
        Some(at) => {
            let layers = written_layers(reader, scenario, table, (model, count))?;
            if let [_, middle @ .., _] = &layers[..]
                && middle.contains(&0)
            {
                let problem = "pipeline.layers has a stage of nothing between the first and the last, whose optimizer PyTorch \
                               refuses to make";
                return Err(reader.plan(
                    at,
                    problem,
                    "write 1 block or more for each stage but the first and the last",
                ));
            }
            layers
        }
        None => {
            let split = pipeline::split(model.layers.count(), count, weights).map_err(|problem| {
                let remedy = by_hand(table, count);
                let place = scenario
                    .mesh
                    .get_ref()
                    .pp
                    .as_ref()
                    .map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at));
                ScenarioError::Plan { code: None, problem, place, remedy }
            })?;
            reader.note(format!("torchtitan's split of modules gives stages of {split:?} blocks"));
            split
        }
    };
    if micro_batches < count && matches!(schedule, Order::Named(_)) {
        let idle = f64::from(ranks - 1) / (micro_batches as f64 * f64::from(virtual_stages) + f64::from(ranks - 1));
        reader.note(format!(
            "{micro_batches} micro-batches are fewer than {count} stages, which leaves each rank without work for \
             {:.0} % of the step at best",
            100.0 * idle
        ));
    }
    Ok(Some(Pipeline { schedule, ranks, virtual_stages, layers }))
}

/// How many stages a rank may have.
fn bounds(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    table: &written::Pipeline,
    (schedule, shape, stages): (&str, Shape, Stages),
) -> Result<(), ScenarioError> {
    let Shape { ranks, virtual_stages, microbatches } = shape;
    let (problem, remedy) = if stages == Stages::Several && virtual_stages == 1 {
        let problem = format!("{schedule} takes two stages or more on each rank, and it would have one");
        let single = if microbatches < ranks { "GPipe" } else { "1F1B" };
        (problem, format!("write pipeline.schedule = {single:?}, or more stages"))
    } else if virtual_stages > MOST_STAGES || virtual_stages * ranks > MOST_IN_ALL {
        let problem = format!(
            "{virtual_stages} stages on each of {ranks} ranks are more than the {MOST_STAGES} on a rank, {MOST_IN_ALL} in all, \
             that are simulated"
        );
        (problem, "write fewer stages".to_owned())
    } else {
        return Ok(());
    };
    let keys = [&table.virtual_stages, &table.layers_per_stage, &scenario.mesh.get_ref().pp];
    let place = match (keys.into_iter().flatten().next(), &table.layers) {
        (_, Some(at)) => reader.place(at),
        (Some(at), None) => reader.place(at),
        (None, None) => reader.place(&scenario.mesh),
    };
    Err(ScenarioError::Plan { code: None, problem, place, remedy })
}

/// A schedule that is not made for the shape.
fn unfit(
    reader: &Reader<'_>,
    (scenario, table): (&written::Scenario, &written::Pipeline),
    (model, shape, weights): (&ModelConfig, Shape, [u64; 2]),
    error: &ScheduleError,
) -> ScenarioError {
    let ScenarioError::Plan { problem, place, remedy, .. } = misfit(reader, scenario, error) else {
        unreachable!("a schedule that does not fit is a plan that cannot be")
    };
    let remedy = match *error {
        ScheduleError::Rounds { found, .. } => {
            let next = found.next_multiple_of(shape.ranks);
            format!("write batch.accumulation = {next}, or pipeline.schedule = \"LoopedBFS\"")
        }
        ScheduleError::VirtualStages { remedy: each, .. } => {
            let stages = u64::from(shape.ranks * each);
            match (&table.layers, &table.layers_per_stage) {
                (Some(_), _) => format!("write {stages} numbers in pipeline.layers, or another pipeline.schedule"),
                (None, Some(_)) => {
                    format!("{}, or another pipeline.schedule", instead(table, model, (stages, weights)))
                }
                (None, None) => remedy,
            }
        }
        _ => remedy,
    };
    ScenarioError::Plan { code: None, problem, place, remedy }
}

/// What to write for so many stages: the layers of each that give as many, or the stages themselves.
fn instead(table: &written::Pipeline, model: &ModelConfig, (stages, [first, last]): (u64, [u64; 2])) -> String {
    let all = model.layers.count() + first + last;
    let each = all.div_ceil(stages);
    if all.div_ceil(each) == stages && pipeline::split(model.layers.count(), stages, [first, last]).is_ok() {
        format!("write pipeline.layers_per_stage = {each}")
    } else {
        by_hand(table, stages)
    }
}

/// To write stages down, and not how they are found.
fn by_hand(table: &written::Pipeline, stages: u64) -> String {
    let keys: Vec<String> =
        ways(table).into_iter().filter(|(_, written)| *written).map(|(key, _)| format!("pipeline.{key}")).collect();
    let place = if keys.is_empty() { String::new() } else { format!(" in place of {}", keys.join(" and ")) };
    format!("write pipeline.layers, the blocks of {stages} stages{place}, or fewer stages")
}

/// Keys that say how stages are found, and whether they are written.
fn ways(table: &written::Pipeline) -> [(&'static str, bool); 4] {
    [
        ("layers_per_stage", table.layers_per_stage.is_some()),
        ("first_stage_less_layers", table.first_stage_less_layers.is_some()),
        ("last_stage_less_layers", table.last_stage_less_layers.is_some()),
        ("virtual_stages", table.virtual_stages.is_some()),
    ]
}

/// Keys that say nothing here.
fn without_effect(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    table: &written::Pipeline,
) -> Result<(), ScenarioError> {
    if let Some(at) = &table.overlap_p2p {
        let problem =
            "pipeline.overlap_p2p is Megatron-Core's: PyTorch's schedules never make the host wait for messages";
        return Err(reader.plan(at, problem, "remove the key"));
    }
    if let Some(at) = &table.scatter_gather {
        let problem = "pipeline.scatter_gather is Megatron-LM's: PyTorch's stages send what they have, whole";
        return Err(reader.plan(at, problem, "remove the key"));
    }
    let batch = &scenario.batch;
    for (key, written) in [
        ("sync_every_micro_batch", &batch.sync_every_micro_batch),
        ("set_is_last_backward", &batch.set_is_last_backward),
        ("all_reduce_every_micro_batch", &batch.all_reduce_every_micro_batch),
    ] {
        if let Some(at) = written {
            let problem = format!(
                "batch.{key} means nothing in a pipeline, which reduces gradients after a stage's last micro-batch"
            );
            return Err(reader.plan(at, problem, format!("remove batch.{key}")));
        }
    }
    let Some(layers) = &table.layers else { return Ok(()) };
    for (key, written) in ways(table) {
        if written {
            let problem = format!("pipeline.layers says what each stage has, and pipeline.{key} says how to find out");
            return Err(reader.plan(layers, problem, "remove one of the two keys"));
        }
    }
    Ok(())
}

/// Who runs what when, and how many stages that takes on each rank.
fn schedule(reader: &mut Reader<'_>, table: &written::Pipeline, each: Shape) -> Result<(Order, Stages), ScenarioError> {
    let takes = |entry: &'static Entry| {
        let several = (entry.batching)(each) == Batching::Eager;
        (Order::Named(entry), if several { Stages::Several } else { Stages::Exactly(1) })
    };
    let Some(at) = &table.schedule else {
        return Ok(takes(reader.assume("pipeline.schedule", SCHEDULES[0], SCHEDULES[0].name)));
    };
    if is_file(at.get_ref()) {
        let (order, stages) = file::read(reader, at, (each.ranks, each.microbatches))?;
        return Ok((order, Stages::Exactly(stages)));
    }
    let known = format!("{}, or a file: plan.csv", SCHEDULES.map(|entry| entry.name).join(", "));
    let found = crate::schedule::find(at.get_ref()).map_err(|_| {
        let hint = did_you_mean(at.get_ref(), SCHEDULES.map(|entry| entry.name));
        let problem = format!("there is no schedule {:?}{hint}", at.get_ref());
        reader.unknown(at, problem, format!("write one of: {known}"))
    })?;
    SCHEDULES.into_iter().find(|entry| entry.name == found.name).map(takes).ok_or_else(|| {
        let problem = format!("{} is not of torch.distributed.pipelining, which FSDP2 runs under", found.name);
        reader.plan(at, problem, format!("write one of: {known}"))
    })
}

/// How many blocks a stage at an end has less.
fn weight(reader: &mut Reader<'_>, key: &Key, at: Option<&Spanned<i64>>) -> Result<u64, ScenarioError> {
    match at {
        None => Ok(reader.assume(key.path, 1, 1)),
        Some(at) => reader.count(key, at),
    }
}

/// Stages on each rank: as the keys have it, or the schedule's file, or torchtitan's one or two. A file's are the keys'.
fn virtual_stages(
    reader: &mut Reader<'_>,
    table: &written::Pipeline,
    model: &ModelConfig,
    (ranks, schedule, stages): (u32, &Order, Stages),
    weights: [u64; 2],
) -> Result<u32, ScenarioError> {
    let written = by_keys(reader, table, model, (ranks, schedule.name(), stages), weights)?;
    match (stages, &table.schedule, schedule) {
        (Stages::Exactly(each), Some(at), Order::File(..)) if each != written => {
            let problem = format!(
                "{} has {each} stages on each rank, and the keys of [pipeline] give it {written}",
                schedule.name()
            );
            let keys = "remove pipeline.layers, layers_per_stage and virtual_stages";
            Err(reader.plan(at, problem, format!("{keys}, or write them for {} stages", each * ranks)))
        }
        _ => Ok(written),
    }
}

/// The same, whatever a file says.
fn by_keys(
    reader: &mut Reader<'_>,
    table: &written::Pipeline,
    model: &ModelConfig,
    (ranks, schedule, takes): (u32, &str, Stages),
    [first, last]: [u64; 2],
) -> Result<u32, ScenarioError> {
    let pp = u64::from(ranks);
    let usual = match takes {
        Stages::Exactly(each) => each,
        Stages::Several => 2,
    };
    if let Some(at) = &table.layers {
        let count = at.get_ref().len() as u64;
        if count == 0 || !count.is_multiple_of(pp) {
            let problem =
                format!("pipeline.layers has {count} numbers, and {ranks} pipeline ranks have equally many stages");
            return Err(reader.plan(at, problem, format!("write a multiple of {ranks} numbers")));
        }
        return Ok((count / pp) as u32);
    }
    if let (Some(at), Some(_)) = (&table.virtual_stages, &table.layers_per_stage) {
        let problem =
            "pipeline.layers_per_stage decides how many stages a rank has, and pipeline.virtual_stages says so too";
        return Err(reader.plan(at, problem, "remove one of the two keys"));
    }
    let Some(at) = &table.layers_per_stage else {
        let (written, usual) = (table.virtual_stages.as_ref(), u64::from(usual));
        let stages = reader.count_or(&written::Pipeline::virtual_stages, written, usual)?;
        return Ok(stages as u32);
    };
    let per_stage = reader.count(&written::Pipeline::layers_per_stage, at)?;
    let all = model.layers.count() + first + last;
    let stages = all.div_ceil(per_stage);
    let problem = |why: String| {
        format!(
            "{} blocks of {}, {first} and {last} more for the ends, are {stages} stages of {per_stage}, and {why}",
            model.layers.count(),
            model.name
        )
    };
    if !stages.is_multiple_of(pp) {
        let wanted = pp * u64::from(usual);
        let remedy = format!("{}, or another mesh.pp", instead(table, model, (wanted, [first, last])));
        return Err(reader.plan(at, problem(format!("{ranks} pipeline ranks have equally many")), remedy));
    }
    let each = stages / pp;
    let wants = match takes {
        Stages::Exactly(wanted) if u64::from(wanted) != each => Some(format!("{schedule} runs {wanted} on each rank")),
        Stages::Several if each == 1 => Some(format!("{schedule} takes two or more on each rank")),
        _ => None,
    };
    if let Some(wants) = wants {
        let wanted = pp * u64::from(usual);
        let remedy = format!("{}, or another pipeline.schedule", instead(table, model, (wanted, [first, last])));
        return Err(reader.plan(at, problem(wants), remedy));
    }
    Ok(each as u32)
}

/// The first thing in a pipelined job that has no rules.
pub(super) fn check(reader: &Reader<'_>, scenario: &written::Scenario, job: &TorchPlan) -> Result<(), ScenarioError> {
    let Some(at) = &scenario.mesh.get_ref().pp else { return Ok(()) };
    if let Some(refusal) = pipeline::refuses(job) {
        let problem = format!("a pipeline of {} is not simulated yet", refusal.problem);
        let alone = match &scenario.pipeline {
            Some(_) => "write mesh.pp = 1 without [pipeline]",
            None => "write mesh.pp = 1",
        };
        let remedy = reader.remedy(&[
            (Change::remove("loss.keep_logits"), "remove loss.keep_logits"),
            (Change::set("loss.kind", "fp32"), "write loss.kind = \"fp32\""),
            (Change::set("mesh.pp", 1).and(Change::remove("pipeline")), alone),
        ]);
        return Err(reader.plan(at, problem, remedy).coded(refusal.code));
    }
    let Some(Refusal { code, problem, remedy, .. }) = pipeline::refuses_halves(job) else { return Ok(()) };
    let written = scenario.pipeline.as_ref().and_then(|table| table.get_ref().schedule.as_ref());
    let place = written.map_or_else(|| reader.place(at), |schedule| reader.place(schedule));
    let remedy = remedy.map_or_else(String::new, Cow::into_owned);
    Err(ScenarioError::Plan { code: Some(code), problem: problem.into_owned(), place, remedy })
}
