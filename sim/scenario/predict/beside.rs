//! What a scenario beside one that has been run has in common with it: programs, costs, memory. That is not worked out again.

use super::class::Class;
use super::costs::Evidence;
use super::doubt::Doubt;
use super::host::Host;
use super::kind::Kind;
use super::memory::{self, DeviceMemory};
use super::mfu::{Mfu, mfu};
use super::reasons::Reasons;
use super::rounds;
use crate::cost::attention::Backend;
use crate::engine::{Costs, Timeline};
use crate::program::{Kernel, Work};
use crate::runtime::Flight;
use crate::scenario::ranks::Ranks;
use crate::scenario::understood::Scenario;
use crate::units::{Bytes, Time};

/// A scenario that has been run.
#[derive(Clone, Copy)]
pub(super) struct Ran<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) classes: &'a [Class],
    pub(super) class_of: &'a [u32],
    pub(super) timeline: &'a Timeline,
    pub(super) step: Time,
}

/// All that a machine's numbers go into and a report shows.
#[derive(PartialEq)]
pub(super) struct Shown {
    evidence: Vec<Evidence>,
    memory: Vec<(Bytes, Option<Host>, Doubt)>,
    mfu: Vec<Mfu>,
    kind: Kind,
    /// But for what the costs say.
    reasons: Reasons,
    ranks: Option<Ranks>,
    /// Whose kernels attention runs, if it has any of its own.
    attention: Option<Backend>,
}

impl Ran<'_> {
    /// What another scenario's machine says to these programs, as a report shows it and as they are run.
    pub(super) fn on(self, other: &Scenario) -> (Shown, Vec<Costs>) {
        let Ran { classes, timeline, step, .. } = self;
        let programs = classes.iter().map(|class| class.program.clone()).collect();
        let flight = Flight { classes: programs, class_of: self.class_of.to_vec() };
        let (costs, evidence) = rounds::ask(other, &flight).0.into_iter().unzip();
        let memory = classes.iter().map(|class| {
            let outside = memory::outside(other, &class.program);
            let doubt = Doubt::of(other, &class.program, (outside, class.memory.wanted));
            (outside, Host::of(class.program.host, &other.topology), doubt)
        });
        let attends = |kernel: &Kernel| matches!(kernel.work, Work::Attention { .. });
        let flash = classes.iter().any(|class| class.program.kernels.iter().any(attends));
        let shown = Shown {
            evidence,
            memory: memory.collect(),
            mfu: mfu(other, classes, step, other.job.tokens()),
            kind: Kind::of(other),
            reasons: Reasons::of((classes, timeline, &other.topology), (0.0, Time::ZERO, false)),
            ranks: other.ranks.clone(),
            attention: flash.then_some(other.software.attention),
        };
        (shown, costs)
    }

    /// Whether another scenario's ranks run the same programs, as often. `few` are those of few of its micro-batches.
    pub(super) fn runs_as(self, other: &Scenario, few: Option<&Flight>) -> bool {
        let of = |scenario: &Scenario| {
            let switches = (scenario.one_queue, scenario.launch_blocking, scenario.expandable_segments);
            (switches, scenario.topology.chip.memory, scenario.job.micro_batches(), scenario.job.tokens())
        };
        let known = || rounds::write_few(self.scenario);
        of(other) == of(self.scenario)
            && (other.job == self.scenario.job || few.is_some_and(|few| known().is_some_and(|known| known == *few)))
    }

    /// Memory of each class's devices where another scenario's programs ask for what these ask for, of machines that have as much; and
    /// the tightest class.
    pub(super) fn memory_of(self, other: &Scenario, flight: &Flight) -> Option<(Vec<DeviceMemory>, usize)> {
        let settings = |scenario: &Scenario| (scenario.expandable_segments, scenario.topology.chip.memory);
        if settings(other) != settings(self.scenario) || flight.classes.len() != self.classes.len() {
            return None;
        }
        let mut devices = vec![];
        for (program, class) in flight.classes.iter().zip(self.classes) {
            let known = &class.memory;
            let outside = memory::outside(other, program);
            if outside != known.outside || !memory::asks_alike(program, &class.program) {
                return None;
            }
            let Doubt { bytes: doubt, surprises, about: doubtful } = Doubt::of(other, program, (outside, known.wanted));
            let host = Host::of(program.host, &other.topology);
            devices.push(DeviceMemory { doubt, surprises, doubtful, host, ..known.clone() });
        }
        let tightest = memory::tightest(&devices);
        Some((devices, tightest))
    }
}
