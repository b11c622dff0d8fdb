//! How much longer something takes than alone, in fixed point, so that work and time stay integers.
//!
//! A pace is a stretch factor of at least 1 with 32 fractional bits. Work is counted in picoseconds at full speed:
//! after `elapsed` at stretch `p`, `elapsed / p` of it is done, and what remains needs `remaining · p`, both to the nearest
//! picosecond. Nothing thus ends earlier than at full speed, and each change of pace costs one rounding.

const ONE: u64 = 1 << 32;
/// The slowest pace: a millionth of full speed.
const SLOWEST: f64 = 1048576.0;

/// A stretch factor, 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace(u64);

impl Pace {
    /// Full speed.
    pub(super) const FULL: Pace = Pace(ONE);

    /// The factor with its fractional bits.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// The pace of something that takes `factor` times as long; the one place where a float becomes a pace.
    pub(super) fn from_factor(factor: f64) -> Pace {
        let factor = if factor > 1.0 { factor } else { 1.0 };
        let factor = if factor < SLOWEST { factor } else { SLOWEST };
        Pace((factor * ONE as f64).round() as u64)
    }

    /// The pace of something that runs at `speed`, in (0, 1].
    pub(super) fn from_speed(speed: f64) -> Pace {
        Pace::from_factor(1.0 / speed)
    }

    /// The pace of one of several that take turns, who want `wanted` of what there is `whole` of.
    pub(super) fn in_turns(self, wanted: u32, whole: u32) -> Pace {
        let pace = u128::from(self.0) * u128::from(wanted) / u128::from(whole);
        Pace(u64::try_from(pace).unwrap_or(u64::MAX))
    }

    /// Work done in `elapsed` \[ps at full speed\].
    pub(super) fn done_in(self, elapsed: u64) -> u64 {
        if self == Pace::FULL {
            elapsed
        } else {
            (((u128::from(elapsed) << 32) + u128::from(self.0 / 2)) / u128::from(self.0)) as u64
        }
    }

    /// Time that `work` takes \[ps\].
    pub(super) fn time_for(self, work: u64) -> u64 {
        if self == Pace::FULL {
            work
        } else {
            ((u128::from(work) * u128::from(self.0) + u128::from(ONE / 2)) >> 32) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_factor_stretches_and_a_speed_is_its_inverse() {
        assert_eq!(Pace::from_factor(1.5).time_for(1000), 1500);
        assert_eq!(Pace::from_speed(0.25).time_for(1000), 4000);
        assert_eq!(Pace::from_factor(1.5).done_in(1500), 1000);
        assert_eq!(Pace::from_factor(0.5), Pace::FULL);
        assert_eq!(Pace::from_factor(f64::NAN), Pace::FULL);
        assert!(Pace::from_factor(f64::INFINITY) > Pace::FULL);
    }

    proptest! {
        #[test]
        fn work_is_done_when_its_time_has_passed(work in 0u64..1 << 52, factor in 1.0..64.0) {
            let pace = Pace::from_factor(factor);
            prop_assert_eq!(pace.done_in(pace.time_for(work)), work);
        }

        #[test]
        fn nothing_is_faster_than_full_speed(span in 0u64..1 << 52, factor in 0.0..64.0) {
            let pace = Pace::from_factor(factor);
            prop_assert!(pace.time_for(span) >= span && pace.done_in(span) <= span);
        }
    }
}
