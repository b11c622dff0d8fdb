//! Sustained over burst clocks: the same matmul in a table of bursts and in runs of a second or more.
//!
//! Only H200 has bf16 points of both kinds with power readings (gemm_sustained_points.csv, three cubes at 632–692 W of
//! 700 W); A100 has fp16 cubes after 10,000 warm-up runs. Chips without points take the H200's factors, labelled
//! `extrapolated`. A lower power limit scales them by `((limit − idle)/(full − idle))^(1/2.5)`: dynamic power goes as
//! f·V² and V nearly follows f, between a square and a cube; idle and memory draw 120 W (assumed).

use std::fmt::Write as _;

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, evidence, fit};

/// Burst duration [s] and sustained over burst rate of cubes on one chip.
fn factors(tables: &Tables, gpu: &str, matmul: &str) -> Result<Vec<(f64, f64)>, ImportError> {
    let sustained = tables.get("gemm_sustained_points.csv")?;
    let burst = tables.get(&format!("gemm_{matmul}.csv.gz"))?;
    let mut points = Vec::new();
    for row in sustained.rows() {
        let long = row.text("conditions").contains("sustained");
        let half = matches!(row.text("dtype"), "bf16" | "fp16");
        let (Some(m), Some(n), Some(k), Some(rate)) =
            (row.number("m"), row.number("n"), row.number("k"), row.number("tflops"))
        else {
            continue;
        };
        if row.text("gpu") != gpu || !long || !half || m.min(n).min(k) < 4096.0 {
            continue;
        }
        let times: Vec<f64> = burst
            .rows()
            .filter(|b| {
                b.text("dtype") == "bfloat16"
                    && [("m", m), ("n", n), ("k", k)].iter().all(|(c, v)| b.number(c) == Some(*v))
            })
            .filter_map(|b| b.number("time_us"))
            .collect();
        if times.is_empty() {
            continue;
        }
        let time = fit::median(&times) * 1e-6;
        let burst_rate = 2.0 * m * n * k / time / 1e12;
        points.push((time, rate / burst_rate));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(points)
}

/// The section `clock`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let (gpu, own) = match chip.matmul {
        "a100" => ("A100-80GB SXM", true),
        name => ("H200 SXM", name == "h200"),
    };
    let points = factors(tables, gpu, if own { chip.matmul } else { "h200" })?;
    if points.is_empty() {
        return Err(tables.get("gemm_sustained_points.csv")?.error(&format!("no sustained cubes of {gpu}")));
    }
    let scale = if chip.derived { libm::pow((chip.power - 120.0) / (700.0 - 120.0), 1.0 / 2.5) } else { 1.0 };
    let (basis, p90) = match (own, chip.derived) {
        (_, true) => ("extrapolated", 0.2),
        (true, _) => ("published", 0.08),
        (false, _) => ("extrapolated", 0.12),
    };
    let source = format!(
        "gemm_sustained_points.csv over gemm_{}.csv.gz, cubes on {gpu}; other software for each, so the error is a judgement{}{}",
        if own { chip.matmul } else { "h200" },
        if own { "" } else { "; carried over from that chip" },
        if chip.derived {
            "; scale: ((500 - 120)/(700 - 120))^(1/2.5), between a square and a cube law of power"
        } else {
            ""
        }
    );
    let mut text = format!(
        "[clock]\nattention = 0.95 # assumed: attention draws less than a matmul\nscale = {}\nevidence = {}\nmatmul = [\n",
        fit::rounded(scale),
        evidence(basis, points.len(), p90 / 2.0, p90, &source)
    );
    for (time, factor) in &points {
        let _ = writeln!(text, "  {{ burst = \"{:.1} us\", factor = {:.3} }},", time * 1e6, factor.min(1.0));
    }
    text.push_str("]\n");
    let residuals = points
        .iter()
        .map(|(time, factor)| Residual {
            section: format!("clock {:.2} ms: {:.3}", time * 1e3, factor),
            points: 1,
            median: 0.0,
            p90,
        })
        .collect();
    Ok(Section { text, residuals })
}
