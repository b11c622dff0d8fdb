//! How much time each rank has spent on what, and what is blamed for communication that nothing hides.

use crate::program::Program;
use crate::units::Time;

use super::Breakdown;

/// The time a rank has spent, and what decides on what it is spending it now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// By part, an index of those below \[ps\].
    pub(super) parts: [u64; 5],
    /// Accounted up to here.
    pub(super) until: u64,
    /// Running kernels of any pass but communication.
    pub(super) compute: u32,
    /// Running kernels of the communication pass, collectives and messages.
    pub(super) communication: u32,
}

pub(super) const COMPUTE: usize = 0;
pub(super) const EXPOSED: usize = 1;
pub(super) const BUBBLE: usize = 2;
pub(super) const HOST: usize = 3;
pub(super) const WAITING: usize = 4;

impl Spent {
    /// What was spent since `before`.
    pub(super) fn since(&self, before: &Spent) -> Breakdown {
        let part = |index: usize| Time(self.parts[index] - before.parts[index]);
        Breakdown {
            compute: part(COMPUTE),
            exposed_communication: part(EXPOSED),
            bubble: part(BUBBLE),
            host_bound: part(HOST),
            waiting: part(WAITING),
        }
    }
}

/// Exposed communication by what is blamed for it \[ps\].
#[derive(Clone, Debug)]
pub(super) struct Exposed {
    pub(super) kernel: Vec<Time>,
    pub(super) comm: Vec<Time>,
    pub(super) exchange: Vec<Time>,
}

impl Exposed {
    /// Nothing yet.
    pub(super) fn of(program: &Program) -> Exposed {
        Exposed {
            kernel: vec![Time::ZERO; program.kernels.len()],
            comm: vec![Time::ZERO; program.comms.len()],
            exchange: vec![Time::ZERO; program.exchanges.len()],
        }
    }

    /// Each list with its partner.
    pub(super) fn pairs<'a>(&'a mut self, other: &'a Exposed) -> [(&'a mut Vec<Time>, &'a Vec<Time>); 3] {
        let Exposed { kernel, comm, exchange } = self;
        [(kernel, &other.kernel), (comm, &other.comm), (exchange, &other.exchange)]
    }

    /// Without what there was before.
    pub(super) fn less(&mut self, before: &Exposed) {
        for (sum, less) in self.pairs(before) {
            sum.iter_mut().zip(less).for_each(|(sum, &less)| *sum = *sum - less);
        }
    }
}

/// All that has been spent up to some moment: by rank, and what is blamed for exposed communication, by class.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub(super) spent: Vec<Spent>,
    pub(super) exposed: Vec<Exposed>,
}

impl Totals {
    /// With what was spent between two other moments.
    pub(super) fn plus(mut self, from: &Totals, to: &Totals) -> Totals {
        for (sum, (from, to)) in self.spent.iter_mut().zip(from.spent.iter().zip(&to.spent)) {
            for (part, (from, to)) in sum.parts.iter_mut().zip(from.parts.iter().zip(to.parts)) {
                *part += to - from;
            }
        }
        for (sum, (from, to)) in self.exposed.iter_mut().zip(from.exposed.iter().zip(&to.exposed)) {
            for (sum, more) in sum.pairs(to) {
                sum.iter_mut().zip(more).for_each(|(sum, &more)| *sum += more);
            }
            sum.less(from);
        }
        self
    }
}
