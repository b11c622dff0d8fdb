//! Dense matmul from the tables of one chip.
//!
//! The waves are fitted to shapes that training issues most (m, n ≥ 256; k ≥ 512), and the table holds all of those. Of
//! smaller ones (few rows, narrow adapters, short sums) it holds those whose m is a power of two, 1 or from 16 on: tiles
//! change there, and what lies between is interpolated as well as it is from all.
//!
//! fp8 rows of the table include a kernel that quantises the activations; its stream (3 B an element of m·k) and the
//! excess of its launch over bf16's are taken off.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use windtunnel::cost::curve::Curve;
use windtunnel::cost::waves::Waves;
use windtunnel::files::Output;

use super::chips::ChipSpec;
use super::tables::{Row, Tables};
use super::{ImportError, Residual, Section, chips, evidence, fit, memory};
use crate::fit::grid::{Grid, Shape};
use crate::fit::layout::Ratios;
use crate::fit::matmul::{Fitted, Points, Spec, figure, write_waves};

/// Chips of whose tables the tests predict every shape from the others.
const TRIED: [&str; 2] = ["h100", "h200"];

/// The sections `matmul` and `layout`.
pub fn section(tables: &Tables, chip: &ChipSpec, held_out: Option<&Path>) -> Result<Section, ImportError> {
    let mut text = String::new();
    let mut residuals = Vec::new();
    // The quantise kernel ran on the board that was measured.
    let stream = memory::curve(tables, &ChipSpec { bandwidth: chip.measured_bandwidth, ..*chip })?;
    let all = read(tables, chip, "bfloat16")?;
    let bf16: Points = all.iter().filter(|(shape, _)| training(shape) || few(shape)).map(|(s, t)| (*s, *t)).collect();
    if !bf16.keys().any(training) {
        return Err(tables.get(&file(chip))?.error("no bfloat16 rows of training shapes"));
    }
    let fitted = fit_kept(chip, chip.peaks[0], 2.0, &bf16);
    push(&mut text, &mut residuals, "bf16", chip, chip.peaks[0], &fitted);
    if let Some(folder) = held_out.filter(|_| !chip.derived) {
        let held: Points = bf16.iter().filter(|(shape, _)| held(shape)).map(|(s, t)| (*s, *t)).collect();
        write_points(folder, chip, &held)?;
        if TRIED.contains(&chip.matmul) {
            write_all(folder, chip, &all)?;
        }
    }
    let raw8: Points = read(tables, chip, "fp8")?.into_iter().filter(|(shape, _)| training(shape)).collect();
    if raw8.is_empty() {
        datasheet(&mut text, "fp8", chip.peaks[1], &fitted.waves, "no fp8 units: the bf16 rate");
    } else {
        let pure = without_quantise(chip, &raw8, &stream, fitted.waves.launch.seconds());
        let fitted8 = fit_kept(chip, chip.peaks[1], 1.0, &pure);
        push(&mut text, &mut residuals, "fp8", chip, chip.peaks[1], &fitted8);
    }
    let same = "vendor's peak with the efficiencies fitted to this chip's bf16 matmuls";
    datasheet(&mut text, "tf32", chip.peaks[2], &fitted.waves, same);
    datasheet(&mut text, "fp32", chip.peaks[3], &fitted.waves, same);
    text.push_str(&layout(tables, chip)?);
    Ok(Section { text, residuals })
}

fn file(chip: &ChipSpec) -> String {
    format!("gemm_{}.csv.gz", chip.matmul)
}

/// Shapes that training issues most.
fn training(&(m, n, k): &Shape) -> bool {
    m >= 256 && n >= 256 && k >= 512
}

/// Shapes that stand for the smaller ones.
fn few(&(m, _, _): &Shape) -> bool {
    m == 1 || m >= 16 && m.is_power_of_two()
}

/// Median time of each shape from the chip's newest complete collection.
fn read(tables: &Tables, chip: &ChipSpec, dtype: &str) -> Result<Points, ImportError> {
    let table = tables.get(&file(chip))?;
    let mut all: BTreeMap<Shape, Vec<f64>> = BTreeMap::new();
    for row in table.rows().filter(|row| row.text("dtype") == dtype) {
        // The A100's second collection is sparse and of other software.
        if chip.matmul == "a100" && !row.text("source").contains("sglang") {
            continue;
        }
        let (Some(m), Some(n), Some(k), Some(us)) =
            (row.number("m"), row.number("n"), row.number("k"), row.number("time_us"))
        else {
            continue;
        };
        if us > 0.0 {
            all.entry((m as u64, n as u64, k as u64)).or_default().push(us * 1e-6);
        }
    }
    Ok(all.into_iter().map(|(shape, times)| (shape, fit::median(&times))).collect())
}

