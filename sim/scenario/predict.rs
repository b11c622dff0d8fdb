//! The straight line from a scenario to an answer: programs → memory, costs → timeline → prediction.
//!
//! Ranks that run the same program are a class. All classes are simulated together; of what differs between them the
//! report gives the mean of all ranks, and of memory the class with the least to spare.

mod apart;
mod beside;
mod class;
mod confidence;
mod conventions;
mod costs;
mod doubt;
mod floor;
mod host;
mod kind;
mod memory;
mod mfu;
mod owners;
pub mod pairs;
mod parts;
mod reasons;
pub mod release;
mod rounds;
mod route;
mod settings;
mod trust;
mod unread;
mod witnesses;

pub use apart::{Apart, SlowRank, Waits, both_ways, few_and_all};
pub use class::Class;
pub use confidence::{Confidence, half_width};
pub(crate) use conventions::WITHIN_DOCUMENTS;
pub(super) use conventions::mfu_conventions;
pub use costs::Evidence;
#[doc(hidden)]
pub use doubt::chance_within;
pub use doubt::{ALLOCATED, COMPILED, COMPILED_ON_GPUS};
pub use floor::{Floor, Floors};
pub use host::{Host, Verdict};
pub use kind::Kind;
pub use memory::DeviceMemory;
pub use mfu::Mfu;
pub use owners::PartShare;
pub use parts::{Counts, Part};
pub use reasons::{HOSTS, Reason, Reasons};
pub(super) use rounds::{Need, need};
pub use settings::Settings;
#[doc(hidden)]
pub use witnesses::Held;
pub use witnesses::{Alike, Witness};

use beside::Ran;
use mfu::mfu;
use rounds::Flown;
use trust::trust;

use super::draft::Draft;
use super::error::ScenarioError;
use super::reader::Idle;
use super::remedy;
use super::understood::Scenario;
use crate::cost::{Basis, Cost, allocator};
use crate::engine::{Breakdown, Timeline};
use crate::memory::report::Live;
use crate::plan::Parts;
use crate::program::Program;
use crate::units::Time;

/// What the run would do: time, memory, and what they rest on.
///
/// ```
/// use windtunnel::Scenario;
///
/// let scenario = Scenario::builder("two layers on a node")
///     .runtime("fsdp2")
///     .topology("h100-sxm-80gb")
///     .nodes(1)
///     .model("llama-3.1-8b")
///     .set("model.layers", 2)
///     .sequence(2048)
///     .build()?;
/// let prediction = scenario.predict()?;
///
/// // Where the step's time went. The parts add up to the step.
/// let split = prediction.breakdown;
/// assert_eq!(split.total(), prediction.step);
/// println!("{} a step, of which {} communication", prediction.step, split.exposed_communication);
///
/// // Model FLOPs utilisation, by each convention in use.
/// for mfu in &prediction.mfu {
///     println!("{:.1} % by {}", 100.0 * mfu.utilisation, mfu.formula);
/// }
///
/// // The same as `windtunnel run --json` writes.
/// let report = prediction.report(&scenario);
/// assert_eq!(report.step_time_s, prediction.step.seconds());
/// println!("{:#}", report.json());
/// # Ok::<(), windtunnel::ScenarioError>(())
/// ```
#[derive(Debug)]
pub struct Prediction {
    /// Classes of ranks, one for each rank of a pipeline.
    #[doc(hidden)]
    pub classes: Vec<Class>,
    /// The class of each rank.
    #[doc(hidden)]
    pub class_of: Vec<u32>,
    /// What happened when.
    pub timeline: Timeline,
    /// Memory of the class that has the least to spare.
    pub memory: DeviceMemory,
    /// That class.
    #[doc(hidden)]
    pub tightest: usize,
    /// The steady step \[ps\].
    pub step: Time,
    /// An 80 % interval around it \[ps\].
    pub interval: (Time, Time),
    /// What kind of run it is.
    #[doc(hidden)]
    pub kind: Kind,
    /// What of it predictions err on, which makes the interval as wide as it is.
    pub reasons: Reasons,
    /// Measured runs of just that kind.
    pub alike: Alike,
    /// What the allocator's calls to the device add to the step \[ps\].
    pub stall: Time,
    /// What ranks that differ do to it, if they do. It is part of the step.
    pub apart: Option<Apart>,
    /// Where the step's time went: the mean of all ranks. What ranks wait for slower ones is in `bubble`.
    pub breakdown: Breakdown,
    /// Share of the step that rests on each kind of evidence.
    pub shares: Vec<(Basis, f64)>,
    /// Parts by kernel and pass, largest first: times are the mean of all ranks.
    pub parts: Vec<Part>,
    /// Model FLOPs of one step of the whole job, by convention.
    pub mfu: Vec<Mfu>,
    /// Tokens of one step of the whole job.
    pub tokens: u64,
    /// Numbers of the machine that differ from the shipped machine of the same profile and change nothing.
    pub unread: Vec<Idle>,
    /// Keys of the file that change nothing, besides those of [`Scenario::idle`].
    pub idle: Vec<Idle>,
}

