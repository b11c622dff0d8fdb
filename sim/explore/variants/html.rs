//! Ceilings side by side as one page: the table, and a line for each variant in every plot.

use maud::html;

use super::{Ceilings, text};
use crate::explore::ceiling::html::plots;
use crate::explore::ceiling::text::subject;
use crate::report::page;
use crate::scenario::Scenario;

/// The page.
pub fn page(scenario: &Scenario, answer: &Ceilings) -> String {
    let (header, rows) = text::columns(answer);
    let ceilings: Vec<_> =
        answer.rows.iter().filter_map(|row| Some((row.name.as_str(), row.ceiling.as_ref().ok()?))).collect();
    let body = html! {
        h1 { "Ceilings by " (answer.along) ": " (scenario.description) }
        p.soft { (subject(scenario)) }
        (page::table("ceilings of the variants", &header, &rows, &[0]))
        @for line in text::legend(answer).lines() { p { (line) } }
        @for line in text::fixed(scenario, answer) { p { (line) } }
        ul { @for (name, remark) in text::remarks(answer) { li { (name) ": " (remark) } } }
        (plots(&ceilings))
    };
    page::page(&scenario.description, &body)
}
