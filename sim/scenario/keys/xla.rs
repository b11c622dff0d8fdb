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
        Key::new("remat_policy", Text, XLA, "`remat_policy`: one of MaxText's, or `custom`."),
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
        Key::new("scan_layers", Flag, XLA, "`scan_layers`: blocks in one loop."),
        Key::new("attention", Choice(&[Word("flash"), Word("dot_product")]), XLA, "`attention`."),
        Key::new("sa_use_fused_bwd_kernel", Flag, XLA, "`sa_use_fused_bwd_kernel`."),
        Key::new(
            "sa_block_size",
            Count(Some((128, 1 << 16))),
            XLA,
            "Queries and keys of a block of the kernel (`sa_block_q`, `sa_block_kv` and their like, taken as one).",
        ),
        Key::new("activation_embed", Flag, XLA, "Whether the logical axis `activation_embed` lies on `tensor`."),
        Key::new("use_tokamax_splash", Flag, XLA, "`use_tokamax_splash`."),
        Key::new("quantization", Choice(&[Word("int8"), Word("fp8_full")]), XLA, "`quantization`."),
        Key::new(
            "fixed_calibration",
            Flag,
            XLA,
            "Whether operands are scaled by fixed numbers (`act_quantization_calibration_method` of `fixed,…`).",
        ),
        Key::new("mu_dtype", Choice(&[Word("float32"), Word("bfloat16")]), XLA, "`mu_dtype`."),
        Key::new(
            "flags",
            List(&[]),
            XLA,
            "Groups of compiler flags, by the names of MaxText's `benchmarks/xla_flags_library.py`.",
        ),
        Key::new(
            "targets",
            Choice(&[Word("one_hot"), Word("indexed")]),
            XLA,
            "How the loss finds the logit of the right word.",
        ),
        Key::new("num_vocab_tiling", Count(Some((1, 1 << 16))), XLA, "`num_vocab_tiling`."),
        Key::new(
            "capacity_factor",
            Number,
            XLA,
            "`capacity_factor` of experts, with `megablox` and `sparse_matmul` off.",
        ),
        Key::new("expert_exchange", Choice(&[Word("weights"), Word("tokens")]), XLA, "What goes over the expert axis."),
        Key::new("use_iota_embed", Flag, XLA, "`use_iota_embed`."),
        Key::new(
            "gradient_clipping",
            Flag,
            XLA,
            "Whether gradients are clipped (`gradient_clipping_threshold` above zero).",
        ),
        Key::new("num_layers_per_pipeline_stage", Count(Some((1, 1 << 16))), XLA, "`num_layers_per_pipeline_stage`."),
        Key::new("num_pipeline_repeats", Count(Some((1, 1 << 16))), XLA, "`num_pipeline_repeats`."),
        Key::new("num_pipeline_microbatches", Count(Some((1, 1 << 16))), XLA, "`num_pipeline_microbatches`."),
        Key::new("pipeline_parallel_layers", Count(None), XLA, "`pipeline_parallel_layers`: blocks in the pipeline."),
        Key::new("pipeline_delay_activation_forwarding", Flag, XLA, "`pipeline_delay_activation_forwarding`."),
        Key::new("pipeline_fsdp_ag_once", Flag, XLA, "`pipeline_fsdp_ag_once`."),
        Key::new("pipeline_fsdp_ag_per_repeat", Flag, XLA, "`pipeline_fsdp_ag_per_repeat`."),
        Key::new("set_remat_policy_on_pipeline_iterations", Flag, XLA, "`set_remat_policy_on_pipeline_iterations`."),
        Key::new("set_remat_policy_on_layers_per_stage", Flag, XLA, "`set_remat_policy_on_layers_per_stage`."),
        Key::new("scan_pipeline_iterations", Flag, XLA, "`scan_pipeline_iterations`."),
        Key::new("scan_layers_per_stage", Flag, XLA, "`scan_layers_per_stage`."),
        Key::new(
            "steps",
            Count(Some((1, 1 << 40))),
            XLA,
            "Steps of the run, over which compiling is spread (`steps`).",
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
