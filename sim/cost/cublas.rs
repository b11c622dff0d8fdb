//! Releases of cuBLAS other than the one whose matmuls a profile has.

use serde::Deserialize;

use super::basis::Evidence;
use crate::program::DType;

/// Another release of cuBLAS than the one that was measured.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cublas {
    /// Releases, `major.minor`.
    pub versions: Vec<String>,
    /// Time of a bf16 or fp16 matmul over that of the measured release.
    pub bf16: f64,
    /// The type at whose rate batched matmuls run whose rows begin at no multiple of 16 bytes, where not on tensor cores.
    pub unaligned_batched: Option<DType>,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Refuses a release without a version, or with a factor that no release has.
pub(super) fn check(list: Vec<Cublas>) -> Result<Vec<Cublas>, String> {
    match list.iter().find(|entry| !(0.5..=2.0).contains(&entry.bf16) || entry.versions.is_empty()) {
        Some(bad) => Err(format!("versions {:?} take {} times as long: expected 0.5 to 2", bad.versions, bad.bf16)),
        None => Ok(list),
    }
}
