//! The table of InternEvo. Keys are those of its configuration files.

use serde::Deserialize;
use toml::Spanned;

use super::readers::INTERNEVO;
use super::row::between;

keys! {
    /// InternEvo's configuration.
    #[derive(Debug, Default, Deserialize)]
    ["internevo"] InternEvo in Rest.owner("internevo");

    /// `parallel.zero1`: replicas over which optimizer states are sharded. 0 or less means all.
    zero1: Option<Spanned<i64>> => INTERNEVO.such_as("8")
        default INTERNEVO => "-1" of "InternEvo v0.1.0" at "internlm/initialize/launch.py:53-54";
    /// `hybrid_zero_optimizer.reduce_bucket_size`: elements of a bucket of gradients.
    reduce_bucket_size: Option<Spanned<i64>> as between(1, 1 << 40) => INTERNEVO.such_as("268435456")
        default INTERNEVO => "536870912" of "InternEvo v0.1.0" at "configs/7B_sft.py:67; internlm/solver/optimizer/hybrid_zero_optim.py:123";
    /// `model.checkpoint`: whether layers are recomputed in backward.
    checkpoint: Option<bool> => INTERNEVO
        default INTERNEVO => "false" of "InternEvo v0.1.0" at "internlm/model/modeling_internlm.py (checkpoint: bool = False); 7B_sft.py";
}
