//! A schedule as text: a row for each rank, a column for each unit of time.
//!
//! ```text
//! 0 │ 0F0 0F1   ·   · 0B0 ═══ …
//! ```

use std::fmt::Write;

use super::{Schedule, Timeline};
use crate::units::Time;

/// Draws what happens when. A column is as long as the longest unit that measures every start and end; `None` if that
/// takes more columns than `most`.
pub fn draw(schedule: &Schedule, timeline: &Timeline, most: usize) -> Option<String> {
    let unit = timeline.start.iter().chain(&timeline.end).fold(0, |unit, time| common(unit, time.0)).max(1);
    let columns = usize::try_from(timeline.makespan().0 / unit).ok().filter(|&columns| columns <= most)?;
    let width = schedule.lists.all().iter().map(|action| action.to_string().len()).max().unwrap_or(1);
    let label = schedule.ranks().saturating_sub(1).to_string().len();
    let mut out = String::new();
    for rank in 0..schedule.ranks() {
        let mut row = vec![String::new(); columns];
        for at in schedule.lists.range(rank) {
            let column = |time: Time| usize::try_from(time.0 / unit).unwrap_or(columns);
            let (from, to) = (column(timeline.start[at]), column(timeline.end[at]));
            for (place, cell) in row[from..to].iter_mut().enumerate() {
                *cell = if place == 0 { schedule.lists.all()[at].to_string() } else { "═".repeat(width) };
            }
        }
        let _ = write!(out, "{rank:label$} │");
        for cell in &row {
            let _ = write!(out, " {:>width$}", if cell.is_empty() { "·" } else { cell.as_str() });
        }
        out.push('\n');
    }
    Some(out)
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}
