//! The tables of Megatron-Core. Keys are its arguments, without `no_`, and without `use_` but for `use_megatron_fsdp`.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{DDP, INTERNEVO, MEGATRON, NANOTRON, PYTORCH_OR_MEGATRON, STAGES, TORCH_XLA, XLA, ZERO};
use super::row::between;
use crate::program::DType;

keys! {
    /// The pipeline over `mesh.pp`.
    #[derive(Debug, Default, Deserialize)]
    ["pipeline"] Pipeline in Mesh.instead(&[
        (DDP, "every rank has the whole model: remove the table"),
        (ZERO, "its pipelines are runtime = \"deepspeed\": remove the table"),
        (INTERNEVO, "InternEvo v0.1 has no pipelines: remove the table"),
        (NANOTRON, "write nanotron.pp_engine = \"1f1b\" or \"afab\""),
        (TORCH_XLA, "a model is not split into stages there: remove the table"),
        (XLA, "write mesh.pipeline, and xla.num_pipeline_microbatches"),
    ]);

    /// The name of a schedule, or under FSDP2 a file in PyTorch's CSV.
    schedule: Option<Spanned<String>> => PYTORCH_OR_MEGATRON.such_as("\"Interleaved1F1B\"")
        default &["deepspeed"] => "\"DeepSpeed1F1B\"" of "DeepSpeed 0.5.10" at "deepspeed/runtime/pipe/schedule.py, TrainSchedule"
        default &["megatron"] => "\"Megatron1F1B\" or \"MegatronInterleaved\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/pipeline_parallel/schedules.py";
    /// Stages on each rank.
    virtual_stages: Option<Spanned<i64>> as between(1, 1 << 16) => PYTORCH_OR_MEGATRON.such_as("2")
        default MEGATRON => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2230";
    /// Layers of each stage, where they are not equal.
    layers: Option<Spanned<Vec<i64>>> => STAGES.such_as("[8, 8, 8, 8]")
        default MEGATRON => "by size" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:48"
        default NANOTRON => "by size" of "nanotron c2528430" at "src/nanotron/models/base.py, build_model: blocks by cost";
    /// `overlap_p2p_comm`: whether messages between stages overlap with compute.
    overlap_p2p: Option<Spanned<bool>> => PYTORCH_OR_MEGATRON
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2232, 585";
    /// `scatter_gather_tensors_in_pipeline`, which had an effect until March 2023.
    scatter_gather: Option<Spanned<bool>> => PYTORCH_OR_MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2272";
    /// torchtitan's `pipeline_parallel_layers_per_stage`: the number of stages follows.
    layers_per_stage: Option<Spanned<i64>> as between(1, 1 << 16) => PYTORCH_OR_MEGATRON.such_as("4");
    /// torchtitan's `pipeline_parallel_first_stage_less_layers`: layers that the first stage lacks for the embedding.
    first_stage_less_layers: Option<Spanned<i64>> as between(0, 1 << 16) => PYTORCH_OR_MEGATRON.such_as("1");
    /// torchtitan's `pipeline_parallel_last_stage_less_layers`: layers that the last stage lacks for the head.
    last_stage_less_layers: Option<Spanned<i64>> as between(0, 1 << 16) => PYTORCH_OR_MEGATRON.such_as("1");
}

words! {
    /// `transformer_impl`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Implementation {
        /// Transformer Engine's modules.
        TransformerEngine = "transformer_engine",
        /// Megatron's own.
        Local = "local",
    }
}

words! {
    /// Whose kernels LayerNorm is, of Megatron's own modules.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum LayerNorm {
        /// Apex's `FastLayerNorm`, Megatron's default (`persist_layer_norm`).
        Persistent = "persistent",
        /// Apex's first ones (`no_persist_layer_norm`).
        Fused = "fused",
        /// PyTorch's, where Apex is not installed.
        Torch = "torch",
    }
}

words! {
    /// How scores become a context.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Scores {
        /// In one kernel.
        Flash = "flash",
        /// Matmul, softmax, matmul.
        Unfused = "unfused",
    }
}

words! {
    /// `recompute_granularity`, `recompute_method` and `recompute_num_layers`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Recompute {
        /// Nothing.
        None = "none",
        /// The attention core.
        CoreAttn = "core_attn",
        /// All blocks, so many together.
        Uniform(i64) = "uniform" of "N",
        /// So many blocks of each stage.
        Block(i64) = "block" of "N",
    }
}

