//! The table of nanotron. Keys are those of its configuration files.

use serde::Deserialize;
use toml::Spanned;

use super::readers::NANOTRON;
use super::row::between;

words! {
    /// `pp_engine`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Engine {
        /// `OneForwardOneBackwardPipelineEngine`.
        OneForwardOneBackward = "1f1b",
        /// `AllForwardAllBackwardPipelineEngine`.
        AllForwardAllBackward = "afab",
    }
}

words! {
    /// `tp_mode`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum TensorMode {
        /// Every rank has the whole sequence between its matmuls.
        AllReduce = "ALL_REDUCE",
        /// Ranks share it.
        ReduceScatter = "REDUCE_SCATTER",
    }
}

keys! {
    /// nanotron's configuration.
    #[derive(Debug, Default, Deserialize)]
    ["nanotron"] Nanotron in Rest.owner("nanotron");

    /// `optimizer.zero_stage`: 0, or 1 to shard optimizer states.
    zero_stage: Option<Spanned<i64>> => NANOTRON.such_as("1")
        default NANOTRON => "0" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/config.py:315";
    /// `parallelism.tp_mode`: whether tensor parallelism shards the sequence between modules (`REDUCE_SCATTER`).
    tp_mode: Option<Spanned<TensorMode>> => NANOTRON
        default NANOTRON => "\"REDUCE_SCATTER\"" of "nanotron 19f88fbe" at "src/nanotron/config/parallelism_config.py, __post_init__: ALL_REDUCE; differs: only REDUCE_SCATTER is simulated";
    /// `parallelism.pp_engine`: the pipeline schedule.
    pp_engine: Option<Engine> => NANOTRON
        default NANOTRON => "\"afab\"" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/parallelism_config.py:43-44";
    /// `parallelism.recompute_layer`: whether layers are recomputed in backward.
    recompute_layer: Option<bool> => NANOTRON
        default NANOTRON => "false" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/parallelism_config.py:35";
    /// `parallelism.tp_recompute_allgather`: whether backward gathers activations itself instead of keeping them.
    tp_recompute_allgather: Option<bool> => NANOTRON
        default NANOTRON => "true" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/parallelism_config.py:37";
    /// `ddp_bucket_cap_mb`: size of a bucket of gradients, in MiB in the parameters' type.
    ddp_bucket_cap_mb: Option<Spanned<i64>> as between(1, 1 << 16) => NANOTRON.such_as("100")
        default NANOTRON => "25" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/config.py:222";
}
