//! Numbers without a unit that plans hold, such as a ratio or an exponent: finite, so that they can be compared and hashed.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Serialize, Serializer};

/// A finite number. It is equal to another if their bits are equal: there is no NaN, and only one zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finite(f64);

impl Finite {
    /// The finite number nearest to a value; zero for NaN.
    pub fn nearest(value: f64) -> Finite {
        // The sum turns the negative zero into the positive one.
        Finite(if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) + 0.0 })
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Finite {
    fn eq(&self, other: &Finite) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Finite {}

impl Ord for Finite {
    fn cmp(&self, other: &Finite) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Finite {
    fn partial_cmp(&self, other: &Finite) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Finite {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Serialize for Finite {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl fmt::Display for Finite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Finite;

    #[test]
    fn what_is_no_finite_number_becomes_the_nearest_one() {
        assert_eq!(Finite::nearest(1.25).get(), 1.25);
        assert_eq!(Finite::nearest(f64::INFINITY).get(), f64::MAX);
        assert_eq!(Finite::nearest(f64::NAN), Finite::default());
        assert_eq!(Finite::nearest(-0.0), Finite::nearest(0.0));
        assert!(Finite::nearest(-1.0) < Finite::nearest(0.5));
    }
}
