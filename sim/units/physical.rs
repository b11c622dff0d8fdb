//! What quantities of machines can be: whatever is outside was mistyped, or measured wrong.
//!
//! The ranges are orders of magnitude wider than any machine there is (assumed), and narrow enough that nothing computed from a
//! quantity inside them over- or underflows.

use super::{Bandwidth, Bytes, FlopRate, Frequency, Power, Time, UnitError};

/// Least and most of a quantity, in words and in its base unit; zero is allowed where nothing may be taken.
struct Range {
    least: (f64, &'static str),
    most: (f64, &'static str),
    zero: bool,
}

const BYTES: Range = Range { least: (1.0, "1 B"), most: (1e16, "10,000 TB"), zero: true };
const TIME: Range = Range { least: (1e-12, "1 ps"), most: (1e4, "10,000 s"), zero: true };
const BANDWIDTH: Range = Range { least: (1e6, "1 MB/s"), most: (1e18, "1,000,000 TB/s"), zero: false };
const FLOP_RATE: Range = Range { least: (1e9, "1 GFLOP/s"), most: (1e18, "1,000 PFLOP/s"), zero: false };
const POWER: Range = Range { least: (1.0, "1 W"), most: (1e5, "100 kW"), zero: false };
const FREQUENCY: Range = Range { least: (1e6, "1 MHz"), most: (1e12, "1,000 GHz"), zero: false };

impl Range {
    fn check(&self, value: f64) -> Result<(), String> {
        let inside = (self.least.0..=self.most.0).contains(&value);
        if inside || self.zero && value == 0.0 {
            return Ok(());
        }
        let none = if self.zero { "0, or " } else { "" };
        Err(format!("expected {none}{} to {}", self.least.1, self.most.1))
    }
}

/// Whether a quantity as written is one that a machine can have; none if the text is no quantity.
pub fn physical(text: &str) -> Option<Result<(), String>> {
    let as_written = super::split(text, "").map_or(0.0, |(number, _)| number);
    // What rounds to no byte, or to no picosecond, was not meant as none.
    let lost = |value: f64| if value == 0.0 && as_written > 0.0 { f64::MIN_POSITIVE } else { value };
    let quantities: [(Result<f64, UnitError>, &Range); 6] = [
        (Bytes::parse(text).map(|bytes| lost(bytes.0 as f64)), &BYTES),
        (Time::parse(text).map(|time| lost(time.0 as f64 * 1e-12)), &TIME),
        (Bandwidth::parse(text).map(|rate| rate.0), &BANDWIDTH),
        (FlopRate::parse(text).map(|rate| rate.0), &FLOP_RATE),
        (Power::parse(text).map(|power| power.0), &POWER),
        (Frequency::parse(text).map(|clock| clock.0), &FREQUENCY),
    ];
    quantities.into_iter().find_map(|(read, range)| read.ok().map(|value| range.check(value)))
}
