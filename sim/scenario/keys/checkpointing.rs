//! `[activation_checkpointing]`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{DDP, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, TORCH_XLA, XLA, ZERO};

words! {
    /// Policy of activation checkpointing.
    #[derive(Clone, Debug, Deserialize, PartialEq)]
    pub enum Policy {
        /// Keep everything.
        None = "none",
        /// Recompute every block.
        Full = "full",
        /// Recompute one block in so many, the last of each as torchtitan counts: of two, blocks 1, 3, 5, ….
        Every(i64) = "every" of "N",
        /// Recompute this share of the blocks, evenly spread.
        Fraction(f64) = "fraction" of "X",
        /// torchtitan's operator-level policy.
        SelectiveOp = "selective_op",
        /// Recompute these layers, counted from 0.
        Layers(Vec<Layers>) = "layers" of "[…]",
        /// Recompute so many layers, from the first on.
        First(i64) = "first" of "N",
        /// Recompute every layer but for what these operators return.
        Save(Vec<Spanned<String>>) = "save" of "[…]",
    }
}

/// Layers, counted from 0.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected a layer, or [first, one after the last]")]
pub enum Layers {
    /// One.
    One(i64),
    /// The first, and the one after the last.
    Range((i64, i64)),
}

words! {
    /// Where activations are copied to the host and back.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum OffloadStream {
        /// In compute's way.
        DefaultStream = "default_stream",
        /// Beside it.
        OwnStream = "own_stream",
    }
}

keys! {
    /// Activation checkpointing.
    #[derive(Debug, Default, Deserialize)]
    ["activation_checkpointing"] Checkpointing in Recompute.instead(&[
        (DDP, "nothing is compiled or sharded: remove the key"),
        (MEGATRON, "write megatron.recompute = \"core_attn\", { uniform = 1 } or { block = 4 }"),
        (ZERO, "remove the key"),
        (INTERNEVO, "write internevo.checkpoint = true"),
        (NANOTRON, "write nanotron.recompute_layer = true"),
        (TORCH_XLA, "write torch_xla.gradient_checkpointing = true"),
        (XLA, "write xla.remat_policy = \"full\", or another of MaxText's"),
    ]);

    /// What is recomputed in backward.
    policy: Option<Spanned<Policy>> => MODULES.such_as("{ every = 2 }")
        default MODULES => "\"none\"" of "PyTorch 2.15.0; torchtitan 0.2.2; torchtitan 0.3.0" at "torchtitan/config/job_config.py:652,655; torchtitan/trainer.py (activation_checkpoint default_factory SelectiveAC.Config)";
    /// Whether a recompute stops once backward has what it needs.
    early_stop: Option<bool> => MODULES
        default MODULES => "true" of "PyTorch 2.15.0; torchtitan 0.2.2; torchtitan 0.3.0" at "torch/utils/checkpoint.py:391; torchtitan/config/job_config.py:675 (0.2.2); distributed/activation_checkpoint.py:180,285 (0.3.0: hard-wired False)";
    /// Whether the checkpoint is around a compiled layer, or is compiled with it.
    around_compiled: Option<bool> => PYTORCH_BUT_DDP;
    /// Whether the checkpoint is the reentrant one (`torch.utils.checkpoint`, `use_reentrant=True`).
    use_reentrant: Option<Spanned<bool>> => PYTORCH;
    /// Whether checkpoints are around sharded layers, so that FSDP's hooks run inside them.
    around_hooks: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
    /// The stream that copies inputs of checkpointed layers to the host and back.
    offload: Option<Spanned<OffloadStream>> => PYTORCH;
}
