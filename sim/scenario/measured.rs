//! `[measured]`: what the run that a scenario describes has measured; a scenario with it is a receipt.

use toml::Spanned;

use super::error::ScenarioError;
use super::predict::mfu_conventions;
use super::reader::Reader;
use super::written::{self, Readings};
use crate::near::did_you_mean;
use crate::units::{Bytes, Time};

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time of a steady step \[ps\].
    pub step: Option<Time>,
    /// Where the run has measured many steps: a tenth of them are at most the first, nine tenths at most the second \[ps\].
    pub spread: Option<(Time, Time)>,
    /// Peak of `memory_allocated` \[B\].
    pub allocated: Option<Bytes>,
    /// Peak of `memory_reserved` \[B\].
    pub reserved: Option<Bytes>,
    /// A peak that is not said to be either \[B\].
    pub peak_memory: Option<Bytes>,
    /// Model FLOPs utilisation, with the name of its convention.
    pub mfu: Option<(f64, &'static str)>,
    /// The run ended out of memory.
    pub out_of_memory: bool,
    /// Who measured it.
    pub source: String,
    /// The day it was measured on, as YYYY-MM-DD; empty if nobody says.
    pub date: String,
    /// The commit of the code that ran; empty if nobody says.
    pub commit: String,
    /// The kind of run it is counted with.
    pub lane: String,
    /// The hardware it is counted under.
    pub hardware: String,
    /// How complete the receipt is: A, B or C.
    pub grade: String,
    /// Runs measured together: its interval rests on other families alone.
    pub family: String,
}

