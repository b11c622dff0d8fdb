//! The ranks of a pipeline: what each holds, and how it spends the step.

use maud::{Markup, html};

use crate::report::layout::{Report, Stage};
use crate::report::page;
use crate::units::Bytes;

/// A table with a row for each rank; nothing where all ranks are alike.
pub(super) fn table(report: &Report) -> Option<Markup> {
    if report.stages.is_empty() {
        return None;
    }
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / report.step_time_s.max(f64::MIN_POSITIVE));
    let row = |stage: &Stage| {
        let layers: Vec<String> = stage.layers.iter().map(u64::to_string).collect();
        let split = &stage.breakdown_s;
        vec![
            stage.pipeline_rank.to_string(),
            layers.join(" + "),
            gib(stage.allocated_bytes),
            gib(stage.reserved_bytes),
            gib(stage.device_total_bytes),
            if stage.fits { "yes" } else { "no" }.to_owned(),
            share(split.compute),
            share(split.exposed_communication),
            share(split.bubble),
            share(split.host_bound + split.waiting),
        ]
    };
    let rows: Vec<Vec<String>> = report.stages.iter().map(row).collect();
    let header = [
        "rank",
        "layers",
        "allocated",
        "reserved",
        "on the device",
        "fits",
        "compute",
        "communication",
        "bubble",
        "host, events",
    ];
    let table = page::table("ranks of the pipeline", &header, &rows, &[1, 5]);
    Some(html! { p.soft { "Shares are of the step." } (table) })
}

fn gib(bytes: u64) -> String {
    crate::report::format::gib(Bytes(bytes))
}