words! {
    /// `fp8_recipe`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Fp8 {
        /// Scales from earlier steps.
        Delayed = "delayed",
        /// A scale for each tensor.
        Tensorwise = "tensorwise",
        /// A scale for each block of it.
        Blockwise = "blockwise",
        /// A scale for each 32 numbers, which the chip applies.
        Mxfp8 = "mxfp8",
    }
}

words! {
    /// `moe_flex_dispatcher_backend`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum FlexBackend {
        /// DeepEP.
        Deepep = "deepep",
        /// NVIDIA's Hybrid-EP.
        Hybridep = "hybridep",
    }
}

words! {
    /// A release of Megatron-Core.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum CoreVersion {
        /// With Transformer Engine 2.9.
        V0_16 = "0.16.1",
        /// With Transformer Engine 2.20.2.
        V0_19 = "0.19.2",
    }
}

words! {
    /// `cross_entropy_fusion_impl`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum FusedLoss {
        /// Megatron's own, compiled.
        Native = "native",
        /// Transformer Engine's.
        Te = "te",
    }
}

words! {
    /// `data_parallel_sharding_strategy`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Strategy {
        /// Replicas share nothing.
        NoShard = "no_shard",
        /// What the optimizer keeps.
        Optim = "optim",
        /// That, and gradients.
        OptimGrads = "optim_grads",
        /// That, and parameters.
        OptimGradsParams = "optim_grads_params",
    }
}

words! {
    /// One of `recompute_modules`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Module {
        /// The attention core.
        CoreAttn = "core_attn",
        /// The activation of experts.
        MoeAct = "moe_act",
        /// The norms that are modules of their own.
        Layernorm = "layernorm",
        /// What latent attention makes of its short vectors.
        MlaUpProj = "mla_up_proj",
        /// The feed-forward of blocks without experts.
        Mlp = "mlp",
        /// The mixture of experts.
        Moe = "moe",
        /// The experts that every token passes.
        SharedExperts = "shared_experts",
    }
}

words! {
    /// `cuda_graph_impl`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Graphs {
        /// Nothing is captured.
        None = "none",
        /// By Megatron-Core.
        Local = "local",
        /// By Transformer Engine.
        TransformerEngine = "transformer_engine",
    }
}

words! {
    /// One of `cuda_graph_scope`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Scope {
        /// All forwards and backwards of a step.
        FullIteration = "full_iteration",
        /// Attention.
        Attn = "attn",
        /// The feed-forward of blocks without experts.
        Mlp = "mlp",
        /// The mixture of experts.
        Moe = "moe",
        /// Its router.
        MoeRouter = "moe_router",
        /// What its dispatcher does before rows are exchanged.
        MoePreprocess = "moe_preprocess",
        /// Blocks of Mamba.
        Mamba = "mamba",
    }
}

words! {
    /// The stream on which PyTorch issues a collective that is waited for at once.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum Waited {
        /// The one that asks (from PyTorch 2.8 on).
        CurrentStream = "current_stream",
        /// One of the communicator's own, which the one that asks waits for (before).
        OwnStream = "own_stream",
    }
}

words! {
    /// `proj_fprop` and `fc2_fprop` of `tp_comm_overlap_cfg`: the method.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    pub enum TensorScatter {
        /// A part of the rows for each rank.
        RingExchange = "ring_exchange",
        /// Four parts of the columns, by a kernel on so many processors (`num_sm`) that the matmul leaves; 0: it leaves none.
        Pipeline(i64) = "pipeline" of "N",
    }
}

