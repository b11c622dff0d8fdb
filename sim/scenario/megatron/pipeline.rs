//! The table `[pipeline]`: who runs which blocks, in which order.

use toml::Spanned;

use crate::model::ModelConfig;
use crate::near::did_you_mean;
use crate::runtime::megatron::{self, Engine, MegatronPlan, Mesh, Pipeline};
use crate::scenario::assumption::Written;
use crate::scenario::change::Change;
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::stages::is_file;
use crate::scenario::written;
use crate::schedule::order::deepspeed::DEEPSPEED_1F1B;
use crate::schedule::order::megatron::{MEGATRON_1F1B, MEGATRON_COMBINED, MEGATRON_INTERLEAVED};
use crate::schedule::{Batching, Entry, ScheduleError, Shape, order};

/// The pipeline of `pp` ranks.
pub(in crate::scenario) fn pipeline(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (pp, micro_batches, engine): (u32, u64, Engine),
    together: Option<&Spanned<bool>>,
) -> Result<Pipeline, ScenarioError> {
    if pp == 1 {
        if let Some(at) = &scenario.pipeline {
            let problem = "[pipeline] says how stages take turns, and mesh.pp makes none";
            return Err(reader.plan(at, problem, "write mesh.pp = 2 or more, or remove the table"));
        }
        let layers = vec![model.layers.count()];
        return Ok(Pipeline {
            schedule: if together.is_some() { &MEGATRON_COMBINED } else { &MEGATRON_1F1B },
            virtual_stages: 1,
            layers,
            overlap_p2p: false,
            scatter_gather: false,
        });
    }
    let none = written::Pipeline::default();
    let table = scenario.pipeline.as_ref().map_or(&none, Spanned::get_ref);
    for (key, at) in [
        ("layers_per_stage", &table.layers_per_stage),
        ("first_stage_less_layers", &table.first_stage_less_layers),
        ("last_stage_less_layers", &table.last_stage_less_layers),
    ] {
        if let Some(at) = at {
            let problem = format!("pipeline.{key} is how torchtitan cuts a model, under runtime = \"fsdp2\"");
            return Err(reader.plan(at, problem, "write pipeline.layers: the blocks of each stage"));
        }
    }
    let virtual_stages = reader.count_or(&written::Pipeline::virtual_stages, table.virtual_stages.as_ref(), 1)? as u32;
    let schedule = schedule(reader, table, (virtual_stages, engine), together)?;
    let stages = u64::from(pp) * u64::from(virtual_stages);
    if stages > model.layers.count() && table.layers.is_none() {
        let problem = format!("{stages} stages are more than the {} blocks of {}", model.layers.count(), model.name);
        let (axes, mesh) = (table.virtual_stages.as_ref(), scenario.mesh.get_ref().pp.as_ref());
        let place = axes.or(mesh).map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at));
        let remedy =
            "write a smaller mesh.pp or pipeline.virtual_stages, or pipeline.layers with stages of 0".to_owned();
        return Err(ScenarioError::Plan { code: None, problem, place, remedy });
    }
    let shape = Shape { ranks: pp, virtual_stages, microbatches: micro_batches as u32 };
    (schedule.check)(shape).map_err(|error| misfit(reader, scenario, &error))?;
    let layers = layers(reader, scenario, table, (model, stages))?;
    let overlap_p2p = overlap_p2p(reader, table, schedule, shape)?;
    if micro_batches < u64::from(pp) {
        let idle = f64::from(pp - 1) / (micro_batches as f64 * f64::from(virtual_stages) + f64::from(pp - 1));
        reader.note(format!(
            "{micro_batches} micro-batches are fewer than {pp} pipeline ranks, which leaves each without work for \
             {:.0} % of the step at best; batch.accumulation = {pp} or more would fill the pipeline",
            100.0 * idle
        ));
    }
    Ok(Pipeline { schedule, virtual_stages, layers, overlap_p2p, scatter_gather: false })
}

