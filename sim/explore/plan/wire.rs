//! Figures as they are written down: whole numbers of picoseconds and bytes, and floats by their bits, so that nothing is rounded.

use serde::{Deserialize, Serialize};

use super::planned::Figures;
use crate::engine::Breakdown;
use crate::units::{Bytes, Time};

/// The fields of [`Figures`] in their order.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wire {
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
        }
    }
}
