//! What is compared of two predictions.

use super::side::{Keys, draft};
use crate::explore::point::Point;
use crate::scenario::ScenarioError;
use crate::scenario::predict::Verdict;
use crate::units::{Bytes, Time};

/// What is compared of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The steady step \[ps\].
    pub step: Time,
    /// Peak memory in blocks handed out \[B\].
    pub allocated: Bytes,
    /// Peak memory taken from the device by the allocator \[B\].
    pub reserved: Bytes,
    /// MFU by the report's first convention, in billionths: a count, so that sums are exact.
    pub mfu_billionths: i64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// Tokens of a step, of all ranks.
    pub tokens: u64,
    /// Whether device or host have too little: memory is then what the plan would like to have.
    pub refused: bool,
    /// Whether the plan fits, in a word.
    pub verdict: Verdict,
    /// What a node's ranks take of its host's memory \[B\].
    pub host: Bytes,
}

impl Figures {
    fn of(point: &Point, tokens: u64) -> Figures {
        Figures {
            tokens,
            step: point.step,
            allocated: point.memory.report.peak_allocated,
            reserved: point.memory.report.peak_reserved,
            mfu_billionths: (point.mfu * 1e9).round() as i64,
            rate: point.rate,
            refused: point.memory.refused(),
            verdict: point.memory.verdict(),
            host: point.memory.host.map_or(Bytes(0), |host| host.wanted()),
        }
    }
}

/// How figures change from one prediction to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Figures before.
    pub from: Figures,
    /// Figures after.
    pub to: Figures,
}

impl Change {
    /// Step time \[ps\].
    pub fn step(&self) -> i128 {
        i128::from(self.to.step.0) - i128::from(self.from.step.0)
    }

    /// Peak memory allocated \[B\].
    pub fn allocated(&self) -> i128 {
        i128::from(self.to.allocated.0) - i128::from(self.from.allocated.0)
    }

    /// Peak memory reserved \[B\].
    pub fn reserved(&self) -> i128 {
        i128::from(self.to.reserved.0) - i128::from(self.from.reserved.0)
    }

    /// MFU, in billionths.
    pub fn mfu_billionths(&self) -> i128 {
        i128::from(self.to.mfu_billionths) - i128::from(self.from.mfu_billionths)
    }
}

/// The figures of the scenario that keys make.
pub(super) fn fly(keys: &Keys) -> Result<Figures, ScenarioError> {
    let (scenario, answer) = draft(keys).fly()?;
    let tokens = answer.tokens;
    Ok(Figures::of(&Point::of(&scenario, answer), tokens))
}
