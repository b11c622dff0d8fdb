//! `[float8]` and `framework.linears` as written.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{COMPILED, DDP, INTERNEVO, MEGATRON, NANOTRON, PYTORCH_BUT_DDP, ZERO};

words! {
    /// torchao's recipes.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Recipe {
        /// One scale a tensor.
        Tensorwise = "tensorwise",
        /// One scale a row.
        Rowwise = "rowwise",
    }
}

keys! {
    /// torchao's float8 linears.
    #[derive(Debug, Deserialize)]
    ["float8"] Float8 in Rest.instead(&[
        (DDP, "it needs compiled layers, which are not simulated under DistributedDataParallel: remove the table"),
        (MEGATRON, "write megatron.fp8 = \"delayed\", \"tensorwise\", \"blockwise\" or \"mxfp8\""),
        (ZERO, "remove the table, or write runtime = \"fsdp2\""),
        (INTERNEVO, "its matmuls run in 16 bits: remove the table"),
        (NANOTRON, "its matmuls run in bf16: remove the table"),
        (COMPILED, "remove the table: fp8 is not simulated on XLA"),
    ]);

    /// `recipe_name`: how operands are scaled.
    recipe: Recipe => PYTORCH_BUT_DDP;
    /// `enable_fsdp_float8_all_gather`: whether parameters are gathered in float8.
    all_gather: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
    /// `precompute_float8_dynamic_scale_for_fsdp`: whether all scales are computed once after the step.
    precompute_scale: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
}

words! {
    /// What multiplies in a block's linears.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum LinearStyle {
        /// PyTorch's own.
        Torch = "torch",
        /// Transformer Engine's, in fp8 with delayed scaling.
        TransformerEngineFp8 = "transformer_engine_fp8",
    }
}