impl Scenario {
    /// Predicts memory and time, as [`predict`] does with default settings.
    pub fn predict(&self) -> Result<Prediction, ScenarioError> {
        predict(self, Settings::default())
    }
}

impl Prediction {
    /// The programs, by class.
    #[doc(hidden)]
    pub fn programs(&self) -> Vec<&Program> {
        self.classes.iter().map(|class| &*class.program).collect()
    }

    /// It, as what another scenario is held against.
    fn as_ran<'a>(&'a self, scenario: &'a Scenario) -> Ran<'a> {
        let Prediction { classes, class_of, timeline, step, .. } = self;
        Ran { scenario, classes, class_of, timeline, step: *step }
    }

    /// Tokens per second and chip.
    pub fn tokens_per_second_per_chip(&self, chips: u32) -> f64 {
        self.tokens as f64 / self.step.seconds() / f64::from(chips)
    }

    /// Tensors that are live at the peak of the device with the least to spare, largest first.
    pub fn live(&self) -> Vec<Live> {
        self.memory.report.live(&self.classes[self.tightest].program)
    }

    /// How much the step time is worth, in a word.
    pub fn confidence(&self) -> Confidence {
        Confidence::of(self.step, self.interval)
    }

    /// Share of rank-time that a pipeline leaves without work; without a pipeline there is none.
    pub fn bubble(&self) -> f64 {
        self.timeline.bubble()
    }

    /// Whether ranks wait for others that have more to do: other stages, or slower ranks.
    #[doc(hidden)]
    pub fn waits_for_ranks(&self) -> bool {
        self.classes.len() > 1 || self.apart.is_some()
    }

    /// What bounds the step: the largest of its parts.
    pub fn bound(&self) -> &'static str {
        let memory_bound = parts::memory_bound(&self.classes, &self.timeline);
        let parts = [
            (self.breakdown.exposed_communication, "communication"),
            (self.breakdown.host_bound, "host"),
            (self.breakdown.bubble + self.breakdown.waiting, "waiting"),
            (memory_bound, "memory bandwidth"),
            (self.breakdown.compute.saturating_sub(memory_bound), "compute"),
        ];
        parts.into_iter().max_by_key(|part| part.0).map_or("compute", |part| part.1)
    }
}

/// What the allocator's calls to the device add to the step: ranks wait for the one that makes most of them.
fn stall(devices: &[DeviceMemory], expandable_segments: bool) -> Cost {
    let retried = devices.iter().filter(|device| device.on_device && device.report.retries > 0);
    let stalls = retried.map(|device| {
        let calls = device.report.calls;
        allocator::stall((calls.returns, calls.returned), (calls.takes, calls.taken), expandable_segments)
    });
    let none = Cost { time: Time::ZERO, spread: 0.0, basis: Basis::Assumed };
    stalls.max_by_key(|stall| stall.time).unwrap_or(none)
}

/// Predicts what the run of a scenario would do.
pub fn predict(scenario: &Scenario, settings: Settings) -> Result<Prediction, ScenarioError> {
    scenario.simulable()?;
    let flown = rounds::fly(scenario, settings)?;
    told(scenario, settings, flown)
}

/// The same if the plan fits, without remedies: one that does not is known by its memory, and its time is not looked for.
pub fn predict_if_it_fits(scenario: &Scenario) -> Result<Option<Prediction>, ScenarioError> {
    scenario.simulable()?;
    let settings = Settings { remedies: false, ..Settings::default() };
    rounds::fly_if_it_fits(scenario, settings)?.map(|flown| told(scenario, settings, flown)).transpose()
}

