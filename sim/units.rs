//! Quantities with units: integer counts, float rates, and the two divisions that yield time.
//!
//! Counts ([`Bytes`], [`Flops`], [`Time`]) are integers so that sums are exact and runs are reproducible;
//! rates ([`Bandwidth`], [`FlopRate`]) are floats. `Bytes / Bandwidth` and `Flops / FlopRate` are the only
//! divisions that compile, and [`Time::from_seconds`] is the only place where a float becomes a time.
//!
//! In files a quantity is a string with its unit (`"4.8 TB/s"`, `"141 GB"`, `"2.5 us"`). Decimal and binary
//! prefixes are both understood and never confused: `GB` is 1e9 bytes, `GiB` is 2^30.

mod finite;
mod physical;
mod span;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

pub use finite::Finite;
pub use physical::physical;
pub use span::Span;

/// A number of bytes \[B\].
///
/// ```
/// use windtunnel::{Bandwidth, Bytes, Time};
///
/// let size = Bytes::parse("80 GiB")?;
/// assert_eq!(size, Bytes(80 << 30));
/// assert_eq!(size.to_string(), "80.0 GiB");
/// // Bytes over a bandwidth are a time.
/// let time: Time = Bytes(1_000_000) / Bandwidth::parse("1 GB/s")?;
/// assert_eq!(time, Time::parse("1 ms")?);
/// assert_eq!(time.millis(), 1.0);
/// # Ok::<(), windtunnel::UnitError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A number of floating-point operations \[FLOP\]; a fused multiply-add counts two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flops(pub u128);

/// A point in simulated time, or a span of it \[ps\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A transfer rate \[B/s\], one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Bandwidth(pub f64);

/// An arithmetic rate \[FLOP/s\].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct FlopRate(pub f64);

/// Electrical power \[W\].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Power(pub f64);

/// A clock rate \[Hz\].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Frequency(pub f64);

/// A quantity as written that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No number at the front.
    #[error("{text:?} does not start with a number: expected something like {example:?}")]
    NoNumber {
        /// The value as written.
        text: String,
        /// A value that would have been understood.
        example: &'static str,
    },
    /// The unit is not one of this quantity's.
    #[error("{text:?} has the unit {unit:?}: expected one of {expected}, for example {example:?}")]
    WrongUnit {
        /// The value as written.
        text: String,
        /// The unit found.
        unit: String,
        /// The units of this quantity.
        expected: String,
        /// A value that would have been understood.
        example: &'static str,
    },
    /// Negative, not finite, not a whole number where a count is meant, or beyond the range that can be held.
    #[error("{text:?} is out of range: expected {expected}")]
    OutOfRange {
        /// The value as written.
        text: String,
        /// What would have been accepted.
        expected: &'static str,
    },
}

/// Splits `"4.8 TB/s"` into its number and its unit.
fn split<'t>(text: &'t str, example: &'static str) -> Result<(f64, &'t str), UnitError> {
    let trimmed = text.trim();
    let end = trimmed
        .char_indices()
        .find(|&(at, c)| {
            let exponent = (c == 'e' || c == 'E')
                && trimmed[at + 1..].starts_with(|d: char| d.is_ascii_digit() || d == '-' || d == '+');
            !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_') || exponent)
        })
        .map_or(trimmed.len(), |(at, _)| at);
    let number = trimmed[..end].replace('_', "");
    let value: f64 = number.parse().map_err(|_| UnitError::NoNumber { text: text.to_owned(), example })?;
    if !value.is_finite() || value < 0.0 {
        return Err(UnitError::OutOfRange { text: text.to_owned(), expected: "a finite number, zero or above" });
    }
    Ok((value, trimmed[end..].trim()))
}

/// Number of base units in the written quantity, by a table of (unit, base units in one).
fn scaled(text: &str, table: &[(&str, f64)], example: &'static str) -> Result<f64, UnitError> {
    let (value, unit) = split(text, example)?;
    match table.iter().find(|(name, _)| *name == unit) {
        Some(&(_, scale)) => Ok(value * scale),
        None => Err(UnitError::WrongUnit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            expected: table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
            example,
        }),
    }
}

const KI: f64 = 1024.0;

