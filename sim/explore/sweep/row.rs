//! A row of a sweep: one run, with what was varied and what it would do. A line of the file of rows is this struct as JSON.
//!
//! To add a figure: a field here, at the end of its group, and a row in the table of `docs/guide/sweep.md`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::grid::{Fnv, Grid};
use crate::scenario::{Prediction, Scenario, ScenarioError, reason};
use crate::units::Bytes;

/// The verdict on a combination that is no plan.
pub(super) const REFUSED: &str = "refused";

/// The code of a run that met a bug.
const BUG: &str = "bug";

/// One run of a sweep. Names carry their units, and figures are those of `windtunnel run --json`. What a refused combination does not
/// have is null.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its place in the grid, from 0.
    pub index: u64,
    /// The values of the keys that are varied, in their order; null where a key is left to its default.
    pub varied: Box<RawValue>,
    /// Whether the plan runs, in the report's words; or `refused`.
    pub verdict: String,
    /// Time of the steady step \[s\]; of a plan that does not fit, what it would be with more memory.
    pub step_time_s: Option<f64>,
    /// Where the 80 % interval around it begins \[s\].
    pub step_time_low_s: Option<f64>,
    /// Where it ends \[s\].
    pub step_time_high_s: Option<f64>,
    /// Tokens of one step of the whole job.
    pub tokens_per_step: Option<u64>,
    /// Chips of the whole job.
    pub chips: Option<u32>,
    /// Tokens per second and chip.
    pub tokens_per_second_per_chip: Option<f64>,
    /// Model FLOPs utilisation by that convention, 0 to 1.
    pub mfu: Option<f64>,
    /// The convention's short name.
    pub mfu_convention: Option<String>,
    /// What bounds the step.
    pub bound_by: Option<String>,
    /// Most bytes in blocks that the allocator handed out, of the device with the least to spare \[B\].
    pub allocated_bytes: Option<u64>,
    /// Most bytes that the allocator took from the device \[B\].
    pub reserved_bytes: Option<u64>,
    /// Reserved bytes and what lies outside the allocator \[B\].
    pub device_total_bytes: Option<u64>,
    /// What the plan would take of a device without any limit \[B\].
    pub wanted_bytes: Option<u64>,
    /// Memory of the device \[B\].
    pub capacity_bytes: Option<u64>,
    /// What is left of it; below zero what is missing \[B\].
    pub headroom_bytes: Option<i64>,
    /// How far the device's total may be off \[B\].
    pub doubt_bytes: Option<u64>,
    /// How often the allocator returns cached segments in a step.
    pub allocator_retries: Option<u32>,
    /// What all ranks of a node take of its host's memory; null where they take nothing \[B\].
    pub host_bytes_per_node: Option<u64>,
    /// Memory of a node's host; null where nothing is taken of it, or where the topology does not say \[B\].
    pub host_capacity_bytes: Option<u64>,
    /// The code of the refusal, which `windtunnel explain` explains; null where it has none.
    pub refused_code: Option<String>,
    /// Why the combination is refused, in a line.
    pub refused_reason: Option<String>,
    /// What the rows of one sweep have in common ([`Grid::id`]).
    pub grid: String,
    /// The version of Windtunnel that wrote the row.
    pub windtunnel: String,
    /// A hash of all before it in the line ([`Row::line`]); empty until the line is written.
    #[serde(default, skip_serializing)]
    pub digest: String,
}

/// What stands before the digest in a line.
const DIGEST: &str = ",\"digest\":\"";

/// Why a combination is no plan.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// The short name of what is wrong, if it has one.
    pub(super) code: Option<String>,
    /// In a line.
    pub(super) reason: String,
}

impl Refusal {
    /// The first line of what the scenario's reader says, or the simulation.
    pub(super) fn of(error: &ScenarioError) -> Refusal {
        Refusal { code: error.code().map(str::to_owned), reason: reason(error) }
    }

    /// The run met a bug, and panicked with these words.
    pub(super) fn bug(words: &str) -> Refusal {
        Refusal { code: Some(BUG.to_owned()), reason: format!("windtunnel met a bug: {words}") }
    }
}

