//! What two scenarios differ in, and what each difference does to step time, memory and MFU.
//!
//! The differences are those of the keys that either file writes; a key that one of them leaves open counts with the
//! value taken for it. (A key that both leave open is no decision: where its value differs, it *follows*.) They are then
//! applied to A one after the other, in the order of [`Group`]s, until A has become B. Each stage is a real prediction,
//! and a row is the difference of two stages, so that rows add up to B − A exactly: times in picoseconds, memory in bytes,
//! MFU in billionths.
//!
//! What lies between must be a run that somebody could start. Where the two split the model differently, or run under different
//! frameworks, the keys that say so make sense only together, and are one row ([`LAYOUT`]). A stage that is no scenario (more
//! nodes, and not yet the mesh for them), or that does not fit although A and B do, is joined with the first later difference
//! that makes it one that runs, or failing that with those that follow until it is one. Since order matters, every row is
//! simulated alone on A as well.

pub mod html;
pub mod json;
mod side;
pub mod text;

pub use side::Side;

use rayon::prelude::*;
use side::{Keys, draft};
use toml::Value;

use super::point::Point;
use crate::scenario::keys::{self, Group};
use crate::scenario::predict::Verdict;
use crate::scenario::{ScenarioError, reason};
use crate::units::{Bytes, Time};

/// Tables whose keys are one row where the model is split differently.
const LAYOUT: [&str; 4] = ["mesh", "pipeline", "tensor_parallel", "batch"];

/// Axes that split a model: with another of these, another batch and other stages are part of the same decision.
const AXES: [&str; 5] = ["mesh.tp", "mesh.cp", "mesh.pp", "mesh.pipeline", "mesh.tensor"];

/// Tables that one framework reads and another refuses.
const FRAMEWORK: [&str; 10] = [
    "runtime",
    "fsdp",
    "fsdp1",
    "zero",
    "megatron",
    "nanotron",
    "internevo",
    "xla",
    "activation_checkpointing",
    "framework",
];

/// A key that the two sides do not agree on; a side may not have it at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// `table.key`.
    pub key: String,
    /// Its value in A.
    pub from: Option<Value>,
    /// Its value in B.
    pub to: Option<Value>,
}

impl Difference {
    /// The group that it belongs to.
    pub fn group(&self) -> Group {
        keys::group(&self.key)
    }

    fn apply(&self, keys: &mut Keys) {
        match &self.to {
            Some(value) => keys.insert(self.key.clone(), value.clone()),
            None => keys.remove(&self.key),
        };
    }
}

/// What is compared of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The steady step \[ps\].
    pub step: Time,
    /// Peak memory in blocks handed out \[B\].
    pub allocated: Bytes,
    /// Peak memory taken from the device by the allocator \[B\].
    pub reserved: Bytes,
    /// MFU by the report's first convention, in billionths: a count, so that sums are exact.
    pub mfu_billionths: i64,
    /// Tokens per second and chip.
    pub rate: f64,
    /// Tokens of a step, of all ranks.
    pub tokens: u64,
    /// Whether device or host have too little: memory is then what the plan would like to have.
    pub refused: bool,
    /// Whether the plan fits, in a word.
    pub verdict: Verdict,
    /// What a node's ranks take of its host's memory \[B\].
    pub host: Bytes,
}

impl Figures {
    fn of(point: &Point, tokens: u64) -> Figures {
        Figures {
            tokens,
            step: point.step,
            allocated: point.memory.report.peak_allocated,
            reserved: point.memory.report.peak_reserved,
            mfu_billionths: (point.mfu * 1e9).round() as i64,
            rate: point.rate,
            refused: point.memory.refused(),
            verdict: point.memory.verdict(),
            host: point.memory.host.map_or(Bytes(0), |host| host.wanted()),
        }
    }
}

/// How figures change from one prediction to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Figures before.
    pub from: Figures,
    /// Figures after.
    pub to: Figures,
}

impl Change {
    /// Step time \[ps\].
    pub fn step(&self) -> i128 {
        i128::from(self.to.step.0) - i128::from(self.from.step.0)
    }

    /// Peak memory allocated \[B\].
    pub fn allocated(&self) -> i128 {
        i128::from(self.to.allocated.0) - i128::from(self.from.allocated.0)
    }

    /// Peak memory reserved \[B\].
    pub fn reserved(&self) -> i128 {
        i128::from(self.to.reserved.0) - i128::from(self.from.reserved.0)
    }

    /// MFU, in billionths.
    pub fn mfu_billionths(&self) -> i128 {
        i128::from(self.to.mfu_billionths) - i128::from(self.from.mfu_billionths)
    }
}

/// One step on the way from A to B.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is changed: one difference, or several that only together make a scenario.
    pub differences: Vec<Difference>,
    /// Why the first does not stand alone, where there are several.
    pub joined: Option<String>,
    /// What it does after the rows before it.
    pub change: Change,
    /// What it does to A by itself, or why that is no scenario.
    pub alone: Result<Change, String>,
}

