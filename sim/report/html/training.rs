//! A whole training with its interruptions.

use maud::{Markup, html};

use crate::report::layout::Training;
use crate::report::page;
use crate::report::training::{self, COMPONENTS, INTERVALS, TIME};

/// The section, with its tables.
pub(super) fn section(of: &Training) -> Markup {
    html! {
        p.soft { (training::sample(of)) }
        dl {
            @for (label, text) in training::lines(of) { dt { (label) } dd { (text) } }
        }
        (page::table("where the time goes", &TIME, &training::time(of), &[0]))
        (page::table("interruptions by component", &COMPONENTS, &training::components(of), &[0]))
        (page::table("intervals between checkpoints", &INTERVALS, &training::intervals(of), &[0]))
        @if !of.assumptions.is_empty() {
            details {
                summary { "Taken for what [failures] and [checkpoint] leave out" }
                ul { @for line in &of.assumptions { li { (line) } } }
            }
        }
    }
}
