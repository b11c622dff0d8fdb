//! The table of the SPMD lane.

use super::readers::XLA;
use super::row::Choice::Word;
use super::row::Kind::{Choice, Count, Flag, List, Number, Text};
use super::row::{Group, Key, Table};

/// `[xla]`
pub(super) const XLA_KEYS: Table = Table {
    name: "xla",
    help: "MaxText's configuration (`configs/base.yml`).",
    group: Group::Rest,
    owner: Some("xla"),
    instead: &[],
    keys: &[
        Key::new(
            "remat_policy",
            Text,
            XLA,
            "`remat_policy`: which activations are kept, one of MaxText's policies or `custom`.",
        ),
        Key::new(
            "decoder_layer_input",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `decoder_layer_input`.",
        ),
        Key::new(
            "query_proj",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `query_proj`.",
        ),
        Key::new(
            "key_proj",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `key_proj`.",
        ),
        Key::new(
            "value_proj",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `value_proj`.",
        ),
        Key::new(
            "context",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `context`.",
        ),
        Key::new(
            "out_proj",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `out_proj`.",
        ),
        Key::new(
            "mlpwi_0",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `mlpwi_0`.",
        ),
        Key::new(
            "mlpwi_1",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `mlpwi_1`.",
        ),
        Key::new(
            "mlpwo",
            Choice(&[Word("remat"), Word("device"), Word("offload")]),
            XLA,
            "With `custom`: what becomes of `mlpwo`.",
        ),
        Key::new("scan_layers", Flag, XLA, "`scan_layers`: whether layers run in one loop."),
        Key::new(
            "attention",
            Choice(&[Word("flash"), Word("dot_product"), Word("cudnn_flash_te"), Word("cudnn_flash_jax")]),
            XLA,
            "`attention`: the splash kernel on TPUs (`flash`), cuDNN's kernels on GPUs, or matmuls around a softmax.",
        ),
        Key::new(
            "sa_use_fused_bwd_kernel",
            Flag,
            XLA,
            "`sa_use_fused_bwd_kernel`: whether attention's backward is one kernel.",
        ),
        Key::new(
            "sa_block_size",
            Count(Some((128, 1 << 16))),
            XLA,
            "Queries and keys of a block of the attention kernel: `sa_block_q`, `sa_block_kv` and the like, as one number.",
        ),
        Key::new(
            "activation_embed",
            Flag,
            XLA,
            "Whether the logical axis `activation_embed` is sharded over `tensor`.",
        ),
        Key::new(
            "use_tokamax_splash",
            Flag,
            XLA,
            "`use_tokamax_splash`: whether attention is Tokamax's splash kernel.",
        ),
        Key::new(
            "quantization",
            Choice(&[Word("int8"), Word("fp8_full")]),
            XLA,
            "`quantization`: the type of linears' operands.",
        ),
        Key::new(
            "fixed_calibration",
            Flag,
            XLA,
            "Whether operands are scaled by fixed numbers (`act_quantization_calibration_method` of `fixed,…`).",
        ),
        Key::new(
            "mu_dtype",
            Choice(&[Word("float32"), Word("bfloat16")]),
            XLA,
            "`mu_dtype`: type of the first moments.",
        ),
        Key::new(
            "flags",
            List(&[]),
            XLA,
            "On TPUs groups of compiler flags, by the names of MaxText's `benchmarks/xla_flags_library.py`; on GPUs flags of `XLA_FLAGS`, such as `xla_gpu_enable_pipelined_all_gather=true`.",
        ),
        Key::new(
            "python_client_mem_fraction",
            Number,
            XLA,
            "`XLA_PYTHON_CLIENT_MEM_FRACTION`: the share of a GPU's memory that JAX takes.",
        ),
        Key::new(
            "targets",
            Choice(&[Word("one_hot"), Word("indexed")]),
            XLA,
            "How the loss finds the logit of the target word.",
        ),
        Key::new(
            "num_vocab_tiling",
            Count(Some((1, 1 << 16))),
            XLA,
            "`num_vocab_tiling`: parts in which the head and the loss run.",
        ),
        Key::new(
            "capacity_factor",
            Number,
            XLA,
            "`capacity_factor` of experts, with `megablox` and `sparse_matmul` off.",
        ),
        Key::new(
            "expert_exchange",
            Choice(&[Word("weights"), Word("tokens")]),
            XLA,
            "What is exchanged over the expert axis.",
        ),
        Key::new(
            "use_iota_embed",
            Flag,
            XLA,
            "`use_iota_embed`: whether the embedding is a matmul with a one-hot matrix.",
        ),
        Key::new(
            "gradient_clipping",
            Flag,
            XLA,
            "Whether gradients are clipped: `gradient_clipping_threshold` above zero.",
        ),
        Key::new(
            "num_layers_per_pipeline_stage",
            Count(Some((1, 1 << 16))),
            XLA,
            "`num_layers_per_pipeline_stage`: layers of a stage.",
        ),
        Key::new(
            "num_pipeline_repeats",
            Count(Some((1, 1 << 16))),
            XLA,
            "`num_pipeline_repeats`: how often a micro-batch passes through all stages.",
        ),
        Key::new(
            "num_pipeline_microbatches",
            Count(Some((1, 1 << 16))),
            XLA,
            "`num_pipeline_microbatches`: micro-batches in the pipeline.",
        ),
        Key::new(
            "pipeline_parallel_layers",
            Count(None),
            XLA,
            "`pipeline_parallel_layers`: layers in the pipeline; the others run after it.",
        ),
        Key::new(
            "pipeline_delay_activation_forwarding",
            Flag,
            XLA,
            "`pipeline_delay_activation_forwarding`: whether stages send one iteration later, so that sends overlap.",
        ),
        Key::new(
            "pipeline_fsdp_ag_once",
            Flag,
            XLA,
            "`pipeline_fsdp_ag_once`: whether weights are gathered once for all iterations.",
        ),
        Key::new(
            "pipeline_fsdp_ag_per_repeat",
            Flag,
            XLA,
            "`pipeline_fsdp_ag_per_repeat`: whether weights are gathered once for each repeat.",
        ),
        Key::new(
            "set_remat_policy_on_pipeline_iterations",
            Flag,
            XLA,
            "`set_remat_policy_on_pipeline_iterations`: whether the remat policy covers each iteration.",
        ),
        Key::new(
            "set_remat_policy_on_layers_per_stage",
            Flag,
            XLA,
            "`set_remat_policy_on_layers_per_stage`: whether the remat policy covers each layer of a stage.",
        ),
        Key::new(
            "scan_pipeline_iterations",
            Flag,
            XLA,
            "`scan_pipeline_iterations`: whether iterations run in one loop.",
        ),
        Key::new(
            "scan_layers_per_stage",
            Flag,
            XLA,
            "`scan_layers_per_stage`: whether the layers of a stage run in one loop.",
        ),
        Key::new(
            "steps",
            Count(Some((1, 1 << 40))),
            XLA,
            "`steps`: steps of the run, over which the time to compile is divided.",
        ),
        Key::new("shapes", Count(Some((1, 1 << 16))), XLA, "Shapes of batches in the run, each compiled once."),
        Key::new("persistent_cache", Flag, XLA, "Whether an earlier run filled the persistent cache."),
        Key::new(
            "host_syncs_per_step",
            Count(Some((0, 1 << 16))),
            XLA,
            "Reads of the device's numbers that the loop waits for in each step.",
        ),
    ],
};
