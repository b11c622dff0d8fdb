//! Axes of the mesh, of every runtime.

use serde::Deserialize;
use toml::Spanned;

/// `[mesh]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Ranks over which parameters are sharded.
    pub dp_shard: Option<Spanned<i64>>,
    /// Ranks over which shards are replicated (HSDP).
    pub dp_replicate: Option<Spanned<i64>>,
    /// Ranks over which modules are split: neighbours.
    pub tp: Option<Spanned<i64>>,
    /// Ranks that share a sequence.
    pub cp: Option<Spanned<i64>>,
    /// Pipeline ranks.
    pub pp: Option<Spanned<i64>>,
    /// Replicas of the model.
    pub dp: Option<Spanned<i64>>,
    /// Ranks that experts are spread over.
    pub ep: Option<Spanned<i64>>,
    /// Ranks that each expert is split over.
    pub etp: Option<Spanned<i64>>,
    /// XLA: replicas in a slice.
    pub data: Option<Spanned<i64>>,
    /// XLA: chips that weights' embedding dimension is sharded over.
    pub fsdp: Option<Spanned<i64>>,
    /// XLA: chips that an MLP's width is sharded over, and gathered.
    pub fsdp_transpose: Option<Spanned<i64>>,
    /// XLA: chips that share a sequence.
    pub context: Option<Spanned<i64>>,
    /// XLA: chips that experts are spread over.
    pub expert: Option<Spanned<i64>>,
    /// XLA: chips that heads and an MLP's width are split over.
    pub tensor: Option<Spanned<i64>>,
    /// XLA: stages of a pipeline within a slice.
    pub pipeline: Option<Spanned<i64>>,
    /// XLA: stages of a pipeline that are slices.
    pub dcn_pipeline: Option<Spanned<i64>>,
    /// XLA: replicas of a slice.
    pub dcn_data: Option<Spanned<i64>>,
    /// XLA: slices that `fsdp` lies over.
    pub dcn_fsdp: Option<Spanned<i64>>,
    /// XLA: slices that `fsdp_transpose` lies over.
    pub dcn_fsdp_transpose: Option<Spanned<i64>>,
    /// XLA: slices that `context` lies over.
    pub dcn_context: Option<Spanned<i64>>,
    /// XLA: slices that `expert` lies over.
    pub dcn_expert: Option<Spanned<i64>>,
    /// XLA: slices that `tensor` lies over.
    pub dcn_tensor: Option<Spanned<i64>>,
    /// XLA: whether a physical axis of a slice may be shared out between axes of the mesh.
    pub allow_split_physical_axes: Option<Spanned<bool>>,
    /// XLA: which mesh axes each logical axis lies on.
    pub logical_axis_rules: Option<Spanned<Vec<Spanned<toml::Value>>>>,
}