/// Who runs what when.
fn schedule(
    reader: &mut Reader<'_>,
    table: &written::Pipeline,
    (virtual_stages, engine): (u32, Engine),
    together: Option<&Spanned<bool>>,
) -> Result<&'static Entry, ScenarioError> {
    if let Some(key) = together {
        let other = |at: &&Spanned<String>| {
            order::find(at.get_ref()).map_or(true, |found| found.name != MEGATRON_COMBINED.name)
        };
        if let Some(at) = table.schedule.as_ref().filter(other) {
            let problem = "overlap_moe_expert_parallel_comm is a schedule of its own, and pipeline.schedule names one";
            return Err(reader.plan(at, problem, "remove one of the two keys"));
        }
        if virtual_stages == 1 {
            let problem = "overlap_moe_expert_parallel_comm runs stages in turns, and each rank has one";
            return Err(reader.plan(key, problem, "write pipeline.virtual_stages = 2 or more"));
        }
        return Ok(&MEGATRON_COMBINED);
    }
    let Some(at) = &table.schedule else {
        let own = match engine {
            Engine::DeepSpeed => &DEEPSPEED_1F1B,
            Engine::Core if virtual_stages > 1 => &MEGATRON_INTERLEAVED,
            Engine::Core => &MEGATRON_1F1B,
        };
        return Ok(reader.assume("pipeline.schedule", own, own.name));
    };
    let known = match engine {
        Engine::DeepSpeed => DEEPSPEED_1F1B.name.to_owned(),
        Engine::Core => {
            let written = order::MEGATRON.iter().filter(|entry| entry.name != MEGATRON_COMBINED.name);
            written.map(|entry| entry.name).collect::<Vec<_>>().join(", ")
        }
    };
    if is_file(at.get_ref()) {
        let problem = format!("pipeline.schedule = {:?} is a file, and Megatron's schedules are code", at.get_ref());
        return Err(reader.plan(
            at,
            problem,
            format!("write runtime = \"fsdp2\", which reads one, or one of: {known}"),
        ));
    }
    let found = order::find(at.get_ref()).map_err(|_| {
        let hint = did_you_mean(at.get_ref(), known.split(", "));
        let problem = format!("there is no schedule {:?}{hint}", at.get_ref());
        reader.unknown(at, problem, format!("write one of: {known}"))
    })?;
    if engine == Engine::Core && found.name == MEGATRON_COMBINED.name {
        let problem =
            format!("{:?} is what overlap_moe_expert_parallel_comm makes of a pipeline, and that is off", found.name);
        let remedy = "write megatron.overlap_moe_expert_parallel_comm = true, or remove pipeline.schedule";
        return Err(reader.plan(at, problem, remedy));
    }
    if engine == Engine::DeepSpeed && found.name != DEEPSPEED_1F1B.name {
        let problem = format!("runtime is \"deepspeed\", whose engine runs no schedule {:?}", found.name);
        return Err(reader.plan(at, problem, format!("write {:?}, or remove the key", DEEPSPEED_1F1B.name)));
    }
    if engine == Engine::Core && !found.is_of(&order::MEGATRON) {
        let (whose, runtime) = match found.name {
            "AFAB" => ("nanotron", "nanotron"),
            name if name == DEEPSPEED_1F1B.name => ("DeepSpeed", "deepspeed"),
            _ => ("torch.distributed.pipelining", "fsdp2"),
        };
        let problem = format!("{} is of {whose}, and no Megatron runs it", found.name);
        let keys =
            if runtime == "nanotron" { " and nanotron.pp_engine = \"afab\" without pipeline.schedule" } else { "" };
        let own = instead(reader, virtual_stages, found.is_of(&order::TORCH_HALVES));
        return Err(reader.plan(at, problem, format!("write {own}, or runtime = {runtime:?}{keys}")));
    }
    Ok(found)
}

/// A Megatron's schedule for so many stages on each rank.
fn nearest(virtual_stages: u32, halves: bool) -> &'static str {
    match (virtual_stages, halves) {
        (1, true) => "ZB-H1",
        (2, true) => "ZBVZeroBubble",
        (1, false) => MEGATRON_1F1B.name,
        _ => MEGATRON_INTERLEAVED.name,
    }
}

/// The change to a Megatron's schedule that is nearest, of those that the file is read with.
fn instead(reader: &Reader<'_>, virtual_stages: u32, halves: bool) -> String {
    let schedule = |halves| Change::set("pipeline.schedule", nearest(virtual_stages, halves));
    let local = schedule(true).and(Change::set("megatron.implementation", "local"));
    let changes = if halves { vec![schedule(true), local, schedule(false)] } else { vec![schedule(false)] };
    let reading = reader.reading(&changes).into_iter().next();
    // Where something else is wrong with the file, none is read yet.
    reading.unwrap_or(&schedule(false)).to_string().replace(", ", " and ")
}

