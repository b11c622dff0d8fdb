//! Ceilings side by side as one page: the table, and a line for each variant in every plot.

use maud::html;

use super::{Ceilings, text};
use crate::explore::ceiling::html::plots;
use crate::explore::ceiling::text::subject;
use crate::explore::plot;
use crate::scenario::Scenario;

/// The page.
pub fn page(scenario: &Scenario, answer: &Ceilings) -> String {
    let (header, rows) = text::columns(answer);
    let ceilings: Vec<_> =
        answer.rows.iter().filter_map(|row| Some((row.name.as_str(), row.ceiling.as_ref().ok()?))).collect();
    let body = html! {
        h1 { "Ceilings by " (answer.along) ": " (scenario.description) }
        p { (subject(scenario)) }
        (plot::table(&header, &rows))
        p { (text::legend(answer)) }
        ul { @for (name, remark) in text::remarks(answer) { li { (name) ": " (remark) } } }
        (plots(&ceilings))
    };
    plot::page(&scenario.description, &body)
}
