//! Sections of one figure each: host classes, memory that no tensor owns, and slow-down under communication.

use std::fmt::Write as _;

/// A host class; time \[us\].
pub fn write_class(text: &mut String, name: &str, us: f64, evidence: &str) {
    let _ = write!(text, "[host.{name}]\ntime = \"{us:.1} us\"\nevidence = {evidence}\n\n");
}

/// A class of kernels under communication.
pub fn write_overlap(text: &mut String, name: &str, factor: f64, evidence: &str) {
    let _ = write!(text, "[overlap.{name}]\nfactor = {factor}\nevidence = {evidence}\n\n");
}
