//! Sustained over burst clocks: the same matmul in a table of bursts and in runs of a second or more.
//!
//! A chip says in `chips.rs` which evidence it has. H200 has three bf16 cubes with power readings (gemm_sustained_points.csv,
//! 632–692 W of 700 W), which H100 takes over as `extrapolated`; A100 has fp16 cubes after 10,000 warm-up runs. B200 has
//! thousands of shapes that ran in loops of 0.3 s and more, at a limit of 1000 W (`sustained.csv`): medians by length of the burst. One
//! other B200 machine, SimuMax's, is slower by a quarter (gemm_layout_simumax.csv) and has a profile of its own.
//! A lower power limit scales factors by `((limit − idle)/(full − idle))^(1/2.5)`: dynamic power goes as f·V² and V nearly
//! follows f, between a square and a cube; idle and memory draw 120 W (assumed).

use std::collections::BTreeMap;

use windtunnel::cost::curve::Curve;

use super::chips::{CHIPS, ChipSpec, Sustained};
use super::tables::{Row, Table, Tables};
use super::{ImportError, Residual, Section, evidence, fit, memory};

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

/// Medians over many shapes, by length of the burst: duration \[s\] and factor.
fn shapes(gpu: &str) -> Result<Vec<(f64, f64)>, ImportError> {
    let table = Table::parse("calibrate/import/sustained.csv", include_bytes!("sustained.csv"))?;
    let of = |row: Row<'_>| Some((row.number("burst_us")? * 1e-6, row.number("factor")?));
    table
        .rows()
        .filter(|row| row.text("gpu") == gpu)
        .map(|row| of(row).ok_or_else(|| table.error("a row has no burst_us or factor")))
        .collect()
}

/// Bounds of burst durations \[s\] between which [`loops`] takes medians.
const BINS: [f64; 5] = [1e-4, 3.2e-4, 1e-3, 3.2e-3, 1.0];

/// The least matmuls of a bin.
const FEW: usize = 4;

/// Matmuls of a machine, each 75 in a row, over bursts of the chip's table: medians by length of the burst. Those that add to what
/// is there are left out: they move more bytes.
fn loops(tables: &Tables, machine: &str, chip: &ChipSpec) -> Result<Vec<(f64, f64)>, ImportError> {
    let (rows, burst) = (tables.get("gemm_layout_simumax.csv")?, tables.get(&format!("gemm_{}.csv.gz", chip.matmul))?);
    let key = |row: &Row<'_>| Some([row.number("m")? as u64, row.number("n")? as u64, row.number("k")? as u64]);
    let bursts: BTreeMap<[u64; 3], f64> = burst
        .rows()
        .filter(|row| row.text("dtype") == "bfloat16")
        .filter_map(|row| Some((key(&row)?, row.number("time_us")? * 1e-6)))
        .collect();
    let ratio = |row: Row<'_>| {
        let long = row.number("time_us")? * 1e-6;
        bursts.get(&key(&row)?).map(|&burst| (burst, burst / long))
    };
    let alone = |row: &Row<'_>| row.text("accumulate") == "False" && row.number("b") == Some(1.0);
    let all: Vec<(f64, f64)> =
        rows.rows().filter(|row| row.text("gpu") == machine && alone(row)).filter_map(ratio).collect();
    let bin = |ends: &[f64]| {
        let inside = all.iter().filter(|point| (ends[0]..ends[1]).contains(&point.0));
        let (times, factors): (Vec<f64>, Vec<f64>) = inside.copied().unzip();
        (times.len() >= FEW).then(|| (fit::median(&times), fit::median(&factors)))
    };
    Ok(BINS.windows(2).filter_map(bin).collect())
}

/// The section `clock`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let (points, own, source) = match chip.sustained {
        Sustained::Cubes(gpu, table) => {
            let own = table == chip.matmul;
            let carried = if own { "" } else { "; carried over from that chip" };
            let why = "other software for each, so the error is a judgement";
            let source = format!("gemm_sustained_points.csv over gemm_{table}.csv.gz, cubes on {gpu}; {why}{carried}");
            (factors(tables, gpu, table, None)?, own, source)
        }
        Sustained::Shapes(gpu) => {
            let source = "calibrate/import/sustained.csv: medians by length of the burst over 4,536 shapes in loops of 0.3 s and more at a limit of 1000 W (beyond 3 ms 229 of GB200 at 1200 W); one \
                          other machine sustains a quarter less (the profile b200-sxm-throttled)";
            (shapes(gpu)?, true, source.to_owned())
        }
        Sustained::Loops(machine) => {
            let source =
                "gemm_layout_simumax.csv over gemm_b200.csv.gz, layouts TN and NN: medians by length of the burst";
            (loops(tables, machine, chip)?, true, source.to_owned())
        }
    };
    let fp8 = match (chip.matmul, chip.sustained) {
        ("a100", _) | (_, Sustained::Shapes(_) | Sustained::Loops(_)) => points.clone(),
        (name, _) => {
            let (gpu, name) = if name == "h100" { ("H100 SXM", "h100") } else { ("H200 SXM", "h200") };
            let measured = CHIPS.iter().find(|spec| spec.matmul == name && !spec.derived).unwrap_or(chip);
            factors(tables, gpu, name, Some(&memory::curve(tables, measured)?))?
        }
    };
    // Kernels differ more between the fp8 collectors than clocks do: one factor, the median.
    let fp8_factor = fit::median(&fp8.iter().map(|p| p.1).collect::<Vec<_>>()).min(1.0);
    let full = CHIPS.iter().find(|spec| spec.matmul == chip.matmul && !spec.derived).unwrap_or(chip).power;
    let scale = libm::pow((chip.power - 120.0) / (full - 120.0), 1.0 / 2.5);
    let (basis, p90) = match (own, chip.derived, chip.sustained) {
        (_, true, _) => ("extrapolated", 0.2),
        // Within a board 0.1; the one other board that is known is a quarter slower.
        (_, _, Sustained::Shapes(_)) => ("published", 0.2),
        (_, _, Sustained::Loops(_)) => ("published", 0.12),
        (true, ..) => ("published", 0.08),
        (false, ..) => ("extrapolated", 0.12),
    };
    let limit = match chip.power < full {
        true => format!(
            "; scale: (({} - 120)/({full} - 120))^(1/2.5), between a square and a cube law of power",
            chip.power
        ),
        false => String::new(),
    };
    let evidence = evidence(basis, points.len(), p90 / 2.0, p90, &format!("{source}{limit}"));
    let text = fit::clock::section(&points, fp8_factor, scale, &evidence);
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
