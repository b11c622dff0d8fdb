//! The answer at the top of the page: whether the plan fits, how long a step takes, what bounds it, and the key figures.

use maud::{Markup, html};

use crate::report::format::gib;
use crate::report::layout::Report;
use crate::report::page::{self, Tile, figure};
use crate::report::verdict::{Mood, Verdict, beyond, verdict};
use crate::scenario::predict::Host;
use crate::scenario::{Prediction, Scenario};
use crate::units::thousands;

/// What is predicted, in a line.
pub(super) fn subject(scenario: &Scenario) -> String {
    let (job, topology) = (&scenario.job, &scenario.topology);
    let batches = job.micro_batches();
    format!(
        "{} · {} · {} × {} · sequences of {} tokens · {batches} micro-batch{} of {}",
        scenario.runtime.lane(),
        job.model(),
        thousands(topology.chips().into()),
        topology.chip.name,
        thousands(job.seq()),
        if batches == 1 { "" } else { "es" },
        job.batch(),
    )
}

/// The verdict in a sentence or two.
pub(super) fn sentence(answer: &Prediction) -> Markup {
    let Verdict { mood, first, rest } = verdict(answer);
    let class = match mood {
        Mood::Good => "yes",
        Mood::Doubtful => "perhaps",
        Mood::Bad => "no",
    };
    html! { p class={ "verdict " (class) } { strong { (first) } " " (rest) } }
}

fn has(host: Host) -> String {
    host.capacity.map_or_else(|| "an unstated amount".to_owned(), gib)
}

/// Key figures.
pub(super) fn tiles(scenario: &Scenario, answer: &Prediction, report: &Report) -> Markup {
    let memory = &answer.memory;
    let (low, high) = answer.interval;
    let rate = report.tokens_per_second_per_chip;
    let chips = scenario.topology.chips();
    let tile = |name, figure, remark| Tile { name, figure, remark };
    let mut tiles = vec![
        tile(
            "Step time",
            figure("step_time_s", report.step_time_s, &answer.step.to_string()),
            format!("{low} to {high} (80 % interval); confidence {}", answer.confidence()),
        ),
        tile(
            "Memory on the device",
            figure("memory.device_total_bytes", report.memory.device_total_bytes, &gib(memory.device_total())),
            format!("of {}; {} allocated", gib(memory.capacity), gib(memory.report.peak_allocated)),
        ),
        tile(
            "Tokens per second and chip",
            figure("tokens_per_second_per_chip", rate, &thousands(rate.round() as u64)),
            format!("{} on all chips", thousands((rate * f64::from(chips)).round() as u64)),
        ),
        tile(
            "Tokens a step",
            figure("tokens_per_step", report.tokens_per_step, &thousands(report.tokens_per_step)),
            format!("{} sequences", thousands(report.sequences_per_step)),
        ),
    ];
    if let Some(mfu) = report.mfu.first() {
        let figure = figure("mfu.utilisation", mfu.utilisation, &format!("{:.1} %", 100.0 * mfu.utilisation));
        let because = mfu.because.as_ref().map_or_else(String::new, |because| format!("; {because}"));
        tiles.push(tile("Model FLOPs utilisation", figure, format!("{}{because}", mfu.formula)));
    }
    if answer.classes.len() > 1 || report.bubble > 0.0 {
        let figure = figure("bubble", report.bubble, &format!("{:.1} %", 100.0 * report.bubble));
        tiles.push(tile("Pipeline bubble", figure, "share of rank time without work".to_owned()));
    }
    if let Some(host) = memory.host {
        let wanted = report.memory.host_bytes_per_node.unwrap_or(host.wanted().0);
        let figure = figure("memory.host_bytes_per_node", wanted, &gib(host.wanted()));
        tiles.push(tile("Host memory of a node", figure, format!("of {}", has(host))));
    }
    page::tiles(&tiles)
}

/// Changes that would make a plan fit that does not.
pub(super) fn remedies(answer: &Prediction) -> Markup {
    let memory = &answer.memory;
    let row = |remedy: &crate::scenario::remedy::Remedy| {
        vec![html! { code { (remedy.change) } }, html! { (gib(remedy.device_total)) }]
    };
    let rows: Vec<Vec<Markup>> = memory.remedies.iter().map(row).collect();
    html! {
        @if memory.refused() {
            h2 { "What would make it fit" }
            @if !rows.is_empty() {
                p { "With any one of these lines it fits." }
                (page::table("changes that make it fit", &["change", "on the device"], &rows, &[0]))
            }
            @if let Some(said) = beyond(memory) { p { (said) } }
        }
    }
}
