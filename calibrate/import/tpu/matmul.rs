//! Matmuls of a TPU: the wave model with one processor, whose tiles are what a matrix unit is loaded with.
//!
//! gemm_tpu.csv has two kinds of rows. A device trace is the kernel; a host's clock adds what it takes to start a program
//! and hear of its end. That is the same for all sizes, and what makes the eight smallest bf16 matmuls, which memory
//! bounds, as fast as memory: [`DISPATCH`]. (On another host it was 129 us, second_order_effects.csv.) What is left of a
//! kernel much shorter than that is noise, and not used. Few points and one compiler's choices: no table, and errors by
//! leaving out a row at a time.
//!
//! In traces of training steps on v6e, fused with the elementwise work around them, matmuls ran at 720 to 728 TFLOP/s
//! (Llama 3 8B, vlasenkoalexey/tpu_performance_autoresearch_wiki@6dbda52, jax exp15 and exp28b: FLOPs by time of all
//! "convolution fusion"); libtpu's own estimates (`estimated_cycles`) are within 13 % of the traces.

use std::collections::BTreeMap;

use windtunnel::cost::waves::Waves;
use windtunnel::units::Time;

use super::super::tables::Tables;
use super::super::{ImportError, Residual, Section, evidence, fit};
use super::Tpu;
use crate::fit::grid::Shape;
use crate::fit::matmul::{Points, Spec, fit_waves, write_waves};

/// What a host's clock adds \[s\].
const DISPATCH: f64 = 115e-6;

/// The shortest kernel that a host can time beside it \[s\].
const TIMED: f64 = 60e-6;

/// The shortest kernel \[s\]: a 128³ matmul on v7x takes 1.62 us (gemm_tpu.csv).
const LAUNCH: f64 = 1.6e-6;

/// Whose rows a profile's matmuls are fitted to, with the board that was measured.
#[derive(Clone, Copy, Debug)]
struct Rows {
    /// `tpu` in the table.
    tpu: &'static str,
    dtype: &'static str,
    /// Bytes of an operand's element.
    size: f64,
    /// Peaks of what was measured: \[TFLOP/s\], \[GB/s\].
    peak: f64,
    bandwidth: f64,
}

const BF16: Rows = Rows { tpu: "v6e", dtype: "bfloat16", size: 2.0, peak: 918.0, bandwidth: 1638.0 };
const INT8: Rows = Rows { dtype: "int8", size: 1.0, peak: 1836.0, ..BF16 };
const FP32: Rows = Rows { dtype: "float32", size: 4.0, ..BF16 };
/// One of the two cores of a v7x chip, each with half of its memory.
const V7X: Rows = Rows { tpu: "v7", peak: 1153.5, bandwidth: 3690.0, ..BF16 };

/// Times of one number format.
fn read(tables: &Tables, rows: Rows) -> Result<Points, ImportError> {
    let table = tables.get("gemm_tpu.csv")?;
    let mut all: BTreeMap<(u64, u64, u64), Vec<f64>> = BTreeMap::new();
    let cube = (8192.0, 8192.0, 8192.0);
    for row in table.rows().filter(|row| row.text("tpu") == rows.tpu && row.text("dtype") == rows.dtype) {
        let [Some(m), Some(n), Some(k), Some(us)] = ["m", "n", "k", "time_us"].map(|column| row.number(column)) else {
            continue;
        };
        // On v7x, and of v6e's one shape that was traced, the host's clock is not needed.
        let hosted = row.text("timing").starts_with("host");
        let traced = rows.tpu != "v6e" || rows.dtype == "bfloat16" && (m, n, k) == cube;
        let seconds = us * 1e-6 - if hosted { DISPATCH } else { 0.0 };
        if !(hosted && (traced || seconds < TIMED)) {
            all.entry((m as u64, n as u64, k as u64)).or_default().push(seconds);
        }
    }
    let points: Points = all.into_iter().map(|(shape, times)| (shape, fit::median(&times))).collect();
    if points.is_empty() { Err(table.error(&format!("no {} rows of {}", rows.dtype, rows.tpu))) } else { Ok(points) }
}

