//! What it may mean for a step that another release of the framework ran than the one whose defaults a file has, or that the run has
//! switches which are not simulated.

use crate::units::Time;

/// Half of an 80 % interval, as the logarithm of one step time over another.
///
/// 14 public configurations of torchtitan were imported with the defaults of 0.1.0 and of 0.2.2, which are a year apart. Their steps differ
/// by 8 % in the median, and eight in ten of them by at most 15 % (`tests/import.rs` predicts them again). No other framework has two
/// releases here, so this stands for all; and for switches that are not simulated, since switches and their defaults are what releases
/// differ by.
pub const ANOTHER_RELEASE: f64 = 0.15;

/// An interval around a step, wider by what another release may do to it: both in quadrature, each side for itself.
pub(super) fn wider(step: Time, interval: (Time, Time)) -> (Time, Time) {
    let side = |end: Time, sign: f64| {
        let own = libm::log(end.seconds() / step.seconds());
        Time::from_seconds(step.seconds() * libm::exp(sign * libm::hypot(own, ANOTHER_RELEASE)))
    };
    match step {
        Time::ZERO => interval,
        _ => (side(interval.0, -1.0), side(interval.1, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_as_wide_as_both_doubts_together() {
        let at = |seconds| Time::from_seconds(seconds);
        let (low, high) = wider(at(1.0), (at(1.0), at(libm::exp(0.2))));
        assert!((libm::log(low.seconds()) + ANOTHER_RELEASE).abs() < 1e-6);
        assert!((libm::log(high.seconds()) - 0.25).abs() < 1e-6, "0.15² + 0.2² = 0.25²");
        assert_eq!(wider(Time::ZERO, (Time::ZERO, Time::ZERO)), (Time::ZERO, Time::ZERO));
    }
}
