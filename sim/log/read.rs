//! A log, line by line.

use thiserror::Error;

use super::formats::{Format, Measure, figure, formats};
use super::steady::Steady;
use crate::statistics::median;

/// Why a log says nothing.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum LogError {
    /// No line fits a format.
    #[error(
        "{file}: no line is of a training step\nlogs are read of {known}; each step's line must be whole: give the file that the framework wrote, of rank 0"
    )]
    Unknown {
        /// The log.
        file: String,
        /// Formats.
        known: String,
    },
    /// A figure of a line is none that a step has.
    #[error(
        "{file}:{line}: {what} is {found:e} {unit}: expected {least:e} to {most:e}\nremove the line, or give the log that the framework wrote"
    )]
    Impossible {
        /// The log.
        file: String,
        /// From 1.
        line: usize,
        /// Whose figure.
        what: &'static str,
        /// The figure.
        found: f64,
        /// Its unit.
        unit: &'static str,
        /// The least that is believed.
        least: f64,
        /// The most.
        most: f64,
    },
}

/// A figure of a step, and what it can be: far wider than published ones (assumed). Beyond is a line that was cut, or a unit that is
/// another.
struct Figure(&'static str, &'static str, f64, f64);

const TIME: Figure = Figure("a step's time", "s", 1e-6, 1e6);
const RATE: Figure = Figure("a chip's rate", "tokens/s", 1e-4, 1e8);
const SAMPLES: Figure = Figure("the job's rate", "sequences/s", 1e-7, 1e9);
const MEMORY: Figure = Figure("memory", "bytes", 0.0, 1e15);
const MFU: Figure = Figure("MFU", "of the peak", 0.0, 10.0);

impl Figure {
    /// A figure that was found on a line, if it is one.
    fn of(&self, found: Option<f64>, file: &str, line: usize) -> Result<Option<f64>, LogError> {
        let Figure(what, unit, least, most) = *self;
        match found {
            Some(found) if !(least..=most).contains(&found) => {
                Err(LogError::Impossible { file: file.to_owned(), line, what, found, unit, least, most })
            }
            found => Ok(found),
        }
    }
}

/// What a log says of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Whose log it is.
    pub framework: String,
    /// Lines of steps.
    pub lines: usize,
    /// Times of steps \[s\], in order.
    pub times: Vec<f64>,
    /// Tokens of a chip in a second, in order.
    pub rates: Vec<f64>,
    /// Sequences of the whole job in a second, in order.
    pub samples: Vec<f64>,
    /// Whether a time is the mean over the whole run, warm-up among it.
    pub is_mean: bool,
    /// The highest peak of memory_allocated \[B\].
    pub allocated: Option<f64>,
    /// The highest peak of memory_reserved \[B\].
    pub reserved: Option<f64>,
    /// MFU of steps, as shares, in order.
    pub mfu: Vec<f64>,
    /// Its convention.
    pub convention: Option<String>,
}

/// The formats' names.
pub fn names() -> Vec<String> {
    formats().into_iter().map(|format| format.name).collect()
}

/// Reads a log: that of the format that most lines fit.
pub fn read(file: &str, text: &str) -> Result<Run, LogError> {
    let plain = without_colour(text);
    let all = formats();
    let counted = all.iter().map(|format| (plain.lines().filter(|line| format.is_step(line)).count(), format));
    // Of two that as many lines fit, the one that stands first.
    let best = counted.rev().max_by_key(|(count, _)| *count).filter(|(count, _)| *count > 0);
    let (_, format) = best.ok_or_else(|| LogError::Unknown { file: file.to_owned(), known: names().join(", ") })?;
    of(format, file, &plain)
}