/// The wave model of points, and its errors on each of them without it.
fn fitted(points: &Points, rows: Rows) -> (Waves, Vec<f64>) {
    let Rows { size, peak, bandwidth, .. } = rows;
    let spec = Spec { processors: 1, peak, size, measured_bandwidth: bandwidth, own_bandwidth: bandwidth };
    let model = |points: &Points| Waves { launch: Time::from_seconds(LAUNCH), ..fit_waves(points, &spec, 1) };
    let without = |out: &Shape, seconds: f64| {
        let rest = points.iter().filter(|(shape, _)| *shape != out).map(|(shape, t)| (*shape, *t)).collect();
        let (m, n, k) = *out;
        fit::error(model(&rest).seconds(&spec.measured(), (m as f64, n as f64, k as f64), size), seconds)
    };
    (model(points), points.iter().map(|(out, seconds)| without(out, *seconds)).collect())
}

/// Rate of all matmuls, with what is fused into them, in traces of two training steps \[TFLOP/s\]: FLOPs by time of
/// "convolution fusion" (Llama 3 8B, 4 and 5 sequences of 8,192 tokens a chip).
const FUSED: [f64; 2] = [720.0, 728.0];

/// Widths, inputs and outputs, of the projections of a block of Llama 3 8B.
const PROJECTIONS: [(u64, u64); 7] =
    [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)];

/// The section `fusion`: the bare rate of a step's matmuls over that of its fusions.
fn fusion(waves: &Waves, tpu: &Tpu) -> String {
    let tokens = 32768;
    let v6e = Spec { processors: 1, peak: 918.0, size: 2.0, measured_bandwidth: 1638.0, own_bandwidth: 1638.0 };
    let seconds = |(m, n, k): Shape| waves.seconds(&v6e.measured(), (m as f64, n as f64, k as f64), 2.0);
    // Forward, again in backward, and both gradients.
    let step = PROJECTIONS.iter().map(|&(inputs, outputs)| {
        let forward = seconds((tokens, outputs, inputs));
        2.0 * forward + seconds((tokens, inputs, outputs)) + seconds((inputs, outputs, tokens))
    });
    let flops: f64 = PROJECTIONS.iter().map(|&(inputs, outputs)| 8.0 * (tokens * inputs * outputs) as f64).sum();
    let factor = flops / step.sum::<f64>() / (FUSED.iter().sum::<f64>() / FUSED.len() as f64 * 1e12);
    let source = "vlasenkoalexey/tpu_performance_autoresearch_wiki@6dbda52 jax exp15 and exp28b: 720 and 728 TFLOP/s in all matmul fusions \
                  of a training step on v6e, over the bare ones here at its shapes; what is fused: the HLO in its commit c5e3f7aa";
    let (basis, p90) = if tpu.derived { ("extrapolated", 0.12) } else { ("published", 0.06) };
    format!("[fusion]\nmatmul = {factor:.4}\nevidence = {}\n\n", evidence(basis, 2, p90 / 2.0, p90, source))
}

/// The sections `matmul`, `fusion` and `layout`.
pub fn section(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let mut text = String::new();
    let mut residuals = Vec::new();
    let [half, eight] = tpu.peaks;
    let once = "; operands of four bytes, multiplied once as bf16 (JAX's default precision)";
    let bf16 = if tpu.name == "tpu-v7x" { V7X } else { BF16 };
    for (names, rows, peak, note) in [
        (&["bf16"][..], bf16, half, ""),
        (&["fp8"], INT8, eight, "; int8 stands for all eight-bit numbers"),
        (&["tf32", "fp32"], FP32, half, once),
    ] {
        let points = read(tables, rows)?;
        let (waves, errors) = fitted(&points, rows);
        let own = !tpu.derived || rows.tpu == "v7";
        let (basis, doubt) = if own { ("published", 0.05) } else { ("extrapolated", 0.15) };
        let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9) + doubt);
        let how = match rows.tpu {
            "v6e" => format!("v6e, less {:.0} us of dispatch where a host timed", DISPATCH * 1e6),
            _ => "one core of v7x, device traces and long loops".to_owned(),
        };
        let source = format!("gemm_tpu.csv, {} on {how}{note}", rows.dtype);
        for name in names {
            write_waves(&mut text, name, peak, &waves, &evidence(basis, points.len(), median, p90, &source));
        }
        residuals.push(Residual { section: format!("matmul {}", names[0]), points: points.len(), median, p90 });
    }
    let bf16 = fitted(&read(tables, BF16)?, BF16).0;
    text.push_str(&fusion(&bf16, tpu));
    let why = "assumed: the compiler lays operands out as a matrix unit wants them, at the cost of copies that are kernels of their own";
    text.push_str(&format!(
        "[layout]\ndata_gradient = 1\nweight_gradient = 1\nevidence = {}\n",
        evidence("assumed", 0, 0.03, 0.1, why)
    ));
    Ok(Section { text, residuals })
}
