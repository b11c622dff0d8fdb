//! The table of the SPMD lane. Keys are those of MaxText's configuration (`configs/base.yml`).

use serde::Deserialize;
use toml::Spanned;

use super::readers::{COMPILED, TORCH_XLA, XLA};
use super::row::Choice::Word;
use super::row::Kind::Choice;
use super::row::between;
use crate::runtime::spmd::{Keep, TENSORS, Targets};

words! {
    /// `mu_dtype`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Moment {
        /// As parameters are.
        Float32 = "float32",
        /// Half of it.
        Bfloat16 = "bfloat16",
    }
}

words! {
    /// `quantization`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Eight {
        /// AQT's.
        Int8 = "int8",
        /// Qwix's.
        Fp8Full = "fp8_full",
    }
}

words! {
    /// `attention`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum XlaAttention {
        /// The splash kernel, on TPUs.
        Flash = "flash",
        /// Matmuls around a softmax.
        DotProduct = "dot_product",
        /// cuDNN's kernels through Transformer Engine, on GPUs.
        CudnnFlashTe = "cudnn_flash_te",
        /// cuDNN's kernels through JAX, on GPUs.
        CudnnFlashJax = "cudnn_flash_jax",
    }
}

words! {
    /// `expert_exchange`
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum ExpertExchange {
        /// Experts' weights are gathered, and tokens stay: what MaxText's rules lead to.
        Weights = "weights",
        /// Tokens are sent, and experts stay: GShard's, and what sorted experts do.
        Tokens = "tokens",
        /// Each chip of the axis gets the tokens of all (`use_ring_of_experts`); of sorted experts.
        Ring = "ring",
    }
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

keys! {
    /// MaxText's configuration (`configs/base.yml`).
    #[derive(Debug, Default, Deserialize)]
    ["xla"] Xla in Rest.owner("xla");

    /// `remat_policy`: which activations are kept, one of MaxText's policies or `custom`.
    remat_policy: Option<Spanned<String>> => XLA.such_as("\"minimal\"")
        default XLA => "\"full\"" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:358";
    /// With `custom`: what becomes of `decoder_layer_input`.
    decoder_layer_input: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `query_proj`.
    query_proj: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `key_proj`.
    key_proj: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `value_proj`.
    value_proj: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `context`.
    context: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `out_proj`.
    out_proj: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `mlpwi_0`.
    mlpwi_0: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `mlpwi_1`.
    mlpwi_1: Option<Spanned<Keep>> => XLA;
    /// With `custom`: what becomes of `mlpwo`.
    mlpwo: Option<Spanned<Keep>> => XLA;
    /// `scan_layers`: whether layers run in one loop.
    scan_layers: Option<Spanned<bool>> => XLA
        default XLA => "true" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:387";
    /// `attention`: the splash kernel on TPUs (`flash`), cuDNN's kernels on GPUs, or matmuls around a softmax.
    attention: Option<Spanned<XlaAttention>> => XLA
        default XLA => "\"flash\"" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:392; src/maxtext/layers/attention_op.py:1414-1452";
    /// `float32_qk_product`: whether attention's scores are in fp32, with `dot_product`.
    float32_qk_product: Option<bool> => XLA;
    /// Whether RMSNorm squares by `x * x` in place of MaxText's `lax.square`, whose derivative keeps an array more
    /// where nothing is computed again.
    norm_by_product: Option<bool> => XLA;
    /// `sa_use_fused_bwd_kernel`: whether attention's backward is one kernel.
    sa_use_fused_bwd_kernel: Option<Spanned<bool>> => XLA
        default XLA => "false" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:1159-1167";
    /// Queries and keys of a block of the attention kernel: `sa_block_q`, `sa_block_kv` and the like, as one number.
    sa_block_size: Option<Spanned<i64>> as between(128, 1 << 16) => XLA.such_as("1024")
        default XLA => "512" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:1159-1167";
    /// Whether the logical axis `activation_embed` is sharded over `tensor`.
    activation_embed: Option<bool> => XLA
        default XLA => "true" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:598 (the same rule at tpu-recipes-v0.1.1, MaxText/configs/base.yml:278)";
    /// `use_tokamax_splash`: whether attention is Tokamax's splash kernel.
    use_tokamax_splash: Option<Spanned<bool>> => XLA
        default XLA => "false" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:1330";
    /// `quantization`: the type of linears' operands.
    quantization: Option<Spanned<Eight>> => XLA;
    /// Whether operands are scaled by fixed numbers (`act_quantization_calibration_method` of `fixed,…`).
    fixed_calibration: Option<Spanned<bool>> => XLA;
    /// `weight_dtype`: type of the parameters, their gradients and, where nothing else is said, the moments.
    weight_dtype: Option<Moment> => XLA
        default XLA => "\"float32\"" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:174";
    /// Whether gradients of `batch.accumulation` micro-batches are added up by `optax.MultiSteps`, each micro-batch in
    /// a step of its own, in place of a loop in the step.
    optax_multi_steps: Option<bool> => XLA;
    /// `mu_dtype`: type of the first moments.
    mu_dtype: Option<Moment> => XLA
        default XLA => "\"float32\"" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:993,174";
    /// On TPUs flags of `LIBTPU_INIT_ARGS`, such as `xla_tpu_scoped_vmem_limit_kib=98304`, and groups of them by the
    /// names of MaxText's `benchmarks/xla_flags_library.py`; on GPUs flags of `XLA_FLAGS`, such as
    /// `xla_gpu_enable_pipelined_all_gather=true`.
    flags: Option<Vec<Spanned<String>>> => COMPILED.such_as("[\"CF_FOR_ALL_GATHER\"]")
        default TORCH_XLA => "[]" of "none" at "of the job: no flag is set"
        default XLA => "[]" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:526";
    /// `XLA_PYTHON_CLIENT_MEM_FRACTION`: the share of a GPU's memory that JAX takes.
    python_client_mem_fraction: Option<Spanned<f64>> => XLA.such_as("0.9");
    /// How the loss finds the logit of the target word.
    targets: Option<Targets> as Choice(&[Word("one_hot"), Word("indexed"), Word("log_softmax")]) => XLA
        default XLA => "\"one_hot\"" of "MaxText e591f30cb" at "src/maxtext/trainers/pre_train/train.py:208";
    /// `num_vocab_tiling`: parts in which the head and the loss run.
    num_vocab_tiling: Option<Spanned<i64>> as between(1, 1 << 16) => XLA.such_as("4")
        default XLA => "1" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:705";
    /// `capacity_factor` of experts, with `megablox` and `sparse_matmul` off.
    capacity_factor: Option<Spanned<f64>> => COMPILED.such_as("1.25");
    /// What is exchanged over the expert axis.
    expert_exchange: Option<Spanned<ExpertExchange>> => XLA;
    /// `ragged_buffer_factor`: rows of the buffer that sorted copies come into, over even shares; left out, the most there can be.
    ragged_buffer_factor: Option<Spanned<f64>> => XLA.such_as("2.0");
    /// `use_iota_embed`: whether the embedding is a matmul with a one-hot matrix.
    use_iota_embed: Option<bool> => XLA
        default XLA => "false" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:1007";
    /// Whether gradients are clipped: `gradient_clipping_threshold` above zero.
    gradient_clipping: Option<bool> => XLA
        default XLA => "true" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:964";
    /// `num_layers_per_pipeline_stage`: layers of a stage.
    num_layers_per_pipeline_stage: Option<Spanned<i64>> as between(1, 1 << 16) => XLA.such_as("2");
    /// `num_pipeline_repeats`: how often a micro-batch passes through all stages.
    num_pipeline_repeats: Option<Spanned<i64>> as between(1, 1 << 16) => XLA.such_as("2");
    /// `num_pipeline_microbatches`: micro-batches in the pipeline.
    num_pipeline_microbatches: Option<Spanned<i64>> as between(1, 1 << 16) => XLA.such_as("8");
    /// `pipeline_parallel_layers`: layers in the pipeline; the others run after it.
    pipeline_parallel_layers: Option<Spanned<i64>> => XLA.such_as("32");
    /// `pipeline_delay_activation_forwarding`: whether stages send one iteration later, so that sends overlap.
    pipeline_delay_activation_forwarding: Option<Spanned<bool>> => XLA;
    /// `pipeline_fsdp_ag_once`: whether weights are gathered once for all iterations.
    pipeline_fsdp_ag_once: Option<Spanned<bool>> => XLA;
    /// `pipeline_fsdp_ag_per_repeat`: whether weights are gathered once for each repeat.
    pipeline_fsdp_ag_per_repeat: Option<Spanned<bool>> => XLA;
    /// `set_remat_policy_on_pipeline_iterations`: whether the remat policy covers each iteration.
    set_remat_policy_on_pipeline_iterations: Option<Spanned<bool>> => XLA;
    /// `set_remat_policy_on_layers_per_stage`: whether the remat policy covers each layer of a stage.
    set_remat_policy_on_layers_per_stage: Option<Spanned<bool>> => XLA;
    /// `scan_pipeline_iterations`: whether iterations run in one loop.
    scan_pipeline_iterations: Option<Spanned<bool>> => XLA;
    /// `scan_layers_per_stage`: whether the layers of a stage run in one loop.
    scan_layers_per_stage: Option<Spanned<bool>> => XLA;
    /// `steps`: steps of the run, over which the time to compile is divided.
    steps: Option<Spanned<i64>> as between(1, 1 << 40) => COMPILED.such_as("1000");
    /// Shapes of batches in the run, each compiled once.
    shapes: Option<Spanned<i64>> as between(1, 1 << 16) => COMPILED.such_as("2");
    /// Whether an earlier run filled the persistent cache.
    persistent_cache: Option<bool> => COMPILED;
    /// Reads of the device's numbers that the loop waits for in each step.
    host_syncs_per_step: Option<Spanned<i64>> as between(0, 1 << 16) => COMPILED.such_as("1")
        default COMPILED => "0" of "none" at "of the job or the machine: no framework has a default";
}
