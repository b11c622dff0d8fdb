//! Why a prediction may be off: shares of the step that predictions err on, and how far each makes them err.
//!
//! ```text
//! scale² = USUAL² + (COSTS · residual)² + (ACROSS · across)² + (WITHIN · within)² + (EXPERTS · experts)²
//!        + (WAITING · waiting)² + STAND_IN²
//! ```
//!
//! Each constant is the mean size of an error (the logarithm of measured over predicted step time) of a step that consists of nothing but
//! its part. They are the likeliest for Laplace-distributed errors of the public measured runs (`measured-runs.csv`), each configuration
//! weighed once and a family of n by n^0.8; `witnesses.rs` tests that none of them is better otherwise. The host stands apart: few measured
//! runs wait for it, and what published hosts take says more ([`HOSTS`]).

use serde::{Deserialize, Serialize};

use super::class::Class;
use crate::engine::Timeline;
use crate::hardware::Topology;
use crate::program::{GroupId, Owner, Program, TransferId};
use crate::units::Time;

/// What errs in any step.
const USUAL: f64 = 0.041;
/// Per half-width of what the costs' own residuals make of the step.
const COSTS: f64 = 0.28;
/// Exposed communication that leaves a node.
const ACROSS: f64 = 0.49;
/// Other exposed communication.
const WITHIN: f64 = 0.62;
/// Routers and experts.
const EXPERTS: f64 = 0.17;
/// Waiting for other ranks.
const WAITING: f64 = 0.20;
/// Kernels that other libraries' stand in for.
const STAND_IN: f64 = 0.24;

/// How many times more or less than its cost a host may take (80 % interval): the geometric mean of how far published figures of one class
/// of call lie from their middle (`calibrate/import/host.rs` has the sources).
///
/// | call | from, to \[us\] | either way |
/// |---|---|---|
/// | an eager operator | 4, 8 | 1.41 |
/// | a kernel's launch | 1.3, 3.3 | 1.6 |
/// | a hook of FSDP | 40, 200 | 2.2 |
/// | `torch.distributed`'s part of a collective | 4, 30 | 2.7 |
pub const HOSTS: f64 = 1.9;

/// The share of the step from which the host is said to set it.
const SETS: f64 = 0.15;

/// Shares of a step that predictions err on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reasons {
    /// Half the width of an 80 % interval by the costs' own residuals alone.
    pub residual: f64,
    /// The device has nothing to do because the host is behind: the mean of all ranks.
    pub host: f64,
    /// What a host pays to issue the step, of the rank whose host pays most. From 1 on the host sets the step.
    pub issued: f64,
    /// Exposed communication that leaves a node, a slice or an NVLink domain.
    pub across: f64,
    /// Other exposed communication.
    pub within: f64,
    /// Kernels of routers and experts.
    pub experts: f64,
    /// Waiting for other ranks.
    pub waiting: f64,
    /// 1 where times of another library's kernels stand in for those that run, as PyTorch's do for XLA's on GPUs; else 0.
    pub stand_in: f64,
}

/// Something that makes a step uncertain, in the field's words, and its share of what is uncertain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// What it is.
    pub what: &'static str,
    /// Its share of the interval's variance, 0 to 1.
    pub share: f64,
}

