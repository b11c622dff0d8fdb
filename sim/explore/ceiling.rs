//! The ceiling: the longest sequence that fits in device memory, and what the way there looks like.
//!
//! Sequence lengths are tried on a grid: every multiple of the step, and last the longest length there is (the model's
//! table of positions, or what the user asks for). Lengths are doubled until one does not fit, then the gap is halved
//! until two neighbours on the grid remain, of which one fits and the next does not. Both were flown.
//!
//! A step has as many sequences at every length as at the scenario's own ([`Fixed`]).
//!
//! Memory is not strictly monotone in the sequence, for an allocator rounds and leaves gaps. The ceiling is thus *an*
//! edge: it fits, and one step more does not. The longest length that fits whatever lives outside the allocator is
//! searched for in the same way, below the ceiling.

mod answer;
mod compiled;
pub mod html;
pub mod json;
pub mod text;

use std::collections::{BTreeMap, BTreeSet};

pub use answer::{Ceiling, Checked, End, Options, STEP};
use rayon::prelude::*;

use super::fixed::Fixed;
use super::point::Point;
use super::tick::Tick;
use crate::model::Position;
use crate::runtime::Parts;
use crate::scenario::advice::SHORT;
use crate::scenario::remedy::{combined, that_fit, without_squares};
use crate::scenario::{Change, Draft, Scenario, ScenarioError, reason};

/// Beyond this no scenario may go \[tokens\].
const LONGEST: u64 = 1 << 26;

/// Finds the ceiling of a draft that is a scenario at its own length.
pub fn ceiling(draft: &Draft, options: Options, tick: &Tick<'_>) -> Result<Ceiling, ScenarioError> {
    let scenario = draft.scenario()?;
    let draft = &Fixed::of(&scenario).at_every_length(draft);
    let positions = positions(&scenario);
    let most = options.max.unwrap_or(LONGEST).min(positions.unwrap_or(LONGEST)).max(1);
    let step = options.step.clamp(1, most);
    let mut search = Search { draft, step, most, flown: BTreeMap::new(), tick };
    let edge = search.edge(|point| !point.memory.refused());
    let beyond_doubt = |point: &Point| point.memory.fits_beyond_doubt();
    let sure = if search.holds(edge, beyond_doubt) { edge } else { search.between(0, edge, beyond_doubt) };
    let end = match search.flown.get(&search.length(edge + 1)) {
        _ if edge == search.last() => match positions {
            Some(positions) if positions == most => End::Positions(positions),
            _ => End::Asked(most),
        },
        Some(Err(reason)) => End::Refused { sequence: search.length(edge + 1), reason: reason.clone() },
        _ => End::Memory,
    };
    let longest = search.point(edge);
    let beyond = if edge == search.last() { None } else { search.point(edge + 1) };
    let sure = search.point(sure);
    let flown = search.flown.len();
    let own = scenario.job.seq();
    let (ladder, refused) = match &longest {
        Some(top) => search.ladder(top.sequence, &[own, sure.as_ref().map_or(own, |sure| sure.sequence)]),
        None => (vec![], vec![]),
    };
    let longer = match end {
        End::Memory => longer((draft, &scenario), (step, most), (longest.as_ref(), beyond.as_ref()), tick),
        _ => vec![],
    };
    let compiles = matches!(scenario.job.parts(), Parts::Compiled(_));
    let (options, checked) = (Options { step, ..options }, vec![]);
    Ok(Ceiling { options, own, longest, sure, beyond, end, ladder, longer, refused, flown, most, compiles, checked })
}

/// How many changes that raise the ceiling are shown.
const SHOWN: usize = 4;

/// Changes that raise the ceiling, the highest first, alone and together, each searched for like the ceiling itself: what takes away what
/// nobody reads, and, where a step is short, what makes one step more fit.
fn longer(
    (draft, scenario): (&Draft, &Scenario),
    (step, most): (u64, u64),
    (longest, beyond): (Option<&Point>, Option<&Point>),
    tick: &Tick<'_>,
) -> Vec<(String, u64)> {
    let mut changes = without_squares(scenario);
    if let Some(next) = beyond.filter(|next| next.instructions <= SHORT) {
        let at_next = draft.changed(&Change::set("batch.sequence", next.sequence as i64));
        changes.extend(at_next.scenario().iter().flat_map(that_fit));
    }
    let raised = |change: &Change| {
        let draft = draft.changed(change);
        let mut search = Search { draft: &draft, step, most, flown: BTreeMap::new(), tick };
        let edge = search.edge(|point| !point.memory.refused());
        let length = search.length(edge);
        (edge > 0 && longest.is_none_or(|longest| length > longest.sequence)).then_some(length)
    };
    let tried = changes.into_par_iter().filter_map(|change| raised(&change).map(|length| (change, length)));
    let mut longer: Vec<(Change, u64)> = tried.collect();
    longer.sort_by_key(|&(_, length)| std::cmp::Reverse(length));
    // Of values of one key the one that raises it most.
    let key = |change: &Change| change.keys().next().map(|(key, _)| key.to_owned());
    let mut keys = BTreeSet::new();
    longer.retain(|(change, _)| keys.insert(key(change)));
    longer.truncate(SHOWN);
    longer.splice(0..0, together(scenario, &longer, raised));
    longer.into_iter().map(|(change, length)| (change.to_string(), length)).collect()
}

