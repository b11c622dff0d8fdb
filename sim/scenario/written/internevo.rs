//! The table of InternEvo. Keys are those of its configuration files.

use serde::Deserialize;
use toml::Spanned;

/// `[internevo]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InternEvo {
    /// `parallel.zero1`: replicas over which optimizer states are spread; 0 or less: all.
    pub zero1: Option<Spanned<i64>>,
    /// `hybrid_zero_optimizer.reduce_bucket_size`, in elements.
    pub reduce_bucket_size: Option<Spanned<i64>>,
    /// `model.checkpoint`: whether blocks run again in backward.
    pub checkpoint: Option<bool>,
}
