//! One prediction at one sequence length: the figures that a search keeps of it.

use crate::memory::report::Live;
use crate::scenario::predict::DeviceMemory;
use crate::scenario::{Draft, Prediction, Scenario, ScenarioError};
use crate::units::{Bytes, Time};

/// What a prediction said at one sequence length.
#[derive(Clone, Debug)]
pub struct Point {
    /// Tokens per sequence.
    pub sequence: u64,
    /// The steady step \[ps\].
    pub step: Time,
    /// An 80 % interval around it \[ps\].
    pub interval: (Time, Time),
    /// Tokens of a step of the whole job.
    pub tokens: u64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// MFU by the report's first convention, 0 to 1.
    pub mfu: f64,
    /// That convention.
    pub convention: &'static str,
    /// What bounds the step.
    pub bound: &'static str,
    /// Instructions of all classes of ranks.
    pub instructions: u64,
    /// Memory of one device.
    pub memory: DeviceMemory,
    /// What is live at the peak, largest first.
    pub live: Vec<Live>,
}

impl Point {
    /// The figures of a prediction.
    pub fn of(scenario: &Scenario, answer: Prediction) -> Point {
        Point {
            sequence: scenario.job.seq(),
            step: answer.step,
            interval: answer.interval,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            mfu: answer.mfu.first().map_or(0.0, |mfu| mfu.utilisation),
            convention: answer.mfu.first().map_or("", |mfu| mfu.formula),
            bound: answer.bound(),
            instructions: answer.classes.iter().map(|class| class.program.instructions()).sum(),
            live: answer.memory.report.live(&answer.classes[answer.tightest].program),
            memory: answer.memory,
        }
    }

    /// Flies a draft at a sequence length.
    #[doc(hidden)]
    pub fn fly(draft: &Draft, sequence: u64) -> Result<Point, ScenarioError> {
        let mut draft = draft.clone();
        draft.set("batch.sequence", i64::try_from(sequence).unwrap_or(i64::MAX));
        let (scenario, answer) = draft.fly()?;
        Ok(Point::of(&scenario, answer))
    }

    /// What the plan takes of the device, or would like to have where it does not fit.
    pub fn wants(&self) -> Bytes {
        if self.memory.on_device { self.memory.device_total() } else { self.memory.wanted }
    }
}