/// Whole counts are held as integers; beyond 2^63 a count is a mistake in the file, not a quantity.
fn whole(text: &str, value: f64) -> Result<u64, UnitError> {
    if value <= 9.2e18 {
        Ok(value.round() as u64)
    } else {
        Err(UnitError::OutOfRange { text: text.to_owned(), expected: "at most 9.2e18 base units" })
    }
}

impl Bytes {
    const TABLE: &[(&str, f64)] = &[
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", KI),
        ("MiB", KI * KI),
        ("GiB", KI * KI * KI),
        ("TiB", KI * KI * KI * KI),
    ];

    /// Reads `"141 GB"` or `"80 GiB"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        whole(text, scaled(text, Self::TABLE, "80 GiB")?).map(Bytes)
    }

    /// The same size in gibibytes.
    pub fn gib(self) -> f64 {
        self.0 as f64 / (KI * KI * KI)
    }

    /// The difference, or zero where `other` is larger.
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Time {
    const TABLE: &[(&str, f64)] = &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("µs", 1e6), ("ms", 1e9), ("s", 1e12)];

    /// Zero.
    pub const ZERO: Time = Time(0);

    /// Reads `"2.5 us"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        whole(text, scaled(text, Self::TABLE, "2.5 us")?).map(Time)
    }

    /// The one function in which a float becomes a time: rounds to the nearest picosecond; anything that is not a
    /// positive finite number becomes zero, and anything beyond 106 days the largest time.
    pub fn from_seconds(seconds: f64) -> Time {
        // `as` saturates, and sends NaN and negatives to zero.
        Time((seconds * 1e12).round() as u64)
    }

    /// The same span in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The same span in microseconds.
    pub fn micros(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The same span in milliseconds.
    pub fn millis(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The difference, or zero where `other` is later.
    pub fn saturating_sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl Bandwidth {
    const TABLE: &[(&str, f64)] =
        &[("B/s", 1.0), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12), ("Gbit/s", 1e9 / 8.0), ("Tbit/s", 1e12 / 8.0)];

    /// Reads `"4.8 TB/s"` or `"400 Gbit/s"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        scaled(text, Self::TABLE, "4.8 TB/s").map(Bandwidth)
    }
}

impl FlopRate {
    const TABLE: &[(&str, f64)] = &[("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)];

    /// Reads `"989.4 TFLOP/s"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        scaled(text, Self::TABLE, "989 TFLOP/s").map(FlopRate)
    }
}

impl Power {
    /// Reads `"700 W"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        scaled(text, &[("W", 1.0), ("kW", 1e3)], "700 W").map(Power)
    }
}

impl Frequency {
    /// Reads `"1980 MHz"`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        scaled(text, &[("Hz", 1.0), ("MHz", 1e6), ("GHz", 1e9)], "1980 MHz").map(Frequency)
    }
}

impl Div<Bandwidth> for Bytes {
    type Output = Time;
    fn div(self, rate: Bandwidth) -> Time {
        Time::from_seconds(self.0 as f64 / rate.0)
    }
}

impl Div<FlopRate> for Flops {
    type Output = Time;
    fn div(self, rate: FlopRate) -> Time {
        Time::from_seconds(self.0 as f64 / rate.0)
    }
}

macro_rules! count {
    ($name:ident, $inner:ty) => {
        impl Add for $name {
            type Output = $name;
            fn add(self, other: $name) -> $name {
                $name(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = $name;
            fn sub(self, other: $name) -> $name {
                $name(self.0 - other.0)
            }
        }
        impl Mul<$inner> for $name {
            type Output = $name;
            fn mul(self, times: $inner) -> $name {
                $name(self.0 * times)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = $name>>(items: I) -> $name {
                $name(items.map(|item| item.0).sum())
            }
        }
    };
}
count!(Bytes, u64);
count!(Flops, u128);
count!(Time, u64);

/// Writes `value` with three significant digits and the largest unit that keeps it at or above one.
fn human(f: &mut fmt::Formatter<'_>, value: f64, table: &[(&str, f64)]) -> fmt::Result {
    let &(unit, scale) = table.iter().rev().find(|(_, scale)| value >= *scale).unwrap_or(&table[0]);
    let scaled = value / scale;
    let digits = if scaled >= 100.0 || scaled == 0.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    write!(f, "{scaled:.digits$} {unit}")
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        human(f, self.0 as f64, &[("B", 1.0), ("KiB", KI), ("MiB", KI * KI), ("GiB", KI * KI * KI)])
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        human(f, self.0 as f64, &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12)])
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = [("FLOP", 1.0), ("MFLOP", 1e6), ("GFLOP", 1e9), ("TFLOP", 1e12), ("PFLOP", 1e15), ("EFLOP", 1e18)];
        human(f, self.0 as f64, &table)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        human(f, self.0, &[("B/s", 1.0), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12)])
    }
}