/// Understands the table; `tokens` is a step's tokens of the whole job on `chips` chips.
pub(super) fn understand(
    reader: &Reader<'_>,
    written: &Spanned<written::Measured>,
    (runtime, topology): (&str, &str),
    (tokens, chips): (u64, u32),
) -> Result<Measured, ScenarioError> {
    let w = written.get_ref();
    let out_of_memory = w.out_of_memory.unwrap_or(false);
    let (step, spread) = match (&w.step_time, &w.tokens_per_second_per_chip) {
        (Some(time), Some(_)) => {
            let problem = "the step time is measured twice: step_time and tokens_per_second_per_chip";
            return Err(reader.plan(time, problem, "keep the one that was read off the run"));
        }
        (Some(time), None) => {
            let (step, spread) = middle(reader, "step_time", time)?;
            if step == Time::ZERO {
                return Err(reader.plan(time, "measured.step_time is zero", "write the time of a steady step"));
            }
            (Some(step), spread)
        }
        (None, Some(rate)) => {
            let (value, spread) = middle(reader, "tokens_per_second_per_chip", rate)?;
            let counted = match &w.counted_tokens_per_step {
                Some(at) => reader.count_within("measured.counted_tokens_per_step", at, 1, i64::MAX)?,
                None => tokens,
            };
            let seconds = |value: f64| counted as f64 / value / f64::from(chips);
            let lasts = |value: f64| value > 0.0 && (1e-9..1e6).contains(&seconds(value));
            let ends = spread.map_or([value, value], |(low, high)| [low, high]);
            if let Some(value) = [value].into_iter().chain(ends).find(|&value| !lasts(value)) {
                let seconds = seconds(value);
                let problem = format!(
                    "measured.tokens_per_second_per_chip = {value} makes a step of {counted} tokens on {chips} chips \
                     last {seconds:.3e} s"
                );
                return Err(reader.plan(rate, problem, "write the tokens of one chip in a second"));
            }
            let time = |value: f64| Time::from_seconds(seconds(value));
            // The highest rate is the shortest step.
            (Some(time(value)), spread.map(|(low, high)| (time(high), time(low))))
        }
        (None, None) => (None, None),
    };
    if let (Some(at), None) = (&w.counted_tokens_per_step, &w.tokens_per_second_per_chip) {
        let problem = "measured.counted_tokens_per_step belongs to a rate, and there is none";
        return Err(reader.plan(at, problem, "write measured.tokens_per_second_per_chip beside it"));
    }
    if out_of_memory && step.is_some() {
        let problem = "[measured] has a step time, and yet out_of_memory = true";
        return Err(reader.plan(written, problem, "keep the one that holds"));
    }
    let mfu = match (&w.mfu, &w.mfu_convention) {
        (None, None) => None,
        (None, Some(at)) => {
            return Err(reader.plan(at, "measured.mfu_convention has no measured.mfu", "write both or neither"));
        }
        (Some(at), None) => {
            let remedy = format!("write measured.mfu_convention, one of: {}", mfu_conventions().join(", "));
            return Err(reader.plan(at, "an MFU says nothing without its convention", remedy));
        }
        (Some(at), Some(convention)) => {
            let known = mfu_conventions();
            let Some(name) = known.iter().find(|name| *name == convention.get_ref()) else {
                let hint = did_you_mean(convention.get_ref(), known);
                let problem = format!("there is no MFU convention {:?}{hint}", convention.get_ref());
                return Err(reader.unknown(convention, problem, format!("write one of: {}", known.join(", "))));
            };
            if !(*at.get_ref() > 0.0 && *at.get_ref() <= 1.5) {
                let problem = format!("measured.mfu = {} is no share of the peak", at.get_ref());
                return Err(reader.plan(at, problem, "write a number between 0 and 1, such as 0.41"));
            }
            Some((*at.get_ref(), *name))
        }
    };
    let bytes = |at: &Option<Spanned<Bytes>>| at.as_ref().map(|at| *at.get_ref());
    let measured = Measured {
        step,
        spread,
        allocated: bytes(&w.allocated),
        reserved: bytes(&w.reserved),
        peak_memory: bytes(&w.peak_memory),
        mfu,
        out_of_memory,
        source: w.source.clone().unwrap_or_default(),
        date: w.date.as_ref().map(|at| day(reader, at)).transpose()?.unwrap_or_default(),
        commit: w.commit.clone().unwrap_or_default(),
        lane: w.lane.clone().unwrap_or_else(|| runtime.to_owned()),
        hardware: w.hardware.clone().unwrap_or_else(|| topology.to_owned()),
        grade: w.grade.clone().unwrap_or_default(),
        family: w.family.clone().unwrap_or_default(),
    };
    let anything = measured.step.is_some()
        || measured.allocated.or(measured.reserved).or(measured.peak_memory).is_some()
        || mfu.is_some()
        || w.out_of_memory.is_some();
    if !anything {
        let problem = "[measured] holds nothing to compare with";
        let remedy = "write step_time = \"1.23 s\", tokens_per_second_per_chip, reserved, allocated, peak_memory, mfu or out_of_memory";
        return Err(reader.plan(written, problem, remedy));
    }
    Ok(measured)
}

/// The reading in the middle, and the spread of many.
#[allow(clippy::type_complexity, reason = "a reading, and two around it")]
fn middle<T: Copy + PartialOrd>(
    reader: &Reader<'_>,
    key: &str,
    at: &Spanned<Readings<T>>,
) -> Result<(T, Option<(T, T)>), ScenarioError> {
    at.get_ref().quantiles().ok_or_else(|| match at.get_ref() {
        Readings::Many(_) => {
            reader.plan(at, format!("measured.{key} is a list of nothing"), "write the steps' readings")
        }
        _ => reader.plan(at, format!("the quantiles of measured.{key} fall"), "write p10 ≤ p50 ≤ p90"),
    })
}

/// A day, which sorts as it is written.
fn day(reader: &Reader<'_>, at: &Spanned<String>) -> Result<String, ScenarioError> {
    let text = at.get_ref();
    let shape = |(place, byte): (usize, u8)| if matches!(place, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() };
    let is_day = text.len() == 10 && text.bytes().enumerate().all(shape);
    let problem = || format!("measured.date = {text:?} is no day");
    is_day.then(|| text.clone()).ok_or_else(|| reader.plan(at, problem(), "write it as YYYY-MM-DD"))
}
