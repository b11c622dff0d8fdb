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

/// Rate \[TFLOP/s\] and knee, with errors.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Of an endless sequence.
    pub rate: f64,
    /// Sequence of half the rate.
    pub knee: f64,
    /// Cross-validated.
    pub errors: Vec<f64>,
}

fn seconds(point: &Point, rate: f64, knee: f64, processors: f64) -> f64 {
    LAUNCH
        + point.flops / (rate * 1e12 * point.sequence / (point.sequence + knee))
            * (1.0 + 0.8 * processors / point.tiles)
}

fn best_rate(points: &[&Point], processors: f64, start: f64) -> (f64, f64) {
    let best = fit::positive(&[start, 700.0], 200, |p| {
        points.iter().map(|point| fit::error(seconds(point, p[0], p[1], processors), point.seconds)).sum::<f64>()
    });
    (fit::rounded(best[0]), fit::rounded(best[1].max(1.0)))
}

/// Fits a rate and a knee; errors are by leaving out one point at a time where there are few.
pub fn fit_rate(points: &[Point], processors: f64, start: f64) -> Rate {
    let all: Vec<&Point> = points.iter().collect();
    let (rate, knee) = best_rate(&all, processors, start);
    let few = points.len() <= 20;
    let error = |out: usize| {
        let (rate, knee) = if few {
            let rest: Vec<&Point> = points.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, p)| p).collect();
            best_rate(&rest, processors, start)
        } else {
            (rate, knee)
        };
        fit::error(seconds(&points[out], rate, knee, processors), points[out].seconds)
    };
    Rate { rate, knee, errors: (0..points.len()).map(error).collect() }
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
    let _ = write!(
        text,
        "[[attention.kernels]]\nbackend = \"{}\"\nbackward = {}\nhead_dim = {}\ncausal = {}\n\
         rate = \"{} TFLOP/s\"\nknee = {}\nevidence = {evidence}\n\n",
        kernel.backend,
        kernel.backward,
        kernel.head,
        kernel.causal,
        fit::rounded(rate),
        fit::rounded(knee)
    );
}
