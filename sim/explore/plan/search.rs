//! The search: legality first, then bounds, then simulations, the best bound first.
//!
//! Every plan of the space is read as a scenario would be, and refused or not by the scenario's own checks. What is legal gets lower
//! bounds of memory and of time. A plan whose memory bound exceeds the device is out. The others are simulated in the order of their
//! bounds of time, a few at once. As soon as the next bound is above the last plan that is asked for, no plan behind it can be among
//! those: every one is at least as slow as its bound, and bounds only rise from there.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::candidate::Candidate;
use super::planned::Planned;
use super::request::Request;
use super::site::Site;
use super::space;
use crate::scenario::predict::{Floor, Floors, Settings, predict, predict_if_it_fits};
use crate::scenario::{Prediction, Scenario, ScenarioError, reason};
use crate::units::{Bytes, Time};

/// Plans that are simulated before the next bound is looked at: as many on every machine, so that the same plans are simulated.
const AT_ONCE: usize = 8;

/// How much of a device a memory bound may leave for a plan to be simulated whole at once. A plan that is likely not to fit is asked
/// for its memory first.
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
    /// Those that were simulated.
    pub simulated: usize,
    /// Of these, those that do not fit.
    pub do_not_fit: usize,
    /// Those that are legal and were not simulated: their bound of time is above the last plan that is ranked.
    pub too_slow: usize,
}

/// What was found for a machine.
#[derive(Clone, Debug)]
pub struct Found {
    /// The plans that fit, of those that were simulated; the fastest first.
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

/// A legal plan with its bounds.
struct Legal {
    candidate: Candidate,
    floor: Floor,
}

/// Searches the plans of a machine; if `exhaustive`, all legal ones are simulated.
pub(super) fn search(
    request: &Request,
    site: &Site,
    floors: &Floors,
    exhaustive: bool,
    told: &Told<'_>,
) -> Result<Found, ScenarioError> {
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
    counts.refused = counts.tried - counts.legal;
    let least = legal.iter().map(|plan| plan.floor.memory).min();
    let room = site.machine.chip.memory.saturating_sub(request.limits.headroom);
    if !exhaustive {
        legal.retain(|plan| !plan.floor.exceeds(room));
        counts.too_large = counts.legal - legal.len();
    }
    // The sort is stable: plans of one bound stay in the order of the space.
    legal.sort_by_key(|plan| plan.floor.step);
    let mut plans: Vec<Planned> = vec![];
    for some in legal.chunks(AT_ONCE) {
        let worst = plans.get(request.top - 1).map_or(Time(u64::MAX), |plan| plan.step);
        if !exhaustive && some.first().is_some_and(|plan| plan.floor.step > worst) {
            break;
        }
        let simulated: Vec<Result<Option<Planned>, ScenarioError>> = some
            .par_iter()
            .map(|plan| {
                let simulated = simulate(request, site, plan, exhaustive);
                told(Progress::Simulated);
                simulated
            })
            .collect();
        for simulated in simulated {
            counts.simulated += 1;
            match simulated {
                Ok(Some(plan)) => plans.push(plan),
                Ok(None) => counts.do_not_fit += 1,
                // A plan that is too long to be written is refused when it is asked for.
                Err(error) => {
                    counts.simulated -= 1;
                    counts.legal -= 1;
                    counts.refused += 1;
                    refused.add(reason(&error));
                }
            }
        }
        plans.sort_by_key(|plan| (plan.step, plan.candidate.place));
    }
    counts.too_slow = counts.legal - counts.too_large - counts.simulated;
    Ok(Found { plans, counts, refused: refused.most_frequent_first(), least })
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

/// The plan's figures, if it fits.
fn simulate(request: &Request, site: &Site, plan: &Legal, exhaustive: bool) -> Result<Option<Planned>, ScenarioError> {
    let scenario = plan.candidate.scenario(request, site)?;
    let likely = plan.floor.memory.0 as f64 <= LIKELY * site.machine.chip.memory.0 as f64;
    let answer = match likely && !exhaustive {
        true => Some(predict(&scenario, Settings { remedies: false, ..Settings::default() })?),
        false => predict_if_it_fits(&scenario)?,
    };
    Ok(answer.and_then(|answer| planned(request, &scenario, plan, &answer)))
}

fn planned(request: &Request, scenario: &Scenario, plan: &Legal, answer: &Prediction) -> Option<Planned> {
    let memory = &answer.memory;
    let spare = memory.capacity.saturating_sub(memory.device_total());
    let fits = memory.fits() && spare >= request.limits.headroom;
    fits.then(|| Planned::of(plan.candidate.clone(), scenario, answer, plan.floor))
}
