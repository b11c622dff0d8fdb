//! What is worth measuring: the kernels that real models on real layouts issue, and what a step's time rests on.
//!
//! Every scenario and every receipt that maps to one is flown ([`runs`]); each kernel is worth the share of a step's time
//! that it takes, averaged over the runs, runs of one configuration counting once. Between the matmuls that occur a set is
//! laid that leaves no large gap ([`between()`]), so that shapes nobody has run yet can be interpolated. `calibrate cuda
//! --plan` measures the list, the most valuable first.

mod between;
pub mod kernels;
pub mod runs;

pub use between::between;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::points::What;

/// A thing to measure, and what it is worth; a line of a file for `calibrate cuda --plan`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What to measure.
    pub what: What,
    /// How much a step's time rests on it, from 0 to 1: the share of a typical step's time that the kernels it stands
    /// for take, divided among their points. The most valuable is measured first.
    pub value: f64,
}

/// Orders jobs by worth, the largest first; what is named several times counts once and is worth the sum.
pub fn ranked(jobs: impl IntoIterator<Item = Job>) -> Vec<Job> {
    let mut values: BTreeMap<What, f64> = BTreeMap::new();
    for job in jobs {
        *values.entry(job.what).or_default() += job.value;
    }
    let mut jobs: Vec<Job> = values.into_iter().map(|(what, value)| Job { what, value }).collect();
    jobs.sort_by(|a, b| b.value.total_cmp(&a.value).then_with(|| a.what.cmp(&b.what)));
    jobs
}

/// The family that a summary counts it under.
pub fn family(what: &What) -> &'static str {
    match what {
        What::Matmul { .. } | What::GroupedMatmul { .. } => "matmul",
        What::Attention { .. } => "attention",
        What::Memory { .. } => "memory",
        _ => "other",
    }
}

#[cfg(test)]
mod tests;
