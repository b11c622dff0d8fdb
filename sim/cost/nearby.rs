//! Matmuls measured at shapes of any kind: what lies near a shape corrects the model and the table beneath it.
//!
//! ```text
//! d(x, p)   = distance of log m, log n and log k (or with m and n exchanged, if that is nearer)
//! w(x, p)   = 1 / (d³ + ε)
//! correction(x) = (w₀·μ + Σ w·r) / (w₀ + Σ w)      r: logarithm of measured over what lies beneath; μ: their median,
//!                                                                 times n / (n + n₀) for n points
//! ```
//!
//! A point answers for itself, its surroundings lean towards it, and far from all of them the answer beneath is moved by
//! the median: a library or a board that is faster everywhere is so where nothing was measured too, if points enough say
//! so. D. Shepard, "A
//! two-dimensional interpolation function for irregularly-spaced data", 1968, with a prior of weight w₀.

use serde::Deserialize;
use toml::Spanned;

use super::basis::{Basis, Evidence};
use super::sound::Wrong;
use super::table::{HAIR, Shape};

/// ε: the cube of a distance at which two shapes are one.
const SAME: f64 = 1e-7;
/// w₀: the weight of one point at a distance of 1.26, a factor of 3.5 in one size.
const PRIOR: f64 = 0.5;
/// n₀: points of which the median counts half, far from them; a judgement, so that one bad point moves no other matmul.
const FEW: f64 = 8.0;
/// A shape as near as this to a point, a factor of 1.5 in one size, is interpolated.
const NEAR: f64 = 0.4;

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    evidence: Evidence,
    /// `"m n k: time"` [us].
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    rows: Vec<Spanned<String>>,
}

/// Measured matmuls.
#[derive(Clone, Debug)]
pub(super) struct Nearby {
    /// What they rest on.
    pub(super) evidence: Evidence,
    points: Vec<Near>,
    /// Median of the residuals, drawn to zero where they are few: the logarithm by which all else is moved.
    pub(super) middle: f64,
    /// The least residual, or zero.
    pub(super) lowest: f64,
}

#[derive(Clone, Copy, Debug)]
struct Near {
    shape: Shape,
    /// Logarithms of the shape.
    at: [f64; 3],
    residual: f64,
}

fn logs((m, n, k): Shape) -> [f64; 3] {
    [m, n, k].map(|v| libm::log(v as f64))
}

fn distance(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    let squares = |m: f64, n: f64| (a[0] - m) * (a[0] - m) + (a[1] - n) * (a[1] - n);
    let k = a[2] - b[2];
    libm::sqrt(squares(b[0], b[1]).min(squares(b[1], b[0])) + k * k)
}

impl Written {
    /// Shapes and times \[s\], all of which `possible` lets pass.
    pub(super) fn points(
        &self,
        possible: impl Fn(Shape, f64) -> Result<(), String>,
    ) -> Result<Vec<(Shape, f64)>, Wrong> {
        let point = |row: &str| {
            let form = || "expected \"m n k: time\" with sizes above zero and a time in us".to_owned();
            let (head, time) = row.split_once(':').ok_or_else(form)?;
            let sizes: Vec<u64> = head.split_whitespace().map_while(|word| word.parse().ok()).collect();
            let micros: f64 = time.trim().parse().map_err(|_| form())?;
            match sizes[..] {
                [m, n, k] if m.min(n).min(k) > 0 => {
                    possible((m, n, k), micros * 1e-6).map(|()| ((m, n, k), micros * 1e-6))
                }
                _ => Err(form()),
            }
        };
        self.rows.iter().map(|row| point(row.get_ref()).map_err(|why| Wrong::at(row, why))).collect()
    }

    pub(super) fn evidence(self) -> Evidence {
        self.evidence
    }
}

impl Nearby {
    /// From shapes and residuals; none of no points.
    pub(super) fn new(evidence: Evidence, residuals: impl IntoIterator<Item = (Shape, f64)>) -> Option<Nearby> {
        let near = |(shape, residual)| Near { shape, at: logs(shape), residual };
        let points: Vec<Near> = residuals.into_iter().map(near).collect();
        let mut sorted: Vec<f64> = points.iter().map(|p| p.residual).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let middle = *sorted.get(sorted.len() / 2)? * count / (count + FEW);
        let lowest = sorted.first().copied().unwrap_or(0.0).min(0.0);
        Some(Nearby { evidence, points, middle, lowest })
    }

    /// The same had some shapes not been measured.
    pub(super) fn without(&self, gone: impl Fn(Shape) -> bool) -> Option<Nearby> {
        let rest = self.points.iter().filter(|p| !gone(p.shape)).map(|p| (p.shape, p.residual));
        Nearby::new(self.evidence.clone(), rest)
    }

    /// Shapes and residuals.
    pub(super) fn points(&self) -> impl Iterator<Item = (Shape, f64)> + '_ {
        self.points.iter().map(|p| (p.shape, p.residual))
    }

    /// Logarithm of the factor by which what lies beneath is corrected.
    pub(super) fn residual(&self, m: f64, n: f64, k: f64) -> f64 {
        let at = [m, n, k].map(libm::log);
        let (mut sum, mut weight) = (PRIOR * self.middle, PRIOR);
        for point in &self.points {
            let d = distance(&at, &point.at);
            let w = 1.0 / (d * d * d + SAME);
            sum += w * point.residual;
            weight += w;
        }
        sum / weight
    }

    /// Whether a shape was measured or lies near one that was; none if neither.
    pub(super) fn place(&self, shape: Shape) -> Option<Basis> {
        let at = logs(shape);
        let nearest = self.points.iter().map(|p| distance(&at, &p.at)).min_by(f64::total_cmp)?;
        match nearest {
            d if d <= HAIR => Some(Basis::Measured),
            d if d <= NEAR => Some(Basis::Interpolated),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_point_moves_no_matmul_far_from_it_and_many_that_agree_do() {
        let of = |count: u64| {
            let evidence = Evidence { basis: Basis::Measured, source: String::new(), points: 1, median: 0.0, p90: 0.0 };
            Nearby::new(evidence, (0..count).map(|at| ((64 + at, 64, 64), 0.7))).expect("points")
        };
        let far = |nearby: &Nearby| nearby.residual(16_384.0, 16_384.0, 16_384.0);
        assert!(far(&of(1)) < 0.1 && far(&of(80)) > 0.6, "{} {}", far(&of(1)), far(&of(80)));
        assert!((of(1).residual(64.0, 64.0, 64.0) - 0.7).abs() < 1e-3);
    }
}
