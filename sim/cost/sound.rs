//! Every number of a profile is checked once, where it is read: by the kind that its key says it is.
//!
//! A number that cannot be (not finite, negative, subnormal, beyond anything that a machine has) would go into every prediction
//! without a word, so it is refused with its place.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::hardware::Place;
use crate::units::physical;

/// What a plain number is, by its key.
struct Kind {
    keys: &'static [&'static str],
    least: f64,
    most: f64,
    zero: bool,
}

/// Ranges are wider than any figure of a shipped profile, and such that no time comes out as zero or without end (assumed).
const KINDS: [Kind; 8] = [
    // Errors, relative.
    Kind { keys: &["median", "p90"], least: 1e-6, most: 10.0, zero: true },
    Kind { keys: &["tail"], least: 1e-6, most: 1.0, zero: true },
    // Shares of a rate, and factors between two times.
    Kind {
        keys: &[
            "mma",
            "memory",
            "small_tile",
            "share",
            "efficiency",
            "inside",
            "low_share",
            "middle_share",
            "scale",
            "factor",
        ],
        least: 1e-3,
        most: 10.0,
        zero: false,
    },
    Kind {
        keys: &["middle_floor", "simple_floor", "matmul", "by_2_bytes", "by_4_bytes"],
        least: 1e-3,
        most: 1e3,
        zero: false,
    },
    // Steps along k, or tokens.
    Kind { keys: &["knee", "k_overhead"], least: 1e-6, most: 1e6, zero: true },
    // Microseconds, and nanoseconds a row.
    Kind { keys: &["us"], least: 1e-3, most: 1e10, zero: false },
    Kind { keys: &["per_row_ns", "per_token_ns"], least: 1e-6, most: 1e6, zero: true },
    // Whatever else.
    Kind { keys: &[], least: 1e-6, most: 1e12, zero: true },
];

/// The first number of a profile's text that cannot be, with what was expected of it. What does not parse is left to who reads it.
pub(super) fn unsound(path: &str, text: &str) -> Option<(Place, String)> {
    let table = DeTable::parse(text).ok()?;
    let (span, why) = table.get_ref().iter().find_map(|(key, value)| of(key.get_ref(), value))?;
    Some((Place::of(path, text, span), why))
}

fn of(key: &str, value: &Spanned<DeValue<'_>>) -> Option<(std::ops::Range<usize>, String)> {
    let wrong = |shown: &str, why: String| Some((value.span(), format!("{key} is {shown}: {why}")));
    match value.get_ref() {
        DeValue::Table(table) => table.iter().find_map(|(key, value)| of(key.get_ref(), value)),
        DeValue::Array(list) => list.iter().find_map(|value| of(key, value)),
        DeValue::Float(float) => {
            let shown = float.as_str();
            let number = shown.replace('_', "").parse().unwrap_or(f64::NAN);
            wrong(shown, number_of(key, number).err()?)
        }
        DeValue::Integer(integer) => {
            let shown = integer.as_str();
            // Counts are read as such; where an integer stands for a float, its key says so.
            let kind = KINDS.iter().find(|kind| kind.keys.contains(&key))?;
            wrong(shown, inside(kind, shown.replace('_', "").parse().unwrap_or(f64::NAN)).err()?)
        }
        DeValue::String(text) => wrong(text, physical(text)?.err()?),
        _ => None,
    }
}

fn number_of(key: &str, number: f64) -> Result<(), String> {
    let kind = KINDS.iter().find(|kind| kind.keys.contains(&key)).unwrap_or(&KINDS[KINDS.len() - 1]);
    inside(kind, number)
}

fn inside(kind: &Kind, number: f64) -> Result<(), String> {
    if (kind.least..=kind.most).contains(&number) || kind.zero && number == 0.0 {
        return Ok(());
    }
    let none = if kind.zero { "0, or " } else { "" };
    Err(format!("expected {none}a number from {} to {}", kind.least, kind.most))
}
