//! `pipeline.schedule = "plan.csv"`: a schedule from a file (torchtitan's `pipeline_parallel_schedule_csv`).
//!
//! torchtitan reads it once stages are made, so a rank has those that a schedule of its table would give it: round and
//! round, or of two a rank there and back (`_get_pp_rank_to_stage_indices_mapping` at b5bcd76c); and PyTorch holds its
//! ranks and micro-batches against the job's (`_validate_schedule`, 2.15).

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;

use crate::runtime::train::pipeline::Order;
use crate::scenario::error::ScenarioError;
use crate::scenario::paths::relative;
use crate::scenario::reader::Reader;
use crate::schedule::{Placement, Schedule, Shape, csv};

/// Whether a schedule is one in PyTorch's CSV.
pub(in crate::scenario) fn is_file(schedule: &str) -> bool {
    schedule.to_lowercase().ends_with(".csv")
}

/// The file's schedule, if so many ranks and micro-batches can run it, and how many stages it has on each.
pub(super) fn read(
    reader: &Reader<'_>,
    at: &Spanned<String>,
    (ranks, microbatches): (u32, u32),
) -> Result<(Order, u32), ScenarioError> {
    let path = relative(reader.file, at.get_ref());
    let show = "`windtunnel show schedule";
    let schedule = csv::load(Path::new(&path)).map_err(|error| {
        let (stages, example) = (format!("--stages {ranks} --microbatches {microbatches}"), "LoopedBFS --virtual 2");
        let there = Path::new(&path).is_file();
        let what = if there { "mend the file" } else { "name a file beside the scenario" };
        let remedy = format!("{what}; {show} {example} {stages} --csv` prints one that can be read");
        reader.plan(at, error.to_string(), remedy)
    })?;
    let found = [schedule.ranks(), schedule.microbatches];
    for (what, key, found, wanted) in [
        ("ranks, a line for each", "mesh.pp", found[0], ranks),
        ("micro-batches", "batch.accumulation", found[1], microbatches),
    ] {
        if found != wanted as usize {
            let problem = format!("{path} has {found} {what}, and {key} = {wanted}");
            return Err(reader.plan(at, problem, format!("write {key} = {found}, or another file")));
        }
    }
    let stages = schedule.stages as u32;
    if !stages.is_multiple_of(ranks) {
        let problem = format!("{path} has {stages} stages, and torchtitan gives each of {ranks} ranks equally many");
        return Err(reader.plan(at, problem, format!("write a file of a multiple of {ranks} stages")));
    }
    let shape = Shape { ranks, virtual_stages: stages / ranks, microbatches };
    let placement = placement(&schedule, shape).map_err(|stage| {
        let (line, rank) = (schedule.rank_of[stage] + 1, stage as u32 % ranks);
        let problem = format!("{path}:{line}: stage {stage} is another rank's: torchtitan makes it on rank {rank}");
        let remedy =
            "let stages go round and round, each on the line after the one before, or two a rank there and back";
        reader.plan(at, problem, remedy)
    })?;
    Ok((Order::File(Arc::new(schedule), placement), shape.virtual_stages))
}

/// How stages lie on ranks, or the first that lies as none of torchtitan's would.
fn placement(schedule: &Schedule, shape: Shape) -> Result<Placement, usize> {
    let odd = |placement: Placement| {
        let rank = |stage: u32| {
            (0..shape.ranks).find(|&rank| shape.stage(placement, rank, stage / shape.ranks) == stage as u16)
        };
        (0..shape.stages()).find(|&stage| rank(stage) != Some(schedule.rank_of[stage as usize]))
    };
    match odd(Placement::Loop) {
        None => Ok(Placement::Loop),
        Some(_) if shape.virtual_stages == 2 && odd(Placement::V).is_none() => Ok(Placement::V),
        Some(stage) => Err(stage as usize),
    }
}