keys! {
    /// Megatron-Core's arguments, without `no_`, and without `use_` but for `use_megatron_fsdp`.
    #[derive(Debug, Default, Deserialize)]
    ["megatron"] Megatron in Megatron.owner("megatron");

    /// `transformer_impl`: Transformer Engine's modules, or Megatron-Core's own.
    implementation: Option<Implementation> => MEGATRON
        default &["deepspeed"] => "\"local\"" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 (not read line by line)"
        default &["megatron"] => "\"transformer_engine\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:880";
    /// The release of Megatron-Core, with the Transformer Engine of its time: what it keeps of logits differs.
    core_version: Option<CoreVersion> => MEGATRON;
    /// Whose kernels LayerNorm is.
    layer_norm: Option<Spanned<LayerNorm>> => MEGATRON;
    /// The core of attention: a flash kernel, or matmuls around a softmax.
    attention: Option<Scores> => MEGATRON
        default &["deepspeed"] => "\"unfused\"" of "none" at "of the job or the machine: no framework has a default"
        default &["megatron"] => "\"flash\" or \"unfused\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:110";
    /// `masked_softmax_fusion`: whether mask, scale and softmax are one kernel.
    masked_softmax_fusion: Option<bool> => MEGATRON
        default &["deepspeed"] => "true" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 megatron/arguments.py:460-466,541-551"
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2030";
    /// Whether `hidden_dropout` is above 0.
    hidden_dropout: Option<bool> => MEGATRON
        default &["deepspeed"] => "true" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 megatron/arguments.py:460-466,541-551"
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:137";
    /// Whether `attention_dropout` is above 0.
    attention_dropout: Option<bool> => MEGATRON
        default &["deepspeed"] => "true" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 megatron/arguments.py:460-466,541-551"
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:140";
    /// `bias_gelu_fusion` and `bias_swiglu_fusion`: whether bias and activation are one kernel.
    bias_activation_fusion: Option<bool> => MEGATRON
        default MEGATRON => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2035-2041, 964-965";
    /// `use_fused_weighted_squared_relu`: whether experts' squared ReLU and the weights of their rows are one kernel.
    use_fused_weighted_squared_relu: Option<Spanned<bool>> => MEGATRON;
    /// `bias_dropout_fusion`: whether bias, dropout and residual are one kernel.
    bias_dropout_fusion: Option<bool> => MEGATRON
        default MEGATRON => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2042";
    /// `apply_rope_fusion`: whether rotary embeddings are one kernel.
    rope_fusion: Option<bool> => MEGATRON
        default MEGATRON => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2045, 994-995";
    /// `deterministic_mode`: whether all kernels are deterministic.
    deterministic_mode: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py, deterministic_mode: bool = False";
    /// `cross_entropy_loss_fusion`: whether the loss is fused.
    cross_entropy_loss_fusion: Option<bool> => MEGATRON
        default MEGATRON => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:241";
    /// `cross_entropy_fusion_impl`: whose fused loss it is.
    cross_entropy_fusion_impl: Option<Spanned<FusedLoss>> => MEGATRON;
    /// What is recomputed in backward.
    recompute: Option<Spanned<Recompute>> => MEGATRON
        default MEGATRON => "\"none\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:383";
    /// `cp_comm_type`: how context-parallel ranks exchange keys and values.
    cp_comm_type: Option<Spanned<String>> => MEGATRON.such_as("\"a2a\"")
        default &["megatron"] => "\"p2p\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2341";
    /// `hierarchical_context_parallel_sizes`: ranks of the inner and of the outer group, for `a2a+p2p`.
    hierarchical_context_parallel_sizes: Option<Spanned<Vec<i64>>> => MEGATRON.such_as("[8, 2]");
    /// `moe_token_dispatcher_type`: how tokens reach their experts.
    moe_token_dispatcher_type: Option<Spanned<String>> => MEGATRON.such_as("\"alltoall\"")
        default &["megatron"] => "\"allgather\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:675";
    /// `moe_flex_dispatcher_backend`: whose kernels the flex dispatcher calls.
    moe_flex_dispatcher_backend: Option<Spanned<FlexBackend>> => MEGATRON;
    /// `moe_flex_dispatcher_num_sms`: SMs that its kernels run on (`moe_deepep_num_sms`, `moe_hybridep_num_sms` before 0.19).
    moe_flex_dispatcher_num_sms: Option<Spanned<i64>> as between(1, 1 << 10) => MEGATRON.such_as("32");
    /// `moe_expert_capacity_factor`: the most tokens of an expert, over its even share.
    moe_expert_capacity_factor: Option<Spanned<f64>> => MEGATRON.such_as("1.25");
    /// `moe_pad_expert_input_to_capacity`: whether each expert's input is padded to its capacity.
    moe_pad_expert_input_to_capacity: Option<Spanned<bool>> => MEGATRON;
    /// `moe_grouped_gemm`: whether the experts of a rank run in grouped matmuls.
    moe_grouped_gemm: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py, moe_grouped_gemm False; differs: published recipes write true";
    /// `moe_permute_fusion`: whether tokens are permuted by fused kernels.
    moe_permute_fusion: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:708,629,711";
    /// Whether `moe_router_dtype` is `fp32`.
    moe_router_fp32: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:708,629,711";
    /// `moe_router_fusion`: whether the router's scores are fused kernels.
    moe_router_fusion: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:708,629,711";
    /// `recompute_modules`: modules whose outputs selective recompute drops.
    recompute_modules: Option<Spanned<Vec<Module>>> => MEGATRON
        default &["megatron"] => "[]" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:411-414";
    /// `overlap_moe_expert_parallel_comm`: whether exchanges of experts overlap with the compute of another
    /// micro-batch.
    overlap_moe_expert_parallel_comm: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:264";
    /// `moe_shared_expert_overlap`: whether shared experts overlap with the dispatcher's exchanges.
    moe_shared_expert_overlap: Option<Spanned<bool>> => MEGATRON;
    /// The stream of collectives that are waited for at once. It has an effect only with `moe_shared_expert_overlap`.
    waited_collectives: Option<Spanned<Waited>> => MEGATRON;
    /// `moe_router_force_load_balancing`: whether a benchmark's router balances all experts.
    moe_router_force_load_balancing: Option<Spanned<bool>> => MEGATRON;
    /// `delay_wgrad_compute`: whether weight gradients are computed later than input gradients.
    delay_wgrad_compute: Option<Spanned<bool>> => MEGATRON;
    /// Whether `moe_aux_loss_coeff` is above 0.
    moe_aux_loss: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2709; megatron/core/transformer/moe/router.py (_apply_aux_loss)";
    /// The `get_batch` of the training loop: a release of Megatron-LM, or `each_rank`, where each rank reads its own.
    get_batch: Option<Spanned<String>> => MEGATRON.such_as("\"each_rank\"")
        default &["megatron"] => "\"0.16\"" of "none" at "of the job or the machine: no framework has a default";
    /// `create_attention_mask_in_dataloader`: whether the attention mask comes with the batch.
    create_attention_mask_in_dataloader: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2505";
    /// `tp_comm_overlap`: whether tensor-parallel exchanges overlap with matmuls.
    tp_comm_overlap: Option<Spanned<bool>> => MEGATRON
        default MEGATRON => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:186";
    /// `set_sm_margin` of exchanges in bulk, in `tp_comm_overlap_cfg`.
    tp_comm_bulk_sm_margin: Option<Spanned<bool>> => MEGATRON;
    /// `proj_fprop` in `tp_comm_overlap_cfg`.
    tp_comm_proj_fprop: Option<Spanned<TensorScatter>> => MEGATRON;
    /// `fc2_fprop` in `tp_comm_overlap_cfg`.
    tp_comm_fc2_fprop: Option<Spanned<TensorScatter>> => MEGATRON;
    /// `gradient_accumulation_fusion`: whether matmuls add weight gradients into the main gradients themselves.
    gradient_accumulation_fusion: Option<bool> => MEGATRON
        default &["deepspeed"] => "false" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 (not read line by line)"
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2083";
    /// `accumulate_allreduce_grads_in_fp32`: whether gradients are summed and reduced in fp32.
    grad_reduce_in_fp32: Option<bool> => MEGATRON
        default &["deepspeed"] => "false or true" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "deepspeed/runtime/engine.py:1800-1810; differs in bf16: this runtime is Megatron-DeepSpeed's with DeepSpeed 0.5 to 0.8, whose BF16_Optimizer keeps the gradients in bf16 beside the sums"
        default &["megatron"] => "false or true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:716-724";
    /// `overlap_grad_reduce`: whether gradients are reduced while backward runs.
    overlap_grad_reduce: Option<bool> => MEGATRON
        default MEGATRON => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2243";
    /// `overlap_param_gather`: whether parameters are gathered while forward runs.
    overlap_param_gather: Option<Spanned<bool>> => MEGATRON
        default MEGATRON => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2264";
    /// `align_param_gather`: whether all pipeline stages start to gather parameters together.
    align_param_gather: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2268-2271, 585-586; megatron/training/training.py:2561";
    /// `ddp_bucket_size`: parameters of a bucket of gradients.
    bucket_size: Option<Spanned<i64>> as between(1, 1 << 40) => MEGATRON.such_as("40000000")
        default &["megatron"] => "by size" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/training.py:1316-1318";
    /// `use_distributed_optimizer`: whether optimizer states are sharded over replicas (ZeRO-1).
    distributed_optimizer: Option<bool> => MEGATRON
        default &["deepspeed"] => "false" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "deepspeed/runtime/engine.py, _do_optimizer_sanity_check (model_dtype == grad_accum_dtype, pipeline_parallelism -> BFLOAT16); deepspeed/runtime/bf16_optimizer.py (fp32_groups_flat_partition); differs in bf16: this runtime is Megatron-DeepSpeed's with DeepSpeed 0.5 to 0.8, and BF16_Optimizer is not simulated"
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2283";
    /// `use_megatron_fsdp`: whether Megatron-FSDP shards the model.
    use_megatron_fsdp: Option<Spanned<bool>> => MEGATRON;
    /// `data_parallel_sharding_strategy`: what Megatron-FSDP shards.
    data_parallel_sharding_strategy: Option<Spanned<Strategy>> => MEGATRON;
    /// `suggested_communication_unit_size`: elements that Megatron-FSDP gathers at a time.
    suggested_communication_unit_size: Option<Spanned<i64>> as between(1, 1 << 40) => MEGATRON.such_as("400000000");
    /// `fsdp_double_buffer`: whether Megatron-FSDP keeps two buffers instead of allocating each time.
    fsdp_double_buffer: Option<Spanned<bool>> => MEGATRON;
    /// `create_all_gather_group`: whether gathers have a communicator of their own.
    create_all_gather_group: Option<Spanned<bool>> => MEGATRON;
    /// `main_params_dtype`: type of the optimizer's copy of the parameters.
    main_params_dtype: Option<Spanned<DType>> => MEGATRON
        default MEGATRON => "\"fp32\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2846";
    /// `store_param_remainders`: whether the precision-aware optimizer keeps only the bits that bf16 lacks.
    store_param_remainders: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/optimizer/optimizer_config.py:192,384 (Transformer Engine 2.1 on)";
    /// `exp_avg_dtype`: type of the first moments.
    exp_avg_dtype: Option<Spanned<DType>> => MEGATRON
        default MEGATRON => "\"fp32\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2848,2853";
    /// `exp_avg_sq_dtype`: type of the second moments.
    exp_avg_sq_dtype: Option<Spanned<DType>> => MEGATRON
        default MEGATRON => "\"fp32\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:2848,2853";
    /// `fp8_recipe`: how matmuls in fp8 are scaled. Without the key there is no fp8.
    fp8: Option<Spanned<Fp8>> => MEGATRON;
    /// `fp8_param_gather`: whether parameters are kept and gathered in fp8.
    fp8_param_gather: Option<Spanned<bool>> => MEGATRON
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:429; megatron/training/arguments.py:1398";
    /// `mtp_num_layers`: modules of multi-token prediction.
    mtp_num_layers: Option<Spanned<i64>> as between(0, 16) => MEGATRON.such_as("1");
    /// `check_for_nan_in_loss_and_grad`: whether each loss and gradient is checked for NaN.
    check_for_nan: Option<bool> => MEGATRON
        default &["deepspeed"] => "false" of "DeepSpeed 0.19.8 under Megatron-DeepSpeed" at "bigscience-workshop/Megatron-DeepSpeed@8387ae17 (git grep check_for_nan: optimizer.py:315 alone, the fp16 scaler's)"
        default &["megatron"] => "false or true" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:702-708";
    /// `cuda_graph_impl`: who captures CUDA graphs.
    cuda_graph_impl: Option<Spanned<Graphs>> => MEGATRON
        default &["megatron"] => "\"none\"" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/transformer/transformer_config.py:776; megatron/training/arguments.py:1430";
    /// `cuda_graph_scope`: what is captured.
    cuda_graph_scope: Option<Spanned<Vec<Scope>>> => MEGATRON;
    /// `make_vocab_size_divisible_by`: the vocabulary is padded to a multiple of this times the tensor-parallel ranks.
    make_vocab_size_divisible_by: Option<Spanned<i64>> as between(1, 1 << 16) => MEGATRON.such_as("64")
        default MEGATRON => "128" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:1678";
}
