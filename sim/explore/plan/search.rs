//! The search: legality first, then bounds, then simulations, the best bound first.
//!
//! Every plan of the space is read as a scenario would be, and refused or not by the scenario's own checks. What is legal gets lower
//! bounds of memory and of time. A plan whose memory bound exceeds the device is out. The others are simulated in the order of their
//! bounds of time. As soon as the next bound is above the last plan that is asked for, no plan behind it can be among those: every one is
//! at least as slow as its bound, and bounds only rise from there.
//!
//! Which plans are simulated at once, and where, changes nothing: an answer counts and keeps those alone whose bound is no higher than
//! the last plan that is ranked, and these are the same in every order.
//!
//! A search that is asked to end early answers with what it knows: what it has not decided, and the lowest bound among that.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::candidate::Candidate;
use super::figures::Figures;
use super::planned::Planned;
use super::request::Request;
use super::site::Site;
use super::space;
use crate::files::Answers;
use crate::scenario::predict::{Floor, Floors, predict_if_it_fits};
use crate::scenario::{Scenario, ScenarioError, reason};
use crate::units::{Bytes, Time};

/// Plans that are simulated before the next bound is looked at, at least. The first ones are as many as there are threads, so that a first
/// plan is there soon.
const AT_ONCE: usize = 8;

/// Plans spread over the space that are looked at before all others: the best of them is a first answer.
const SAMPLE: usize = 64;

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
    /// Those that a search which was ended early has not decided: legal plans that might be ranked, and plans that it has not looked at.
    #[serde(skip_serializing_if = "is_none")]
    pub undecided: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(count: &usize) -> bool {
    *count == 0
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
    /// The lowest bound of a step among plans that are not decided, zero if some have none yet; none where all are decided.
    pub possible: Option<Time>,
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
    /// What is known of a machine's legal plans after some simulations.
    Decided {
        /// Plans that are simulated, cannot fit or cannot be ranked.
        decided: usize,
        /// Legal plans.
        legal: usize,
        /// The fastest step so far.
        best: Option<Time>,
        /// The lowest bound of a step among plans that are not simulated.
        possible: Option<Time>,
    },
}

/// What hears of a search's progress, from any thread.
pub type Told<'t> = dyn Fn(Progress) + Sync + 't;

/// Whether a search is to end with what it knows; asked from any thread.
pub type Stop<'t> = dyn Fn() -> bool + Sync + 't;

/// What a simulation says: the figures of a plan that fits, none of one that does not, or why it cannot be simulated.
pub type Simulated = Result<Option<Figures>, String>;

/// What a look at a plan says: its bounds, or why it is refused.
type Looked = Result<Legal, String>;

/// A legal plan with its bounds.
#[derive(Clone)]
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
    /// Plans that were not looked at before the search was ended.
    unseen: usize,
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
        let floors = (floors, room(request, site, exhaustive));
        Search::until((request, site), floors, (candidates(request, site), &BTreeMap::new()), (told, &|| false))
    }

    /// The same until it is to end; some were looked at before.
    fn until(
        (request, site): (&Request, &Site),
        (floors, room): (&Floors, Option<Bytes>),
        (candidates, seen): (Vec<Candidate>, &BTreeMap<usize, Looked>),
        (told, stop): (&Told<'_>, &Stop<'_>),
    ) -> Search {
        told(Progress::Plans(candidates.len()));
        let mut counts = Counts { tried: candidates.len(), ..Counts::default() };
        let looked: Vec<Option<Looked>> = candidates
            .into_par_iter()
            .map(|candidate| {
                let looked = match seen.get(&candidate.place) {
                    Some(looked) => Some(looked.clone()),
                    None => (!stop()).then(|| look((request, site), (floors, room), candidate)),
                };
                told(Progress::Looked);
                looked
            })
            .collect();
        let (mut legal, mut refused, mut unseen) = (vec![], Refused::default(), 0);
        for outcome in looked {
            match outcome {
                Some(Ok(plan)) => legal.push(plan),
                Some(Err(why)) => refused.add(why),
                None => unseen += 1,
            }
        }
        counts.legal = legal.len();
        let least = legal.iter().map(|plan| plan.floor.memory).min();
        if let Some(room) = room {
            legal.retain(|plan| !plan.floor.exceeds(room));
            counts.too_large = counts.legal - legal.len();
        }
        // The sort is stable: plans of one bound stay in the order of the space.
        legal.sort_by_key(|plan| plan.floor.step);
        let (top, heard, steps) = (request.top, BTreeMap::new(), vec![]);
        Search { top, exhaustive: room.is_none(), counts, refused, least, unseen, legal, handed: 0, heard, steps }
    }

    /// The step of the last plan that is ranked so far; none while there are fewer. A plan whose bound is above it need not be simulated.
    pub fn worst(&self) -> Option<Time> {
        self.steps.get(self.top - 1).copied().filter(|_| !self.exhaustive)
    }

    /// The places of up to `most` plans to simulate next; none where all are known that matter.
    pub fn next(&mut self, most: usize) -> Vec<usize> {
        let worst = self.worst();
        let rest = self.legal.iter().skip(self.handed).take(most);
        let worth = rest.take_while(|plan| worst.is_none_or(|worst| plan.floor.step <= worst));
        let places: Vec<usize> = worth.map(|plan| plan.candidate.place).collect();
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

    /// What is known so far.
    fn progress(&self) -> Progress {
        let worth = |worst: Time| self.legal.partition_point(|plan| plan.floor.step <= worst);
        let open = self.worst().map_or(self.legal.len(), worth).saturating_sub(self.handed);
        Progress::Decided {
            decided: self.counts.legal - open,
            legal: self.counts.legal,
            best: self.steps.first().copied(),
            possible: self.legal.get(self.handed).map(|plan| plan.floor.step),
        }
    }

    /// What was found.
    pub fn found(self) -> Found {
        let worst = self.worst();
        let Search { mut counts, mut refused, least, unseen, legal, mut heard, .. } = self;
        let mut plans = vec![];
        counts.undecided = unseen;
        let mut possible = (unseen > 0).then_some(Time::ZERO);
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
                None => {
                    counts.undecided += 1;
                    possible = Some(possible.map_or(floor.step, |least| least.min(floor.step)));
                }
            }
        }
        counts.refused = counts.tried - counts.legal - unseen;
        plans.sort_by_key(|plan| (plan.step, plan.candidate.place));
        Found { plans, counts, refused: refused.most_frequent_first(), least, possible }
    }
}