fn of(format: &Format, file: &str, text: &str) -> Result<Run, LogError> {
    let mut run = Run {
        framework: format.name.clone(),
        lines: 0,
        times: vec![],
        rates: vec![],
        samples: vec![],
        is_mean: !format.steps_per_second.is_empty(),
        allocated: None,
        reserved: None,
        mfu: vec![],
        convention: format.convention.clone(),
    };
    let more = |sum: &mut Option<f64>, found: Option<f64>| {
        *sum = found.map(|found| sum.map_or(found, |sum| sum.max(found))).or(*sum);
    };
    for (at, line) in text.lines().enumerate() {
        let sound = |what: Figure, found| what.of(found, file, at + 1);
        // Memory may stand on lines of its own.
        let memory = |of: &Option<Measure>| sound(MEMORY, of.as_ref().and_then(|measure| measure.find(line)));
        more(&mut run.allocated, memory(&format.allocated)?);
        more(&mut run.reserved, memory(&format.reserved)?);
        if !format.is_step(line) {
            continue;
        }
        run.lines += 1;
        let positive = |figure: &f64| *figure > 0.0;
        let time = format.time.as_ref().and_then(|measure| measure.find(line));
        let per_second = figure(line, &format.steps_per_second).filter(positive);
        run.times.extend(sound(TIME, time.filter(positive).or(per_second.map(|steps| 1.0 / steps)))?);
        run.rates.extend(sound(RATE, figure(line, &format.rate).filter(positive))?);
        run.samples.extend(sound(SAMPLES, figure(line, &format.samples).filter(positive))?);
        run.mfu.extend(sound(MFU, figure(line, &format.mfu).filter(positive).map(|percent| percent / 100.0))?);
    }
    Ok(run)
}

/// The text without the escape sequences that colour a terminal's.
fn without_colour(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        // A sequence ends with a letter.
        let end = after.find(|c: char| c.is_ascii_alphabetic()).map_or(after.len(), |end| end + 1);
        rest = after.get(end..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

impl Run {
    /// The run as a `[measured]` table; `sequences` of one step of the whole job, where a scenario tells. Comments say what was dropped.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn measured(&self, file: &str, sequences: Option<u64>) -> Result<String, String> {
        let mut lines = vec!["[measured]".to_owned()];
        let from_samples: Vec<f64> = match sequences {
            Some(sequences) => self.samples.iter().map(|samples| sequences as f64 / samples).collect(),
            None => vec![],
        };
        let times = if self.times.is_empty() { &from_samples } else { &self.times };
        if self.is_mean {
            let time = times.last().ok_or_else(|| format!("{file}: the log's steps have no time"))?;
            lines.push(format!(
                "# The mean over all steps of the run, warm-up among them: {} writes no other.",
                self.framework
            ));
            lines.push(format!("step_time = \"{time:.6} s\""));
        } else if !times.is_empty() {
            let steady = Steady::of(times);
            lines.push(told(&steady, times.len()));
            let list: Vec<String> = steady.readings.iter().map(|time| format!("\"{time:.6} s\"")).collect();
            lines.push(format!("step_time = [{}]", list.join(", ")));
        } else if !self.rates.is_empty() {
            let steady = Steady::of(&self.rates);
            lines.push(told(&steady, self.rates.len()));
            let list: Vec<String> = steady.readings.iter().map(|rate| format!("{rate:.1}")).collect();
            lines.push(format!("tokens_per_second_per_chip = [{}]", list.join(", ")));
        } else if !self.samples.is_empty() {
            return Err(format!(
                "{file}: {} writes the job's sequences per second, and not how many a step has\nadd --scenario with the run's scenario",
                self.framework
            ));
        }
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        lines.extend(self.allocated.map(|bytes| format!("allocated = \"{:.3} GiB\"", gib(bytes))));
        lines.extend(self.reserved.map(|bytes| format!("reserved = \"{:.3} GiB\"", gib(bytes))));
        let mfu = if self.mfu.is_empty() { None } else { median(Steady::of(&self.mfu).readings) };
        if let (Some(convention), Some(mfu)) = (&self.convention, mfu) {
            lines.push(format!("mfu = {mfu:.4}\nmfu_convention = \"{convention}\""));
        }
        if lines.len() == 1 {
            return Err(format!("{file}: the log's {} lines of steps have no figure that can be compared", self.lines));
        }
        lines.push(format!("source = {}", toml::Value::from(format!("{file}, a log of {}", self.framework))));
        Ok(lines.join("\n") + "\n")
    }
}

fn told(steady: &Steady, all: usize) -> String {
    let Steady { dropped, settled, .. } = steady;
    let rule = "the first, and those before three in a row are within 5 % of the median of the second half";
    let restless = if *settled { "" } else { ". They never settled" };
    format!("# {dropped} of {all} readings are dropped as warm-up: {rule}{restless}.")
}
