//! The ranks that share a sequence under PyTorch's context parallelism.

use crate::plan::torch::Rotate;
use crate::runtime::eager::Ring;

/// The ranks that share a sequence under PyTorch's context parallelism, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The ranks.
    pub ring: Ring,
    /// How.
    pub how: Rotate,
}
