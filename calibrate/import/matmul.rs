//! Dense matmul: fits the wave model, drops contaminated points, writes the table of the rest.
//!
//! Points are restricted to shapes that training issues (m, n ≥ 256; k ≥ 512). A point whose residual is more than
//! 25 % off the median of its neighbours in the grid is noise (the same shape repeats within 2–11 % between releases,
//! gemm_repeatability.csv) and is dropped. Errors are by leaving out whole planes of m, n and k and predicting them
//! from the planes on both sides, so they state what a shape between grid lines can expect.
//!
//! fp8 rows of the table include a kernel that quantises the activations; its stream (3 B an element of m·k) and the
//! excess of its launch over bf16's are taken off.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use windtunnel::cost::curve::Curve;
use windtunnel::cost::waves::{Chip, Waves};
use windtunnel::units::{Bandwidth, FlopRate, Time};

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, chips, evidence, fit, memory};

/// Times \[s\] by (m, n, k).
type Points = BTreeMap<(u64, u64, u64), f64>;

struct Fitted {
    text: String,
    points: usize,
    median: f64,
    p90: f64,
    launch: f64,
    waves: Waves,
}

/// The sections `matmul` and `layout`.
pub fn section(tables: &Tables, chip: &ChipSpec, held_out: Option<&Path>) -> Result<Section, ImportError> {
    let mut text = String::new();
    let mut residuals = Vec::new();
    // The quantise kernel ran on the board that was measured.
    let stream = memory::curve(tables, &ChipSpec { bandwidth: chip.measured_bandwidth, ..*chip })?;
    let bf16 = read(tables, chip, "bfloat16")?;
    if bf16.is_empty() {
        return Err(tables.get(&file(chip))?.error("no bfloat16 rows of training shapes"));
    }
    let fitted = fit_table(chip, chip.peaks[0], 2.0, &bf16);
    push(&mut text, &mut residuals, "bf16", chip, chip.peaks[0], &fitted);
    if let Some(folder) = held_out.filter(|_| !chip.derived) {
        write_held_out(folder, chip, &bf16)?;
    }
    let raw8 = read(tables, chip, "fp8")?;
    if raw8.is_empty() {
        datasheet(&mut text, "fp8", chip.peaks[1], &fitted.waves, "no fp8 units: the bf16 rate");
    } else {
        let pure = without_quantise(chip, &raw8, &stream, fitted.launch);
        let fitted8 = fit_table(chip, chip.peaks[1], 1.0, &pure);
        push(&mut text, &mut residuals, "fp8", chip, chip.peaks[1], &fitted8);
    }
    let same = "vendor's peak with the efficiencies fitted to this chip's bf16 matmuls";
    datasheet(&mut text, "tf32", chip.peaks[2], &fitted.waves, same);
    datasheet(&mut text, "fp32", chip.peaks[3], &fitted.waves, same);
    text.push_str(&layout(tables)?);
    Ok(Section { text, residuals })
}

fn file(chip: &ChipSpec) -> String {
    format!("gemm_{}.csv.gz", chip.matmul)
}

/// Median time of each training shape from the chip's newest complete collection.
fn read(tables: &Tables, chip: &ChipSpec, dtype: &str) -> Result<Points, ImportError> {
    let table = tables.get(&file(chip))?;
    let mut all: BTreeMap<(u64, u64, u64), Vec<f64>> = BTreeMap::new();
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
        if m >= 256.0 && n >= 256.0 && k >= 512.0 && us > 0.0 {
            all.entry((m as u64, n as u64, k as u64)).or_default().push(us * 1e-6);
        }
    }
    Ok(all.into_iter().map(|(shape, times)| (shape, fit::median(&times))).collect())
}

/// One grid cell in 29 is kept for the tests; m and m + 1 share a cell, or the twin would give the answer away.
fn held(&(m, n, k): &(u64, u64, u64)) -> bool {
    let cell =
        [m & !1, n, k].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, v| (hash ^ v).wrapping_mul(0x0100_0000_01b3));
    (cell >> 17) % 29 == 0
}

fn spec(chip: &ChipSpec, peak: f64, bandwidth: f64) -> Chip {
    Chip { processors: f64::from(chip.processors), peak: FlopRate(peak * 1e12), bandwidth: Bandwidth(bandwidth * 1e9) }
}

fn waves(p: &[f64]) -> Waves {
    Waves {
        launch: Time::from_seconds(fit::rounded(p[0])),
        mma: fit::rounded(p[1]).min(1.0),
        k_overhead: fit::rounded(p[2]),
        memory: fit::rounded(p[3]).min(1.0),
        small_tile: fit::rounded(p[4]).min(1.0),
        tail: fit::rounded(p[5]).min(1.0),
        split_k: Time::from_seconds(fit::rounded(p[6])),
    }
}

fn model(waves: &Waves, chip: &Chip, &(m, n, k): &(u64, u64, u64), size: f64) -> f64 {
    waves.seconds(chip, (m as f64, n as f64, k as f64), size)
}

