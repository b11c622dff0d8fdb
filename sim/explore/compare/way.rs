//! The way from A to B: every plan on it is one that somebody could run.

use super::difference::{Difference, applied};
use super::figures::{Change, Figures, fly};
use super::side::Keys;
use crate::scenario::reason;

/// A row that has not been flown alone yet.
pub(super) struct Stage {
    pub differences: Vec<Difference>,
    pub joined: Option<String>,
    pub change: Change,
}

/// Rows from A to B, of units that are applied in this order. It always arrives, for all units together make B.
pub(super) fn stages(start: &Keys, mut open: Vec<Vec<Difference>>, total: Change) -> Vec<Stage> {
    let (mut keys, mut stages, mut now) = (start.clone(), vec![], total.from);
    let both_fit = !total.from.refused && !total.to.refused;
    while !open.is_empty() {
        let runs = |taken: &[usize]| {
            let all: Vec<_> = taken.iter().flat_map(|&at| &open[at]).cloned().collect();
            let figures = fly(&applied(&keys, &all)).map_err(|error| reason(&error))?;
            match figures.refused && both_fit {
                true => Err("the plan does not fit in memory".to_owned()),
                false => Ok(figures),
            }
        };
        let (taken, to, joined) = match runs(&[0]) {
            Ok(to) => (vec![0], to, None),
            Err(why) => {
                let Some((taken, to)) = together(open.len(), &runs) else { break };
                (taken, to, Some(why))
            }
        };
        let differences: Vec<Difference> = taken.iter().flat_map(|&at| &open[at]).cloned().collect();
        let mut at = 0;
        open.retain(|_| {
            at += 1;
            !taken.contains(&(at - 1))
        });
        keys = applied(&keys, &differences);
        stages.push(Stage { differences, joined, change: Change { from: now, to } });
        now = to;
    }
    stages
}

/// The first unit with as few others as make a plan that runs: one, wherever it comes; else of the next ones as many as it takes,
/// without those that it can do without.
fn together(units: usize, runs: &impl Fn(&[usize]) -> Result<Figures, String>) -> Option<(Vec<usize>, Figures)> {
    let flown = |taken: Vec<usize>| runs(&taken).ok().map(|to| (taken, to));
    if let Some(pair) = (1..units).find_map(|partner| flown(vec![0, partner])) {
        return Some(pair);
    }
    let mut found = (3..=units).find_map(|count| flown((0..count).collect()))?;
    for dropped in (1..found.0.len()).rev() {
        let fewer: Vec<usize> = found.0.iter().copied().filter(|&one| one != dropped).collect();
        found = flown(fewer).unwrap_or(found);
    }
    Some(found)
}
