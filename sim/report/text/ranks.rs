//! Ranks that differ: what that does to the step, and who waits for whom.

use std::fmt;

use super::super::format::{percent, table_within};
use super::page::Page;
use crate::scenario::Prediction;
use crate::scenario::predict::{Apart, SlowRank, Waits};
use crate::units::Time;

/// Groups that are listed.
const LISTED: usize = 5;

pub(super) fn ranks(page: &mut Page, answer: &Prediction, verbose: bool) -> fmt::Result {
    let Some(apart) = &answer.apart else { return Ok(()) };
    page.heading("Ranks that differ: who waits for whom")?;
    page.line("clusters", &clusters(apart))?;
    let (costs, share) = (apart.costs(), percent(apart.costs(), answer.step));
    page.line(
        "stragglers",
        &format!("cost {costs}, {share:.1} % of the step: with all ranks alike it takes {}", apart.alike),
    )?;
    for (index, slow) in apart.slow.iter().enumerate() {
        page.line(if index == 0 { "slow ranks" } else { "" }, &rank(slow))?;
    }
    if let (Some(speed), Some(source)) = (&apart.speed, &apart.source) {
        page.line("paces", &if verbose { format!("{speed}. {source}") } else { speed.clone() })?;
    }
    let rows: Vec<Vec<String>> =
        apart.waits.iter().filter(|waits| waits.mean > Time::ZERO).take(LISTED).map(row).collect();
    if !rows.is_empty() {
        page.gap()?;
        page.lines(&table_within(&["waits in group", "mean of all ranks", "if alike"], rows, &[1, 2], page.width()))?;
    }
    Ok(())
}

fn clusters(apart: &Apart) -> String {
    match apart.steps.len() {
        1 => format!("one, with a step of {}", apart.median()),
        count => format!(
            "{count} drawn, with a step of {} in the median (5th to 95th percentile: {} to {})",
            apart.median(),
            apart.quantile(0.05),
            apart.quantile(0.95)
        ),
    }
}

/// What is known of a slow rank.
pub(crate) fn rank(slow: &SlowRank) -> String {
    let longer = |what: &str, by: f64| (by > 0.0).then(|| format!("its {what} take {:.1} % longer", 100.0 * by));
    let why: Vec<String> =
        [longer("kernels", slow.kernels), longer("links", slow.links)].into_iter().flatten().collect();
    let costs = match slow.costs {
        Time::ZERO => "others are as slow: replacing it alone gains nothing".to_owned(),
        costs => format!("replacing it alone gains {costs}"),
    };
    format!("rank {}: {}; {costs}", slow.rank, why.join(", "))
}

fn row(waits: &Waits) -> Vec<String> {
    vec![waits.group.clone(), waits.mean.to_string(), waits.alike.to_string()]
}