/// Searches the plans of a machine until it is to end; if `exhaustive`, all legal ones are simulated.
pub(super) fn search(
    (request, site): (&Request, &Site),
    floors: &Floors,
    exhaustive: bool,
    told: &Told<'_>,
    (stop, known): (&Stop<'_>, Option<&Answers>),
) -> Found {
    let (room, all) = (room(request, site, exhaustive), candidates(request, site));
    let simulated = |plan: &Legal| {
        let said = (!stop()).then(|| judge((request, site), &plan.candidate, known));
        told(Progress::Simulated);
        Some((plan.candidate.place, said?))
    };
    let sample = room.map_or_else(BTreeMap::new, |_| sample((request, site), (floors, room), &all, stop));
    let fits = |plan: &&Legal| room.is_none_or(|room| !plan.floor.exceeds(room));
    let first = sample.values().flatten().filter(fits).min_by_key(|plan| plan.floor.step).and_then(simulated);
    let mut search = Search::until((request, site), (floors, room), (all, &sample), (told, stop));
    if let Some((place, said)) = first {
        search.hear(place, said);
    }
    let threads = rayon::current_num_threads();
    let mut at_once = threads;
    loop {
        let from = search.handed;
        if stop() || search.next(at_once).is_empty() {
            return search.found();
        }
        let open = search.legal[from..search.handed].par_iter();
        let open = open.filter(|plan| !search.heard.contains_key(&plan.candidate.place));
        let said: Vec<(usize, Simulated)> = open.filter_map(simulated).collect();
        said.into_iter().for_each(|(place, said)| search.hear(place, said));
        told(search.progress());
        at_once = AT_ONCE.max(threads);
    }
}

/// Some plans from all of the space, looked at.
fn sample(
    (request, site): (&Request, &Site),
    floors: (&Floors, Option<Bytes>),
    all: &[Candidate],
    stop: &Stop<'_>,
) -> BTreeMap<usize, Looked> {
    let each = all.len().div_ceil(SAMPLE).max(1);
    let some = all.par_iter().step_by(each).filter(|_| !stop());
    some.map(|plan| (plan.place, look((request, site), floors, plan.clone()))).collect()
}

/// The memory that plans must keep to for a simulation; none where all legal ones are simulated.
fn room(request: &Request, site: &Site, exhaustive: bool) -> Option<Bytes> {
    (!exhaustive).then(|| site.machine.chip.memory.saturating_sub(request.limits.headroom))
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
fn look((request, site): (&Request, &Site), (floors, room): (&Floors, Option<Bytes>), candidate: Candidate) -> Looked {
    let scenario = candidate.scenario(request, site).map_err(|error| reason(&error))?;
    if let Some(refusal) = scenario.job.refuses() {
        return Err(refusal.problem.into_owned());
    }
    Ok(Legal { floor: floors.within(&scenario, room.unwrap_or(Bytes(u64::MAX))), candidate })
}

/// Reads the plan, and simulates it if it is not known.
fn judge((request, site): (&Request, &Site), candidate: &Candidate, known: Option<&Answers>) -> Simulated {
    let scenario = candidate.scenario(request, site).map_err(|error| reason(&error))?;
    let Some(known) = known else { return simulate(request, &scenario) };
    let asked = format!("plan {} {} {}", request.limits.headroom.0, request.interrupted, scenario.asked());
    known.get(&asked).unwrap_or_else(|| {
        let said = simulate(request, &scenario);
        known.keep(&asked, &said);
        said
    })
}

/// The plan's figures, if it fits.
pub(super) fn simulate(request: &Request, scenario: &Scenario) -> Simulated {
    let simulated = || -> Result<Option<Figures>, ScenarioError> {
        let fits = predict_if_it_fits(scenario)?.filter(|answer| {
            let memory = &answer.memory;
            memory.fits() && memory.capacity.saturating_sub(memory.device_total()) >= request.limits.headroom
        });
        Ok(fits.map(|answer| Figures::of(scenario, &answer, request.interrupted)))
    };
    simulated().map_err(|error| reason(&error))
}
