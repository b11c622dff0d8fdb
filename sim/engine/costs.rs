//! What every kernel, collective and host action costs: all that the engine knows about hardware.

use crate::hardware::{OUTER, Uplink};
use crate::network::LEVELS;
use crate::program::{Collective, Dispatch, Program};
use crate::units::Time;

use super::EngineError;

/// What one kernel costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCost {
    /// How long it runs when nothing disturbs it \[ps\].
    pub time: Time,
    /// Factor on its duration, 1 or more, while a collective runs on the rank.
    pub slowdown: f64,
    /// How much of the processors it takes, 0 to 1. Kernels on several streams of a rank that take more than all of them
    /// together take turns, wave by wave: two that fill them get half the time each. Copies between host and device have
    /// engines of their own.
    pub share: f64,
}

/// What one collective or message costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommCost {
    /// How long it runs when nothing shares the fabric \[ps\].
    pub time: Time,
    /// Fraction of each fabric level's bandwidth it uses then, 0 to 1.
    pub use_of: [f64; LEVELS],
    /// Fraction that one copy of the group uses of one uplink into each level beyond, by [`Uplink::level`] less 2, 0 to 1.
    pub outer: [f64; OUTER],
}

impl CommCost {
    /// No time, no use of the fabric.
    pub const FREE: CommCost = CommCost { time: Time::ZERO, use_of: [0.0; LEVELS], outer: [0.0; OUTER] };
}

/// The costs of a program's parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// By `KernelId`.
    pub kernel: Vec<KernelCost>,
    /// By `CommId`.
    pub comm: Vec<CommCost>,
    /// By `TransferId`; the slower end of a message decides.
    pub transfer: Vec<CommCost>,
    /// What the host pays once per dispatch of a class (a collective, or each end of a message), by `Dispatch as usize` \[ps\].
    pub dispatch: [Time; Dispatch::COUNT],
    /// What the host pays to record an event \[ps\].
    pub record: Time,
    /// What the host pays to make a stream wait for an event \[ps\].
    pub wait: Time,
    /// Delay from the moment a stream reaches an event until other streams see it \[ps\]. The host sees it at once:
    /// where its waiting takes something, that is a dispatch of its own.
    pub event_latency: Time,
    /// Uplinks that ranks share, the same for all classes; none: each rank has its own links only.
    pub uplinks: Vec<Uplink>,
}

impl Costs {
    /// Costs for `program` in which everything is free; a start for filling in.
    pub fn free(program: &Program) -> Costs {
        Costs {
            kernel: vec![KernelCost { time: Time::ZERO, slowdown: 1.0, share: 0.0 }; program.kernels.len()],
            comm: vec![CommCost::FREE; program.comms.len()],
            transfer: vec![CommCost::FREE; program.transfers.len()],
            dispatch: [Time::ZERO; Dispatch::COUNT],
            record: Time::ZERO,
            wait: Time::ZERO,
            event_latency: Time::ZERO,
            uplinks: Vec::new(),
        }
    }

    /// Checks that there is one cost for each part of `program`, in range.
    pub(super) fn check(&self, program: &Program) -> Result<(), EngineError> {
        for (what, costs, parts) in [
            ("kernels", self.kernel.len(), program.kernels.len()),
            ("collectives", self.comm.len(), program.comms.len()),
            ("transfers", self.transfer.len(), program.transfers.len()),
        ] {
            if costs != parts {
                return Err(EngineError::CostCount { what, costs, parts });
            }
        }
        for (id, cost) in self.kernel.iter().enumerate() {
            if !(cost.slowdown >= 1.0 && cost.slowdown.is_finite()) {
                let name = program.kernels[id].name;
                return Err(EngineError::Slowdown { name, slowdown: cost.slowdown });
            }
        }
        let comms = program.comms.iter().map(|comm| comm.kind).zip(&self.comm);
        let transfers = program.transfers.iter().map(|_| Collective::SendRecv).zip(&self.transfer);
        for (kind, cost) in comms.chain(transfers) {
            if let Some(&part) = cost.use_of.iter().chain(&cost.outer).find(|part| !(0.0..=1.0).contains(*part)) {
                return Err(EngineError::Use { kind, part });
            }
        }
        Ok(())
    }
}
