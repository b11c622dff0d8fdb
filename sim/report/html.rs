//! A prediction as one page for a browser: the verdict, the timeline of a step, memory, where time went, and what it rests on.
//!
//! The page loads nothing and can be read without its script, which zooms the timeline. Its figures are those of the JSON report:
//! each has the report's value in a `data` element. The timeline comes from a recorded run ([`recorded`]).
//!
//! To add a section: a file in `html/` that returns markup, and its line in [`page`].

mod evidence;
mod fabric;
mod marks;
mod memory;
mod parts;
mod pipeline;
mod ranks;
mod recorded;
mod scale;
#[cfg(test)]
mod tests;
mod time;
mod timeline;
mod training;
mod verdict;

use maud::html;

use super::layout::Training;
use super::page::scripted;
use crate::scenario::advice::Unstated;
use crate::scenario::{Prediction, Scenario};

const STYLE: &str = include_str!("html/timeline.css");
const SCRIPT: &str = include_str!("html/timeline.js");

/// The page.
pub fn page(scenario: &Scenario, answer: &Prediction) -> String {
    page_with(scenario, answer, None, None)
}

/// The page, with what decides and is not stated if it was simulated, and the training that the step is part of if it was asked for.
pub fn page_with(
    scenario: &Scenario,
    answer: &Prediction,
    unstated: Option<&Unstated>,
    of: Option<&Training>,
) -> String {
    let report = answer.report(scenario).unstated(unstated).training(of);
    let recorded = recorded::Recorded::of(scenario, answer);
    let body = html! {
        h1 { (scenario.description) }
        p.soft { (verdict::subject(scenario)) }
        (verdict::sentence(answer))
        (verdict::tiles(scenario, answer, &report))
        @if let Some(of) = unstated {
            p { strong { "Unstated: " } (super::verdict::unstated(of, answer)) "." }
        }
        (verdict::remedies(answer))
        @if let Some(of) = of {
            h2 id="training" { "The whole training, interrupted" }
            (training::section(of))
        }
        h2 id="timeline" { "Timeline of a step" }
        @match &recorded {
            Ok(recorded) => (timeline::section(recorded)),
            Err(why) => p { "The timeline is left out. " (why) },
        }
        h2 id="memory" { "Memory over the step" }
        (memory::section(answer, recorded.as_ref().ok()))
        h2 id="time" { "Where time went" }
        (time::section(answer, &report))
        @let shares = answer.by_part_if_mixed(scenario);
        @if !shares.is_empty() {
            h2 id="parts" { "By part of the model" }
            (parts::section(&shares, answer.classes.len() > 1))
        }
        @if let Some(stages) = pipeline::table(&report) {
            h2 id="pipeline" { "Ranks of the pipeline" }
            (stages)
        }
        @if let Some(ranks) = &report.ranks {
            h2 id="ranks" { "Ranks that differ: who waits for whom" }
            (ranks::section(answer, ranks))
        }
        @if let Some(fabric) = fabric::section(&scenario.topology) {
            (fabric)
        }
        h2 id="evidence" { "What the prediction rests on" }
        (evidence::section(scenario, answer, &report))
    };
    scripted(&scenario.description, &body, (STYLE, SCRIPT))
}
