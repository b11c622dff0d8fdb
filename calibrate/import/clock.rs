//! Sustained over burst clocks: the same matmul in a table of bursts and in runs of a second or more.
//!
//! Only H200 has bf16 points of both kinds with power readings (gemm_sustained_points.csv, three cubes at 632–692 W of
//! 700 W); A100 has fp16 cubes after 10,000 warm-up runs. Chips without points take the H200's factors, labelled
//! `extrapolated`. A lower power limit scales them by `((limit − idle)/(full − idle))^(1/2.5)`: dynamic power goes as
//! f·V² and V nearly follows f, between a square and a cube; idle and memory draw 120 W (assumed).

use windtunnel::cost::curve::Curve;

use super::chips::{CHIPS, ChipSpec};
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, evidence, fit, memory};

/// Why the B200's factors are wide.
const BLACKWELL: &str = "; carried over from that chip between two figures that disagree: 0.70-0.76 of this burst table \
                         in gemm_layout_simumax.csv (B200), about 1 in JAX on a 1100 W Blackwell";

/// Burst duration \[s\] and sustained over burst rate of cubes on one chip. fp8 bursts include a quantise kernel, which is
/// taken off as a stream of 3 B an element; cubes below 8192 are too short for that.
fn factors(tables: &Tables, gpu: &str, matmul: &str, fp8: Option<&Curve>) -> Result<Vec<(f64, f64)>, ImportError> {
    let sustained = tables.get("gemm_sustained_points.csv")?;
    let burst = tables.get(&format!("gemm_{matmul}.csv.gz"))?;
    let (long_types, burst_type, least): (&[&str], _, _) =
        if fp8.is_some() { (&["fp8"], "fp8", 8192.0) } else { (&["bf16", "fp16"], "bfloat16", 4096.0) };
    let mut points = Vec::new();
    for row in sustained.rows() {
        let long = row.text("conditions").contains("sustained") && long_types.contains(&row.text("dtype"));
        let (Some(m), Some(n), Some(k), Some(rate)) =
            (row.number("m"), row.number("n"), row.number("k"), row.number("tflops"))
        else {
            continue;
        };
        if row.text("gpu") != gpu || !long || m.min(n).min(k) < least {
            continue;
        }
        let same = |b: &Row<'_>| [("m", m), ("n", n), ("k", k)].iter().all(|(c, v)| b.number(c) == Some(*v));
        let times: Vec<f64> = burst
            .rows()
            .filter(|b| b.text("dtype") == burst_type && same(b))
            .filter_map(|b| b.number("time_us"))
            .collect();
        if times.is_empty() {
            continue;
        }
        let quantise = fp8.map_or(0.0, |stream| stream.seconds(3.0 * m * k));
        let time = fit::median(&times) * 1e-6 - quantise;
        points.push((time, rate * 1e12 * time / (2.0 * m * n * k)));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    if points.is_empty() { Err(sustained.error(&format!("no sustained cubes of {gpu}"))) } else { Ok(points) }
}

/// The section `clock`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let (gpu, own) = match chip.matmul {
        "a100" => ("A100-80GB SXM", true),
        name => ("H200 SXM", name == "h200"),
    };
    let points = factors(tables, gpu, if own { chip.matmul } else { "h200" }, None)?;
    let fp8 = match chip.matmul {
        "a100" => points.clone(),
        name => {
            let (gpu, name) = if name == "h100" { ("H100 SXM", "h100") } else { ("H200 SXM", "h200") };
            let measured = CHIPS.iter().find(|spec| spec.matmul == name && !spec.derived).unwrap_or(chip);
            factors(tables, gpu, name, Some(&memory::curve(tables, measured)?))?
        }
    };
    // Kernels differ more between the fp8 collectors than clocks do: one factor, the median.
    let fp8_factor = fit::median(&fp8.iter().map(|p| p.1).collect::<Vec<_>>()).min(1.0);
    let full = CHIPS.iter().find(|spec| spec.matmul == chip.matmul && !spec.derived).unwrap_or(chip).power;
    let scale = libm::pow((chip.power - 120.0) / (full - 120.0), 1.0 / 2.5);
    let (basis, p90) = match (own, chip.derived) {
        (_, true) => ("extrapolated", 0.2),
        (true, _) => ("published", 0.08),
        _ if chip.matmul == "b200" => ("extrapolated", 0.25),
        (false, _) => ("extrapolated", 0.12),
    };
    let source = format!(
        "gemm_sustained_points.csv over gemm_{}.csv.gz, cubes on {gpu}; other software for each, so the error is a judgement{}{}",
        if own { chip.matmul } else { "h200" },
        match (own, chip.matmul) {
            (true, _) => "",
            (_, "b200") => BLACKWELL,
            _ => "; carried over from that chip",
        },
        if chip.power < full {
            format!(
                "; scale: (({} - 120)/({full} - 120))^(1/2.5), between a square and a cube law of power",
                chip.power
            )
        } else {
            String::new()
        }
    );
    let text = fit::clock::section(&points, fp8_factor, scale, &evidence(basis, points.len(), p90 / 2.0, p90, &source));
    let report = |name: &str, (time, factor): &(f64, f64)| Residual {
        section: format!("clock {name} {:.2} ms: {factor:.3}", time * 1e3),
        points: 1,
        median: 0.0,
        p90,
    };
    let mut residuals: Vec<Residual> = points.iter().map(|p| report("bf16", p)).collect();
    if chip.matmul != "a100" {
        residuals.extend(fp8.iter().map(|p| report("fp8", p)));
    }
    Ok(Section { text, residuals })
}
