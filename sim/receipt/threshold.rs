//! What a lane must keep to: thresholds that fail a check.
//!
//! Either in the command, for all receipts together: `step_time.median=8%,step_time.p90=20%,reserved.median=5%`; or a
//! TOML file with one `[[threshold]]` per lane and hardware:
//!
//! ```toml
//! [[threshold]]
//! lane = "cuda-fsdp1"
//! hardware = "A100"
//! "step_time.median" = 0.05
//! coverage = 0.9
//! ```
//! A table `[rows]` before them says which receipts the file is about, as `--lane`, `--hardware` and `--grade` do, and by patterns of
//! their ids (`id`, `not_id`): the others are checked and reported, and count in no bound.
//! Every figure is a bound from above, but `coverage`, `interval` (share of steps inside the predicted interval), `picks.best` and
//! `picks.pairs` ([`super::picks`]), which are bounds from below, and `step_time.bias`, which bounds the absolute bias.

use crate::hardware::Place;
use crate::near::did_you_mean;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::ReceiptError;
use super::check::{Choice, Outcome};
use super::pattern::matches;
use super::summary::{ALL, Errors, Group, summary};
use crate::tables;

/// Bounds, and what they are about.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The receipts that count.
    pub rows: Choice,
    /// Patterns of their ids, any of which may match; all if empty.
    ids: Vec<String>,
    /// Patterns of ids that do not count.
    not: Vec<String>,
    /// Bounds by group.
    pub thresholds: Vec<Threshold>,
}

impl Bounds {
    /// Every bound that an outcome breaks.
    pub fn broken(&self, outcome: &Outcome) -> Vec<Broken> {
        let any = |patterns: &[String], id: &str| patterns.iter().any(|pattern| matches(pattern, Some(id)));
        let counts = |id: &str| (self.ids.is_empty() || any(&self.ids, id)) && !any(&self.not, id);
        let mut outcome = outcome.only(&self.rows);
        outcome.judged.retain(|row| counts(&row.id));
        outcome.skipped.retain(|row| counts(&row.id));
        broken(&self.thresholds, &summary(&outcome))
    }
}

/// Bounds on one group.
#[derive(Clone, Debug)]
pub struct Threshold {
    /// Lane.
    pub lane: String,
    /// Hardware.
    pub hardware: String,
    /// Figure and bound.
    pub bounds: Vec<(Figure, f64)>,
}

/// A figure that can be bounded.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// As it is written.
    pub name: &'static str,
    /// Its value, where the group has one.
    value: fn(&Group) -> Option<f64>,
    /// Whether more is better.
    least: bool,
}

const fn most(name: &'static str, value: fn(&Group) -> Option<f64>) -> Figure {
    Figure { name, value, least: false }
}

const fn least(name: &'static str, value: fn(&Group) -> Option<f64>) -> Figure {
    Figure { name, value, least: true }
}

fn of(errors: Option<Errors>, figure: fn(&Errors) -> f64) -> Option<f64> {
    errors.as_ref().map(figure)
}

/// The registry.
pub const FIGURES: [Figure; 20] = [
    least("coverage", |g| Some(g.coverage())),
    most("step_time.mean", |g| of(g.step, |e| e.mean)),
    most("step_time.median", |g| of(g.step, |e| e.median)),
    most("step_time.p90", |g| of(g.step, |e| e.p90)),
    most("step_time.max", |g| of(g.step, |e| e.max)),
    most("step_time.bias", |g| of(g.step, |e| e.bias.abs())),
    least("interval", |g| g.inside),
    most("reserved.median", |g| of(g.reserved, |e| e.median)),
    most("reserved.p90", |g| of(g.reserved, |e| e.p90)),
    most("reserved.max", |g| of(g.reserved, |e| e.max)),
    most("allocated.median", |g| of(g.allocated, |e| e.median)),
    most("allocated.max", |g| of(g.allocated, |e| e.max)),
    most("memory.median", |g| of(g.unstated, |e| e.median)),
    most("memory.max", |g| of(g.unstated, |e| e.max)),
    most("mfu.median", |g| of(g.mfu, |e| e.median)),
    most("mfu.max", |g| of(g.mfu, |e| e.max)),
    least("picks.best", |g| g.picks.map(|p| p.best())),
    least("picks.pairs", |g| g.picks.and_then(|p| p.order())),
    most("out_of_memory.missed", |g| Some((g.out_of_memory.0 - g.out_of_memory.1) as f64)),
    most("out_of_memory.false_alarms", |g| Some(g.false_alarms as f64)),
];

/// A bound that a group breaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    /// Lane.
    pub lane: String,
    /// Hardware.
    pub hardware: String,
    /// The figure.
    pub figure: &'static str,
    /// Its value; `None` if no receipt has it.
    pub value: Option<f64>,
    /// The bound.
    pub bound: f64,
    /// Whether more is better.
    pub least: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rows: Rows,
    #[serde(default)]
    threshold: Vec<toml::Table>,
}

/// The receipts that a file is about; all of what is left out.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    #[serde(default)]
    lane: Vec<String>,
    #[serde(default)]
    hardware: Vec<String>,
    #[serde(default)]
    grade: Vec<String>,
    #[serde(default)]
    id: Vec<String>,
    #[serde(default)]
    not_id: Vec<String>,
}

fn known() -> String {
    FIGURES.map(|figure| figure.name).join(", ")
}

