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

use windtunnel::units::Time;

use super::super::tables::Tables;
use super::super::{ImportError, Residual, Section, evidence, fit};
use super::Tpu;
use crate::fit::matmul::{Points, Spec, fit_waves, write_waves};

/// What a host's clock adds \[s\].
const DISPATCH: f64 = 115e-6;

/// The shortest kernel that a host can time beside it \[s\].
const TIMED: f64 = 60e-6;

/// The shortest kernel \[s\]: a 128³ matmul on v7x takes 1.62 us (gemm_tpu.csv).
const LAUNCH: f64 = 1.6e-6;

/// Times of one number format.
fn read(tables: &Tables, dtype: &str) -> Result<Points, ImportError> {
    let table = tables.get("gemm_tpu.csv")?;
    let mut all: BTreeMap<(u64, u64, u64), Vec<f64>> = BTreeMap::new();
    for row in table.rows().filter(|row| row.text("tpu") == "v6e" && row.text("dtype") == dtype) {
        let [Some(m), Some(n), Some(k), Some(us)] = ["m", "n", "k", "time_us"].map(|column| row.number(column)) else {
            continue;
        };
        let timing = row.text("timing");
        // The one shape that was traced is known without its host's clock.
        let traced = timing.starts_with("device trace");
        if traced
            || !(timing.starts_with("host timing") || dtype == "bfloat16" && (m, n, k) == (8192.0, 8192.0, 8192.0))
        {
            let seconds = us * 1e-6 - if traced { 0.0 } else { DISPATCH };
            if seconds >= TIMED {
                all.entry((m as u64, n as u64, k as u64)).or_default().push(seconds);
            }
        }
    }
    let points: Points = all.into_iter().map(|(shape, times)| (shape, fit::median(&times))).collect();
    if points.is_empty() { Err(table.error(&format!("no {dtype} rows of v6e"))) } else { Ok(points) }
}

/// The sections `matmul` and `layout`.
pub fn section(tables: &Tables, tpu: &Tpu) -> Result<Section, ImportError> {
    let mut text = String::new();
    let mut residuals = Vec::new();
    let mut one = |names: &[&str], dtype: &str, of: (f64, f64), size: f64, doubt: f64, note: &str| {
        let points = read(tables, dtype)?;
        let (measured, own) = of;
        let spec = Spec { processors: 1, peak: measured, size, measured_bandwidth: 1638.0, own_bandwidth: 1638.0 };
        let model = |points: &Points| {
            let waves = fit_waves(points, &spec, 1);
            windtunnel::cost::waves::Waves { launch: Time::from_seconds(LAUNCH), ..waves }
        };
        let errors: Vec<f64> = points
            .iter()
            .map(|(out, seconds)| {
                let rest = points.iter().filter(|(shape, _)| *shape != out).map(|(s, t)| (*s, *t)).collect();
                let (m, n, k) = *out;
                fit::error(model(&rest).seconds(&spec.measured(), (m as f64, n as f64, k as f64), size), *seconds)
            })
            .collect();
        let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9) + doubt);
        let basis = if tpu.derived { "extrapolated" } else { "published" };
        let source =
            format!("gemm_tpu.csv, {dtype} on v6e, less {:.0} us of dispatch where a host timed{note}", DISPATCH * 1e6);
        for name in names {
            let e = evidence(basis, points.len(), median, p90, &source);
            write_waves(&mut text, name, own, &model(&points), &e);
        }
        residuals.push(Residual { section: format!("matmul {}", names[0]), points: points.len(), median, p90 });
        Ok::<(), ImportError>(())
    };
    let doubt = if tpu.derived { 0.15 } else { 0.05 };
    one(&["bf16"], "bfloat16", (918.0, tpu.peaks[0]), 2.0, doubt, "")?;
    one(&["fp8"], "int8", (1836.0, tpu.peaks[1]), 1.0, doubt, "; int8 stands for all eight-bit numbers")?;
    let once = "; operands of four bytes, multiplied once as bf16 (JAX's default precision)";
    one(&["tf32", "fp32"], "float32", (918.0, tpu.peaks[0]), 4.0, doubt, once)?;
    let why = "assumed: the compiler lays operands out as a matrix unit wants them, at the cost of copies that are kernels of their own";
    text.push_str(&format!(
        "[layout]\ndata_gradient = 1\nweight_gradient = 1\nevidence = {}\n",
        evidence("assumed", 0, 0.03, 0.1, why)
    ));
    Ok(Section { text, residuals })
}
