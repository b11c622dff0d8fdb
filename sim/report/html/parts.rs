//! How the step divides by part of the model: a bar of the time that kernels run, and the table of the text report.

use maud::{Markup, html};

use crate::report::{page, text};
use crate::scenario::predict::PartShare;
use crate::units::Time;

/// The section.
pub(super) fn section(parts: &[PartShare], staged: bool) -> Markup {
    let all: Time = parts.iter().map(|part| part.busy).sum();
    let share = |part: &PartShare| 100.0 * part.busy.0 as f64 / (all.0 as f64).max(1.0);
    let words: Vec<String> = parts.iter().map(|part| format!("{} {:.1} %", part.owner.label(), share(part))).collect();
    // Colours are those of nine kinds of work: a part keeps its own whatever the model.
    let kind = |part: &PartShare| part.owner as usize % 9;
    html! {
        div.bar role="img" aria-label=(words.join(", ")) {
            @for part in parts.iter().filter(|part| part.busy > Time::ZERO) {
                i class=(format!("k{}", kind(part))) style=(format!("width:{:.3}%", share(part))) title=(format!("{}: {}, {:.1} %", part.owner.label(), part.busy, share(part))) {}
            }
        }
        (page::table("parts of the model", &text::PARTS, &text::part_rows(parts), &[0]))
        p.soft { (text::part_sums(parts, staged)) }
    }
}
