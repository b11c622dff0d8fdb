//! A comparison as one page: both sides, then what each difference does.

use maud::{Markup, html};

use super::words::Fold;
use super::{Comparison, text};
use crate::report::page;

/// A browser wraps by itself.
const NO_LIMIT: usize = 1 << 20;

/// Differences that were applied together, one below the other; without the group of each.
fn listed((header, rows): text::Rows) -> (Vec<String>, Vec<Vec<Markup>>) {
    let cell = |cell: String| html! { @for (at, line) in cell.lines().enumerate() { @if at > 0 { br; } (line) } };
    (header[1..].to_vec(), rows.into_iter().map(|row| row.into_iter().skip(1).map(cell).collect()).collect())
}

/// The page.
pub fn page(answer: &Comparison) -> String {
    let [a, b] = &answer.sides;
    let title = format!("{} → {}", a.1, b.1);
    let sides = text::sides(answer);
    let body = html! {
        h1 { "What changes from A to B" }
        (page::facts(&[("A", format!("{} ({})", a.1, a.0)), ("B", format!("{} ({})", b.1, b.0))]))
        @if let Some(warning) = text::batches(answer) { p { strong { (warning) } } }
        (page::table("both sides", &sides.0, &sides.1, &[0]))
        @if answer.rows.is_empty() {
            p { "No key differs: the two are the same run." }
        } @else {
            h2 { "Applied to A one after the other" }
            @let (header, rows) = listed(text::attribution(answer, NO_LIMIT, Fold::Nothing));
            (page::table("changes applied one after the other", &header, &rows, &[0]))
        }
        @if answer.rows.len() > 1 {
            h2 { "Each change alone, applied to A" }
            p.soft { "The order of the rows above matters." }
            @let (header, rows) = listed(text::alone(answer, NO_LIMIT, Fold::Nothing));
            (page::table("each change alone", &header, &rows, &[0]))
        }
        @for remark in text::remarks(answer, Fold::Long) { p.soft { (remark) } }
        @if !answer.follows.is_empty() {
            h2 { "Defaults that change as a result" }
            ul { @for difference in &answer.follows { li { (Fold::Nothing.words(difference)) } } }
        }
    };
    page::page(&title, &body)
}
