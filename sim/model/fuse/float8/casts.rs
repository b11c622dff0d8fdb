//! Which linears are in fp8, and what has been cast.

use crate::model::fuse::compiled::TensorId;
use crate::model::graph::ParamId;

/// How scales are found (torchao's recipe names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Recipe {
    /// One scale for a tensor.
    Tensorwise,
    /// One scale for a row, or a column.
    Rowwise,
}

/// Linears in fp8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Float8 {
    /// Scales.
    pub recipe: Recipe,
    /// Whether FSDP gathers the weights in fp8 (`enable_fsdp_float8_all_gather`).
    pub all_gather: bool,
    /// Whether weights' scales are found for all of them after the optimizer's step
    /// (`precompute_float8_dynamic_scale_for_fsdp`), or for each before its gather.
    pub precompute_scale: bool,
}

/// Dimensions of a linear in fp8 are multiples of this; others stay as they are
/// (`torchtitan/components/quantization/float8.py`).
pub const MULTIPLE: u64 = 16;

impl Float8 {
    /// Whether a linear of a block is swapped.
    pub fn takes(inputs: u64, outputs: u64) -> bool {
        inputs.is_multiple_of(MULTIPLE) && outputs.is_multiple_of(MULTIPLE)
    }
}

/// Which list of nodes is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
}

/// A tensor in fp8, and the scales it has been cast with, if they are several.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    pub data: TensorId,
    pub scales: Option<TensorId>,
}

/// What has been cast so far: equal operators on equal operands run once.
#[derive(Debug, Default)]
pub struct Casts {
    /// (tensor, its columns) to its cast.
    pub made: Vec<((TensorId, bool), Cast)>,
    /// Scales of whole tensors.
    pub scales: Vec<(TensorId, TensorId)>,
    /// Tensors that are fp8 themselves (gathered so).
    pub narrow: Vec<TensorId>,
    /// Weights.
    pub weights: Vec<(ParamId, TensorId)>,
}