impl Reasons {
    /// The names of its parts, in the order of [`Reasons::parts`].
    pub const PARTS: [&'static str; 8] =
        ["residual", "host", "issued", "across", "within", "experts", "waiting", "stand_in"];

    /// Its parts.
    pub fn parts(&self) -> [f64; 8] {
        let Reasons { residual, host, issued, across, within, experts, waiting, stand_in } = *self;
        [residual, host, issued, across, within, experts, waiting, stand_in]
    }

    /// Of its parts.
    pub(super) fn from_parts(parts: [f64; 8]) -> Reasons {
        let [residual, host, issued, across, within, experts, waiting, stand_in] = parts;
        Reasons { residual, host, issued, across, within, experts, waiting, stand_in }
    }

    /// Of a step that was simulated. Of a pipeline the class counts that waits least for others, as it sets the step's length. `issued`
    /// is what the host that pays most pays for a step.
    pub(super) fn of(
        (classes, timeline, topology): (&[Class], &Timeline, &Topology),
        (residual, issued, stands_in): (f64, Time, bool),
    ) -> Reasons {
        let step = timeline.step.seconds().max(f64::MIN_POSITIVE);
        let least = (0..classes.len()).min_by_key(|&class| classes[class].breakdown.bubble).unwrap_or(0);
        let Class { program, breakdown, .. } = &classes[least];
        let busy = &timeline.busy[least];
        let outer = |group: GroupId| leaves(program, group, topology);
        let comms = program.comms.iter().zip(&busy.comm_exposed).filter(|(comm, _)| outer(comm.group));
        let sent = |ids: &[TransferId]| ids.iter().any(|id| outer(program.transfers[id.0 as usize].group));
        let exchanges = program.exchanges.iter().zip(&busy.exchange_exposed).filter(|(ids, _)| sent(ids));
        let across: f64 = comms.map(|(_, time)| time.seconds()).chain(exchanges.map(|(_, time)| time.seconds())).sum();
        let ranks: f64 = classes.iter().map(|class| f64::from(class.ranks)).sum();
        let host: f64 = classes.iter().map(|class| class.breakdown.host_bound.seconds() * f64::from(class.ranks)).sum();
        Reasons {
            residual,
            host: host / ranks.max(1.0) / step,
            issued: issued.seconds() / step,
            across: across.max(0.0) / step,
            within: (breakdown.exposed_communication.seconds() - across).max(0.0) / step,
            experts: busy.owner[Owner::Experts as usize].seconds() / step,
            waiting: breakdown.bubble.seconds() / step,
            stand_in: f64::from(u8::from(stands_in)),
        }
    }

    /// What each part but the host makes a step err by, with its name.
    fn errors(&self) -> [(&'static str, f64); 7] {
        [
            ("the usual error of any step", USUAL),
            ("kernels' times", COSTS * self.residual),
            ("exposed communication across nodes", ACROSS * self.across),
            ("exposed communication within nodes", WITHIN * self.within),
            ("experts", EXPERTS * self.experts),
            ("waiting for other ranks", WAITING * self.waiting),
            ("kernels of XLA on GPUs, which no table has", STAND_IN * self.stand_in),
        ]
    }

    /// How far a step like this one is off in the mean, the host aside, as a logarithm.
    pub(super) fn scale(&self) -> f64 {
        self.errors().iter().map(|(_, error)| error * error).sum::<f64>().sqrt()
    }

    /// The logarithm of what the step would be over what it is, on hosts that are [`HOSTS`] times faster, and slower.
    ///
    /// A faster host leaves at least what the device takes, and what it pays itself; on a slower one the device waits so much longer, and
    /// a step takes at least what the host pays for it.
    pub(super) fn hosts(&self) -> (f64, f64) {
        let host = self.host.clamp(0.0, 0.99);
        let fast = (1.0 - host).max(self.issued / HOSTS).min(1.0);
        let slow = (1.0 + (HOSTS - 1.0) * host).max(HOSTS * self.issued).max(1.0);
        (libm::log(fast), libm::log(slow))
    }

    /// Whether the host sets the step, or a large part of it.
    pub fn waits_for_host(&self) -> bool {
        self.host >= SETS
    }

    /// What makes the step uncertain, the largest first. The host's share is that of the wider side.
    pub fn list(&self) -> Vec<Reason> {
        let (fast, slow) = self.hosts();
        let host = (-fast).max(slow);
        let errors = self.errors().into_iter().chain([("the host", host)]);
        let all: f64 = errors.clone().map(|(_, error)| error * error).sum();
        let mut list: Vec<Reason> =
            errors.map(|(what, error)| Reason { what, share: error * error / all.max(f64::MIN_POSITIVE) }).collect();
        list.sort_by(|one, other| other.share.total_cmp(&one.share));
        list
    }
}

/// Whether a group's ranks are joined by more than the innermost level of the fabric.
fn leaves(program: &Program, group: GroupId, topology: &Topology) -> bool {
    let group = program.group(group);
    group.size > 1 && topology.level_of(group.size, group.stride) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_the_host_does_not_hold_up_is_not_faster_on_a_faster_one() {
        let idle = Reasons { issued: 0.2, ..Reasons::default() };
        assert_eq!(idle.hosts(), (0.0, 0.0));
        assert!(!idle.waits_for_host());
    }

    #[test]
    fn a_step_that_is_all_the_hosts_goes_as_the_host_does() {
        let (fast, slow) = Reasons { host: 0.9, issued: 1.0, ..Reasons::default() }.hosts();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(fast, -libm::log(HOSTS)) && near(slow, libm::log(HOSTS)), "{fast} {slow}");
    }

    #[test]
    fn what_a_device_takes_bounds_what_a_faster_host_saves() {
        let (fast, slow) = Reasons { host: 0.3, issued: 0.95, ..Reasons::default() }.hosts();
        assert!((fast - libm::log(0.7)).abs() < 1e-9, "{fast}");
        assert!((slow - libm::log(0.95 * HOSTS)).abs() < 1e-9, "{slow}");
    }

    #[test]
    fn shares_of_the_reasons_sum_to_one_and_the_largest_is_first() {
        let reasons = Reasons { experts: 0.4, across: 0.3, residual: 0.1, ..Reasons::default() };
        let list = reasons.list();
        assert!((list.iter().map(|reason| reason.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(list[0].what, "exposed communication across nodes");
        assert!(list.windows(2).all(|pair| pair[0].share >= pair[1].share));
    }
}