/// What the run of a scenario would do beside one that is predicted, without remedies. None if it is what is predicted already: the same
/// programs, as often, with the same costs.
pub(crate) fn predict_beside(
    scenario: &Scenario,
    (base, answer): (&Scenario, &Prediction),
) -> Result<Option<Prediction>, ScenarioError> {
    scenario.simulable()?;
    let settings = Settings { remedies: false, ..Settings::default() };
    if matches!(scenario.job.parts(), Parts::Compiled(_)) {
        return predict(scenario, settings).map(Some);
    }
    let (ran, few) = (answer.as_ran(base), rounds::write_few(scenario));
    if ran.runs_as(scenario, few.as_ref()) && ran.on(scenario) == ran.on(base) {
        return Ok(None);
    }
    let known = few.map(|flight| {
        let memory = ran.memory_of(scenario, &flight);
        rounds::with_memory(flight, memory)
    });
    told(scenario, settings, rounds::fly_written(scenario, settings, known)?).map(Some)
}

/// What a job that was run says of the scenario.
fn told(scenario: &Scenario, settings: Settings, flown: Flown) -> Result<Prediction, ScenarioError> {
    let Flown { flight, evidence, counts, timeline, ranks, memory, host_work } = flown;
    let (devices, tightest) = memory;
    let mut memory = devices[tightest].clone();
    memory::settle(scenario, &flight.classes[tightest], &mut memory);
    if memory.refused() && settings.remedies {
        let found = remedy::find(scenario, memory.lacks());
        (memory.remedies, memory.nearest) = (found.remedies, found.nearest);
    }
    let stall = stall(&devices, scenario.expandable_segments);
    let apart = scenario.ranks.as_ref().map(|ranks| apart::apart(scenario, ranks, settings)).transpose()?;
    let (slower, faster) = apart.as_ref().map_or((Time::ZERO, Time::ZERO), |apart| (apart.costs(), apart.gains()));
    let step = (timeline.step + stall.time + slower).saturating_sub(faster);
    let mut classes = vec![];
    let parts = flight.classes.into_iter().zip(evidence).zip(counts).zip(devices).enumerate();
    for (index, (((program, evidence), counts), memory)) in parts {
        let mut breakdown = parts::of_class(&timeline, index);
        breakdown.host_bound += stall.time;
        classes.push(Class { program, evidence, counts, memory, breakdown, ranks: ranks[index].len() as u32 });
    }
    let mut breakdown = parts::mean(&classes);
    breakdown.bubble += slower;
    breakdown.compute = breakdown.compute.saturating_sub(faster);
    let parts = parts::parts(&classes, &timeline, scenario.software.attention);
    let (residual, shares) = trust(&classes, &timeline, stall);
    let issued = host_work.into_iter().max().unwrap_or(Time::ZERO);
    let kind = Kind::of(scenario);
    let reasons = Reasons::of((&classes, &timeline, &scenario.topology), (residual, issued, kind.stands_in()));
    let family = scenario.measured.as_ref().map_or("", |measured| measured.family.as_str());
    let (mut interval, alike) = witnesses::interval(step, &reasons, &kind, family);
    if scenario.unknown_release.is_some() || !scenario.not_simulated.is_empty() {
        interval = release::wider(step, interval);
    }
    let tokens = scenario.job.tokens();
    let mfu = mfu(scenario, &classes, step, tokens);
    let class_of = flight.class_of;
    let mut answer = Prediction {
        classes,
        class_of,
        timeline,
        memory,
        tightest,
        step,
        interval,
        kind,
        reasons,
        alike,
        stall: stall.time,
        apart,
        breakdown,
        shares,
        parts,
        mfu,
        tokens,
        unread: vec![],
        idle: vec![],
    };
    if settings.remedies {
        answer.unread = unread::unread(scenario, &answer);
        answer.idle = unread::idle(scenario, &answer, settings);
    }
    Ok(answer)
}

impl Draft {
    /// The prediction; remedies are not looked for.
    pub fn fly(&self) -> Result<(Scenario, Prediction), ScenarioError> {
        let scenario = self.scenario()?;
        let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() })?;
        Ok((scenario, answer))
    }
}
