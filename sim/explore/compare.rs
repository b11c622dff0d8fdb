//! What two scenarios differ in, and what each difference does to step time, memory and MFU.
//!
//! The differences are those of the keys that either file writes; a key that one of them leaves open counts with the
//! value taken for it. (A key that both leave open is no decision: where its value differs, it *follows*.) They are then
//! applied to A one after the other, in the order of [`Group`](crate::scenario::keys::Group)s, until A has become B. Each stage is a real
//! prediction, and a row is the difference of two stages, so that rows add up to B − A exactly: times in picoseconds, memory in bytes,
//! MFU in billionths.
//!
//! What lies between must be a run that somebody could start. Another layout, or another framework, is one decision of many keys
//! ([`mod@unit`]). A stage that is no scenario (more nodes, and not yet the mesh for them), or that does not fit although A and B do, is
//! joined with the first later difference that makes it one that runs, or failing that with as few of those that follow as make it one
//! ([`way`]). Since order matters, every row is simulated alone on A as well.

mod difference;
mod figures;
pub mod html;
pub mod json;
mod side;
pub mod text;
mod unit;
mod way;
mod words;

pub use difference::Difference;
pub use figures::{Change, Figures};
pub use side::Side;
pub use words::Fold;

use difference::{applied, differences};
use figures::fly;
use rayon::prelude::*;
use side::Keys;
use unit::units;
use way::{Stage, stages};

use crate::scenario::{ScenarioError, reason};

/// One step on the way from A to B.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is changed: one difference, or several that only together make a scenario.
    pub differences: Vec<Difference>,
    /// Why they are one row, where not each is a row of its own.
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
