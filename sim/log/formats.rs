//! The table of formats, and how a figure is found in a line.

use serde::Deserialize;

use crate::tables;

/// The shipped table.
const TABLE: &str = include_str!("formats.toml");

/// What a framework writes at a step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Format {
    /// Its name for users.
    pub name: String,
    /// Where the framework writes it.
    #[allow(dead_code, reason = "for who reads the table")]
    pub source: String,
    /// Words that a step's line has, all of them.
    pub needs: Vec<String>,
    /// The step's time.
    pub time: Option<Measure>,
    /// Tokens of a chip in a second.
    #[serde(default)]
    pub rate: Vec<String>,
    /// Sequences of the whole job in a second.
    #[serde(default)]
    pub samples: Vec<String>,
    /// Steps in a second, once for the whole run.
    #[serde(default)]
    pub steps_per_second: Vec<String>,
    /// Peak of memory_allocated.
    pub allocated: Option<Measure>,
    /// Peak of memory_reserved.
    pub reserved: Option<Measure>,
    /// Model FLOPs utilisation in per cent.
    #[serde(default)]
    pub mfu: Vec<String>,
    /// Its convention, by the name that `run --mfu-all` prints.
    pub convention: Option<String>,
}

/// A figure with a unit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measure {
    /// Words that stand before it, any of them.
    pub words: Vec<String>,
    /// What it counts in.
    pub unit: Unit,
}

/// A unit.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ms")]
    Milliseconds,
    B,
    MiB,
    GiB,
}

impl Unit {
    /// How many seconds or bytes one is.
    pub fn size(self) -> f64 {
        match self {
            Unit::Seconds | Unit::B => 1.0,
            Unit::Milliseconds => 1e-3,
            Unit::MiB => f64::from(1 << 20),
            Unit::GiB => f64::from(1 << 30),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    format: Vec<Format>,
}

/// All formats.
pub(super) fn formats() -> Vec<Format> {
    tables::read::<Table>(TABLE)
        .unwrap_or_else(|error| panic!("the shipped table of log formats does not parse: {error}"))
        .format
}

impl Format {
    /// Whether a line is of a step.
    pub fn is_step(&self, line: &str) -> bool {
        self.needs.iter().all(|word| line.contains(word.as_str()))
    }
}

impl Measure {
    /// The figure in a line, in seconds or bytes.
    pub fn find(&self, line: &str) -> Option<f64> {
        Some(figure(line, &self.words)? * self.unit.size())
    }
}

/// The number behind the first of the words that a line has: thousands may be parted by commas, spaces may stand before it.
pub(super) fn figure(line: &str, words: &[String]) -> Option<f64> {
    let rest = words.iter().find_map(|word| line.split_once(word.as_str()).map(|(_, rest)| rest))?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !matches!(c, '0'..='9' | '.' | ',' | 'e' | 'E' | '+' | '-')).unwrap_or(rest.len());
    let number = rest[..end].trim_end_matches([',', '.', 'e', 'E', '+', '-']).replace(',', "");
    number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_stands_behind_its_word() {
        let of = |line: &str, word: &str| figure(line, &[word.to_owned()]);
        assert_eq!(of("step: 10  tps: 6,667  mfu: 38.94%", "tps:"), Some(6667.0));
        assert_eq!(of("step: 10  tps: 6,667  mfu: 38.94%", "mfu:"), Some(38.94));
        assert_eq!(of("| elapsed time per iteration (ms): 1234.5 | x", "(ms):"), Some(1234.5));
        assert_eq!(of("CurrSamplesPerSec=61.353, MemAllocated=6.01GB", "Sec="), Some(61.353));
        assert_eq!(of("seconds: 1e-3, TFLOP", "seconds:"), Some(1e-3));
        assert_eq!(of("mfu: N/A", "mfu:"), None);
        assert_eq!(of("tps: -5", "tps:"), None);
        assert_eq!(of("tps: nan", "tps:"), None);
        assert_eq!(of("tps", "tps:"), None);
    }

    #[test]
    fn the_table_parses_and_each_format_says_how_long_a_step_takes() {
        for format in formats() {
            let tells = format.time.is_some()
                || [&format.rate, &format.samples, &format.steps_per_second].iter().any(|words| !words.is_empty());
            assert!(tells && !format.needs.is_empty(), "{}", format.name);
            assert_eq!(format.mfu.is_empty(), format.convention.is_none(), "{}", format.name);
        }
    }
}
