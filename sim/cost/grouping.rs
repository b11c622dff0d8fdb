//! Matmuls of groups of rows, each with a matrix of its own, as experts are: on several streams, or in one kernel.

use serde::Deserialize;

use super::basis::Evidence;
use super::matmul::{self, Matmul};

/// The section of one kernel as written.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub(super) bf16: matmul::Written,
    pub(super) fp8: matmul::Written,
}

/// Matmuls of groups that are launched one by one on several streams.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// How far their time is that of all groups' tiles together, in place of one group after another: 0 to 1.
    pub together: f64,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Matmuls of groups of any rows in one kernel.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// In bf16 and fp16.
    pub bf16: Matmul,
    /// In fp8.
    pub fp8: Matmul,
}

impl Streams {
    pub(super) fn check(self) -> Result<Streams, String> {
        match (0.0..=1.0).contains(&self.together) {
            true => Ok(self),
            false => Err(format!("together is {}: expected 0 (one group after another) to 1", self.together)),
        }
    }
}
