//! The tables `[fsdp]`, `[fsdp1]` and `[ddp]` as written.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{COMPILED, DDP, FSDP, FSDP1, INTERNEVO, MEGATRON, NANOTRON, ZERO};
use super::row::Kind::{List, Other};
use super::row::between;

/// `reshard_after_forward`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected true, false, or a number of ranks")]
pub enum Reshard {
    /// Always or never.
    Flag(bool),
    /// On this many ranks.
    Ranks(i64),
}

/// `set_reshard_after_backward`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected true, or \"last_micro_batch\"")]
pub enum ReshardAfterBackward {
    /// After every backward, or never.
    Flag(bool),
    /// When a word says.
    At(ReshardMoment),
}

/// When parameters are resharded after a backward.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum ReshardMoment {
    /// After that of a step's last micro-batch.
    LastMicroBatch,
}

words! {
    /// Which blocks are wrapped.
    #[derive(Clone, Debug, Deserialize, PartialEq)]
    pub enum Wrap {
        /// Only the whole model.
        Root = "root",
        /// Each block, and the root.
        Block = "block",
        /// torchtitan: each block, the embedding, final norm and head together, and the root.
        Torchtitan = "torchtitan",
        /// llm-foundry: each block, token table, position table and final norm each, and an empty root.
        LlmFoundry = "llm_foundry",
        /// One block in so many, starting with the first, and the root.
        Every(i64) = "every" of "N",
        /// These blocks, and the root.
        Blocks(Vec<i64>) = "blocks" of "[…]",
        /// So many consecutive blocks together, and the root.
        Together(i64) = "together" of "N",
        /// These blocks, a list of them together, and the root.
        Lists(Vec<Unit>) = "lists" of "[…]",
        /// These modules of every block (`"block"`: the block itself), and the root.
        Modules(Vec<Spanned<String>>) = "modules" of "[…]",
    }
}

/// A unit among several.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "expected a block, or a list of blocks")]
pub enum Unit {
    /// One block.
    One(i64),
    /// Blocks that share a group.
    Together(Vec<i64>),
}

/// `[[fsdp.override]]`: another policy for some blocks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// First block, and the one after the last.
    pub blocks: Spanned<(i64, i64)>,
    /// Their policy.
    pub reshard_after_forward: Spanned<Reshard>,
}

keys! {
    /// `fully_shard`, and `FullyShardedDataParallel`.
    #[derive(Clone, Debug, Default, Deserialize, PartialEq)]
    ["fsdp"] Fsdp in Sharding.instead(&[
        (DDP, "nothing is sharded: remove the table, or write runtime = \"fsdp2\""),
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are sharded over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (COMPILED, "nothing is wrapped, resharded or prefetched here: the compiler gathers weights; write mesh.fsdp"),
    ]);

    /// Which modules are FSDP units of their own.
    wrap: Option<Spanned<Wrap>> => FSDP.such_as("\"torchtitan\"")
        default FSDP => "\"block\"" of "torchtitan 0.2.2, torchtitan 0.3.0" at "torchtitan/models/llama3/infra/parallelize.py:335-357";
    /// Whether wrapped layers are resharded after forward, or over how many ranks.
    reshard_after_forward: Option<Spanned<Reshard>> => FSDP.such_as("8")
        default FSDP => "true" of "PyTorch 2.15.0; torchtitan 0.2.2" at "_fully_shard.py:258-263, _fsdp_state.py:224; job_config.py:336";
    /// Modules at the model's ends that are units of their own.
    ends: Option<Spanned<Vec<Spanned<String>>>> => FSDP.such_as("[\"embedding\", \"norm_and_head\"]");
    /// Whether the head is resharded after forward, where it is a unit.
    head_reshard_after_forward: Option<Spanned<Reshard>> => FSDP.such_as("true");
    /// Whether the root is resharded after forward.
    root_reshard_after_forward: Option<Spanned<Reshard>> => FSDP.such_as("true")
        default &["fsdp2"] => "false" of "PyTorch 2.15.0" at "torch/distributed/fsdp/_fully_shard/_fully_shard.py:258-263, _fsdp_state.py:224 (auto_reshard_after_forward: the root's is False)";
    /// Whether parameters are resharded after a backward.
    reshard_after_backward: Option<Spanned<ReshardAfterBackward>> as Other("true, or \"last_micro_batch\"") => FSDP.such_as("\"last_micro_batch\"");
    /// Another reshard policy for some layers.
    #[serde(default, rename = "override")]
    overrides: Vec<Override> as List(&[]) => FSDP.at("fsdp.override").such_as("[{ blocks = [0, 8], reshard_after_forward = false }]");
    /// Layers that each layer prefetches explicitly in forward.
    forward_prefetch: Option<Spanned<i64>> as between(0, 1 << 16) => FSDP.such_as("1")
        default FSDP => "0" of "PyTorch 2.15.0; torchtitan 0.2.2" at "_fully_shard.py:713; torchtitan/models/llama4/infra/parallelize.py:445-467";
    /// Layers that each layer prefetches explicitly in backward.
    backward_prefetch: Option<Spanned<i64>> as between(0, 1 << 16) => FSDP.such_as("1")
        default &["fsdp2"] => "0" of "PyTorch 2.15.0; torchtitan 0.2.2" at "_fsdp_state.py:411; llama4/infra/parallelize.py:477-497";
    /// Parameters that are sharded on their second dimension, by the ends of their names (`shard_placement_fn`).
    shard_dim_1: Option<Spanned<Vec<String>>> => FSDP.such_as("[\"w2\"]");
    /// Inputs of reduce-scatters that are kept in flight.
    reduce_scatter_buffers: Option<Spanned<i64>> as between(1, 1 << 16) => FSDP.such_as("2")
        default &["fsdp2"] => "1" of "PyTorch 2.15.0" at "_fully_shard.py:911-935, set_reduce_scatter_max_input_buffers";
    /// `set_unshard_in_backward`: whether backward gathers parameters.
    unshard_in_backward: Option<bool> => FSDP
        default &["fsdp2"] => "true" of "PyTorch 2.15.0" at "_fsdp_param_group.py:300";
    /// `CPUOffloadPolicy`: whether shards and optimizer states live in host memory.
    cpu_offload: Option<bool> => FSDP
        default FSDP => "false" of "PyTorch 2.15.0; torchtitan 0.2.2" at "_fully_shard.py signature; job_config.py:270";
}

