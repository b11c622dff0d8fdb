//! PyTorch's own kernels, as training steps ran them on one H200 at its power limit.
//!
//! `kernels.csv` is made by `kernels.py` of the receipts in `tests/receipts/windtunnel-h200.jsonl`: for each the time of an operator in one
//! profiled step, and the bytes or the shape that follow from what was trained. Step times are not in it. mamba_ssm's kernels are those of
//! `tests/oracles/hybrid-steps.jsonl`, by `scans.py`.
//!
//! Another chip gets them carried over, by what holds each kernel back ([`Held`]).

use std::collections::BTreeMap;

use super::chips::{CHIPS, ChipSpec};
use super::tables::{Row, Table, Tables};
use super::{ImportError, evidence, fit, memory};
use crate::fit::attention::{Point, flops};

/// Profile of the chip that the kernels ran on.
const CHIP: &str = "h200-sxm-141gb";

const SOURCE: &str = "calibrate/import/kernels.csv: PyTorch 2.11 in training steps on one NVIDIA H200";

/// Why a kernel does not reach the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It moves more than its operands: the same share of any stream. A row of the vocabulary in fp32 is larger than what a
    /// processor holds. So the log-softmax reads it three times and writes it once, 16 B for 8 that are counted. Its backward
    /// moves 16 B for 12 (`aten/src/ATen/native/cuda/SoftMax.cu`). That makes 0.50 and 0.75 of the stream; 0.49 and 0.69 were
    /// measured.
    Traffic,
    /// Its operands move once, but too few bytes of them are on their way at a time: the same rate on each processor, as the
    /// memory's latency hardly differs. A thread loads four elements of each tensor.
    Latency,
    /// It computes exponentials: the same rate on each processor at the same clock.
    Arithmetic,
}

impl Held {
    /// A share of one chip's stream on another chip.
    pub(super) fn carried(self, share: f64, measured: &ChipSpec, chip: &ChipSpec) -> f64 {
        let processors = f64::from(chip.processors) / f64::from(measured.processors);
        let rate = match self {
            Held::Traffic => chip.bandwidth / measured.bandwidth,
            Held::Latency => processors,
            Held::Arithmetic => processors * f64::from(chip.clock) / f64::from(measured.clock),
        };
        (share * rate * measured.bandwidth / chip.bandwidth).min(1.0)
    }
}

/// The families, in the order of a profile.
const FAMILIES: [(&str, Held); 11] = [
    ("log_softmax", Held::Traffic),
    ("log_softmax_backward", Held::Traffic),
    ("compiled_log_softmax", Held::Arithmetic),
    ("compiled_log_softmax_backward", Held::Arithmetic),
    ("fused_optimizer", Held::Latency),
    ("fused_optimizer_16bit", Held::Latency),
    ("chunk_cat", Held::Latency),
    ("widening_cast", Held::Latency),
    ("chunk_scan", Held::Arithmetic),
    ("chunk_state", Held::Arithmetic),
    ("gated_norm_backward", Held::Latency),
];

/// What a share on another chip adds to its 90th percentile: assumed.
pub(super) const CARRIED_OVER: f64 = 0.15;

fn chip_of_the_table() -> &'static ChipSpec {
    CHIPS.iter().find(|spec| spec.name == CHIP).expect("a chip of the table")
}

fn table() -> Result<Table, ImportError> {
    Table::parse("calibrate/import/kernels.csv", include_bytes!("kernels.csv"))
}

pub(super) fn numbers<const N: usize>(
    table: &Table,
    row: &Row<'_>,
    columns: [&str; N],
) -> Result<[f64; N], ImportError> {
    let mut found = [0.0; N];
    for (number, column) in found.iter_mut().zip(columns) {
        *number =
            row.number(column).ok_or_else(|| table.error(&format!("line {} has no number in {column}", row.line())))?;
    }
    Ok(found)
}

/// Families of memory-bound kernels for a chip: name, share of its stream, evidence.
pub fn families(tables: &Tables, chip: &ChipSpec) -> Result<Vec<(&'static str, f64, String)>, ImportError> {
    let measured = chip_of_the_table();
    let (stream, table) = (memory::curve(tables, measured)?, table()?);
    let mut found = vec![];
    for (name, held) in FAMILIES {
        let mut shares = vec![];
        for row in table.rows().filter(|row| row.text("kernel") == name) {
            let [bytes, us] = numbers(&table, &row, ["bytes", "us"])?;
            shares.extend(crate::fit::memory::share(&stream, bytes, us * 1e-6));
        }
        if shares.is_empty() {
            return Err(table.error(&format!("no rows of {name}")));
        }
        let share = fit::median(&shares);
        let errors: Vec<f64> = shares.iter().map(|other| fit::error(*other, share)).collect();
        let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9).max(0.02));
        if chip.name == CHIP {
            found.push((name, share, evidence("measured", shares.len(), median, p90, SOURCE)));
            continue;
        }
        let carried = held.carried(share, measured, chip);
        let source = format!("{SOURCE}, carried over");
        let e = evidence("extrapolated", shares.len(), median + CARRIED_OVER / 2.0, p90 + CARRIED_OVER, &source);
        found.push((name, carried, e));
    }
    Ok(found)
}

/// Causal attention by a library on the chip, by head dimension and pass: one point for each shape, the median, as it would be in
/// a burst by the clock's factor of attention (`sim/cost/clock.rs`). Only where there are shapes enough for a rate and a knee.
pub fn attention(library: &str, factor: f64) -> Result<BTreeMap<(u64, bool), Vec<Point>>, ImportError> {
    let table = table()?;
    let mut shapes: BTreeMap<(u64, bool, [u64; 3]), Vec<f64>> = BTreeMap::new();
    for row in table.rows().filter(|row| row.text("kernel") == library) {
        let [batch, heads, sequence, head, us] =
            numbers(&table, &row, ["batch", "heads", "sequence", "head_dim", "us"])?;
        let shape = [batch, heads, sequence].map(|number| number as u64);
        shapes.entry((head as u64, row.text("backward") == "True", shape)).or_default().push(us * 1e-6);
    }
    let mut found: BTreeMap<(u64, bool), Vec<Point>> = BTreeMap::new();
    for ((head, backward, shape), seconds) in shapes {
        let [batch, heads, sequence] = shape.map(|number| number as f64);
        let work = flops(batch, heads, sequence, head as f64, true, backward);
        let slowed = (1.0 / factor - 1.0) * work / (chip_of_the_table().peaks[0] * 1e12);
        found.entry((head, backward)).or_default().push(Point {
            flops: work,
            sequence,
            tiles: batch * heads * (sequence / 128.0).ceil(),
            seconds: fit::median(&seconds) - slowed,
        });
    }
    found.retain(|_, points| points.len() >= 4);
    Ok(found)
}
