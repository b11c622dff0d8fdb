//! What a simulation says of a plan, as an answer shows it, and as it is written down: whole numbers of picoseconds and bytes, and floats
//! by their bits, so that nothing is rounded.

use serde::{Deserialize, Serialize};

use crate::engine::Breakdown;
use crate::explore::goodput;
use crate::scenario::{Prediction, Scenario};
use crate::units::{Bytes, Time};

/// What a simulation says of a plan that fits. It is written down and read back without loss, so that plans may be simulated elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct Figures {
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
    pub convention: String,
    /// What bounds the step.
    pub bound: String,
    /// Where the step went: the mean of all ranks.
    pub breakdown: Breakdown,
    /// What the fullest device holds \[B\].
    pub memory: Bytes,
    /// What a device has \[B\].
    pub capacity: Bytes,
    /// Whether it fits however far the total is off.
    pub sure: bool,
    /// Of the fullest device's allocator, by category, largest first \[B\].
    pub held: Vec<(String, Bytes)>,
    /// Of it, what lives outside the allocator \[B\].
    pub outside: Bytes,
    /// Replicas of the model that read data of their own.
    pub replicas: u64,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// The expected share of a training's time in steps that count, once it is interrupted; 1 where nobody asked for that.
    pub goodput: f64,
}

impl Figures {
    pub(super) fn of(scenario: &Scenario, answer: &Prediction, interrupted: bool) -> Figures {
        let memory = &answer.memory;
        let sequences = answer.tokens / scenario.job.seq().max(1);
        let micro_batches = scenario.job.micro_batches();
        let each = scenario.job.batch() * u64::from(micro_batches);
        let held = memory.report.breakdown.sorted().into_iter();
        Figures {
            step: answer.step,
            interval: answer.interval,
            tokens: answer.tokens,
            rate: answer.tokens_per_second_per_chip(scenario.topology.chips()),
            mfu: answer.mfu.first().map_or(0.0, |mfu| mfu.utilisation),
            convention: answer.mfu.first().map_or(String::new(), |mfu| mfu.formula.to_owned()),
            bound: answer.bound().to_owned(),
            breakdown: answer.breakdown,
            memory: memory.device_total(),
            capacity: memory.capacity,
            sure: memory.fits_beyond_doubt(),
            held: held.map(|(kind, bytes)| (kind.label().to_owned(), bytes)).collect(),
            outside: memory.outside,
            replicas: sequences / each.max(1),
            micro_batches,
            goodput: if interrupted { goodput::expected(scenario, answer) } else { 1.0 },
        }
    }

    /// What stays free on the fullest device \[B\].
    pub fn headroom(&self) -> Bytes {
        self.capacity.saturating_sub(self.memory)
    }
}

/// The fields of [`Figures`] in their order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    step: u64,
    interval: (u64, u64),
    tokens: u64,
    rate: u64,
    mfu: u64,
    convention: String,
    bound: String,
    breakdown: [u64; 5],
    memory: u64,
    capacity: u64,
    sure: bool,
    held: Vec<(String, u64)>,
    outside: u64,
    replicas: u64,
    micro_batches: u32,
    goodput: u64,
}

impl From<Figures> for Wire {
    fn from(of: Figures) -> Wire {
        let Breakdown { compute, exposed_communication, bubble, host_bound, waiting } = of.breakdown;
        Wire {
            step: of.step.0,
            interval: (of.interval.0.0, of.interval.1.0),
            tokens: of.tokens,
            rate: of.rate.to_bits(),
            mfu: of.mfu.to_bits(),
            convention: of.convention,
            bound: of.bound,
            breakdown: [compute, exposed_communication, bubble, host_bound, waiting].map(|time| time.0),
            memory: of.memory.0,
            capacity: of.capacity.0,
            sure: of.sure,
            held: of.held.into_iter().map(|(kind, bytes)| (kind, bytes.0)).collect(),
            outside: of.outside.0,
            replicas: of.replicas,
            micro_batches: of.micro_batches,
            goodput: of.goodput.to_bits(),
        }
    }
}

impl From<Wire> for Figures {
    fn from(of: Wire) -> Figures {
        let [compute, exposed_communication, bubble, host_bound, waiting] = of.breakdown.map(Time);
        Figures {
            step: Time(of.step),
            interval: (Time(of.interval.0), Time(of.interval.1)),
            tokens: of.tokens,
            rate: f64::from_bits(of.rate),
            mfu: f64::from_bits(of.mfu),
            convention: of.convention,
            bound: of.bound,
            breakdown: Breakdown { compute, exposed_communication, bubble, host_bound, waiting },
            memory: Bytes(of.memory),
            capacity: Bytes(of.capacity),
            sure: of.sure,
            held: of.held.into_iter().map(|(kind, bytes)| (kind, Bytes(bytes))).collect(),
            outside: Bytes(of.outside),
            replicas: of.replicas,
            micro_batches: of.micro_batches,
            goodput: f64::from_bits(of.goodput),
        }
    }
}
