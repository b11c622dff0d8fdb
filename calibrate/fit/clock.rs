//! Clock regimes: sustained over burst rate of the same matmul, over its burst duration.

use std::fmt::Write as _;

use crate::fit;

/// The section `clock`: `points` are burst durations \[s\] and factors, rising; `fp8` is one factor for all, and so is `attention`, if it was measured.
pub fn section(points: &[(f64, f64)], fp8: f64, attention: Option<f64>, scale: f64, evidence: &str) -> String {
    let mut text = format!("[clock]\nscale = {}\nevidence = {evidence}\nmatmul = [\n", fit::rounded(scale));
    for (time, factor) in points {
        let _ = writeln!(text, "  {{ burst = \"{:.1} us\", factor = {:.3} }},", time * 1e6, factor.min(1.0));
    }
    let _ = writeln!(text, "]\nfp8 = [{{ burst = \"1 ms\", factor = {fp8:.3} }}]");
    if let Some(factor) = attention {
        let _ = writeln!(text, "attention = {factor:.3}");
    }
    text
}
