//! The tables of Megatron-Core. Keys are its arguments, without `no_`, and without `use_` but for `use_megatron_fsdp`.

use serde::Deserialize;
use toml::Spanned;

use crate::program::DType;

/// `[pipeline]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// The name of a schedule, or under FSDP2 a file in PyTorch's CSV.
    pub schedule: Option<Spanned<String>>,
    /// Stages on each rank.
    pub virtual_stages: Option<Spanned<i64>>,
    /// Blocks of each stage.
    pub layers: Option<Spanned<Vec<i64>>>,
    /// `overlap_p2p_comm`.
    pub overlap_p2p: Option<Spanned<bool>>,
    /// `scatter_gather_tensors_in_pipeline`, which did something until March 2023.
    pub scatter_gather: Option<Spanned<bool>>,
    /// torchtitan's `pipeline_parallel_layers_per_stage`.
    pub layers_per_stage: Option<Spanned<i64>>,
    /// torchtitan's `pipeline_parallel_first_stage_less_layers`.
    pub first_stage_less_layers: Option<Spanned<i64>>,
    /// torchtitan's `pipeline_parallel_last_stage_less_layers`.
    pub last_stage_less_layers: Option<Spanned<i64>>,
}

/// `transformer_impl`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Implementation {
    /// Transformer Engine's modules.
    TransformerEngine,
    /// Megatron's own.
    Local,
}

/// Whose kernels LayerNorm is, of Megatron's own modules.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LayerNorm {
    /// Apex's `FastLayerNorm`, Megatron's default (`persist_layer_norm`).
    Persistent,
    /// Apex's first ones (`no_persist_layer_norm`).
    Fused,
    /// PyTorch's, where Apex is not installed.
    Torch,
}

/// How scores become a context.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// In one kernel.
    Flash,
    /// Matmul, softmax, matmul.
    Unfused,
}

/// `recompute_granularity`, `recompute_method` and `recompute_num_layers`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention core.
    CoreAttn,
    /// All blocks, so many together.
    Uniform(i64),
    /// So many blocks of each stage.
    Block(i64),
}

/// `fp8_recipe`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Fp8 {
    /// Scales from earlier steps.
    Delayed,
    /// A scale for each tensor.
    Tensorwise,
    /// A scale for each block of it.
    Blockwise,
    /// A scale for each 32 numbers, which the chip applies.
    Mxfp8,
}

/// `moe_flex_dispatcher_backend`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FlexBackend {
    /// DeepEP.
    Deepep,
    /// NVIDIA's Hybrid-EP.
    Hybridep,
}

/// `cross_entropy_fusion_impl`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FusedLoss {
    /// Megatron's own, compiled.
    Native,
    /// Transformer Engine's.
    Te,
}

/// `data_parallel_sharding_strategy`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Replicas share nothing.
    NoShard,
    /// What the optimizer keeps.
    Optim,
    /// That, and gradients.
    OptimGrads,
    /// That, and parameters.
    OptimGradsParams,
}

/// One of `recompute_modules`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Module {
    /// The attention core.
    CoreAttn,
    /// The activation of experts.
    MoeAct,
    /// The norms that are modules of their own.
    Layernorm,
    /// What latent attention makes of its short vectors.
    MlaUpProj,
    /// The feed-forward of blocks without experts.
    Mlp,
    /// The mixture of experts.
    Moe,
    /// The experts that every token passes.
    SharedExperts,
}

/// `cuda_graph_impl`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Graphs {
    /// Nothing is captured.
    None,
    /// By Megatron-Core.
    Local,
    /// By Transformer Engine.
    TransformerEngine,
}

/// One of `cuda_graph_scope`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All forwards and backwards of a step.
    FullIteration,
    /// Attention.
    Attn,
    /// The feed-forward of blocks without experts.
    Mlp,
    /// The mixture of experts.
    Moe,
    /// Its router.
    MoeRouter,
    /// What its dispatcher does before rows are exchanged.
    MoePreprocess,
    /// Blocks of Mamba.
    Mamba,
}

/// The stream on which PyTorch issues a collective that is waited for at once.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Waited {
    /// The one that asks (from PyTorch 2.8 on).
    CurrentStream,
    /// One of the communicator's own, which the one that asks waits for (before).
    OwnStream,
}

/// `proj_fprop` and `fc2_fprop` of `tp_comm_overlap_cfg`: the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorScatter {
    /// A part of the rows for each rank.
    RingExchange,
    /// Four parts of the columns, by a kernel on so many processors (`num_sm`) that the matmul leaves; 0: it leaves none.
    Pipeline(i64),
}

