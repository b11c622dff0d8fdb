//! `[memory]`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{COMPILED, CUDA, DDP, OTHERS, PYTORCH_BUT_DDP};

keys! {
    /// The allocator.
    #[derive(Debug, Default, Deserialize)]
    ["memory"] Memory in Rest.instead(&[
        (DDP, "it is of parameters that fully_shard has sharded: remove the key"),
        (COMPILED, "the compiler gives every buffer its place: there is no allocator to set"),
    ]);

    /// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    expandable_segments: Option<bool> => CUDA
        default CUDA => "false" of "PyTorch 2.15.0; torchtitan 0.2.2, b5bcd76c" at "torchtitan run_train.sh (v0.2.2; b5bcd76c:43)";
    /// How parameters are initialised, where that leaves blocks in the allocator's cache.
    initialisation: Option<Spanned<Initialisation>> => PYTORCH_BUT_DDP.instead(&[(OTHERS, "it is of parameters that fully_shard has sharded: remove the key")]);
}

words! {
    /// How parameters are initialised.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Initialisation {
        /// In place: nothing is left.
        InPlace = "in_place",
        /// Linears by `trunc_normal_` of sharded parameters (torchtitan).
        TruncatedNormal = "truncated_normal",
    }
}