/// One grid cell in 29 is kept for the tests; m and m + 1 share a cell, or the twin would give the answer away.
fn held(&(m, n, k): &Shape) -> bool {
    let cell =
        [m & !1, n, k].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, v| (hash ^ v).wrapping_mul(0x0100_0000_01b3));
    (cell >> 17) % 29 == 0
}

fn spec(chip: &ChipSpec, peak: f64, size: f64) -> Spec {
    Spec {
        processors: chip.processors,
        peak,
        size,
        measured_bandwidth: chip.measured_bandwidth,
        own_bandwidth: chip.bandwidth,
    }
}

/// Fits all but what is kept for the tests.
fn fit_kept(chip: &ChipSpec, peak: f64, size: f64, points: &Points) -> Fitted {
    let used: Points = points.iter().filter(|(shape, _)| !held(shape)).map(|(shape, t)| (*shape, *t)).collect();
    fit::matmul::fit(&used, training, &spec(chip, peak, size))
}

fn push(text: &mut String, residuals: &mut Vec<Residual>, name: &str, chip: &ChipSpec, peak: f64, f: &Fitted) {
    let basis = if chip.derived { "extrapolated" } else { "published" };
    let carried = if chip.derived { "; carried over to this board's bandwidth by the wave model" } else { "" };
    let fp8 = if name == "fp8" { ", quantise kernel taken off" } else { "" };
    let large = if name == "bf16" { " from 256 x 256 x 512 on" } else { "" };
    let source = format!("{}{fp8}, errors by leaving out planes of the grid{large}{carried}", whence(chip));
    let p90 = if chip.derived { f.p90 + 0.05 } else { f.p90 };
    write_waves(text, name, peak, &f.waves, &evidence(basis, f.points, f.median, p90, &source));
    let _ = write!(text, "[matmul.{name}.table]\n{}\n", f.text);
    residuals.push(Residual { section: format!("matmul {name}"), points: f.points, median: f.median, p90: f.p90 });
}

fn datasheet(text: &mut String, name: &str, peak: f64, waves: &Waves, source: &str) {
    write_waves(text, name, peak, waves, &evidence("datasheet", 0, 0.15, 0.35, source));
}

/// Takes the quantise kernel off fp8 times: its stream of 3 B an element of m·k, and the launch beyond bf16's.
fn without_quantise(chip: &ChipSpec, raw: &Points, stream: &Curve, launch: f64) -> Points {
    let streamed = |&(m, _, k): &Shape| 3.0 * (m * k) as f64;
    let floor = stream.seconds(1.0);
    let off = |shape: &Shape| stream.seconds(streamed(shape)) - floor;
    let partly: Points = raw.iter().map(|(s, t)| (*s, (t - off(s)).max(0.5 * t))).collect();
    let excess = (fit_kept(chip, chip.peaks[1], 1.0, &partly).waves.launch.seconds() - launch).max(0.0);
    raw.iter().map(|(s, t)| (*s, (t - off(s) - excess).max(0.3 * t))).collect()
}

/// Chips whose fp8 matmuls take longer where they do not accumulate fast, as gradients' do not.
const FULL_ACCUMULATION: [&str; 2] = ["h100", "h200"];

/// How much longer: one user's measurement on H100, as no table has it.
const FP8_GRADIENT: &str =
    "# Without fast accumulation: 1.1 to 1.2 times the time (pytorch/ao#2377), the middle.\nfp8_gradient = 1.15\n";

/// Peak memory bandwidth of the boards whose layouts were measured \[GB/s\] (`hw_specs.csv`).
const BANDWIDTHS: [(&str, f64); 2] = [("A100-80GB PCIe", 1935.0), ("B200", 7700.0)];

