//! The table of the SPMD lane. Keys are those of MaxText's configuration (`configs/base.yml`).

use serde::Deserialize;
use toml::{Spanned, Table};

/// `attention`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum XlaAttention {
    /// The splash kernel.
    Flash,
    /// Matmuls around a softmax.
    DotProduct,
}

/// `[xla]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xla {
    /// `remat_policy`: one of MaxText's, or `custom`.
    pub remat_policy: Option<Spanned<String>>,
    /// With `custom`: by tensor, `device`, `offload` or `remat`.
    pub remat: Option<Spanned<Table>>,
    /// `attention`.
    pub attention: Option<XlaAttention>,
    /// `sa_use_fused_bwd_kernel`.
    pub sa_use_fused_bwd_kernel: Option<bool>,
    /// Queries and keys of a block of the kernel (`sa_block_q`, `sa_block_kv` and their like, taken as one).
    pub sa_block_size: Option<Spanned<i64>>,
    /// Groups of compiler flags, by the names of MaxText's `benchmarks/xla_flags_library.py`.
    pub flags: Option<Vec<Spanned<String>>>,
    /// `num_vocab_tiling`.
    pub num_vocab_tiling: Option<Spanned<i64>>,
    /// `use_iota_embed`.
    pub use_iota_embed: Option<bool>,
    /// Whether gradients are clipped (`gradient_clipping_threshold` above zero).
    pub gradient_clipping: Option<bool>,
    /// Reads of the device's numbers that the loop waits for in each step.
    pub host_syncs_per_step: Option<Spanned<i64>>,
}
