//! How sure the answer is: measured runs like this one, and what the costs rest on.

use std::fmt;

use super::super::questions::questions;
use super::page::Page;
use crate::cost::Basis;
use crate::scenario::predict::{Alike, Reason, half_width};
use crate::scenario::{Prediction, Scenario};

/// Runs from which it makes sense to say how far nine in ten are off.
const MANY: usize = 10;

/// Reasons for an interval's width that are told, and the least share of one.
const REASONS: usize = 3;
const LEAST: f64 = 0.1;

pub(super) fn sure(page: &mut Page, scenario: &Scenario, answer: &Prediction, verbose: bool) -> fmt::Result {
    page.heading("How sure")?;
    page.line("confidence", &confidence(answer))?;
    page.line("measured runs", &measured(answer))?;
    let shares = answer.shares.iter().filter(|(_, share)| *share >= 0.005);
    let shares: Vec<String> =
        shares.map(|(basis, share)| format!("{:.0} % {}", 100.0 * share, basis.label())).collect();
    page.line("costs", &format!("{} of the step", shares.join(", ")))?;
    if answer.shares.iter().any(|(basis, share)| *basis == Basis::Extrapolated && *share >= 0.05) {
        page.line("", "extrapolated: from another shape, chip or clock, by a stated relation")?;
    }
    let profile = format!("{} ({})", scenario.profile.name, scenario.profile.summary);
    page.line("profile", &profile)?;
    for (question, reply) in questions(scenario, answer) {
        // A path that is not the intended one is said to everybody.
        if verbose || question == "path" && !reply.starts_with("as intended") {
            page.line(question, &reply)?;
        }
    }
    Ok(())
}

/// How much the step time is worth, and what makes it uncertain.
pub(in crate::report) fn confidence(answer: &Prediction) -> String {
    let half = 100.0 * half_width(answer.step, answer.interval);
    let list = answer.reasons.list();
    let reasons = list.iter().take(REASONS).filter(|reason| reason.share >= LEAST);
    let reasons: Vec<String> =
        reasons.map(|Reason { what, share }| format!("{what} ({:.0} %)", 100.0 * share)).collect();
    format!("{}, ± {half:.0} %; uncertain by {}", answer.confidence(), reasons.join(", "))
}

/// How many measured runs of the same kind there are, and how far predictions of them were off.
fn measured(answer: &Prediction) -> String {
    let Alike { runs, families, bias, half, nine_in_ten } = answer.alike;
    let kind = answer.kind.words();
    let percent = |share: f64| format!("{:.1} %", 100.0 * share.abs());
    let direction = if bias < 0.0 { "short" } else { "long" };
    let models = if families == 1 { "all of one model".to_owned() } else { format!("of {families} models") };
    let median = format!("{} too {direction}", percent(bias));
    match runs {
        0 => format!(
            "none matches this setup ({kind}). The interval rests on the errors of kernel costs and on other runs"
        ),
        1 => format!(
            "one matches this setup ({kind}). The step predicted for it is {median}; the step above is not corrected for that"
        ),
        _ if runs < MANY => format!(
            "{runs}, {models}, match this setup ({kind}). Steps predicted for them are {median} in the median; the step above is not \
             corrected for that"
        ),
        _ => format!(
            "{runs}, {models}, match this setup ({kind}). Half of the steps predicted for them are within {}, nine in ten within {}; \
             in the median they are {median}, and the step above is not corrected for that",
            percent(half),
            percent(nine_in_ten)
        ),
    }
}
