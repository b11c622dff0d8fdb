//! `[compile]`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{COMPILED, DDP, MEGATRON, PYTORCH, PYTORCH_BUT_DDP, ZERO};

keys! {
    /// `torch.compile`.
    #[derive(Debug, Default, Deserialize)]
    ["compile"] Compile in Compile.instead(&[
        (DDP, "DDPOptimizer cuts compiled graphs where buckets end, which is not simulated: remove the key"),
        (MEGATRON, "its fusions are keys of [megatron], such as bias_activation_fusion"),
        (ZERO, "compiled blocks have no rules under its hooks: remove the table"),
        (&["internevo", "nanotron"], "nothing is compiled: remove the table"),
        (COMPILED, "the whole step is compiled: remove the table"),
    ]);

    /// Whether each layer is compiled on its own.
    blocks: Option<bool> => PYTORCH_BUT_DDP
        default PYTORCH_BUT_DDP => "false" of "torchtitan 0.2.2, torchtitan 0.3.0" at "job_config.py:722";
    /// Whether the sharded model is compiled whole.
    model: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
    /// Whether the loss is compiled.
    loss: Option<Spanned<bool>> => PYTORCH;
}

impl Compile {
    /// Whether blocks are compiled, on their own or as what a graph break makes of the whole model.
    pub fn compiles_blocks(&self) -> bool {
        self.blocks == Some(true) || self.model.as_ref().is_some_and(|at| *at.get_ref())
    }
}
