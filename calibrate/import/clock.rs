//! Sustained over burst clocks: the same matmul in a table of bursts and in a loop that holds the board at its power limit.
//!
//! A chip says in `chips.rs` which evidence it has. `sustained.csv` holds medians over many shapes, by length of the burst,
//! for H200 and B200; H100 takes the H200's, which has its die and its power limit, as `extrapolated`. A100 has fp16 cubes
//! after 10,000 warm-up runs, and fp8 factors of H100 and H200 are such cubes' too. One B200 machine, SimuMax's, is slower by a
//! quarter (gemm_layout_simumax.csv) and has a profile of its own.
//!
//! How `sustained.csv` is made: loops are of 0.3 s (kernels below 0.1 ms) to 1 s with readings of power, bursts of six runs
//! after seven. Counted are shapes that training issues (m, the tokens, a multiple of 1,024; n ≥ 256; k ≥ 512) whose loop drew
//! 95 % of the limit or more and whose burst reached half of the table's best rate (its 99th percentile) or more. Where a
//! burst used the share u of that rate, only u of its time is slowed, as in `sim/cost/clock.rs`: with the ratio f of both times
//! the factor is 1/(1 + (1/f − 1)/u). Rows are medians over half a decade of burst durations with eight shapes or more. Long
//! bursts have throttled already while they were timed, so factors approach 1.
//!
//! H200 has training steps of its own, in which matmuls are as fast as in bursts although the board is at its limit: between them
//! run kernels that draw less. Its loops stay H100's, of which no such steps were measured.
//!
//! A lower power limit scales factors by [`under`].

use std::collections::BTreeMap;

use windtunnel::cost::clock::under;
use windtunnel::cost::curve::Curve;
use windtunnel::units::Power;

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

/// What `sustained.csv` says of a chip in one type.
#[derive(Debug, Default)]
struct Shapes {
    /// Burst duration \[s\] and factor, rising.
    points: Vec<(f64, f64)>,
    /// Shapes behind them.
    count: usize,
}

impl Shapes {
    fn read(gpu: &str, dtype: &str) -> Result<Shapes, ImportError> {
        let table = Table::parse("calibrate/import/sustained.csv", include_bytes!("sustained.csv"))?;
        let mut shapes = Shapes::default();
        for row in table.rows().filter(|row| row.text("gpu") == gpu && row.text("dtype") == dtype) {
            let (Some(us), Some(factor), Some(count)) =
                (row.number("burst_us"), row.number("factor"), row.number("shapes"))
            else {
                return Err(table.error(&format!("line {} lacks burst_us, factor or shapes", row.line())));
            };
            shapes.points.push((us * 1e-6, factor));
            shapes.count += count as usize;
        }
        if shapes.points.is_empty() { Err(table.error(&format!("no {dtype} rows of {gpu}"))) } else { Ok(shapes) }
    }
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

/// Sustained over burst rate of attention: on H200, and on H100 for its die and power limit.
pub fn attention(chip: &ChipSpec) -> Result<Option<f64>, ImportError> {
    if !matches!(chip.matmul, "h100" | "h200") {
        return Ok(None);
    }
    // One row.
    Ok(Shapes::read("h200 in training", "attention")?.points.first().map(|point| point.1))
}

/// The section `clock`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    // How many numbers the evidence counts: medians, but of training steps the steps.
    let mut behind = None;
    let (points, source) = match chip.sustained {
        Sustained::Cubes(gpu) => {
            let source = format!(
                "gemm_sustained_points.csv over gemm_{}.csv.gz, cubes on {gpu}; other software for each, so the error is a \
                 judgement",
                chip.matmul
            );
            (factors(tables, gpu, chip.matmul, None)?, source)
        }
        Sustained::Shapes(gpu) => {
            let shapes = Shapes::read(gpu, "bf16")?;
            let whose = match (gpu == chip.matmul, gpu) {
                (false, _) => format!("; carried over from {}", gpu.to_uppercase()),
                (true, "b200") => {
                    "; one other machine sustains a quarter less (the profile b200-sxm-throttled)".to_owned()
                }
                (true, _) => String::new(),
            };
            let source = format!(
                "calibrate/import/sustained.csv: medians by length of the burst over {} shapes at the power limit; the error \
                 is a judgement{whose}",
                shapes.count
            );
            (shapes.points, source)
        }
        Sustained::Training(gpu) => {
            let shapes = Shapes::read(gpu, "bf16")?;
            behind = Some(shapes.count);
            let source = format!(
                "calibrate/import/sustained.csv: matmuls in {} training steps at the power limit over bursts; attention in loops \
                 over bursts; the error is a judgement",
                shapes.count
            );
            (shapes.points, source)
        }
        Sustained::Loops(machine) => {
            let source =
                "gemm_layout_simumax.csv over gemm_b200.csv.gz, layouts TN and NN: medians by length of the burst";
            (loops(tables, machine, chip)?, source.to_owned())
        }
    };
    let fp8 = match chip.matmul {
        name @ ("h100" | "h200") => {
            let gpu = if name == "h100" { "H100 SXM" } else { "H200 SXM" };
            let measured = CHIPS.iter().find(|spec| spec.matmul == name && !spec.derived).unwrap_or(chip);
            factors(tables, gpu, name, Some(&memory::curve(tables, measured)?))?
        }
        _ => points.clone(),
    };
    // Kernels differ more between the fp8 collectors than clocks do: one factor, the median.
    let fp8_factor = fit::median(&fp8.iter().map(|p| p.1).collect::<Vec<_>>()).min(1.0);
    let full = CHIPS.iter().find(|spec| spec.matmul == chip.matmul && !spec.derived).unwrap_or(chip).power;
    let scale = under(Power(chip.power), Power(full));
    let (basis, p90) = match (chip.derived, chip.sustained) {
        (true, _) => ("extrapolated", 0.2),
        // Within a board 0.1; the one other board that is known is a quarter slower.
        // Within the steps 0.03; another board is another board, and a step of hardly anything but matmuls comes nearer to a loop.
        (_, Sustained::Training(_)) => ("measured", 0.08),
        (_, Sustained::Shapes("b200")) if chip.matmul != "b200" => ("extrapolated", 0.2),
        (_, Sustained::Shapes("b200")) => ("published", 0.2),
        (_, Sustained::Shapes(gpu)) if gpu != chip.matmul => ("extrapolated", 0.12),
        (_, Sustained::Loops(_)) => ("published", 0.12),
        (_, Sustained::Shapes(_) | Sustained::Cubes(_)) => ("published", 0.08),
    };
    let limit = match chip.power < full {
        true => format!(
            "; scale: (({} - 120)/({full} - 120))^(1/2.5), between a square and a cube law of power",
            chip.power
        ),
        false => String::new(),
    };
    let evidence = evidence(basis, behind.unwrap_or(points.len()), p90 / 2.0, p90, &format!("{source}{limit}"));
    let text = fit::clock::section(&points, fp8_factor, attention(chip)?, scale, &evidence);
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
