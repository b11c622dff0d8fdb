//! What to do: changes that make a plan fit, changes that make it faster, and defaults that decide.

use std::fmt;

use super::super::format::{gib, table_within};
use super::super::verdict::beyond;
use super::page::Page;
use crate::scenario::advice::{Advice, Moved, Tried};
use crate::scenario::remedy::Remedy;
use crate::scenario::{Prediction, Scenario};

/// How many defaults the report lists unless all are asked for.
const LISTED: usize = 5;

/// Changes that make a plan fit that does not.
pub(super) fn fitting(page: &mut Page, answer: &Prediction) -> fmt::Result {
    let memory = &answer.memory;
    if !memory.refused() {
        return Ok(());
    }
    if !memory.remedies.is_empty() {
        page.heading("It would fit with any one of")?;
        let row = |remedy: &Remedy| vec![remedy.change.clone(), gib(remedy.device_total)];
        let rows = memory.remedies.iter().map(row).collect();
        page.lines(&table_within(&["change", "on the device"], rows, &[1], page.width()))?;
    }
    if let Some(said) = beyond(memory) {
        page.heading("What does not help enough")?;
        page.sentence(&said)?;
    }
    Ok(())
}

/// Single changes that make it faster, of a plan that fits.
pub(super) fn faster(page: &mut Page, answer: &Prediction, advice: Option<&Advice>) -> fmt::Result {
    let Some(advice) = advice.filter(|_| !answer.memory.refused()) else { return Ok(()) };
    page.heading("What would help most, each change simulated alone")?;
    if advice.faster.is_empty() {
        return page.sentence("No single change that was tried raises throughput by 0.5 % and fits.");
    }
    let before = answer.tokens as f64 / answer.step.seconds();
    let row = |tried: &Tried| {
        let after = tried.tokens as f64 / tried.step.seconds();
        vec![
            tried.change.clone(),
            format!("{:+.1} %", 100.0 * (after / before - 1.0)),
            tried.step.to_string(),
            gib(tried.device_total),
            batch(tried.tokens, answer.tokens),
        ]
    };
    let rows = advice.faster.iter().map(row).collect();
    let header = ["change", "tokens/s", "step", "on the device", "tokens a step"];
    page.lines(&table_within(&header, rows, &[1, 2, 3], page.width()))?;
    page.sentence("To combine changes, write them into the file and run again.")
}

fn batch(after: u64, before: u64) -> String {
    match after == before {
        true => "the same".to_owned(),
        false => {
            format!("× {:.2}", after as f64 / before as f64).trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// Defaults that the file does not state, and remarks.
pub(super) fn defaults(page: &mut Page, scenario: &Scenario, advice: Option<&Advice>, verbose: bool) -> fmt::Result {
    let notes = || scenario.assumptions.iter().filter(|assumption| assumption.taken().is_none());
    if notes().next().is_some() {
        page.heading("Notes")?;
        for note in notes() {
            page.item(note.to_string().trim_start_matches("note: "))?;
        }
    }
    let all = scenario.assumptions.iter().filter(|assumption| assumption.taken().is_some()).count();
    if all == 0 {
        return Ok(());
    }
    page.heading("Defaults that the file does not state, the most decisive first")?;
    let moved: &[Moved] = advice.map_or(&[], |advice| &advice.defaults);
    let listed = if verbose { moved.len() } else { LISTED.min(moved.len()) };
    if listed > 0 {
        let rows = moved[..listed].iter().map(cells).collect();
        let header = ["default", "alternative", "tokens/s with it", "memory with it"];
        page.lines(&table_within(&header, rows, &[2, 3], page.width()))?;
    }
    if verbose {
        if listed > 0 {
            page.gap()?;
        }
        let taken = scenario.assumptions.iter().filter(|assumption| assumption.taken().is_some());
        return taken.into_iter().try_for_each(|assumption| page.item(&assumption.to_string()));
    }
    let rest = all - listed;
    let keys = |count: usize| if count == 1 { "1 key".to_owned() } else { format!("{count} keys") };
    page.sentence(&match (advice, listed) {
        (None, _) => {
            format!("{} at their defaults: --verbose lists them, --changes all shows which of them matter.", keys(rest))
        }
        (Some(_), 0) => {
            format!("{} at their defaults. None moves the answer by 0.5 % alone; --verbose lists them.", keys(rest))
        }
        (Some(_), _) if moved.len() > listed => format!("{} more matter less; --verbose lists them.", keys(rest)),
        (Some(_), _) => format!("{} more move the answer by less than 0.5 % each; --verbose lists them.", keys(rest)),
    })
}

fn cells(moved: &Moved) -> Vec<String> {
    let signed = |share: f64| match share.abs() < 0.0005 {
        true => "the same".to_owned(),
        false => format!("{:+.1} %", 100.0 * share),
    };
    let other = moved.other.change.split_once(" = ").map_or(moved.other.change.as_str(), |(_, value)| value);
    let fits = if moved.other.fits { "" } else { " (does not fit)" };
    vec![moved.default.clone(), other.to_owned(), signed(moved.rate), signed(moved.memory) + fits]
}
