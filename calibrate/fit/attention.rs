//! Attention: a rate and a knee for each library, pass, head dimension and mask.
//!
//! Errors are by leaving out one point at a time.

use std::fmt::Write as _;

use crate::fit;

/// Launch and epilogue of an attention kernel \[s\] (floor of the shortest rows in attention_fwd_aic.csv.gz).
pub const LAUNCH: f64 = 5e-6;

/// One row of a sweep: work, shape, and time.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// FLOPs, causal pairs halved.
    pub flops: f64,
    /// Tokens of a sequence.
    pub sequence: f64,
    /// Blocks of 128 queries.
    pub tiles: f64,
    /// Time \[s\].
    pub seconds: f64,
}

/// Rate \[TFLOP/s\] and knee.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Of an endless sequence.
    pub rate: f64,
    /// Sequence of half the rate.
    pub knee: f64,
}

impl Rate {
    fn seconds(self, point: &Point, processors: f64) -> f64 {
        LAUNCH
            + point.flops / (self.rate * 1e12 * point.sequence / (point.sequence + self.knee))
                * (1.0 + 0.8 * processors / point.tiles)
    }
}

fn best(points: &[&Point], processors: f64, start: f64) -> Rate {
    let best = fit::positive(&[start, 700.0], 200, |p| {
        let rate = Rate { rate: p[0], knee: p[1] };
        points.iter().map(|point| fit::error(rate.seconds(point, processors), point.seconds)).sum::<f64>()
    });
    Rate { rate: fit::rounded(best[0]), knee: fit::rounded(best[1].max(1.0)) }
}

/// Fits a rate and a knee, from a first guess of the rate \[TFLOP/s\].
pub fn fit_rate(points: &[Point], processors: f64, start: f64) -> Rate {
    best(&points.iter().collect::<Vec<_>>(), processors, start)
}

/// Errors on each point of a rate and a knee fitted to the others.
pub fn left_out(points: &[Point], processors: f64, start: f64) -> Vec<f64> {
    let error = |out: usize| {
        let rest: Vec<&Point> = points.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, p)| p).collect();
        fit::error(best(&rest, processors, start).seconds(&points[out], processors), points[out].seconds)
    };
    (0..points.len()).map(error).collect()
}

/// FLOPs of a kernel, causal pairs halved.
pub fn flops(batch: f64, heads: f64, sequence: f64, head: f64, causal: bool, backward: bool) -> f64 {
    let pairs = if causal { 0.5 } else { 1.0 } * sequence * sequence;
    (if backward { 5.0 } else { 2.0 }) * 2.0 * batch * heads * pairs * head
}

/// Which kernels a rate is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    /// Whose.
    pub backend: String,
    /// Backward or forward.
    pub backward: bool,
    /// Head dimension.
    pub head: u64,
    /// Causal mask.
    pub causal: bool,
}

/// The head of the section.
pub fn head() -> String {
    format!(
        "# FLOPs: 4 B N S^2 H forward, 10 B N S^2 H backward, halved under a causal mask.\n[attention]\nlaunch = \"{:.1} us\"\n\n",
        LAUNCH * 1e6
    )
}

/// An entry of the section.
pub fn write(text: &mut String, kernel: &Kernel, rate: f64, knee: f64, evidence: &str) {
    write_cut(text, kernel, (rate, knee), "", evidence);
}

/// An entry with a line of its own: in which blocks the kernel is told to work, or what a deterministic one takes.
pub fn write_cut(text: &mut String, kernel: &Kernel, (rate, knee): (f64, f64), line: &str, evidence: &str) {
    let line = if line.is_empty() { String::new() } else { format!("{line}\n") };
    let _ = write!(
        text,
        "[[attention.kernels]]\nbackend = \"{}\"\nbackward = {}\nhead_dim = {}\ncausal = {}\n{line}\
         rate = \"{} TFLOP/s\"\nknee = {}\nevidence = {evidence}\n\n",
        kernel.backend,
        kernel.backward,
        kernel.head,
        kernel.causal,
        fit::rounded(rate),
        fit::rounded(knee)
    );
}