/// Ratio of gradient layouts to the forward one at the same arithmetic, as a median of ratios of times.
///
/// All weight gradients of the table are added to a gradient of fp32, or of bf16, that is there: 6 or 2 bytes an element more are
/// read and written than where one of two bytes is only written. That traffic is taken off: over the table a further second of
/// it makes a matmul longer by 1.3 to 1.6, so nothing of it is hidden. Those that are added to bf16, whose traffic is a third,
/// say the same of what is left. A main gradient's traffic is added again by shape where there is one.
fn layout(tables: &Tables, chip: &ChipSpec) -> Result<String, ImportError> {
    let table = tables.get("gemm_layout_simumax.csv")?;
    let key = |row: &Row<'_>| {
        Some((row.text("gpu").to_owned(), ["m", "n", "k"].map(|side| row.number(side)), row.number("tflops")?))
    };
    let of = |layout: &str| -> Vec<_> {
        table.rows().filter(|row| row.text("layout") == layout).filter_map(|row| key(&row)).collect()
    };
    let (forward, data) = (of("TN"), of("NN"));
    let rate = |known: &[(String, [Option<f64>; 3], f64)], gpu: &str, sides: [f64; 3]| {
        known.iter().find(|(own, at, _)| own == gpu && *at == sides.map(Some)).map(|(_, _, rate)| *rate)
    };
    let mut ratios = Ratios::default();
    for row in table.rows().filter(|row| row.text("layout") == "NT") {
        let (Some(m), Some(n), Some(k), Some(nt)) =
            (row.number("m"), row.number("n"), row.number("k"), row.number("tflops"))
        else {
            continue;
        };
        // A linear layer of k tokens, n numbers in, m out.
        let gpu = row.text("gpu");
        let Some(tn) = rate(&forward, gpu, [k, m, n]) else { continue };
        let bandwidth = BANDWIDTHS.iter().find(|(known, _)| *known == gpu).map(|(_, rate)| rate * 1e9);
        let bandwidth = bandwidth.ok_or_else(|| table.error("the memory bandwidth of a board is not known"))?;
        let more = if row.text("out_dtype") == "fp32" { 6.0 } else { 2.0 };
        let seconds = |rate: f64| 2.0 * m * n * k / (rate * 1e12);
        ratios.weight.push((seconds(nt) - more * m * n / bandwidth) / seconds(tn));
        if let (Some(nn), "fp32") = (rate(&data, gpu, [k, n, m]), row.text("out_dtype")) {
            ratios.data.push(tn / nn);
        }
    }
    let source = "gemm_layout_simumax.csv (A100 PCIe and B200 with cuBLAS): rate of the forward layout over the gradient's, one linear layer";
    let text = fit::layout::section(&ratios, "published", source).text;
    Ok(if FULL_ACCUMULATION.contains(&chip.matmul) {
        text.replacen("evidence = ", &format!("{FP8_GRADIENT}evidence = "), 1)
    } else {
        text
    })
}

fn write_points(folder: &Path, chip: &ChipSpec, points: &Points) -> Result<(), ImportError> {
    let mut text = format!("# bf16 matmuls kept from the profile {}: {}\nm,n,k,time_us\n", chip.name, whence(chip));
    for ((m, n, k), t) in points {
        let _ = writeln!(text, "{m},{n},{k},{:.3}", t * 1e6);
    }
    write(folder, &format!("matmul_{}.csv", chip.matmul), &text)
}

/// All points on their grid: a line for each n and k, a column for each m.
fn write_all(folder: &Path, chip: &ChipSpec, points: &Points) -> Result<(), ImportError> {
    let grid = Grid::new(points);
    let mut text =
        format!("# times [us] of all bf16 matmuls of one n and k, a column for each m: {}\nn,k", whence(chip));
    for m in &grid.axes[0] {
        let _ = write!(text, ",{m}");
    }
    text.push('\n');
    for &n in &grid.axes[1] {
        for &k in &grid.axes[2] {
            let _ = write!(text, "{n},{k}");
            for &m in &grid.axes[0] {
                text.push(',');
                text.push_str(&points.get(&(m, n, k)).map_or(String::new(), |t| figure(t * 1e6)));
            }
            text.push('\n');
        }
    }
    write(folder, &format!("matmul_{}_all.csv", chip.matmul), &text)
}

fn whence(chip: &ChipSpec) -> String {
    format!("{} ({})", file(chip), chips::collection())
}

/// Writes a file into a folder, which is made if it is not there.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<(), ImportError> {
    Ok(Output::open_in_new(&folder.join(name)).and_then(|output| output.write(text))?)
}

/// Whether a folder can be written to, before anything is computed.
pub(super) fn try_out(folder: &Path) -> Result<(), ImportError> {
    Ok(Output::open_in_new(&folder.join("matmul.csv")).map(drop)?)
}