fn fit_table(chip: &ChipSpec, peak: f64, size: f64, points: &Points) -> Fitted {
    let measured = spec(chip, peak, chip.measured_bandwidth);
    let used: Vec<_> = points.iter().filter(|(shape, _)| !held(shape)).collect();
    let sample: Vec<_> = used.iter().step_by(4).collect();
    let start = [2.5e-6, 0.8, 150.0, 0.78, 0.95, 0.8, 2.2e-6];
    let best = fit::positive(&start, 220, |p| {
        if p[1].max(p[3]).max(p[4]).max(p[5]) > 1.0 {
            return f64::MAX;
        }
        let w = waves(p);
        sample.iter().map(|(shape, t)| libm::fabs(libm::log(model(&w, &measured, shape, size) / **t))).sum::<f64>()
    });
    let waves = waves(&best);
    let residual: BTreeMap<_, f64> =
        used.iter().map(|(shape, t)| (**shape, libm::log(**t / model(&waves, &measured, shape, size)))).collect();
    let grid = Grid::new(&residual);
    let clean: BTreeMap<_, f64> =
        residual.iter().filter(|(shape, r)| !grid.noise(&residual, shape, **r)).map(|(s, r)| (*s, *r)).collect();
    let errors = Grid::new(&clean).leave_out(&clean);
    // On a derived board the residuals hold and the model changes with its bandwidth.
    let own = spec(chip, peak, chip.bandwidth);
    let mut text = String::new();
    write_table(&mut text, &clean, |shape, r| libm::exp(r) * model(&waves, &own, shape, size) * 1e6);
    Fitted {
        text,
        points: clean.len(),
        median: fit::median(&errors),
        p90: fit::quantile(&errors, 0.9),
        launch: waves.launch.seconds(),
        waves,
    }
}

/// The values that each axis takes.
struct Grid {
    axes: [Vec<u64>; 3],
}

fn array(&(m, n, k): &(u64, u64, u64)) -> [u64; 3] {
    [m, n, k]
}

impl Grid {
    fn new(points: &BTreeMap<(u64, u64, u64), f64>) -> Grid {
        let axes = std::array::from_fn(|axis| {
            let mut values: Vec<u64> = points.keys().map(|shape| array(shape)[axis]).collect();
            values.sort_unstable();
            values.dedup();
            values
        });
        Grid { axes }
    }

    /// The point `by` grid lines away along an axis.
    fn step(&self, shape: &(u64, u64, u64), axis: usize, by: isize) -> Option<(u64, u64, u64)> {
        let mut there = array(shape);
        let at = self.axes[axis].binary_search(&there[axis]).ok()?;
        there[axis] = *self.axes[axis].get(at.checked_add_signed(by)?)?;
        Some((there[0], there[1], there[2]))
    }

    fn noise(&self, points: &BTreeMap<(u64, u64, u64), f64>, shape: &(u64, u64, u64), r: f64) -> bool {
        let around: Vec<f64> = (0..3)
            .flat_map(|axis| [-1, 1].map(|by| self.step(shape, axis, by)))
            .flatten()
            .filter_map(|there| points.get(&there).copied())
            .collect();
        around.len() >= 3 && (r - fit::median(&around)).abs() > 0.25
    }

    /// Relative errors of predicting each point from the planes on both sides of its own. In m the step is two lines,
    /// because every m has a neighbour m + 1.
    fn leave_out(&self, points: &BTreeMap<(u64, u64, u64), f64>) -> Vec<f64> {
        let mut errors = Vec::new();
        for (shape, r) in points {
            for (axis, by) in [(0, 2), (1, 1), (2, 1)] {
                let (Some(low), Some(high)) = (self.step(shape, axis, -by), self.step(shape, axis, by)) else {
                    continue;
                };
                let (Some(r0), Some(r1)) = (points.get(&low), points.get(&high)) else { continue };
                let log = |shape: &(u64, u64, u64)| libm::log(array(shape)[axis] as f64);
                let share = (log(shape) - log(&low)) / (log(&high) - log(&low));
                errors.push(libm::fabs(libm::exp(r0 + (r1 - r0) * share - r) - 1.0));
            }
        }
        errors
    }
}

fn write_table(
    text: &mut String,
    points: &BTreeMap<(u64, u64, u64), f64>,
    micros: impl Fn(&(u64, u64, u64), f64) -> f64,
) {
    let grid = Grid::new(points);
    for (name, axis) in ["m", "n", "k"].iter().zip(&grid.axes) {
        let _ = writeln!(text, "{name} = {axis:?}");
    }
    text.push_str(
        "# \"n k: time [us] for each m\", - where there is no point or it was contaminated or held out\nrows = [\n",
    );
    for &n in &grid.axes[1] {
        for &k in &grid.axes[2] {
            let times: Vec<String> = grid.axes[0]
                .iter()
                .map(|&m| match points.get(&(m, n, k)) {
                    Some(&r) => figure(micros(&(m, n, k), r)),
                    None => "-".to_owned(),
                })
                .collect();
            if times.iter().any(|t| t != "-") {
                let _ = writeln!(text, "  \"{n} {k}: {}\",", times.join(" "));
            }
        }
    }
    text.push_str("]\n");
}

