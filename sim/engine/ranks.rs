//! How ranks differ from one another: each has a pace of its own, which lasts.
//!
//! A profile is of one chip. Chips of one kind differ: one reaches a lower clock at the same power limit, one sits in a warmer slot, one
//! host has an older kernel. Such a rank takes longer for the same work, step after step. A *stretch* is by how much: a factor on a
//! duration, 1 for a rank that is as fast as the profile.

/// A factor on durations.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Stretch(f64);

/// From here on a 64-bit float counts in whole numbers: adding and taking it off again rounds.
pub(super) const WHOLE_FROM: f64 = 4_503_599_627_370_496.0;

/// A duration times a factor, to the nearest picosecond.
#[inline]
pub(super) fn stretched(duration: f64, factor: f64) -> f64 {
    (duration * factor + WHOLE_FROM) - WHOLE_FROM
}

impl Stretch {
    /// As fast as the profile.
    pub const NONE: Stretch = Stretch(1.0);
    /// The fastest and the slowest.
    pub const RANGE: std::ops::RangeInclusive<f64> = 0.01..=100.0;

    /// The stretch of something that takes `factor` times as long; none out of [`Stretch::RANGE`].
    pub fn new(factor: f64) -> Option<Stretch> {
        Stretch::RANGE.contains(&factor).then_some(Stretch(factor))
    }

    /// The factor.
    pub fn factor(self) -> f64 {
        self.0
    }

    /// So much work takes so long, to the nearest picosecond: times up to 2^52 ps, which is 75 minutes, are exact.
    #[inline]
    pub(super) fn of(self, time: f64) -> f64 {
        stretched(time, self.0)
    }

    /// The same in integers.
    pub(super) fn of_ps(self, time: u64) -> u64 {
        if self == Stretch::NONE { time } else { self.of(time as f64) as u64 }
    }
}

/// The pace of one rank: a stretch for each kind of thing it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPace {
    /// Of matmuls and attention, which run at the chip's clock.
    pub compute: Stretch,
    /// Of kernels that move memory.
    pub memory: Stretch,
    /// Of the host's calls.
    pub host: Stretch,
    /// Of its links: a collective takes as long as its slowest member's links need.
    pub link: Stretch,
}

impl RankPace {
    /// As the profile.
    pub const NONE: RankPace =
        RankPace { compute: Stretch::NONE, memory: Stretch::NONE, host: Stretch::NONE, link: Stretch::NONE };

    /// The stretch of a kernel.
    pub(super) fn of(&self, bound: Bound) -> Stretch {
        match bound {
            Bound::Compute => self.compute,
            Bound::Memory => self.memory,
            Bound::Host => Stretch::NONE,
        }
    }
}

/// How far times vary from one time to the next: standard deviations, as shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Of a kernel, each time it runs.
    pub kernel: f64,
    /// Of what a host pays between two things that are seen.
    pub host: f64,
}

impl Jitter {
    /// Everything takes as long every time.
    pub const NONE: Jitter = Jitter { kernel: 0.0, host: 0.0 };

    /// Whether everything takes as long every time.
    pub fn is_none(self) -> bool {
        self == Jitter::NONE
    }
}

/// What holds a kernel back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Arithmetic.
    Compute,
    /// Device memory.
    Memory,
    /// The host, its memory or its disks: as fast on every rank.
    Host,
}

/// How long everything takes on the first rank of each class, step by step \[ps\].
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    /// Kernels and collectives, by class: one step after the other, each with all operations of the class's plan.
    ops: Vec<Vec<f64>>,
    /// Messages, by class: one step after the other, each with all their ends.
    legs: Vec<Vec<f64>>,
    steps: usize,
}

impl Noted {
    /// Room for so many operations and ends of messages of each class.
    pub(super) fn new(sizes: impl Iterator<Item = (usize, usize)>, steps: usize) -> Noted {
        let (ops, legs) = sizes.map(|(ops, legs)| (vec![0.0; ops * steps], vec![0.0; legs * steps])).unzip();
        Noted { ops, legs, steps }
    }

    /// Notes an operation.
    pub(super) fn op(&mut self, class: usize, (step, at): (u32, u32), took: u64) {
        let each = self.ops[class].len() / self.steps;
        self.ops[class][step as usize * each + at as usize] = took as f64;
    }

    /// Notes the end of a message.
    pub(super) fn leg(&mut self, class: usize, (step, at): (u32, u32), took: u64) {
        let each = self.legs[class].len() / self.steps;
        self.legs[class][step as usize * each + at as usize] = took as f64;
    }

    /// What the operations of a class take in a step.
    pub(super) fn ops(&self, class: usize, step: usize) -> &[f64] {
        let each = self.ops[class].len() / self.steps;
        &self.ops[class][step * each..(step + 1) * each]
    }

    /// What its messages take.
    pub(super) fn legs(&self, class: usize, step: usize) -> &[f64] {
        let each = self.legs[class].len() / self.steps;
        &self.legs[class][step * each..(step + 1) * each]
    }

    /// Steps that were noted.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_a_factor_to_the_nearest_picosecond() {
        let stretch = |factor| Stretch::new(factor).expect("in range");
        assert_eq!(stretch(1.5).of_ps(1001), 1502);
        assert_eq!(stretch(0.9).of_ps(1000), 900);
        assert_eq!(Stretch::NONE.of_ps(u64::MAX), u64::MAX);
        assert_eq!(stretch(1.25).of(5.0), 6.0);
        assert_eq!(Stretch::new(0.0), None);
        assert_eq!(Stretch::new(f64::NAN), None);
    }
}
