//! What ranks that differ do to a step: every rank at a pace of its own, cluster by cluster that is drawn.
//!
//! The job is run once with all ranks alike, and once for each draw with a pace for each rank ([`Lanes`]). What a draw's step takes
//! longer is what its stragglers cost.

use rayon::prelude::*;

use super::rounds::{self, Priced};
use super::settings::Settings;
use crate::engine::lanes::{Lanes, Met, Played};
use crate::engine::{self, Class, EngineError, Job, Options, RankPace};
use crate::runtime::Flight;
use crate::scenario::error::ScenarioError;
use crate::scenario::ranks::Ranks;
use crate::scenario::understood::Scenario;
use crate::statistics::of_sorted;
use crate::units::Time;

/// Ranks from which on clusters are drawn one after the other: the times of all of them fill some hundred megabytes.
const LARGE: usize = 4096;
/// Slow ranks of which is asked what they cost.
const ASKED: usize = 4;
/// How many of them are told.
const TOLD: usize = 3;

/// What ranks that differ do.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// The step if all ranks were alike \[ps\].
    pub alike: Time,
    /// The step of each cluster that was drawn, the shortest first \[ps\].
    pub steps: Vec<Time>,
    /// In the cluster of the middle: how long ranks wait for others in each group, the longest first.
    pub waits: Vec<Waits>,
    /// In the cluster of the middle: ranks for which the others wait.
    pub slow: Vec<SlowRank>,
    /// What these meet others for in the last step, if the run is recorded; groups are those of `met_in`.
    #[doc(hidden)]
    pub met: Vec<Met>,
    #[doc(hidden)]
    pub met_in: Vec<String>,
    /// What paces were drawn from; none if only known ranks differ.
    pub speed: Option<String>,
    /// Who says how chips differ; none if only known ranks do.
    pub source: Option<String>,
}

/// How long ranks wait for others in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    /// The group.
    pub group: String,
    /// The mean of all ranks \[ps\].
    pub mean: Time,
    /// What it is if all ranks are alike \[ps\].
    pub alike: Time,
}

/// A rank for which others wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowRank {
    /// Which.
    pub rank: u32,
    /// How much longer than the profile says its kernels take, as a share.
    pub kernels: f64,
    /// The same of its links.
    pub links: f64,
    /// By how much the step is shorter if it is as the profile \[ps\].
    pub costs: Time,
}

impl Apart {
    /// The shortest step that a share of the clusters does not exceed \[ps\].
    pub fn quantile(&self, share: f64) -> Time {
        of_sorted(&self.steps, share).copied().unwrap_or(self.alike)
    }

    /// The step of the middle \[ps\].
    pub fn median(&self) -> Time {
        self.quantile(0.5)
    }

    /// What stragglers cost: the step of the middle, less the step if all ranks were alike \[ps\]. Zero where ranks are faster than the
    /// profile.
    pub fn costs(&self) -> Time {
        self.median().saturating_sub(self.alike)
    }

    /// What ranks that are faster than the profile gain \[ps\].
    pub fn gains(&self) -> Time {
        self.alike.saturating_sub(self.median())
    }
}

/// Draws the clusters of a scenario whose ranks differ, and runs each.
pub(super) fn apart(scenario: &Scenario, ranks: &Ranks, settings: Settings) -> Result<Apart, ScenarioError> {
    let plain = Settings { record: false, ..settings };
    let too_long = || scenario.too_long(plain);
    let lanes = lay(scenario, plain)?;
    let count = lanes.ranks() as u32;
    let play = |draw: u32, paces: &[RankPace], watched: &[u32]| {
        let varying = (!ranks.jitter.is_none()).then(|| (ranks.jitter, ranks.noise(draw)));
        lanes.play_watching(paces, varying, watched).ok_or_else(too_long)
    };
    let draw = |draw: u32| play(draw, &ranks.paces(count, draw), &[]).map(|played| (played.step, draw));
    let draws = 0..ranks.draws();
    let mut steps: Vec<(Time, u32)> = match lanes.ranks() < LARGE {
        true => draws.into_par_iter().map(draw).collect::<Result<_, _>>()?,
        false => draws.map(draw).collect::<Result<_, _>>()?,
    };
    steps.sort_unstable();
    let middle = of_sorted(&steps, 0.5).map_or(0, |&(_, draw)| draw);
    let mut apart = Apart {
        alike: lanes.alike.step,
        steps: steps.into_iter().map(|(step, _)| step).collect(),
        waits: vec![],
        slow: vec![],
        met: vec![],
        met_in: vec![],
        speed: ranks.speed.as_ref().map(|speed| speed.what.clone()),
        source: ranks.speed.as_ref().map(|speed| speed.source.clone()),
    };
    // The rest is for a person to read.
    if settings.remedies || settings.record {
        let paces = ranks.paces(count, middle);
        apart.slow = slow(&paces, apart.median(), |paces| play(middle, paces, &[]))?;
        let watched: Vec<u32> = apart.slow.iter().filter(|_| settings.record).map(|slow| slow.rank).collect();
        let played = play(middle, &paces, &watched)?;
        let alike = lanes.play(&vec![RankPace::NONE; lanes.ranks()]).ok_or_else(too_long)?;
        apart.waits = waits(&played, &alike);
        (apart.met, apart.met_in) = (played.met, played.waits.into_iter().map(|(group, _)| group).collect());
    }
    Ok(apart)
}

