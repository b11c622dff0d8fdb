//! Dense matmul: fits the wave model, drops contaminated points, writes the table of the rest.
//!
//! A point whose residual is more than 25 % off the median of its neighbours in the grid is noise (the same shape repeats
//! within 2–11 % between releases, gemm_repeatability.csv) and is dropped. Errors are by leaving out whole planes of m, n
//! and k and predicting them from the planes on both sides, so they state what a shape between grid lines can expect.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use windtunnel::cost::waves::{Chip, Waves};
use windtunnel::units::{Bandwidth, FlopRate, Time};

use super::grid::{Grid, Shape};
use crate::fit;

/// Times \[s\] by (m, n, k).
pub type Points = BTreeMap<Shape, f64>;

/// What a matmul's points are fitted for.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Processors (SMs).
    pub processors: u32,
    /// Peak \[TFLOP/s\].
    pub peak: f64,
    /// Bytes of an operand's element.
    pub size: f64,
    /// Bandwidth of the board that the points were measured on \[GB/s\].
    pub measured_bandwidth: f64,
    /// Bandwidth of the board that the section is for \[GB/s\].
    pub own_bandwidth: f64,
}

impl Spec {
    fn chip(&self, bandwidth: f64) -> Chip {
        Chip {
            processors: f64::from(self.processors),
            peak: FlopRate(self.peak * 1e12),
            bandwidth: Bandwidth(bandwidth * 1e9),
        }
    }

    /// The board that was measured.
    pub fn measured(&self) -> Chip {
        self.chip(self.measured_bandwidth)
    }
}

/// The wave model fitted to points, and the table of those that are no noise.
#[derive(Debug)]
pub struct Fitted {
    /// The table.
    pub text: String,
    /// Points kept.
    pub points: usize,
    /// Cross-validated error: median.
    pub median: f64,
    /// And 90th percentile.
    pub p90: f64,
    /// The model.
    pub waves: Waves,
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

fn model(waves: &Waves, chip: &Chip, &(m, n, k): &Shape, size: f64) -> f64 {
    waves.seconds(chip, (m as f64, n as f64, k as f64), size)
}

/// Fits the wave model to every `every`th point.
pub fn fit_waves(points: &Points, spec: &Spec, every: usize) -> Waves {
    let measured = spec.measured();
    let size = spec.size;
    let sample: Vec<_> = points.iter().step_by(every).collect();
    let start = [2.5e-6, 0.8, 150.0, 0.78, 0.95, 0.8, 2.2e-6];
    let best = fit::positive(&start, 220, |p| {
        if p[1].max(p[3]).max(p[4]).max(p[5]) > 1.0 {
            return f64::MAX;
        }
        let w = waves(p);
        sample.iter().map(|(shape, t)| libm::fabs(libm::log(model(&w, &measured, shape, size) / *t))).sum::<f64>()
    });
    waves(&best)
}

/// Points that no disturbed timing spoils, as logarithms of measured over modelled time.
pub fn clean(points: &Points, spec: &Spec, waves: &Waves) -> BTreeMap<Shape, f64> {
    let measured = spec.measured();
    let residual: BTreeMap<_, f64> =
        points.iter().map(|(shape, t)| (*shape, libm::log(*t / model(waves, &measured, shape, spec.size)))).collect();
    let grid = Grid::new(&residual);
    residual.iter().filter(|(shape, r)| !grid.noise(&residual, shape, **r)).map(|(s, r)| (*s, *r)).collect()
}

/// Fits the wave model to every fourth of the points that `typical` picks, and the table to all; the errors are of the
/// typical ones, as most of what is asked for is.
pub fn fit(points: &Points, typical: impl Fn(&Shape) -> bool, spec: &Spec) -> Fitted {
    let size = spec.size;
    let sample = points.iter().filter(|(shape, _)| typical(shape)).map(|(shape, t)| (*shape, *t)).collect();
    let waves = fit_waves(&sample, spec, 4);
    let clean = clean(points, spec, &waves);
    let asked = clean.iter().filter(|(shape, _)| typical(shape)).map(|(shape, r)| (*shape, *r)).collect();
    let errors = Grid::new(&asked).leave_planes_out(&asked);
    // On a derived board the residuals hold and the model changes with its bandwidth.
    let own = spec.chip(spec.own_bandwidth);
    let mut text = String::new();
    write_table(&mut text, &clean, |shape, r| libm::exp(r) * model(&waves, &own, shape, size) * 1e6);
    Fitted { text, points: clean.len(), median: fit::median(&errors), p90: fit::quantile(&errors, 0.9), waves }
}

fn write_table(text: &mut String, points: &BTreeMap<Shape, f64>, micros: impl Fn(&Shape, f64) -> f64) {
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
pub fn figure(value: f64) -> String {
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

/// The wave model of one element type, with its peak \[TFLOP/s\].
pub fn write_waves(text: &mut String, name: &str, peak: f64, w: &Waves, evidence: &str) {
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
