//! The stages of a pipeline: what each rank of it holds, and how it spends the step.

use super::format::{gib, percent, table_within};
use super::layout::{Breakdown, Stage};
use crate::engine;
use crate::runtime::Parts;
use crate::scenario::predict::Class;
use crate::scenario::{Prediction, Scenario};

/// Share of a pipeline that is a bubble: of ranks' time, in which they have no work; or of a compiled loop's iterations, which
/// compute what nobody reads.
pub fn bubble(scenario: &Scenario, answer: &Prediction) -> f64 {
    match scenario.job.parts() {
        Parts::Compiled(job) => job.pipeline.map_or(0.0, |all| all.bubble()),
        _ => answer.bubble(),
    }
}

/// A table with a row for each rank of a pipeline; nothing where all ranks are alike.
pub(super) fn text(scenario: &Scenario, answer: &Prediction, width: usize) -> Option<String> {
    if answer.classes.len() < 2 {
        return None;
    }
    let row = |(stage, class): (u32, &Class)| {
        let layers: Vec<String> = scenario.job.layers_of(stage).iter().map(u64::to_string).collect();
        let report = &class.memory.report;
        vec![
            stage.to_string(),
            layers.join("+"),
            gib(report.peak_allocated),
            gib(report.peak_reserved),
            gib(class.memory.device_total()),
            format!("{:.1} %", percent(class.breakdown.compute, answer.step)),
            format!("{:.1} %", percent(class.breakdown.exposed_communication, answer.step)),
            format!("{:.1} %", percent(class.breakdown.bubble, answer.step)),
            format!("{:.1} %", percent(class.breakdown.host_bound + class.breakdown.waiting, answer.step)),
        ]
    };
    let rows = (0..).zip(&answer.classes).map(row).collect();
    let memory = ["rank", "layers", "allocated", "reserved", "total"];
    let header = [&memory[..], &["compute", "comm.", "bubble", "waiting"]].concat();
    Some(table_within(&header, rows, &[1, 2, 3, 4, 5, 6, 7, 8], width))
}

/// The same for a program; an empty list where all ranks are alike.
pub(super) fn stages(scenario: &Scenario, answer: &Prediction) -> Vec<Stage> {
    let stage = |(stage, class): (u32, &Class)| {
        let memory = &class.memory;
        Stage {
            allocated_bytes: memory.report.peak_allocated.0,
            breakdown_s: breakdown(&class.breakdown),
            device_total_bytes: memory.device_total().0,
            fits: memory.fits(),
            layers: scenario.job.layers_of(stage),
            pipeline_rank: stage,
            ranks: class.ranks,
            reserved_bytes: memory.report.peak_reserved.0,
        }
    };
    let alike = answer.classes.len() < 2;
    if alike { vec![] } else { (0..).zip(&answer.classes).map(stage).collect() }
}

/// Where a step's time went, for a program.
pub(super) fn breakdown(split: &engine::Breakdown) -> Breakdown {
    Breakdown {
        bubble: split.bubble.seconds(),
        compute: split.compute.seconds(),
        exposed_communication: split.exposed_communication.seconds(),
        host_bound: split.host_bound.seconds(),
        waiting: split.waiting.seconds(),
    }
}