/// Lays out all ranks of a scenario's job.
fn lay(scenario: &Scenario, settings: Settings) -> Result<Lanes, ScenarioError> {
    repeated(scenario, settings)?.map_or_else(|| on_job(scenario, settings, Lanes::of), Ok)
}

/// The same from a few rounds of its step, if they repeat.
fn repeated(scenario: &Scenario, settings: Settings) -> Result<Option<Lanes>, ScenarioError> {
    for (flight, further) in rounds::few(scenario, settings) {
        let lanes = on_flight(scenario, &flight, |job, options| Lanes::of_further(job, options, further))?;
        if lanes.is_some() {
            return Ok(lanes);
        }
    }
    Ok(None)
}

/// What is found on a scenario's job, all micro-batches of it, with its costs.
fn on_job<T>(
    scenario: &Scenario,
    settings: Settings,
    find: impl FnOnce(Job<'_>, Options) -> Result<T, EngineError>,
) -> Result<T, ScenarioError> {
    let flight = scenario.written(&scenario.job, scenario.most(settings)).map_err(|_| scenario.too_long(settings))?;
    on_flight(scenario, &flight, find)
}

/// The same on programs of it.
fn on_flight<T>(
    scenario: &Scenario,
    flight: &Flight,
    find: impl FnOnce(Job<'_>, Options) -> Result<T, EngineError>,
) -> Result<T, ScenarioError> {
    let Priced { costs, .. } = rounds::price(scenario, flight)?;
    let classes: Vec<Class<'_>> =
        flight.classes.iter().zip(&costs).map(|(program, costs)| Class { program, costs }).collect();
    let job = Job { classes: &classes, class_of: &flight.class_of };
    find(job, rounds::options(flight)).map_err(|error| ScenarioError::Engine(Box::new(error)))
}

/// The step of a scenario with a pace for each rank: as [`Lanes`] play it, and as the event loop on all ranks runs it.
#[doc(hidden)]
pub fn both_ways(scenario: &Scenario, paces: &[RankPace]) -> Result<(Option<Time>, Time), ScenarioError> {
    let settings = Settings::default();
    let played = lay(scenario, settings)?.play(paces).map(|played| played.step);
    let run = on_job(scenario, settings, |job, options| engine::simulate_ranks(job, paces, options))?;
    Ok((played, run.step))
}

/// What the ranks of a scenario's job do at a pace each: from a few rounds of its step if they repeat, and from all of them.
#[doc(hidden)]
pub fn few_and_all(scenario: &Scenario, paces: &[RankPace]) -> Result<[Option<Played>; 2], ScenarioError> {
    let settings = Settings::default();
    let few = repeated(scenario, settings)?.and_then(|lanes| lanes.play(paces));
    Ok([few, on_job(scenario, settings, Lanes::of)?.play(paces)])
}

/// The ranks that cost the step most, if each alone were as the profile.
fn slow(
    paces: &[RankPace],
    step: Time,
    play: impl Fn(&[RankPace]) -> Result<Played, ScenarioError>,
) -> Result<Vec<SlowRank>, ScenarioError> {
    let worst = |pace: &RankPace| {
        let factors = [pace.compute, pace.memory, pace.link].map(|stretch| stretch.factor());
        factors.into_iter().fold(1.0, |most, factor| if factor > most { factor } else { most })
    };
    let mut order: Vec<usize> = (0..paces.len()).filter(|&rank| worst(&paces[rank]) > 1.0).collect();
    order.sort_by(|&a, &b| worst(&paces[b]).total_cmp(&worst(&paces[a])).then(a.cmp(&b)));
    let mut slow = vec![];
    for rank in order.into_iter().take(ASKED) {
        let mut without = paces.to_vec();
        without[rank] = RankPace::NONE;
        let costs = step.saturating_sub(play(&without)?.step);
        let RankPace { compute, link, .. } = paces[rank];
        slow.push(SlowRank { rank: rank as u32, kernels: compute.factor() - 1.0, links: link.factor() - 1.0, costs });
    }
    slow.sort_by_key(|slow| std::cmp::Reverse(slow.costs));
    slow.truncate(TOLD);
    Ok(slow)
}

fn waits(played: &Played, alike: &Played) -> Vec<Waits> {
    let mean = |waits: &Vec<Time>| {
        let sum: u128 = waits.iter().map(|wait| u128::from(wait.0)).sum();
        Time((sum / waits.len().max(1) as u128) as u64)
    };
    let mut waits: Vec<Waits> = played
        .waits
        .iter()
        .zip(&alike.waits)
        .map(|((group, waits), (_, alike))| Waits { group: group.clone(), mean: mean(waits), alike: mean(alike) })
        .collect();
    waits.sort_by(|a, b| b.mean.cmp(&a.mean).then(a.group.cmp(&b.group)));
    waits
}