/// `[megatron]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Megatron {
    /// `transformer_impl`.
    pub implementation: Option<Implementation>,
    /// Whose kernels LayerNorm is.
    pub layer_norm: Option<Spanned<LayerNorm>>,
    /// How scores become a context.
    pub attention: Option<Scores>,
    /// `masked_softmax_fusion`.
    pub masked_softmax_fusion: Option<bool>,
    /// `hidden_dropout` above 0.
    pub hidden_dropout: Option<bool>,
    /// `attention_dropout` above 0.
    pub attention_dropout: Option<bool>,
    /// `bias_gelu_fusion`, `bias_swiglu_fusion`.
    pub bias_activation_fusion: Option<bool>,
    /// `bias_dropout_fusion`.
    pub bias_dropout_fusion: Option<bool>,
    /// `apply_rope_fusion`.
    pub rope_fusion: Option<bool>,
    /// `deterministic_mode`.
    pub deterministic_mode: Option<Spanned<bool>>,
    /// `cross_entropy_loss_fusion`.
    pub cross_entropy_loss_fusion: Option<bool>,
    /// `cross_entropy_fusion_impl`.
    pub cross_entropy_fusion_impl: Option<Spanned<FusedLoss>>,
    /// What runs again in backward.
    pub recompute: Option<Spanned<Recompute>>,
    /// `cp_comm_type`.
    pub cp_comm_type: Option<Spanned<String>>,
    /// `hierarchical_context_parallel_sizes`.
    pub hierarchical_context_parallel_sizes: Option<Spanned<Vec<i64>>>,
    /// `moe_token_dispatcher_type`.
    pub moe_token_dispatcher_type: Option<Spanned<String>>,
    /// `moe_flex_dispatcher_backend`.
    pub moe_flex_dispatcher_backend: Option<Spanned<FlexBackend>>,
    /// `moe_expert_capacity_factor`.
    pub moe_expert_capacity_factor: Option<Spanned<f64>>,
    /// `moe_pad_expert_input_to_capacity`.
    pub moe_pad_expert_input_to_capacity: Option<Spanned<bool>>,
    /// `moe_grouped_gemm`.
    pub moe_grouped_gemm: Option<Spanned<bool>>,
    /// `moe_permute_fusion`.
    pub moe_permute_fusion: Option<Spanned<bool>>,
    /// `moe_router_dtype` `fp32`.
    pub moe_router_fp32: Option<Spanned<bool>>,
    /// `moe_router_fusion`.
    pub moe_router_fusion: Option<Spanned<bool>>,
    /// `recompute_modules`.
    pub recompute_modules: Option<Spanned<Vec<Module>>>,
    /// `overlap_moe_expert_parallel_comm`.
    pub overlap_moe_expert_parallel_comm: Option<Spanned<bool>>,
    /// `moe_shared_expert_overlap`.
    pub moe_shared_expert_overlap: Option<Spanned<bool>>,
    /// The stream of collectives that are waited for at once; matters with `moe_shared_expert_overlap` alone.
    pub waited_collectives: Option<Spanned<Waited>>,
    /// `moe_router_force_load_balancing`.
    pub moe_router_force_load_balancing: Option<Spanned<bool>>,
    /// `delay_wgrad_compute`.
    pub delay_wgrad_compute: Option<Spanned<bool>>,
    /// `moe_aux_loss_coeff` above 0.
    pub moe_aux_loss: Option<Spanned<bool>>,
    /// Whose `get_batch`: Megatron-LM's release, or `each_rank`.
    pub get_batch: Option<Spanned<String>>,
    /// `create_attention_mask_in_dataloader`.
    pub create_attention_mask_in_dataloader: Option<Spanned<bool>>,
    /// `tp_comm_overlap`.
    pub tp_comm_overlap: Option<Spanned<bool>>,
    /// `set_sm_margin` of exchanges in bulk, in `tp_comm_overlap_cfg`.
    pub tp_comm_bulk_sm_margin: Option<Spanned<bool>>,
    /// `proj_fprop` there.
    pub tp_comm_proj_fprop: Option<Spanned<TensorScatter>>,
    /// `fc2_fprop` there.
    pub tp_comm_fc2_fprop: Option<Spanned<TensorScatter>>,
    /// `gradient_accumulation_fusion`.
    pub gradient_accumulation_fusion: Option<bool>,
    /// `accumulate_allreduce_grads_in_fp32`.
    pub grad_reduce_in_fp32: Option<bool>,
    /// `overlap_grad_reduce`.
    pub overlap_grad_reduce: Option<bool>,
    /// `overlap_param_gather`.
    pub overlap_param_gather: Option<Spanned<bool>>,
    /// `align_param_gather`.
    pub align_param_gather: Option<Spanned<bool>>,
    /// `ddp_bucket_size`, in parameters.
    pub bucket_size: Option<Spanned<i64>>,
    /// `use_distributed_optimizer`.
    pub distributed_optimizer: Option<bool>,
    /// `use_megatron_fsdp`.
    pub use_megatron_fsdp: Option<Spanned<bool>>,
    /// `data_parallel_sharding_strategy`.
    pub data_parallel_sharding_strategy: Option<Spanned<Strategy>>,
    /// `suggested_communication_unit_size`, in elements.
    pub suggested_communication_unit_size: Option<Spanned<i64>>,
    /// `fsdp_double_buffer`.
    pub fsdp_double_buffer: Option<Spanned<bool>>,
    /// `create_all_gather_group`.
    pub create_all_gather_group: Option<Spanned<bool>>,
    /// `main_params_dtype`.
    pub main_params_dtype: Option<Spanned<DType>>,
    /// `store_param_remainders`, of the precision-aware optimizer.
    pub store_param_remainders: Option<Spanned<bool>>,
    /// `exp_avg_dtype`.
    pub exp_avg_dtype: Option<Spanned<DType>>,
    /// `exp_avg_sq_dtype`.
    pub exp_avg_sq_dtype: Option<Spanned<DType>>,
    /// `fp8_recipe`; without it no fp8.
    pub fp8: Option<Spanned<Fp8>>,
    /// `fp8_param_gather`.
    pub fp8_param_gather: Option<Spanned<bool>>,
    /// `mtp_num_layers`.
    pub mtp_num_layers: Option<Spanned<i64>>,
    /// `check_for_nan_in_loss_and_grad`.
    pub check_for_nan: Option<bool>,
    /// `cuda_graph_impl`.
    pub cuda_graph_impl: Option<Spanned<Graphs>>,
    /// `cuda_graph_scope`.
    pub cuda_graph_scope: Option<Spanned<Vec<Scope>>>,
    /// `make_vocab_size_divisible_by`.
    pub make_vocab_size_divisible_by: Option<Spanned<i64>>,
}
