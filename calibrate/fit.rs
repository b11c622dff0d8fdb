//! From points to the sections of a profile: one way, whoever measured them.
//!
//! A file in `fit/` takes the points of one family (published rows or lines of a points file alike), fits the
//! simulator's own cost model to them, cross-validates, and returns the section's text with its residuals. Fits see
//! kernels, collectives and calls only, never a training run. To add a family: a file here that returns a [`Section`].

pub mod attention;
pub mod clock;
pub mod grid;
pub mod layout;
pub mod matmul;
pub mod measured;
pub mod memory;
pub mod overheads;
mod robust;
pub mod trial;

pub use robust::{error, median, positive, quantile, rounded};

/// Residuals of a section, as reports list them.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Section.
    pub section: String,
    /// Number of points.
    pub points: usize,
    /// Median relative error.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Residual {
    /// Residuals of a section from its cross-validated errors.
    pub fn of(section: impl Into<String>, points: usize, errors: &[f64]) -> Residual {
        Residual { section: section.into(), points, median: median(errors), p90: quantile(errors, 0.9) }
    }
}

/// Residuals as a table for people.
pub fn residuals(list: &[Residual]) -> String {
    let line = |r: &Residual| {
        let (median, p90) = (100.0 * r.median, 100.0 * r.p90);
        format!("{:56} {:6} points  median {median:5.1} %  p90 {p90:5.1} %\n", r.section, r.points)
    };
    list.iter().map(line).collect()
}

/// Text of a section and its residuals.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// TOML.
    pub text: String,
    /// Residuals, for the report.
    pub residuals: Vec<Residual>,
}

/// An inline table of evidence.
pub fn evidence(basis: &str, points: usize, median: f64, p90: f64, source: &str) -> String {
    format!("{{ basis = \"{basis}\", points = {points}, median = {median:.4}, p90 = {p90:.4}, source = \"{source}\" }}")
}

#[cfg(test)]
mod tests;