/// Three to four significant digits.
fn figure(value: f64) -> String {
    let digits = if value >= 1000.0 {
        0
    } else if value >= 100.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

fn micros(seconds: f64) -> String {
    format!("{:.3} us", seconds * 1e6)
}

fn write_waves(text: &mut String, name: &str, peak: f64, w: &Waves, evidence: &str) {
    let _ = write!(
        text,
        "[matmul.{name}]\npeak = \"{peak} TFLOP/s\"\nevidence = {evidence}\n\n[matmul.{name}.waves]\n\
         launch = \"{}\"\nmma = {}\nk_overhead = {}\nmemory = {}\nsmall_tile = {}\ntail = {}\nsplit_k = \"{}\"\n\n",
        micros(w.launch.seconds()),
        w.mma,
        w.k_overhead,
        w.memory,
        w.small_tile,
        w.tail,
        micros(w.split_k.seconds()),
    );
}

fn push(text: &mut String, residuals: &mut Vec<Residual>, name: &str, chip: &ChipSpec, peak: f64, f: &Fitted) {
    let basis = if chip.derived { "extrapolated" } else { "published" };
    let carried = if chip.derived { "; carried over to this board's bandwidth by the wave model" } else { "" };
    let fp8 = if name == "fp8" { ", quantise kernel taken off" } else { "" };
    let source =
        format!("{} ({}){fp8}, errors by leaving out planes of the grid{carried}", file(chip), chips::collection());
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
    let streamed = |&(m, _, k): &(u64, u64, u64)| 3.0 * (m * k) as f64;
    let floor = stream.seconds(1.0);
    let off = |shape: &(u64, u64, u64)| stream.seconds(streamed(shape)) - floor;
    let partly: Points = raw.iter().map(|(s, t)| (*s, (t - off(s)).max(0.5 * t))).collect();
    let excess = (fit_table(chip, chip.peaks[1], 1.0, &partly).launch - launch).max(0.0);
    raw.iter().map(|(s, t)| (*s, (t - off(s) - excess).max(0.3 * t))).collect()
}

/// Ratio of gradient layouts to the forward one at the same arithmetic, as a median of rate ratios.
fn layout(tables: &Tables) -> Result<String, ImportError> {
    let table = tables.get("gemm_layout_simumax.csv")?;
    // Rows come in triples (TN, NN, NT) of one linear layer, with the same product m·n·k.
    let rows: Vec<_> =
        table.rows().filter(|row| row.text("out_dtype") == "bf16" || row.text("layout") == "NT").collect();
    let (mut data, mut weight) = (Vec::new(), Vec::new());
    for triple in rows.windows(3) {
        let rates: Vec<Option<f64>> = triple.iter().map(|row| row.number("tflops")).collect();
        let names: Vec<&str> = triple.iter().map(|row| row.text("layout")).collect();
        let work = |at: usize| ["m", "n", "k"].iter().filter_map(|column| triple[at].number(column)).product::<f64>();
        if let ([Some(tn), Some(nn), Some(nt)], ["TN", "NN", "NT"]) = (rates.as_slice(), names.as_slice())
            && work(0) == work(1)
            && work(1) == work(2)
        {
            data.push(tn / nn);
            weight.push(tn / nt);
        }
    }
    let spread = |values: &[f64], centre: f64| -> Vec<f64> { values.iter().map(|v| fit::error(*v, centre)).collect() };
    let (d, w) = (fit::rounded(fit::median(&data)), fit::rounded(fit::median(&weight)));
    let errors = [spread(&data, d), spread(&weight, w)].concat();
    Ok(format!(
        "[layout]\ndata_gradient = {d}\nweight_gradient = {w}\nevidence = {}\n",
        evidence(
            "published",
            data.len(),
            fit::median(&errors),
            fit::quantile(&errors, 0.9),
            "gemm_layout_simumax.csv (A100 PCIe and B200 with cuBLAS): rate of the forward layout over the gradient's, one linear layer"
        )
    ))
}

fn write_held_out(folder: &Path, chip: &ChipSpec, points: &Points) -> Result<(), ImportError> {
    let path = folder.join(format!("matmul_{}.csv", chip.matmul));
    let mut text = format!(
        "# bf16 matmuls kept from the profile {}: {} ({})\nm,n,k,time_us\n",
        chip.name,
        file(chip),
        chips::collection()
    );
    for ((m, n, k), t) in points.iter().filter(|(shape, _)| held(shape)) {
        let _ = writeln!(text, "{m},{n},{k},{:.3}", t * 1e6);
    }
    let shown = path.display().to_string();
    std::fs::create_dir_all(folder).map_err(|why| ImportError::File { path: folder.display().to_string(), why })?;
    std::fs::write(&path, text).map_err(|why| ImportError::File { path: shown, why })
}