impl fmt::Display for FlopRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        human(f, self.0, &[("FLOP/s", 1.0), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)])
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} W", self.0)
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        human(f, self.0, &[("Hz", 1.0), ("MHz", 1e6)])
    }
}

/// Reads a quantity from a string with a unit, and says so when it finds a bare number.
macro_rules! from_text {
    ($name:ident, $expecting:literal, $exact:expr) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::parse(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "description": concat!("It is ", $expecting, ".")})
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[allow(clippy::redundant_closure_call)]
                serializer.serialize_str(&($exact)(self.0))
            }
        }
    };
}
from_text!(Bytes, "a size with its unit, such as \"80 GiB\"", |v| format!("{v} B"));
from_text!(Time, "a time with its unit, such as \"2.5 us\"", |v| format!("{v} ps"));
from_text!(Bandwidth, "a rate with its unit, such as \"4.8 TB/s\"", |v: f64| format!("{} GB/s", v / 1e9));
from_text!(FlopRate, "a rate with its unit, such as \"989 TFLOP/s\"", |v: f64| format!("{} TFLOP/s", v / 1e12));
from_text!(Power, "a power with its unit, such as \"700 W\"", |v| format!("{v} W"));
from_text!(Frequency, "a clock rate with its unit, such as \"1980 MHz\"", |v: f64| format!("{} MHz", v / 1e6));

/// A count with its thousands set apart: `131,072`.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        assert_eq!(Bytes::parse("141 GB"), Ok(Bytes(141_000_000_000)));
        assert_eq!(Bytes::parse("80 GiB"), Ok(Bytes(80 << 30)));
        assert_eq!(Bytes::parse("1_024B"), Ok(Bytes(1024)));
        assert_eq!(Time::parse("2.5 us"), Ok(Time(2_500_000)));
        assert_eq!(Bandwidth::parse("400 Gbit/s"), Ok(Bandwidth(50e9)));
        assert_eq!(Bandwidth::parse("4.8 TB/s"), Ok(Bandwidth(4.8e12)));
        assert_eq!(FlopRate::parse("989.4 TFLOP/s"), Ok(FlopRate(989.4e12)));
        assert_eq!(FlopRate::parse("1e3 GFLOP/s"), Ok(FlopRate(1e12)));
    }

    #[test]
    fn a_wrong_unit_names_the_right_ones() {
        let error = Bytes::parse("80 GB/s").expect_err("a rate is not a size").to_string();
        assert_eq!(
            error,
            "\"80 GB/s\" has the unit \"GB/s\": expected one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, for example \"80 GiB\""
        );
        assert!(Time::parse("fast").is_err());
        assert!(Bytes::parse("-3 GB").is_err());
        assert!(Bytes::parse("1e300 GB").is_err());
    }

    #[test]
    fn a_rate_divides_its_own_count_only() {
        assert_eq!(Bytes(4_800_000) / Bandwidth(4.8e12), Time(1_000_000));
        assert_eq!(Flops(989_000_000) / FlopRate(989e12), Time(1_000_000));
    }

    #[test]
    fn a_float_that_is_no_time_becomes_none() {
        assert_eq!(Time::from_seconds(f64::NAN), Time::ZERO);
        assert_eq!(Time::from_seconds(-1.0), Time::ZERO);
        assert_eq!(Time::from_seconds(f64::INFINITY), Time(u64::MAX));
    }

    #[test]
    fn numbers_print_with_the_unit_that_fits() {
        assert_eq!(Bytes(70_952_500_224).to_string(), "66.1 GiB");
        assert_eq!(Time(2_500_000).to_string(), "2.50 us");
        assert_eq!(Bandwidth(4.8e12).to_string(), "4.80 TB/s");
    }
}
