//! The search: legality first, then bounds, then simulations, the best bound first.
//!
//! Every plan of the space is read as a scenario would be, and refused or not by the scenario's own checks. What is legal gets lower
//! bounds of memory and of time. A plan whose memory bound exceeds the device is out. The others are simulated in the order of their
//! bounds of time. As soon as the next bound is above the last plan that is asked for, no plan behind it can be among those: every one is
//! at least as slow as its bound, and bounds only rise from there.
//!
//! Which plans are simulated at once, and where, changes nothing: an answer counts and keeps those alone whose bound is no higher than
//! the last plan that is ranked, and these are the same in every order.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::candidate::Candidate;
use super::figures::Figures;
use super::planned::Planned;
use super::request::Request;
use super::site::Site;
use super::space;
use crate::scenario::predict::{Floor, Floors, Settings, predict, predict_if_it_fits};
use crate::scenario::{Scenario, ScenarioError, reason};
use crate::units::{Bytes, Time};

/// Plans that are simulated before the next bound is looked at.
const AT_ONCE: usize = 8;

/// The share of a device that a memory bound may take for a plan to be simulated whole at once. Of one that takes more, which is likely
/// not to fit, memory is asked first.
const LIKELY: f64 = 0.9;

/// What became of the plans of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Plans of the space.
    pub tried: usize,
    /// Those that the scenario's checks refuse.
    pub refused: usize,
    /// Those that are legal.
    pub legal: usize,
    /// Of these, those that their memory bound rules out.
    pub too_large: usize,
    /// Those that had to be simulated.
    pub simulated: usize,
    /// Of these, those that do not fit.
    pub do_not_fit: usize,
    /// Those that are legal and need no simulation: their bound of time is above the last plan that is ranked.
    pub too_slow: usize,
}

/// What was found for a machine.
#[derive(Clone, Debug)]
pub struct Found {
    /// The plans that fit, of those that had to be simulated; the fastest first.
    pub plans: Vec<Planned>,
    /// How many were looked at.
    pub counts: Counts,
    /// Why plans were refused, each with how many; the most frequent first.
    pub refused: Vec<(String, usize)>,
    /// The least memory that a legal plan needs by its bound \[B\].
    pub least: Option<Bytes>,
}

/// How far a search has come.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// So many plans of a machine are looked at.
    Plans(usize),
    /// One was looked at.
    Looked,
    /// One was simulated.
    Simulated,
}

/// What hears of a search's progress, from any thread.
pub type Told<'t> = dyn Fn(Progress) + Sync + 't;

/// What a simulation says: the figures of a plan that fits, none of one that does not, or why it cannot be simulated.
pub type Simulated = Result<Option<Figures>, String>;

/// A legal plan with its bounds.
struct Legal {
    candidate: Candidate,
    floor: Floor,
}

/// A search for the plans of one machine, step by step: which plan to simulate next, what that said, and in the end the answer.
pub struct Search {
    top: usize,
    exhaustive: bool,
    counts: Counts,
    refused: Refused,
    least: Option<Bytes>,
    /// Plans that may fit, the lowest bound of time first.
    legal: Vec<Legal>,
    /// How many of them were handed out.
    handed: usize,
    /// By the place of the candidate.
    heard: BTreeMap<usize, Simulated>,
    /// The steps of plans that fit, the fastest first, as many as are ranked.
    steps: Vec<Time>,
}

impl Search {
    /// Looks at all plans of a machine; if `exhaustive`, all legal ones are to be simulated.
    pub fn new(request: &Request, site: &Site, floors: &Floors, exhaustive: bool, told: &Told<'_>) -> Search {
        let candidates = candidates(request, site);
        told(Progress::Plans(candidates.len()));
        let mut counts = Counts { tried: candidates.len(), ..Counts::default() };
        let looked: Vec<Result<Legal, String>> = candidates
            .into_par_iter()
            .map(|candidate| {
                let looked = look(request, site, floors, candidate);
                told(Progress::Looked);
                looked
            })
            .collect();
        let (mut legal, mut refused) = (vec![], Refused::default());
        for outcome in looked {
            match outcome {
                Ok(plan) => legal.push(plan),
                Err(why) => refused.add(why),
            }
        }
        counts.legal = legal.len();
        let least = legal.iter().map(|plan| plan.floor.memory).min();
        let room = site.machine.chip.memory.saturating_sub(request.limits.headroom);
        if !exhaustive {
            legal.retain(|plan| !plan.floor.exceeds(room));
            counts.too_large = counts.legal - legal.len();
        }
        // The sort is stable: plans of one bound stay in the order of the space.
        legal.sort_by_key(|plan| plan.floor.step);
        let (top, heard, steps) = (request.top, BTreeMap::new(), vec![]);
        Search { top, exhaustive, counts, refused, least, legal, handed: 0, heard, steps }
    }

    /// The step of the last plan that is ranked so far; none while there are fewer. A plan whose bound is above it need not be simulated.
    pub fn worst(&self) -> Option<Time> {
        self.steps.get(self.top - 1).copied().filter(|_| !self.exhaustive)
    }