keys! {
    /// What only `FullyShardedDataParallel` has.
    #[derive(Debug, Default, Deserialize)]
    ["fsdp1"] Fsdp1 in Sharding.instead(&[
        (DDP, "nothing is sharded: remove the table, or write runtime = \"fsdp1\""),
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are sharded over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (COMPILED, "nothing is wrapped here: the compiler gathers weights; write mesh.fsdp"),
    ]);

    /// `use_orig_params`: whether the optimizer sees the model's own parameters instead of flat ones.
    use_orig_params: Option<bool> => FSDP1
        default FSDP1 => "false" of "PyTorch 2.15.0" at "fully_sharded_data_parallel.py:412";
    /// `BackwardPrefetch`: when backward gathers the next unit.
    backward_prefetch: Option<BackwardPrefetch> => FSDP1
        default FSDP1 => "\"pre\"" of "PyTorch 2.15.0; torchtitan 0.2.2" at "_fsdp_state.py:411; llama4/infra/parallelize.py:477-497";
    /// `limit_all_gathers`: whether the host waits until an earlier unit is freed before it gathers another.
    limit_all_gathers: Option<bool> => FSDP1
        default FSDP1 => "true" of "PyTorch 2.15.0" at "fully_sharded_data_parallel.py:411";
    /// Whether gradients are padded, and so copied, even by nothing (PyTorch 1.13).
    always_pads: Option<bool> => FSDP1;
}

words! {
    /// `BackwardPrefetch`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum BackwardPrefetch {
        /// `BACKWARD_PRE`.
        Pre = "pre",
        /// `BACKWARD_POST`.
        Post = "post",
        /// Neither.
        None = "none",
    }
}

keys! {
    /// Arguments of `DistributedDataParallel`.
    #[derive(Debug, Default, Deserialize)]
    ["ddp"] Ddp in Sharding.owner("ddp");

    /// `bucket_cap_mb`: MiB that fill a bucket of gradients. By default 25, and 1 for the first bucket.
    bucket_cap_mb: Option<Spanned<i64>> as between(1, 1 << 20) => DDP.such_as("100");
    /// `gradient_as_bucket_view`: whether gradients are views of buckets, or are copied into them and back.
    gradient_as_bucket_view: Option<bool> => DDP
        default DDP => "false" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, DistributedDataParallel.__init__";
    /// `static_graph`: whether the graph of every step is the first one's.
    static_graph: Option<bool> => DDP
        default DDP => "false" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, DistributedDataParallel.__init__";
    /// `find_unused_parameters`: whether each forward looks for parameters that it has not used.
    find_unused_parameters: Option<bool> => DDP
        default DDP => "false" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, DistributedDataParallel.__init__";
    /// `broadcast_buffers`: whether a forward begins with the first rank's buffers (`forward_sync_buffers` from 2.13
    /// on).
    broadcast_buffers: Option<bool> => DDP
        default DDP => "true" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, DistributedDataParallel.__init__ (forward_sync_buffers=None: true)";
    /// `batched_grad_copy`: whether a bucket's gradients are copied together once it is full.
    batched_grad_copy: Option<bool> => DDP;
    /// `lazy_bucket_allocation`: whether buckets are allocated when their first gradient comes, and go after backward.
    lazy_bucket_allocation: Option<bool> => DDP;
    /// `register_comm_hook`: the type that buckets are cast to before they are reduced.
    comm_hook: Option<CommHook> => DDP;
}

words! {
    /// Hooks of `torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum CommHook {
        /// `bf16_compress_hook`.
        Bf16CompressHook = "bf16_compress_hook",
        /// `fp16_compress_hook`.
        Fp16CompressHook = "fp16_compress_hook",
    }
}