/// What does not go with the job's schedule, once all is known.
pub(super) fn check(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    job: &MegatronPlan,
) -> Result<(), ScenarioError> {
    let Some(refusal) = megatron::refuses_schedule(job) else { return Ok(()) };
    let Pipeline { schedule, virtual_stages, .. } = &job.split.pipeline;
    let (name, what) = (schedule.name, &refusal.problem);
    let problem = format!("pipeline.schedule = {name:?} asks for {what}, which is not simulated");
    let whole = format!("pipeline.schedule = {:?}", nearest(*virtual_stages, false));
    // Experts are Transformer Engine's.
    let remedy = match job.split.mixture {
        Some(_) => format!("write {whole}"),
        None => format!("{}, or write {whole}", refusal.remedy.as_deref().unwrap_or_default()),
    };
    let written = scenario.pipeline.as_ref().and_then(|table| table.get_ref().schedule.as_ref());
    let place = written.map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at));
    Err(ScenarioError::Plan { code: Some(refusal.code), problem, place, remedy })
}

/// A schedule that is not made for the shape: where the file says so, and what to write.
pub(in crate::scenario) fn misfit(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    error: &ScheduleError,
) -> ScenarioError {
    let table = scenario.pipeline.as_ref().map(Spanned::get_ref);
    let name = table.and_then(|table| table.schedule.as_ref()).map(|at| reader.place(at));
    let stages = table.and_then(|table| table.virtual_stages.as_ref()).map(|at| reader.place(at));
    let micro_batches = scenario.batch.accumulation.as_ref().map(|at| reader.place(at));
    let (place, remedy) = match error {
        ScheduleError::VirtualStages { remedy, .. } => {
            let count = table.and_then(|table| table.virtual_stages.as_ref()).map_or(1, |at| *at.get_ref());
            let another = u32::try_from(count).ok();
            let another = another.map(|count| Change::set("pipeline.schedule", nearest(count, false)));
            let another = reader.reading(&another).into_iter().next();
            let another = another.map_or_else(|| "another pipeline.schedule".to_owned(), Change::to_string);
            (stages.or(name), format!("write pipeline.virtual_stages = {remedy}, or {another}"))
        }
        ScheduleError::Search { most, .. } => {
            let remedy = format!("write batch.accumulation = {most} or less, or pipeline.schedule = \"ZB-H1\"");
            (micro_batches.or(name), remedy)
        }
        ScheduleError::FewMicrobatches { least, .. } => {
            (micro_batches.or(name), format!("write batch.accumulation = {least} or more"))
        }
        ScheduleError::Rounds { found, rounds, .. } => {
            let next = found.next_multiple_of(*rounds);
            (micro_batches.or(stages), format!("write batch.accumulation = {next}, or pipeline.virtual_stages = 1"))
        }
        _ => (name, "write another pipeline.schedule".to_owned()),
    };
    let place = place.unwrap_or_else(|| reader.place(&scenario.mesh));
    ScenarioError::Plan { code: None, problem: error.to_string(), place, remedy }
}

/// Blocks of each stage.
pub(in crate::scenario) fn layers(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    table: &written::Pipeline,
    (model, stages): (&ModelConfig, u64),
) -> Result<Vec<u64>, ScenarioError> {
    let Some(at) = &table.layers else {
        let layers = evenly(model.layers.count(), stages);
        if !model.layers.count().is_multiple_of(stages) {
            let problem =
                format!("{} blocks of {} do not divide into {stages} stages", model.layers.count(), model.name);
            let remedy = format!("write pipeline.layers = {layers:?}, or another list of {stages} numbers");
            let pp = scenario.mesh.get_ref().pp.as_ref();
            let place = pp.map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at));
            return Err(ScenarioError::Plan { code: None, problem, place, remedy });
        }
        let written = Written::from(layers.as_slice());
        return Ok(reader.assume("pipeline.layers", layers, written));
    };
    let written = at.get_ref();
    let remedy = || {
        format!(
            "write {stages} numbers that sum to {}, such as {:?}",
            model.layers.count(),
            evenly(model.layers.count(), stages)
        )
    };
    if written.len() as u64 != stages {
        let problem = format!("pipeline.layers has {} numbers for {stages} stages", written.len());
        return Err(reader.plan(at, problem, remedy()));
    }
    if let Some(count) = written.iter().find(|&&count| count < 0 || count.unsigned_abs() > model.layers.count()) {
        let problem = format!("a stage of pipeline.layers has {count} blocks: expected 0 to {}", model.layers.count());
        return Err(reader.plan(at, problem, remedy()));
    }
    let layers: Vec<u64> = written.iter().map(|count| count.unsigned_abs()).collect();
    let sum: u64 = layers.iter().sum();
    if sum != model.layers.count() {
        let problem = format!("pipeline.layers sums to {sum}, and {} has {} blocks", model.name, model.layers.count());
        return Err(reader.plan(at, problem, remedy()));
    }
    let empty: Vec<String> =
        (0..).zip(&layers).filter(|&(_, &blocks)| blocks == 0).map(|(at, _): (u64, _)| at.to_string()).collect();
    if !empty.is_empty() {
        reader.note(format!(
            "pipeline.layers gives stage {} no block: but for the embedding and the head it passes on what it gets",
            empty.join(" and ")
        ));
    }
    Ok(layers)
}

