//! The table of nanotron. Keys are those of its configuration files.

use serde::Deserialize;
use toml::Spanned;

/// `pp_engine`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Engine {
    /// `OneForwardOneBackwardPipelineEngine`.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// `AllForwardAllBackwardPipelineEngine`.
    #[serde(rename = "afab")]
    AllForwardAllBackward,
}

/// `tp_mode`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum TensorMode {
    /// Every rank has the whole sequence between its matmuls.
    AllReduce,
    /// Ranks share it.
    ReduceScatter,
}

/// `[nanotron]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nanotron {
    /// `optimizer.zero_stage`: 0 or 1.
    pub zero_stage: Option<Spanned<i64>>,
    /// `parallelism.tp_mode`.
    pub tp_mode: Option<Spanned<TensorMode>>,
    /// `parallelism.pp_engine`.
    pub pp_engine: Option<Engine>,
    /// `parallelism.recompute_layer`.
    pub recompute_layer: Option<bool>,
    /// `parallelism.tp_recompute_allgather`.
    pub tp_recompute_allgather: Option<bool>,
    /// `ddp_bucket_cap_mb`, in MiB of gradients in the parameters' type.
    pub ddp_bucket_cap_mb: Option<Spanned<i64>>,
}