/// Two scenarios, and what lies between them.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name and description of A, and of B.
    pub sides: [(String, String); 2],
    /// From A to B.
    pub total: Change,
    /// From A to B, row by row.
    pub rows: Vec<Row>,
    /// Values that neither file writes and that differ all the same: they follow from the rest.
    pub follows: Vec<Difference>,
}

/// Attributes the difference between two sides.
pub fn compare(a: &Side, b: &Side) -> Result<Comparison, ScenarioError> {
    let (start, end) = (a.keys(b), b.keys(a));
    let total = Change { from: fly(&start)?, to: fly(&end)? };
    let stages = stages(&start, units(differences(&start, &end)), total);
    let alone = |differences: &[Difference]| {
        let to = fly(&applied(&start, differences)).map_err(|error| reason(&error))?;
        Ok(Change { from: total.from, to })
    };
    let row = |stage: Stage| Row {
        alone: alone(&stage.differences),
        differences: stage.differences,
        joined: stage.joined,
        change: stage.change,
    };
    let rows = stages.into_par_iter().map(row).collect();
    let undecided = |side: &Side| -> Keys {
        let written = |key: &String| start.contains_key(key) || end.contains_key(key);
        side.open.iter().filter(|(key, _)| !written(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let follows = differences(&undecided(a), &undecided(b));
    let sides = [a, b].map(|side| (side.name.clone(), side.description.clone()));
    Ok(Comparison { sides, total, rows, follows })
}

fn fly(keys: &Keys) -> Result<Figures, ScenarioError> {
    let (scenario, answer) = draft(keys).fly()?;
    let tokens = answer.tokens;
    Ok(Figures::of(&Point::of(&scenario, answer), tokens))
}

fn applied(keys: &Keys, differences: &[Difference]) -> Keys {
    let mut keys = keys.clone();
    for difference in differences {
        difference.apply(&mut keys);
    }
    keys
}

/// What differs, in the order in which it is applied.
fn differences(start: &Keys, end: &Keys) -> Vec<Difference> {
    let mut keys: Vec<&String> = start.keys().chain(end.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let difference = |key: &String| {
        let (from, to) = (start.get(key).cloned(), end.get(key).cloned());
        (from != to).then(|| Difference { key: key.clone(), from, to })
    };
    let mut list: Vec<_> = keys.into_iter().filter_map(difference).collect();
    list.sort_by_key(Difference::group);
    list
}

/// A row that has not been flown alone yet.
struct Stage {
    differences: Vec<Difference>,
    joined: Option<String>,
    change: Change,
}

/// Differences that are applied together: alone each, but for those of another layout or framework.
fn units(differences: Vec<Difference>) -> Vec<Vec<Difference>> {
    let split = differences.iter().any(|one| AXES.contains(&one.key.as_str()));
    let framework = differences.iter().any(|one| one.key == "runtime");
    let together = |one: &Difference| {
        let table = one.key.split('.').next().unwrap_or_default();
        (split || framework) && LAYOUT.contains(&table) || framework && FRAMEWORK.contains(&table)
    };
    let mut units: Vec<Vec<Difference>> = vec![];
    let mut layout: Option<usize> = None;
    for one in differences {
        match layout.filter(|_| together(&one)) {
            Some(at) => units[at].push(one),
            None => {
                if together(&one) {
                    layout = Some(units.len());
                }
                units.push(vec![one]);
            }
        }
    }
    units
}

/// The way from A to B. It always arrives, for all differences together make B.
fn stages(start: &Keys, mut open: Vec<Vec<Difference>>, total: Change) -> Vec<Stage> {
    let (mut keys, mut stages, mut now) = (start.clone(), vec![], total.from);
    let both_fit = !total.from.refused && !total.to.refused;
    let runs = |keys: &Keys, differences: &[Difference]| {
        let figures = fly(&applied(keys, differences)).map_err(|error| reason(&error))?;
        match !figures.refused || !both_fit {
            true => Ok(figures),
            false => Err("the plan does not fit in memory".to_owned()),
        }
    };
    while !open.is_empty() {
        let first = open.remove(0);
        let refused = match runs(&keys, &first) {
            Ok(to) => {
                keys = applied(&keys, &first);
                stages.push(Stage { differences: first, joined: None, change: Change { from: now, to } });
                now = to;
                continue;
            }
            Err(why) => why,
        };
        let with = |others: &[Vec<Difference>]| {
            let all: Vec<_> = first.iter().chain(others.iter().flatten()).cloned().collect();
            runs(&keys, &all).ok().map(|to| (all, to))
        };
        // One partner, wherever it comes; else the next ones, as many as it takes.
        let partner = (0..open.len()).find_map(|at| Some((at..at + 1, with(&open[at..=at])?)));
        let found = partner.or_else(|| (1..=open.len()).find_map(|count| Some((0..count, with(&open[..count])?))));
        let Some((taken, (all, to))) = found else { break };
        open.drain(taken);
        keys = applied(&keys, &all);
        stages.push(Stage { differences: all, joined: Some(refused), change: Change { from: now, to } });
        now = to;
    }
    stages
}