/// Blocks as even as can be; what is left over goes to the middle, since the first stage has the embedding and the last the
/// head.
fn evenly(layers: u64, stages: u64) -> Vec<u64> {
    let (each, left) = (layers / stages, (layers % stages) as usize);
    let mut list = vec![each; stages as usize];
    let last = list.len() - 1;
    for stage in (1..last).chain([0, last]).take(left) {
        list[stage] += 1;
    }
    list
}

fn overlap_p2p(
    reader: &mut Reader<'_>,
    table: &written::Pipeline,
    schedule: &Entry,
    shape: Shape,
) -> Result<bool, ScenarioError> {
    let interleaved = matches!((schedule.batching)(shape), Batching::Stepwise(_));
    match &table.overlap_p2p {
        None if interleaved => Ok(reader.flag(&written::Pipeline::overlap_p2p, None)),
        None => Ok(false),
        Some(at) if schedule.is_of(&order::MEGATRON_HALVES) => {
            let problem = format!("{} waits for messages where they are used, and never on the host", schedule.name);
            Err(reader.plan(at, problem, "remove pipeline.overlap_p2p"))
        }
        Some(at) if *at.get_ref() && !interleaved => {
            let problem = format!("{} sends and receives between computations, and overlaps neither", schedule.name);
            let own = match table.schedule {
                Some(_) => format!(" and pipeline.schedule = {:?}", MEGATRON_INTERLEAVED.name),
                None => String::new(),
            };
            let remedy = format!("remove pipeline.overlap_p2p, or write pipeline.virtual_stages = 2 or more{own}");
            Err(reader.plan(at, problem, remedy))
        }
        Some(at) => Ok(*at.get_ref()),
    }
}

/// Whether each tensor-parallel rank sends a part of what all of them hold.
pub(super) fn scatter_gather(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (mesh, sequence_parallel, engine): (Mesh, bool, Engine),
    pipeline: &Pipeline,
) -> Result<bool, ScenarioError> {
    let known = [MEGATRON_1F1B.name, MEGATRON_INTERLEAVED.name].contains(&pipeline.schedule.name);
    let problem = if mesh.tp == 1 {
        Some("pipeline.scatter_gather shares messages out over tensor-parallel ranks, and mesh.tp makes none")
    } else if sequence_parallel {
        Some(
            "pipeline.scatter_gather shares out what all tensor-parallel ranks hold, and under tensor_parallel.sequence each \
             holds a part of its own",
        )
    } else if engine != Engine::Core || !known || pipeline.overlap_p2p {
        Some(
            "pipeline.scatter_gather is of Megatron-LM until March 2023, which sent and received in batches that it waited for",
        )
    } else {
        None
    };
    let written = scenario.pipeline.as_ref().and_then(|table| table.get_ref().scatter_gather.as_ref());
    let (at, problem) = match (written, problem) {
        (None, None) if mesh.pp > 1 => return Ok(reader.flag(&written::Pipeline::scatter_gather, None)),
        (None, _) => return Ok(false),
        (Some(at), None) => return Ok(*at.get_ref()),
        (Some(at), Some(_)) if !*at.get_ref() => return Ok(false),
        (Some(at), Some(problem)) => (at, problem),
    };
    let remedy = if pipeline.overlap_p2p {
        "write pipeline.overlap_p2p = false, or remove pipeline.scatter_gather"
    } else {
        "remove pipeline.scatter_gather"
    };
    Err(reader.plan(at, problem, remedy))
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn blocks_that_do_not_divide_spare_the_ends() {
        assert_eq!(evenly(126, 16), [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]);
        assert_eq!(evenly(7, 4), [2, 2, 2, 1]);
        assert_eq!(evenly(96, 8), [12; 8]);
    }
}