fn figure(name: &str) -> Result<Figure, ReceiptError> {
    FIGURES.into_iter().find(|figure| figure.name == name).ok_or_else(|| {
        let hint = did_you_mean(name, FIGURES.map(|figure| figure.name));
        ReceiptError::Threshold(format!("there is no figure {name:?} to bound{hint}: write one of {}", known()))
    })
}

fn sound(name: &str, value: f64) -> Result<f64, ReceiptError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(ReceiptError::Threshold(format!("the bound of {name} is {value}: expected a number, zero or more")))
    }
}

/// Refuses a bound that is meant in per cent and would be a hundred times as wide.
fn a_share(name: &str, value: f64) -> Result<(), ReceiptError> {
    if value <= 1.0 || name.starts_with("out_of_memory") || !value.is_finite() {
        return Ok(());
    }
    let (all, share) = (100.0 * value, value / 100.0);
    Err(ReceiptError::Threshold(format!(
        "the bound of {name} is {value}, which is {all} %: write {value}% in the command or {share} in a file"
    )))
}

/// Reads a specification: a file, or bounds for the total.
pub fn parse(spec: &str) -> Result<Bounds, ReceiptError> {
    if spec.ends_with(".toml") {
        return load(Path::new(spec));
    }
    Ok(Bounds { rows: Choice::default(), ids: vec![], not: vec![], thresholds: inline(spec)? })
}

fn inline(spec: &str) -> Result<Vec<Threshold>, ReceiptError> {
    let mut bounds = vec![];
    for part in spec.split(',') {
        let Some((name, bound)) = part.split_once('=') else {
            let example = "step_time.median=8%,reserved.median=5%";
            return Err(ReceiptError::Threshold(format!(
                "the threshold {part:?} is no FIGURE=BOUND: write such as {example}, or name a .toml file"
            )));
        };
        let figure = figure(name.trim())?;
        let bound = bound.trim();
        let (number, unit) = bound.strip_suffix('%').map_or((bound, 1.0), |number| (number, 0.01));
        let value = number.trim().parse::<f64>().map_err(|_| {
            ReceiptError::Threshold(format!("the bound of {} is {bound:?}: expected such as 8% or 0.08", figure.name))
        })?;
        if unit == 1.0 {
            a_share(figure.name, value)?;
        }
        bounds.push((figure, sound(figure.name, value * unit)?));
    }
    Ok(vec![Threshold { lane: ALL.to_owned(), hardware: ALL.to_owned(), bounds }])
}

fn load(path: &Path) -> Result<Bounds, ReceiptError> {
    let file = path.display().to_string();
    let text = crate::files::text(path)
        .map_err(|error| ReceiptError::Unreadable { path: file.clone(), reason: error.to_string() })?;
    let written: File = tables::read(&text).map_err(|error| {
        let place = Place::of(&file, &text, error.span().unwrap_or(0..0));
        ReceiptError::Threshold(format!("{}\n{place}", error.message()))
    })?;
    let thresholds = written.threshold.iter().enumerate().map(|(at, table)| understand(&file, at + 1, table));
    let Rows { lane, hardware, grade, id, not_id } = written.rows;
    let rows = Choice { lanes: lane, hardware, grades: grade, speed: None };
    Ok(Bounds { rows, ids: id, not: not_id, thresholds: thresholds.collect::<Result<_, _>>()? })
}

fn understand(file: &str, number: usize, table: &toml::Table) -> Result<Threshold, ReceiptError> {
    let bad = |what: String| ReceiptError::Threshold(format!("{file}: threshold {number}: {what}"));
    let mut names = BTreeMap::from([("lane", String::new()), ("hardware", String::new())]);
    let mut bounds = vec![];
    for (key, value) in table {
        if let Some(name) = names.get_mut(key.as_str()) {
            value.as_str().ok_or_else(|| bad(format!("{key} is no text")))?.clone_into(name);
            continue;
        }
        let figure = figure(key).map_err(|error| bad(error.to_string()))?;
        let bound = value.as_float().or(value.as_integer().map(|whole| whole as f64));
        let bound = bound.ok_or_else(|| bad(format!("{key} is no number")))?;
        a_share(key, bound).map_err(|error| bad(error.to_string()))?;
        bounds.push((figure, sound(key, bound).map_err(|error| bad(error.to_string()))?));
    }
    let (lane, hardware) = (names["lane"].clone(), names["hardware"].clone());
    if lane.is_empty() || hardware.is_empty() || bounds.is_empty() {
        return Err(bad("it needs lane, hardware and at least one figure".to_owned()));
    }
    Ok(Threshold { lane, hardware, bounds })
}

/// Every bound that is broken; a figure that no receipt has breaks its bound, as nothing was checked.
pub fn broken(thresholds: &[Threshold], groups: &[Group]) -> Vec<Broken> {
    let mut out = vec![];
    for threshold in thresholds {
        let named = groups.iter().find(|g| g.lane == threshold.lane && g.hardware == threshold.hardware);
        // A single group is its own total.
        let only = (threshold.lane == ALL && threshold.hardware == ALL && groups.len() == 1).then(|| &groups[0]);
        let group = named.or(only);
        for (figure, bound) in &threshold.bounds {
            let value = group.and_then(figure.value);
            let holds = value.is_some_and(|value| if figure.least { value >= *bound } else { value <= *bound });
            if !holds {
                out.push(Broken {
                    lane: threshold.lane.clone(),
                    hardware: threshold.hardware.clone(),
                    figure: figure.name,
                    value,
                    bound: *bound,
                    least: figure.least,
                });
            }
        }
    }
    out
}