fn digest(text: &str) -> String {
    let mut hash = Fnv::default();
    hash.add(text);
    format!("{:016x}", hash.0)
}

impl Row {
    /// A row without figures, which is at no place yet.
    fn empty(grid: &Grid, verdict: String) -> Row {
        Row {
            index: 0,
            varied: RawValue::NULL.to_owned(),
            verdict,
            step_time_s: None,
            step_time_low_s: None,
            step_time_high_s: None,
            tokens_per_step: None,
            chips: None,
            tokens_per_second_per_chip: None,
            mfu: None,
            mfu_convention: None,
            bound_by: None,
            allocated_bytes: None,
            reserved_bytes: None,
            device_total_bytes: None,
            wanted_bytes: None,
            capacity_bytes: None,
            headroom_bytes: None,
            doubt_bytes: None,
            allocator_retries: None,
            host_bytes_per_node: None,
            host_capacity_bytes: None,
            refused_code: None,
            refused_reason: None,
            grid: grid.id().to_owned(),
            windtunnel: env!("CARGO_PKG_VERSION").to_owned(),
            digest: String::new(),
        }
    }

    /// The row of a refused combination.
    pub(super) fn refused(grid: &Grid, why: Refusal) -> Row {
        let Refusal { code, reason } = why;
        Row { refused_code: code, refused_reason: Some(reason), ..Row::empty(grid, REFUSED.to_owned()) }
    }

    /// The row of a run.
    pub(super) fn of(grid: &Grid, scenario: &Scenario, answer: &Prediction) -> Row {
        let (memory, chips) = (&answer.memory, scenario.topology.chips());
        let takes = if memory.on_device { memory.device_total() } else { memory.wanted };
        let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
        let first = answer.mfu.first();
        Row {
            step_time_s: Some(answer.step.seconds()),
            step_time_low_s: Some(answer.interval.0.seconds()),
            step_time_high_s: Some(answer.interval.1.seconds()),
            tokens_per_step: Some(answer.tokens),
            chips: Some(chips),
            tokens_per_second_per_chip: Some(answer.tokens_per_second_per_chip(chips)),
            mfu: first.map(|mfu| mfu.utilisation),
            mfu_convention: first.map(|mfu| mfu.name.to_owned()),
            bound_by: Some(answer.bound().to_owned()),
            allocated_bytes: Some(memory.report.peak_allocated.0),
            reserved_bytes: Some(memory.report.peak_reserved.0),
            device_total_bytes: Some(memory.device_total().0),
            wanted_bytes: Some(memory.wanted.0),
            capacity_bytes: Some(memory.capacity.0),
            headroom_bytes: Some(signed(memory.capacity).saturating_sub(signed(takes))),
            doubt_bytes: Some(memory.doubt.0),
            allocator_retries: Some(memory.report.retries),
            host_bytes_per_node: memory.host.map(|host| host.wanted().0),
            host_capacity_bytes: memory.host.and_then(|host| host.capacity).map(|has| has.0),
            ..Row::empty(grid, memory.verdict().to_string())
        }
    }

    /// Whether the combination is no plan.
    pub fn is_refused(&self) -> bool {
        self.verdict == REFUSED
    }

    /// Whether the run met a bug.
    pub fn is_a_bug(&self) -> bool {
        self.refused_code.as_deref() == Some(BUG)
    }

    /// The row as a line of JSON, without its end. The last field is a hash of the text before it.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("keys of a row are text, and nothing else fails");
        line.pop();
        let digest = digest(&line);
        line + DIGEST + &digest + "\"}"
    }

    /// Whether a line is as it was written.
    pub(super) fn is_unchanged(line: &str) -> bool {
        let parts = line.rsplit_once(DIGEST);
        parts.is_some_and(|(text, said)| said.strip_suffix("\"}") == Some(&digest(text)))
    }

    /// Reads a line.
    pub fn read(line: &str) -> Result<Row, serde_json::Error> {
        serde_json::from_str(line)
    }
}
