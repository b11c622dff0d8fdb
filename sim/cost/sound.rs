//! Every number of a profile is checked once, where it is read: by the kind that its key says it is.
//!
//! A number that cannot be (not finite, negative, subnormal, beyond anything that a machine has) would go into every prediction
//! without a word, so it is refused with its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::hardware::Place;
use crate::tables;
use crate::units::{Time, physical};

/// What is wrong with a section, and at which bytes of the text, where that is known.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) at: Option<Range<usize>>,
    pub(super) why: String,
}

impl Wrong {
    pub(super) fn at<T>(what: &Spanned<T>, why: String) -> Wrong {
        Wrong { at: Some(what.span()), why }
    }
}

impl From<String> for Wrong {
    fn from(why: String) -> Wrong {
        Wrong { at: None, why }
    }
}

/// A measured time that may be anything \[s\]: launches, latencies and hiccups of a machine take less (assumed).
const SHORT: f64 = 0.01;

/// Above that, how many times as long as at full rate a measurement may take: all published ones above 0.1 ms stay within 9, so
/// that a hundred times that is a wrong unit or a slip of the pen.
const STUCK: f64 = 1000.0;

/// A number as somebody would write it: without hundreds of zeros.
pub(super) fn figure(number: f64) -> String {
    if (1e-6..1e9).contains(&number) { number.to_string() } else { format!("{number:.3e}") }
}

/// Refuses a time in which the machine would have stood still: longer than any launch takes, and a thousandth of the rate at
/// which the work would take `least` seconds.
pub(super) fn not_stuck(seconds: f64, least: f64) -> Result<(), String> {
    match seconds > SHORT && seconds > STUCK * least {
        true => Err(format!(
            " is {} times as long as at full rate, {:.3} us: expected at most {STUCK} times, or {} us; correct or remove the time",
            figure((seconds / least).round()),
            least * 1e6,
            SHORT * 1e6
        )),
        false => Ok(()),
    }
}

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
    // Microseconds, and nanoseconds a row. Long ones are held against the bytes that they moved.
    Kind { keys: &["us"], least: 1e-3, most: 1e10, zero: false },
    Kind { keys: &["per_row_ns", "per_token_ns"], least: 1e-6, most: 1e6, zero: true },
    // Whatever else.
    Kind { keys: &[], least: 1e-6, most: 1e12, zero: true },
];

/// The first number of a profile's text that cannot be, with what was expected of it. What does not parse is left to who reads it.
pub(super) fn unsound(path: &str, text: &str) -> Option<(Place, String)> {
    let table = tables::document(text).ok()?;
    let (span, why) = table.get_ref().iter().find_map(|(key, value)| of(key.get_ref(), value))?;
    Some((Place::of(path, text, span), why))
}

fn of(key: &str, value: &Spanned<DeValue<'_>>) -> Option<(Range<usize>, String)> {
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
        DeValue::String(text) => wrong(text, physical(text)?.and_then(|()| brief(text)).err()?),
        _ => None,
    }
}

/// A profile's times are launches, latencies and short loads: the longest shipped one is 35 ms.
fn brief(text: &str) -> Result<(), String> {
    match Time::parse(text) {
        Ok(time) if time.seconds() > 1.0 => Err("expected at most 1 s".to_owned()),
        _ => Ok(()),
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
