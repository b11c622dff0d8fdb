//! The table of the SPMD lane. Keys are those of MaxText's configuration (`configs/base.yml`).

use serde::Deserialize;
use toml::Spanned;

use crate::runtime::spmd::{Keep, TENSORS, Targets};

/// `mu_dtype`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// As parameters are.
    Float32,
    /// Half of it.
    Bfloat16,
}

/// `quantization`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Eight {
    /// AQT's.
    Int8,
    /// Qwix's.
    Fp8Full,
}

/// `attention`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum XlaAttention {
    /// The splash kernel, on TPUs.
    Flash,
    /// Matmuls around a softmax.
    DotProduct,
    /// cuDNN's kernels through Transformer Engine, on GPUs.
    CudnnFlashTe,
    /// cuDNN's kernels through JAX, on GPUs.
    CudnnFlashJax,
}

/// `expert_exchange`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ExpertExchange {
    /// Experts' weights are gathered, and tokens stay: what MaxText's rules lead to.
    Weights,
    /// Tokens are sent, and experts stay: GShard's.
    Tokens,
}

impl Xla {
    /// What the file says of each tensor, in the order of a block's forward.
    pub fn tensors(&self) -> [&Option<Spanned<Keep>>; TENSORS.len()] {
        [
            &self.decoder_layer_input,
            &self.query_proj,
            &self.key_proj,
            &self.value_proj,
            &self.context,
            &self.out_proj,
            &self.mlpwi_0,
            &self.mlpwi_1,
            &self.mlpwo,
        ]
    }
}

/// `[xla]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xla {
    /// `remat_policy`: one of MaxText's, or `custom`.
    pub remat_policy: Option<Spanned<String>>,
    /// With `custom`: what becomes of `decoder_layer_input`.
    pub decoder_layer_input: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `query_proj`.
    pub query_proj: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `key_proj`.
    pub key_proj: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `value_proj`.
    pub value_proj: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `context`.
    pub context: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `out_proj`.
    pub out_proj: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `mlpwi_0`.
    pub mlpwi_0: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `mlpwi_1`.
    pub mlpwi_1: Option<Spanned<Keep>>,
    /// With `custom`: what becomes of `mlpwo`.
    pub mlpwo: Option<Spanned<Keep>>,
    /// `scan_layers`: blocks in one loop.
    pub scan_layers: Option<Spanned<bool>>,
    /// `attention`.
    pub attention: Option<Spanned<XlaAttention>>,
    /// `float32_qk_product`.
    pub float32_qk_product: Option<bool>,
    /// Whether RMSNorm squares by a product.
    pub norm_by_product: Option<bool>,
    /// `sa_use_fused_bwd_kernel`.
    pub sa_use_fused_bwd_kernel: Option<Spanned<bool>>,
    /// Queries and keys of a block of the kernel (`sa_block_q`, `sa_block_kv` and their like, taken as one).
    pub sa_block_size: Option<Spanned<i64>>,
    /// Whether the logical axis `activation_embed` lies on `tensor`.
    pub activation_embed: Option<bool>,
    /// `use_tokamax_splash`.
    pub use_tokamax_splash: Option<Spanned<bool>>,
    /// `quantization`.
    pub quantization: Option<Spanned<Eight>>,
    /// Whether operands are scaled by fixed numbers (`act_quantization_calibration_method` of `fixed,…`).
    pub fixed_calibration: Option<Spanned<bool>>,
    /// `weight_dtype`.
    pub weight_dtype: Option<Moment>,
    /// Whether `optax.MultiSteps` adds gradients up.
    pub optax_multi_steps: Option<bool>,
    /// `mu_dtype`.
    pub mu_dtype: Option<Moment>,
    /// On TPUs groups of compiler flags, by the names of MaxText's `benchmarks/xla_flags_library.py`; on GPUs flags of `XLA_FLAGS`.
    pub flags: Option<Vec<Spanned<String>>>,
    /// `XLA_PYTHON_CLIENT_MEM_FRACTION`: the share of a GPU's memory that JAX takes.
    pub python_client_mem_fraction: Option<Spanned<f64>>,
    /// How the loss finds the logit of the right word.
    pub targets: Option<Targets>,
    /// `num_vocab_tiling`.
    pub num_vocab_tiling: Option<Spanned<i64>>,
    /// `capacity_factor` of experts, with `megablox` and `sparse_matmul` off.
    pub capacity_factor: Option<Spanned<f64>>,
    /// What goes over the expert axis.
    pub expert_exchange: Option<Spanned<ExpertExchange>>,
    /// `use_iota_embed`.
    pub use_iota_embed: Option<bool>,
    /// Whether gradients are clipped (`gradient_clipping_threshold` above zero).
    pub gradient_clipping: Option<bool>,
    /// `num_layers_per_pipeline_stage`.
    pub num_layers_per_pipeline_stage: Option<Spanned<i64>>,
    /// `num_pipeline_repeats`.
    pub num_pipeline_repeats: Option<Spanned<i64>>,
    /// `num_pipeline_microbatches`.
    pub num_pipeline_microbatches: Option<Spanned<i64>>,
    /// `pipeline_parallel_layers`: blocks in the pipeline.
    pub pipeline_parallel_layers: Option<Spanned<i64>>,
    /// `pipeline_delay_activation_forwarding`.
    pub pipeline_delay_activation_forwarding: Option<Spanned<bool>>,
    /// `pipeline_fsdp_ag_once`.
    pub pipeline_fsdp_ag_once: Option<Spanned<bool>>,
    /// `pipeline_fsdp_ag_per_repeat`.
    pub pipeline_fsdp_ag_per_repeat: Option<Spanned<bool>>,
    /// `set_remat_policy_on_pipeline_iterations`.
    pub set_remat_policy_on_pipeline_iterations: Option<Spanned<bool>>,
    /// `set_remat_policy_on_layers_per_stage`.
    pub set_remat_policy_on_layers_per_stage: Option<Spanned<bool>>,
    /// `scan_pipeline_iterations`.
    pub scan_pipeline_iterations: Option<Spanned<bool>>,
    /// `scan_layers_per_stage`.
    pub scan_layers_per_stage: Option<Spanned<bool>>,
    /// Steps of the run, over which compiling is spread (`steps`).
    pub steps: Option<Spanned<i64>>,
    /// Shapes of batches in it, each compiled once.
    pub shapes: Option<Spanned<i64>>,
    /// Whether an earlier run filled the persistent cache.
    pub persistent_cache: Option<bool>,
    /// Reads of the device's numbers that the loop waits for in each step.
    pub host_syncs_per_step: Option<Spanned<i64>>,
}
