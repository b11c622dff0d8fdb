//! Changes that make a plan fit only together.
//!
//! What fits with fewer changes nearly always fits with more of them. So all are tried at once, and where they fit a few pairs: those that would fit if
//! changes saved together what each saves alone. Where those do not, all but one are tried, each left out in its turn: the others do not
//! fit without a change that is needed, and pairs that lack such a one are not tried.

use rayon::prelude::*;

use super::tried::{Tried, combined, read};
use crate::scenario::Scenario;

/// Pairs that are tried, and shown, at a time.
const AT_ONCE: usize = 4;

/// Pairs that fit; failing those, the fewest changes that do, or all of them, which do not.
pub(super) fn together(scenario: &Scenario, lacks: i128, singles: &[Tried]) -> Vec<Tried> {
    let helps = |one: &&Tried| one.need.lacks < lacks;
    let strongest = strongest(scenario, singles.iter().filter(helps));
    let of = |changes: &[&Tried]| Tried::of(scenario, combined(scenario, changes.iter().map(|tried| &tried.change))?);
    let all = of(&strongest);
    if let Some(all) = all.iter().find(|all| all.need.total.is_none()) {
        return vec![all.clone()];
    }
    let fitting = |pairs: &[[&Tried; 2]]| {
        let fit = |pair: &[&Tried; 2]| of(pair).filter(|tried| tried.need.total.is_some());
        Some(pairs.par_iter().filter_map(fit).collect::<Vec<Tried>>()).filter(|some| !some.is_empty())
    };
    let pairs = pairs(scenario, lacks, singles);
    let (likely, others) = pairs.split_at(AT_ONCE.min(pairs.len()));
    if let Some(some) = fitting(likely) {
        return some;
    }
    let without = |at: usize| [&strongest[..at], &strongest[at + 1..]].concat();
    let is_needed = |at: &usize| of(&without(*at)).is_some_and(|others| others.need.total.is_none());
    let needed: Vec<usize> = (0..strongest.len()).into_par_iter().filter(is_needed).collect();
    // A change is as good as the needed one that it cannot stand beside.
    let stands_for = |one: &Tried, needed: &Tried| {
        one.change == needed.change || combined(scenario, [&one.change, &needed.change]).is_none()
    };
    let has = |pair: &[&Tried; 2], needed: &Tried| pair.iter().any(|one| stands_for(one, needed));
    let may = |pair: &&[&Tried; 2]| needed.iter().all(|&at| has(pair, strongest[at]));
    let others: Vec<[&Tried; 2]> = others.iter().filter(may).copied().collect();
    let found = others.chunks(AT_ONCE).find_map(fitting);
    found.unwrap_or_else(|| all.map(|all| fewest(&of, strongest, all)).into_iter().collect())
}

/// All changes that can stand together: of those that cannot, the one that saves most.
fn strongest<'t>(scenario: &Scenario, singles: impl Iterator<Item = &'t Tried>) -> Vec<&'t Tried> {
    let mut by_need: Vec<(usize, &Tried)> = singles.enumerate().collect();
    by_need.sort_by_key(|(_, tried)| tried.need.lacks);
    let mut kept: Vec<(usize, &Tried)> = vec![];
    for (at, tried) in by_need {
        let with = kept.iter().map(|(_, known)| &known.change).chain([&tried.change]);
        if combined(scenario, with).is_some_and(|all| read(scenario, &all).is_some()) {
            kept.push((at, tried));
        }
    }
    // As a user would try them.
    kept.sort_by_key(|(at, _)| *at);
    kept.into_iter().map(|(_, tried)| tried).collect()
}

/// Pairs that can stand together, those first that should fit, as a user would try them, then those that should come nearest.
fn pairs<'t>(scenario: &Scenario, lacks: i128, singles: &'t [Tried]) -> Vec<[&'t Tried; 2]> {
    let all = singles.iter().enumerate();
    let pairs = all.flat_map(|(at, one)| singles[at + 1..].iter().map(move |other| [one, other]));
    let stand = |pair: &[&Tried; 2]| combined(scenario, pair.iter().map(|one| &one.change)).is_some();
    let mut pairs: Vec<[&Tried; 2]> = pairs.filter(stand).collect();
    pairs.sort_by_key(|[one, other]| (one.need.lacks + other.need.lacks - lacks).max(0));
    pairs
}

/// Changes without which the others do not fit: each is left out in its turn, the last first, and stays out where the rest fits.
fn fewest(of: &dyn Fn(&[&Tried]) -> Option<Tried>, mut kept: Vec<&Tried>, all: Tried) -> Tried {
    let mut fewest = all;
    for at in (0..kept.len()).rev() {
        let others = [&kept[..at], &kept[at + 1..]].concat();
        if let Some(fits) = of(&others).filter(|tried| tried.need.total.is_some()) {
            (kept, fewest) = (others, fits);
        }
    }
    fewest
}
