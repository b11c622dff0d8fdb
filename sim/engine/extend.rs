//! From runs of few micro-batches to one of many.
//!
//! Once a pipeline is full, each further round of micro-batches does what the round before did. So two runs that differ by
//! some rounds say what a round adds, to the picosecond, and a third says whether that is so: [`agree`]. Nothing is
//! assumed; where the three do not lie on a line, all micro-batches have to be run.

use super::{Breakdown, Busy, Timeline};
use crate::units::Time;

/// A number that grows by the same amount with each further round.
#[derive(Clone, Copy)]
struct Line {
    /// Rounds between the two runs, and from the first to what is asked.
    between: u64,
    to: u64,
}

impl Line {
    /// The number after as many rounds as asked, if it is whole and not negative.
    fn at(self, near: u64, far: u64) -> Option<u64> {
        let grown = (i128::from(far) - i128::from(near)) * i128::from(self.to);
        let between = i128::from(self.between);
        let whole = between > 0 && grown % between == 0;
        whole.then(|| u64::try_from(i128::from(near) + grown / between).ok()).flatten()
    }

    fn time(self, near: Time, far: Time) -> Option<Time> {
        self.at(near.0, far.0).map(Time)
    }

    fn times(self, near: &[Time], far: &[Time]) -> Option<Vec<Time>> {
        (near.len() == far.len()).then(|| near.iter().zip(far).map(|(&near, &far)| self.time(near, far)).collect())?
    }

    fn breakdown(self, near: &Breakdown, far: &Breakdown) -> Option<Breakdown> {
        Some(Breakdown {
            compute: self.time(near.compute, far.compute)?,
            exposed_communication: self.time(near.exposed_communication, far.exposed_communication)?,
            bubble: self.time(near.bubble, far.bubble)?,
            host_bound: self.time(near.host_bound, far.host_bound)?,
            waiting: self.time(near.waiting, far.waiting)?,
        })
    }

    fn busy(self, near: &Busy, far: &Busy) -> Option<Busy> {
        Some(Busy {
            kernel: self.times(&near.kernel, &far.kernel)?,
            owner: self.times(&near.owner, &far.owner)?.try_into().ok()?,
            comm: self.times(&near.comm, &far.comm)?,
            comm_waiting: self.times(&near.comm_waiting, &far.comm_waiting)?,
            kernel_exposed: self.times(&near.kernel_exposed, &far.kernel_exposed)?,
            comm_exposed: self.times(&near.comm_exposed, &far.comm_exposed)?,
            exchange: self.times(&near.exchange, &far.exchange)?,
            exchange_waiting: self.times(&near.exchange_waiting, &far.exchange_waiting)?,
            exchange_exposed: self.times(&near.exchange_exposed, &far.exchange_exposed)?,
        })
    }
}

/// The run of `rounds.2` rounds, from those of `rounds.0` and `rounds.1`; none if something would be no whole number, or if
/// the two do not run the same kernels. Marks and spans are left out.
pub fn extend(near: &Timeline, far: &Timeline, rounds: (u64, u64, u64)) -> Option<Timeline> {
    let line = Line { between: rounds.1.checked_sub(rounds.0)?, to: rounds.2.checked_sub(rounds.0)? };
    let breakdown = near.breakdown.iter().zip(&far.breakdown).map(|(near, far)| line.breakdown(near, far));
    let busy = near.busy.iter().zip(&far.busy).map(|(near, far)| line.busy(near, far));
    (near.ranks == far.ranks).then_some(())?;
    Some(Timeline {
        step: line.time(near.step, far.step)?,
        ends: line.times(&near.ends, &far.ends)?,
        ranks: near.ranks.clone(),
        breakdown: breakdown.collect::<Option<_>>()?,
        busy: busy.collect::<Option<_>>()?,
        marks: vec![],
        spans: vec![],
        host_begins: vec![],
        host_times: vec![],
        events: near.events + far.events,
    })
}

/// Whether a run is what two others say it should be.
pub fn agree(extended: &Timeline, run: &Timeline) -> bool {
    extended.step == run.step && extended.breakdown == run.breakdown && extended.busy == run.busy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(step: u64, compute: u64) -> Timeline {
        let breakdown = Breakdown { compute: Time(compute), bubble: Time(step - compute), ..Breakdown::default() };
        Timeline {
            step: Time(step),
            ends: vec![Time(step), Time(2 * step)],
            ranks: vec![],
            breakdown: vec![breakdown],
            busy: vec![Busy { kernel: vec![Time(compute)], ..Busy::default() }],
            marks: vec![],
            spans: vec![],
            host_begins: vec![],
            host_times: vec![],
            events: 1,
        }
    }

    #[test]
    fn one_f_one_b_with_unit_costs_extends_to_its_closed_form() {
        // p − 1 + m steps of one forward and one backward, of 3 picoseconds together.
        let run = |micro: u64| timeline(3 * (micro + 7), 3 * micro);
        let extended = extend(&run(8), &run(16), (8, 16, 2048)).expect("whole numbers");
        assert!(agree(&extended, &run(2048)));
    }

    #[test]
    fn what_does_not_lie_on_the_line_does_not_agree() {
        let extended = extend(&timeline(10, 4), &timeline(20, 8), (1, 2, 3)).expect("whole numbers");
        assert!(!agree(&extended, &timeline(31, 12)));
        assert_eq!(extend(&timeline(10, 4), &timeline(15, 8), (1, 3, 4)), None);
    }
}
