//! `[float8]` and `framework.linears` as written.

use serde::Deserialize;
use toml::Spanned;

/// torchao's recipes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Recipe {
    /// One scale a tensor.
    Tensorwise,
    /// One scale a row.
    Rowwise,
}

/// `[float8]`: linears of compiled blocks in fp8 (`convert_to_float8_training`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Float8 {
    /// `recipe_name`.
    pub recipe: Recipe,
    /// `enable_fsdp_float8_all_gather`.
    pub all_gather: Option<Spanned<bool>>,
    /// `precompute_float8_dynamic_scale_for_fsdp`.
    pub precompute_scale: Option<Spanned<bool>>,
}

/// What multiplies in a block's linears.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LinearStyle {
    /// PyTorch's own.
    Torch,
    /// Transformer Engine's, in fp8 with delayed scaling.
    TransformerEngineFp8,
}
