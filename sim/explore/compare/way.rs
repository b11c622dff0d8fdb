//! The way from A to B: every plan on it is one that somebody could run.

use super::difference::{Difference, applied};
use super::figures::{Change, Figures, fly};
use super::side::Keys;
use super::unit::FRAMEWORK;
use crate::scenario::reason;

/// A row that has not been flown alone yet.
pub(super) struct Stage {
    pub differences: Vec<Difference>,
    /// Why there are several, where units were joined.
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
        let (taken, to, needed) = match runs(&[0]) {
            Ok(to) => (vec![0], to, vec![]),
            Err(why) => {
                let Some(found) = together(open.len(), why, &runs) else { break };
                found
            }
        };
        let joined = because(&open, &needed);
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

/// A unit that a row cannot do without, and what is wrong without it.
type Needed = (usize, String);

/// The first unit with as few others as make a plan that runs: one, wherever it comes; else of the next ones as many as it takes,
/// without those that it can do without.
fn together(
    units: usize,
    alone: String,
    runs: &impl Fn(&[usize]) -> Result<Figures, String>,
) -> Option<(Vec<usize>, Figures, Vec<Needed>)> {
    let flown = |taken: Vec<usize>| runs(&taken).ok().map(|to| (taken, to));
    if let Some((pair, to)) = (1..units).find_map(|partner| flown(vec![0, partner])) {
        let needed = vec![(pair[1], alone)];
        return Some((pair, to, needed));
    }
    let (mut taken, mut to) = (3..=units).find_map(|count| flown((0..count).collect()))?;
    let mut needed = vec![];
    for dropped in (1..taken.len()).rev() {
        let fewer: Vec<usize> = taken.iter().copied().filter(|&one| one != dropped).collect();
        match runs(&fewer) {
            Ok(figures) => (taken, to) = (fewer, figures),
            Err(why) => needed.push((dropped, why)),
        }
    }
    Some((taken, to, needed))
}

/// Reasons that a row gives for being one, at most.
const REASONS: usize = 3;

/// Why a row is one, in words; each reason once.
fn because(open: &[Vec<Difference>], needed: &[Needed]) -> Option<String> {
    let mut reasons: Vec<&Needed> = vec![];
    for one in needed.iter().rev() {
        if reasons.len() < REASONS && reasons.iter().all(|(_, why)| *why != one.1) {
            reasons.push(one);
        }
    }
    let words = |(unit, why): &&Needed| format!("without {}: {why}", lead(&open[*unit]));
    (!reasons.is_empty()).then(|| reasons.iter().map(words).collect::<Vec<_>>().join("; "))
}

/// The key that names a unit.
fn lead(unit: &[Difference]) -> &str {
    let framework = unit.iter().find(|one| one.key == FRAMEWORK);
    framework.or(unit.first()).map_or("", |one| one.key.as_str())
}
