//! What a prediction rests on: evidence, measured runs of its kind, assumptions, and the scenario as it was written.

use maud::{Markup, html};

use crate::report::layout::Report;
use crate::report::page;
use crate::report::text::confidence;
use crate::scenario::{Prediction, Scenario};

/// The section, and those that follow from it.
pub(super) fn section(scenario: &Scenario, answer: &Prediction, report: &Report) -> Markup {
    let shares: Vec<String> =
        answer.shares.iter().map(|(basis, share)| format!("{:.0} % {}", 100.0 * share, basis.label())).collect();
    let (low, high) = answer.interval;
    let mut facts = vec![
        ("evidence", format!("{} of the step time", shares.join(", "))),
        ("interval", format!("{low} to {high}: the step time lies there with a probability of 80 %")),
        ("confidence", confidence(answer)),
        ("runs like it", runs_like_it(answer)),
        ("profile", format!("{} ({})", scenario.profile.name, scenario.profile.summary)),
    ];
    facts.extend(report.questions.iter().map(|question| (question.question, question.answer.clone())));
    let text = if scenario.text.is_empty() { scenario.draft.text() } else { scenario.text.clone() };
    html! {
        (page::facts(&facts))
        @if !report.not_simulated.is_empty() {
            h3 { "Not simulated" }
            ul { @for left in &report.not_simulated { li { (left) } } }
        }
        @if !report.keys_without_effect.is_empty() || !report.topology_without_effect.is_empty() {
            h3 { "Keys without effect" }
            ul {
                @for idle in &report.keys_without_effect { li { code { (idle.key) } ": " (idle.why) } }
                @for fact in &answer.unread { li { code { (fact.key) } ": " (fact.why) } }
            }
        }
        h2 id="assumptions" { "Assumptions" }
        @if report.assumptions.is_empty() { p { "The file states every key that has a default." } }
        @else {
            p { "The file leaves these keys out. The prediction takes the values shown. Write a line into the file to change it." }
            ul.code { @for line in &report.assumptions { li { code { (line) } } } }
        }
        h2 id="scenario" { "The scenario" }
        p.soft { (report.scenario) ", read by Windtunnel " (report.windtunnel) }
        pre tabindex="0" { code { (text) } }
    }
}

/// How many measured runs of the same kind there are, and how far predictions of them were off.
fn runs_like_it(answer: &Prediction) -> String {
    let alike = answer.alike;
    let kind = answer.kind.parts().join(", ");
    if alike.runs == 0 {
        return format!(
            "none measured ({kind}). The interval rests on the uncertainty of the costs and on other kinds of runs"
        );
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let direction = if alike.bias < 0.0 { "short" } else { "long" };
    format!(
        "{} measured configuration{} of {} model{} ({kind}). The median predicted step is {:.1} % too {direction}",
        alike.runs,
        plural(alike.runs),
        alike.families,
        plural(alike.families),
        100.0 * alike.bias.abs()
    )
}
