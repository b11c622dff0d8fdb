//! Memory-bound kernels of a TPU, copies to its host, and what a collective costs the kernels beside it.
//!
//! Of v6e one copy is published (memory_bandwidth.csv: 32 MiB, read and written, in a device trace); the stream is a
//! launch and the bandwidth that the rest of its time gives. What XLA fuses moves less: in the trace of a training step
//! (Llama 3 8B on v6e-8, [`STEP`]) xprof counts GiB and ms by kind of operation, summed over four chips.

use std::fmt::Write as _;

use super::super::tables::Tables;
use super::super::{ImportError, Section, evidence};
use super::Tpu;
use crate::fit::memory::{Stream, write_family, write_host, write_stream};
use crate::fit::overheads::write_overlap;

/// Whose trace, and of what.
const STEP: &str = "vlasenkoalexey/tpu_performance_autoresearch_wiki@6dbda52 jax exp28b, one training step on v6e";

/// The shortest kernel \[s\], as for matmuls.
const LAUNCH: f64 = 1.6e-6;

/// Kind of operation in that trace: GiB, ms.
const FUSIONS: (f64, f64) = (1547.0, 1570.0);
const FORMATTING: (f64, f64) = (393.0, 380.0);
const REDUCTIONS: (f64, f64) = (160.0, 147.0);

/// Share of a PCIe link's line rate that copies reach: nvbandwidth's 52 of 64 GB/s (memory_bandwidth.csv).
const OF_PCIE: f64 = 0.8;

/// Bandwidth of v6e's copy without its launch \[B/s\].
fn copy(tables: &Tables) -> Result<f64, ImportError> {
    let table = tables.get("memory_bandwidth.csv")?;
    let found = table.rows().find(|row| row.text("device") == "TPU v6e" && row.text("test").starts_with("HBM copy"));
    let Some((bytes, rate)) = found.and_then(|row| Some((row.number("bytes")?, row.number("GBps")?))) else {
        return Err(table.error("no HBM copy of TPU v6e"));
    };
    let moved = 2.0 * bytes;
    Ok(moved / (moved / (rate * 1e9) - LAUNCH))
}

/// The section `memory`.
pub fn section(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let measured = copy(tables)?;
    let own = measured * tpu.bandwidth / 1638.0;
    let points: Vec<(f64, f64)> =
        (12..=37).map(|power| libm::exp2(f64::from(power))).map(|b| (b, LAUNCH + b / own)).collect();
    let basis = if tpu.derived { "extrapolated" } else { "published" };
    let mut text = String::new();
    let source = "memory_bandwidth.csv: copy of 32 MiB in a device trace; others saw 1.21 to 1.53 TB/s by streams and sizes; \
                  launch from v7x";
    let stream = Stream { points, rows: 1, errors: vec![] };
    write_stream(&mut text, &stream, &evidence(basis, 1, 0.05, 0.12, source));
    let share = |(gib, ms): (f64, f64)| gib * 1024.0_f64.powi(3) / (ms * 1e-3) / measured;
    let counted = |what: &str| format!("{STEP}: bytes by time of all {what}");
    let (fused, formatted, reduced) = (share(FUSIONS), share(FORMATTING), share(REDUCTIONS));
    for (name, share, basis, p90, source) in [
        ("elementwise", fused, basis, 0.2, counted("\\\"loop fusion\\\"")),
        ("norm", fused, basis, 0.25, counted("\\\"loop fusion\\\", norms among them")),
        ("norm_backward", reduced, basis, 0.3, counted("\\\"reduce\\\"")),
        ("copy", formatted, basis, 0.2, counted("\\\"data formatting\\\"")),
        ("softmax", reduced, basis, 0.3, counted("\\\"reduce\\\"")),
        ("gather", 0.5, "assumed", 0.5, "assumed: rows of a few kB, random order, one copy each".to_owned()),
        ("scatter", 0.25, "assumed", 0.7, "assumed: sorted first, then added row by row".to_owned()),
        ("foreach", 0.9, "assumed", 0.2, "assumed: an optimizer's fusion streams seven long buffers".to_owned()),
        ("complex", fused, "assumed", 0.4, "assumed: as other fusions".to_owned()),
    ] {
        write_family(
            &mut text,
            name,
            share,
            &evidence(basis, usize::from(basis != "assumed"), p90 / 2.0, p90, &source),
        );
    }
    let source = "hw_specs.csv: PCIe by jax-ml/scaling-book, times 0.8, what copies reach of the line rate on other hosts; one \
                  trace of a step on v6e has 16.5 GB/s where copies waited for each other; latency assumed";
    let rate = OF_PCIE * tpu.host * 1e9;
    write_host(&mut text, 10e-6, [rate, rate], &evidence("extrapolated", 1, 0.2, 0.4, source));
    Ok(Section { text, residuals: Vec::new() })
}

/// The section `overlap`.
pub fn overlap() -> Section {
    let mut text = "[overlap]\nprocessors = 0 # links have engines of their own\n\n".to_owned();
    let bandwidth =
        "assumed: a collective's bytes, read and written, come off the HBM's bandwidth; a matmul hardly needs it";
    for (name, factor, p90) in [("matmul", 1.03, 0.05), ("attention", 1.02, 0.05), ("memory", 1.2, 0.2)] {
        let mut one = String::new();
        write_overlap(&mut one, name, factor, &evidence("assumed", 0, p90 / 2.0, p90, bandwidth));
        let _ = writeln!(text, "{}\n", one.trim_end());
    }
    Section { text, residuals: Vec::new() }
}