/// The changes as one, those first that raise the ceiling most, where that raises it further than any of them.
fn together(
    scenario: &Scenario,
    longer: &[(Change, u64)],
    raised: impl Fn(&Change) -> Option<u64>,
) -> Option<(Change, u64)> {
    let add = |all: Option<Change>, (change, _): &(Change, u64)| match all {
        None => Some(change.clone()),
        Some(all) => combined(scenario, [&all, change]).or(Some(all)),
    };
    let all = longer.iter().fold(None, add)?;
    let (_, most) = longer.first()?;
    raised(&all).filter(|length| length > most).map(|length| (all, length))
}

impl Ceiling {
    /// The length that stands in the headline: the compiler's own ceiling where one was asked and has one, else the predicted one.
    /// None where none fits, or where the compiler fits none that it was asked about.
    pub fn top(&self) -> Option<&Point> {
        match self.compiled() {
            (Some(fits), _) => self.ladder.iter().find(|point| point.sequence == fits.sequence),
            (None, Some(_)) => None,
            (None, None) => self.longest.as_ref(),
        }
    }

    /// Takes what the compiler fits onto the way there, once it has been asked.
    #[doc(hidden)]
    pub fn heard(&mut self, draft: &Draft) -> Result<(), ScenarioError> {
        let (Some(fits), _) = self.compiled() else { return Ok(()) };
        let sequence = fits.sequence;
        if self.ladder.iter().all(|point| point.sequence != sequence) {
            self.ladder.push(Point::fly(draft, sequence)?);
            self.ladder.sort_by_key(|point| point.sequence);
        }
        Ok(())
    }
}

fn positions(scenario: &Scenario) -> Option<u64> {
    match scenario.job.model().position {
        Position::Learned { positions } => Some(positions),
        _ => None,
    }
}

/// Lengths by their index on the grid, from 1; index 0 stands for nothing at all, which always fits.
struct Search<'s> {
    draft: &'s Draft,
    step: u64,
    most: u64,
    flown: BTreeMap<u64, Result<Point, String>>,
    tick: &'s Tick<'s>,
}

impl Search<'_> {
    fn last(&self) -> u64 {
        self.most.div_ceil(self.step)
    }

    fn length(&self, index: u64) -> u64 {
        (index * self.step).min(self.most)
    }

    fn point(&self, index: u64) -> Option<Point> {
        self.flown.get(&self.length(index)).and_then(|flown| flown.as_ref().ok()).cloned()
    }

    fn holds(&mut self, index: u64, holds: fn(&Point) -> bool) -> bool {
        if index == 0 {
            return true;
        }
        let length = self.length(index);
        let (draft, tick) = (self.draft, self.tick);
        let flown = self.flown.entry(length).or_insert_with(|| fly(draft, length, tick));
        flown.as_ref().is_ok_and(holds)
    }

    /// The longest index that holds below one that does not, doubling; the whole grid if all hold.
    fn edge(&mut self, holds: fn(&Point) -> bool) -> u64 {
        let (mut low, mut next) = (0, 1);
        while self.holds(next, holds) {
            low = next;
            if next == self.last() {
                return low;
            }
            next = (2 * next).min(self.last());
        }
        self.between(low, next, holds)
    }

    /// An index that holds, or `low`, whose successor does not: between one that holds and one that does not.
    fn between(&mut self, mut low: u64, mut high: u64, holds: fn(&Point) -> bool) -> u64 {
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.holds(middle, holds) { low = middle } else { high = middle }
        }
        low
    }

    /// The way to `top`, flown side by side.
    fn ladder(&self, top: u64, also: &[u64]) -> (Vec<Point>, Vec<(u64, String)>) {
        let mut lengths = rungs(top);
        lengths.extend(also.iter().filter(|&&length| length <= top));
        lengths.sort_unstable();
        lengths.dedup();
        let rung = |&length: &u64| match self.flown.get(&length) {
            Some(known) => (length, known.clone()),
            None => (length, fly(self.draft, length, self.tick)),
        };
        let flown: Vec<_> = lengths.par_iter().map(rung).collect();
        let (mut points, mut refused) = (vec![], vec![]);
        for (length, outcome) in flown {
            match outcome {
                Ok(point) => points.push(point),
                Err(reason) => refused.push((length, reason)),
            }
        }
        (points, refused)
    }
}

fn fly(draft: &Draft, length: u64, tick: &Tick<'_>) -> Result<Point, String> {
    let flown = Point::fly(draft, length).map_err(|error| reason(&error));
    tick();
    flown
}

/// Powers of two from 1,024, or from three octaves below where the ceiling is low, up to `top`, and `top`.
fn rungs(top: u64) -> Vec<u64> {
    let octave = 1 << top.max(1).ilog2();
    let first = STEP.min(octave / 8).max(1);
    let powers = std::iter::successors(Some(first), |length| Some(length * 2));
    powers.take_while(|&length| length < top).chain([top]).collect()
}