    /// The places of up to `most` plans to simulate next, with their bounds; none where all are known that matter.
    pub fn next(&mut self, most: usize) -> Vec<(usize, Floor)> {
        let worst = self.worst();
        let rest = self.legal.iter().skip(self.handed).take(most);
        let worth = rest.take_while(|plan| worst.is_none_or(|worst| plan.floor.step <= worst));
        let places: Vec<(usize, Floor)> = worth.map(|plan| (plan.candidate.place, plan.floor)).collect();
        self.handed += places.len();
        places
    }

    /// Takes what a simulation said of the plan at a place.
    pub fn hear(&mut self, place: usize, said: Simulated) {
        if let Ok(Some(figures)) = &said {
            let at = self.steps.partition_point(|&step| step <= figures.step);
            self.steps.insert(at, figures.step);
            self.steps.truncate(self.top);
        }
        self.heard.insert(place, said);
    }

    /// What was found.
    pub fn found(self) -> Found {
        let worst = self.worst();
        let Search { mut counts, mut refused, least, legal, mut heard, .. } = self;
        let mut plans = vec![];
        for Legal { candidate, floor } in legal {
            if worst.is_some_and(|worst| floor.step > worst) {
                counts.too_slow += 1;
                continue;
            }
            match heard.remove(&candidate.place) {
                Some(Ok(said)) => {
                    counts.simulated += 1;
                    counts.do_not_fit += usize::from(said.is_none());
                    plans.extend(said.map(|figures| Planned { candidate, floor, figures }));
                }
                // A plan that is too long to be written is refused when it is asked for.
                Some(Err(why)) => {
                    counts.legal -= 1;
                    refused.add(why);
                }
                None => counts.too_slow += 1,
            }
        }
        counts.refused = counts.tried - counts.legal;
        plans.sort_by_key(|plan| (plan.step, plan.candidate.place));
        Found { plans, counts, refused: refused.most_frequent_first(), least }
    }
}

/// Searches the plans of a machine; if `exhaustive`, all legal ones are simulated.
pub(super) fn search(request: &Request, site: &Site, floors: &Floors, exhaustive: bool, told: &Told<'_>) -> Found {
    let mut search = Search::new(request, site, floors, exhaustive, told);
    loop {
        let from = search.handed;
        let places = search.next(AT_ONCE);
        if places.is_empty() {
            return search.found();
        }
        let said: Vec<Simulated> = search.legal[from..search.handed]
            .par_iter()
            .map(|plan| {
                let said = judge(request, site, &plan.candidate, Some(plan.floor).filter(|_| !exhaustive));
                told(Progress::Simulated);
                said
            })
            .collect();
        places.into_iter().zip(said).for_each(|((place, _), said)| search.hear(place, said));
    }
}

/// Why plans were refused. Refusals that differ in their numbers alone are one, told in the words of the first.
#[derive(Default)]
struct Refused(BTreeMap<String, (String, usize)>);

impl Refused {
    fn add(&mut self, why: String) {
        let kind: String = why.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.0.entry(kind).or_insert((why, 0)).1 += 1;
    }

    fn most_frequent_first(self) -> Vec<(String, usize)> {
        let mut all: Vec<(String, usize)> = self.0.into_values().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }
}

/// All plans of the frameworks that run on a machine.
pub(super) fn candidates(request: &Request, site: &Site) -> Vec<Candidate> {
    let runs = request.frameworks.iter().filter(|runtime| runtime.vendor() == site.machine.chip.vendor);
    let plans =
        runs.flat_map(|&runtime| space::plans(request, site, runtime).into_iter().map(move |keys| (runtime, keys)));
    plans.enumerate().map(|(place, (runtime, keys))| Candidate { place, runtime, keys }).collect()
}

/// Reads a plan, and bounds it.
fn look(request: &Request, site: &Site, floors: &Floors, candidate: Candidate) -> Result<Legal, String> {
    let scenario = candidate.scenario(request, site).map_err(|error| reason(&error))?;
    if let Some(refusal) = scenario.job.refuses() {
        return Err(refusal.problem.into_owned());
    }
    Ok(Legal { floor: floors.of(&scenario), candidate })
}

/// Reads the plan, and simulates it.
fn judge(request: &Request, site: &Site, candidate: &Candidate, floor: Option<Floor>) -> Simulated {
    let scenario = candidate.scenario(request, site).map_err(|error| reason(&error))?;
    simulate(request, site, &scenario, floor)
}

/// The plan's figures, if it fits. A bound that leaves room says that its memory need not be asked first.
pub(super) fn simulate(request: &Request, site: &Site, scenario: &Scenario, floor: Option<Floor>) -> Simulated {
    let simulated = || -> Result<Option<Figures>, ScenarioError> {
        let room = LIKELY * site.machine.chip.memory.0 as f64;
        let answer = match floor.is_some_and(|floor| floor.memory.0 as f64 <= room) {
            true => Some(predict(scenario, Settings { remedies: false, ..Settings::default() })?),
            false => predict_if_it_fits(scenario)?,
        };
        let fits = answer.filter(|answer| {
            let memory = &answer.memory;
            memory.fits() && memory.capacity.saturating_sub(memory.device_total()) >= request.limits.headroom
        });
        Ok(fits.map(|answer| Figures::of(scenario, &answer)))
    };
    simulated().map_err(|error| reason(&error))
}
