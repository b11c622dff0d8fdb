//! How sure it is that one plan is faster than another.
//!
//! Two plans of a model on a machine share most of what a prediction is off by, so their difference is known better than either. How
//! well is asked of measured runs (`sim/cost/profiles/measured-runs.csv`): of two runs of one family on one machine, the errors differ
//! by a number, and how large these numbers are is what a difference of two predictions may be off by. The logarithm of the ratio of
//! two steps is taken as normal around the predicted one with that deviation.

use crate::scenario::predict::pairs;
use crate::units::Time;

/// Below this probability that the faster of two plans is the faster one, they are tied.
pub const TIE: f64 = 0.8;

/// The probability that a plan of step `a` is faster than one of step `b`; `alike` if both run under one framework.
pub fn beats(a: Time, b: Time, alike: bool) -> f64 {
    let ratio = libm::log(b.seconds() / a.seconds());
    let deviation = pairs::deviation(alike);
    0.5 * libm::erfc(-ratio / deviation / std::f64::consts::SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_plans_are_a_coin_toss_and_twice_as_fast_is_sure() {
        let at = Time::from_seconds;
        assert!((beats(at(1.0), at(1.0), true) - 0.5).abs() < 1e-12);
        assert!(beats(at(1.0), at(2.0), true) > 0.999);
        let (one, other) = (beats(at(1.0), at(1.05), true), beats(at(1.05), at(1.0), true));
        assert!((one + other - 1.0).abs() < 1e-12 && one > 0.5);
    }

    #[test]
    fn plans_of_two_frameworks_are_known_less_well() {
        let at = Time::from_seconds;
        assert!(beats(at(1.0), at(1.1), true) >= beats(at(1.0), at(1.1), false));
    }
}
