//! Ranks that differ: the steps of the clusters that were drawn, and who waits for whom.

use maud::{Markup, html};

use crate::report::layout::Ranks;
use crate::report::{page, text};
use crate::scenario::Prediction;
use crate::units::Time;

/// The section.
pub(super) fn section(answer: &Prediction, ranks: &Ranks) -> Markup {
    let time = |seconds: f64| Time::from_seconds(seconds).to_string();
    let share = 100.0 * ranks.stragglers_s / answer.step.seconds().max(f64::MIN_POSITIVE);
    let clusters = match ranks.steps_s.len() {
        1 => "One cluster was simulated.".to_owned(),
        count => format!("{count} clusters were drawn."),
    };
    let rows: Vec<Vec<String>> = ranks
        .groups
        .iter()
        .map(|group| vec![group.group.clone(), time(group.mean_s), time(group.if_alike_s)])
        .collect();
    html! {
        p {
            (clusters) " Stragglers cost " data value=(ranks.stragglers_s) { (time(ranks.stragglers_s)) }
            (format!(", {share:.1} % of the step: with all ranks alike it takes "))
            data value=(ranks.step_if_alike_s) { (time(ranks.step_if_alike_s)) } "."
        }
        @if let Some(apart) = &answer.apart {
            ul { @for slow in &apart.slow { li { (text::slow_rank(slow)) } } }
        }
        @if !rows.is_empty() {
            (page::table("waits by group", &["waits in group", "mean of all ranks", "if alike"], &rows, &[1, 2]))
        }
        @if let Some(source) = &ranks.source { p.soft { "Paces: " (source) } }
    }
}
