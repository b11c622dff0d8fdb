//! How PyTorch's own runtimes shard, compile and recompute: tables some keys of which others read.

use super::readers::{
    COMPILED, CUDA, DDP, FSDP, FSDP1, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, TORCH_XLA, XLA,
    ZERO,
};
use super::row::Choice::{With, Word};
use super::row::Kind::{Choice, Count, Flag, List, Other};
use super::row::{Group, Key, Table};

/// `[fsdp]`
pub(super) const FSDP_KEYS: Table = Table {
    name: "fsdp",
    help: "`fully_shard`, and `FullyShardedDataParallel`.",
    group: Group::Sharding,
    owner: None,
    instead: &[
        (DDP, "nothing is sharded: remove the table, or write runtime = \"fsdp2\""),
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are sharded over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (COMPILED, "nothing is wrapped, resharded or prefetched here: the compiler gathers weights; write mesh.fsdp"),
    ],
    keys: &[
        Key::new(
            "wrap",
            Choice(&[
                Word("root"),
                Word("block"),
                Word("torchtitan"),
                Word("llm_foundry"),
                With("every", "N"),
                With("blocks", "[…]"),
                With("together", "N"),
                With("lists", "[…]"),
                With("modules", "[…]"),
            ]),
            FSDP,
            "Which modules are FSDP units of their own.",
        ),
        Key::new(
            "reshard_after_forward",
            Other("true, false, or a number of ranks"),
            FSDP,
            "Whether wrapped layers are resharded after forward, or over how many ranks.",
        ),
        Key::new("ends", List(&[]), FSDP, "Modules at the model's ends that are units of their own."),
        Key::new(
            "head_reshard_after_forward",
            Other("true, false, or a number of ranks"),
            FSDP,
            "Whether the head is resharded after forward, where it is a unit.",
        ),
        Key::new(
            "root_reshard_after_forward",
            Other("true, false, or a number of ranks"),
            FSDP,
            "Whether the root is resharded after forward.",
        ),
        Key::new(
            "reshard_after_backward",
            Other("true, or \"last_micro_batch\""),
            FSDP,
            "Whether parameters are resharded after a backward.",
        ),
        Key::new("override", List(&[]), FSDP, "Another reshard policy for some layers."),
        Key::new(
            "forward_prefetch",
            Count(Some((0, 1 << 16))),
            FSDP,
            "Layers that each layer prefetches explicitly in forward.",
        ),
        Key::new(
            "backward_prefetch",
            Count(Some((0, 1 << 16))),
            FSDP,
            "Layers that each layer prefetches explicitly in backward.",
        ),
        Key::new(
            "shard_dim_1",
            List(&[]),
            FSDP,
            "Parameters that are sharded on their second dimension, by the ends of their names (`shard_placement_fn`).",
        ),
        Key::new(
            "reduce_scatter_buffers",
            Count(Some((1, 1 << 16))),
            FSDP,
            "Inputs of reduce-scatters that are kept in flight.",
        ),
        Key::new("unshard_in_backward", Flag, FSDP, "`set_unshard_in_backward`: whether backward gathers parameters."),
        Key::new(
            "cpu_offload",
            Flag,
            FSDP,
            "`CPUOffloadPolicy`: whether shards and optimizer states live in host memory.",
        ),
    ],
};

/// `[fsdp1]`
pub(super) const FSDP1_KEYS: Table = Table {
    name: "fsdp1",
    help: "What only `FullyShardedDataParallel` has.",
    group: Group::Sharding,
    owner: None,
    instead: &[
        (DDP, "nothing is sharded: remove the table, or write runtime = \"fsdp1\""),
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are sharded over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (COMPILED, "nothing is wrapped here: the compiler gathers weights; write mesh.fsdp"),
    ],
    keys: &[
        Key::new(
            "use_orig_params",
            Flag,
            FSDP1,
            "`use_orig_params`: whether the optimizer sees the model's own parameters instead of flat ones.",
        ),
        Key::new(
            "backward_prefetch",
            Choice(&[Word("pre"), Word("post"), Word("none")]),
            FSDP1,
            "`BackwardPrefetch`: when backward gathers the next unit.",
        ),
        Key::new(
            "limit_all_gathers",
            Flag,
            FSDP1,
            "`limit_all_gathers`: whether the host waits until an earlier unit is freed before it gathers another.",
        ),
        Key::new(
            "always_pads",
            Flag,
            FSDP1,
            "Whether gradients are padded, and so copied, even by nothing (PyTorch 1.13).",
        ),
    ],
};

/// `[ddp]`
pub(super) const DDP_KEYS: Table = Table {
    name: "ddp",
    help: "Arguments of `DistributedDataParallel`.",
    group: Group::Sharding,
    owner: Some("ddp"),
    instead: &[],
    keys: &[
        Key::new(
            "bucket_cap_mb",
            Count(Some((1, 1 << 20))),
            DDP,
            "`bucket_cap_mb`: MiB that fill a bucket of gradients. By default 25, and 1 for the first bucket.",
        ),
        Key::new(
            "gradient_as_bucket_view",
            Flag,
            DDP,
            "`gradient_as_bucket_view`: whether gradients are views of buckets, or are copied into them and back.",
        ),
        Key::new("static_graph", Flag, DDP, "`static_graph`: whether the graph of every step is the first one's."),
        Key::new(
            "find_unused_parameters",
            Flag,
            DDP,
            "`find_unused_parameters`: whether each forward looks for parameters that it has not used.",
        ),
        Key::new(
            "broadcast_buffers",
            Flag,
            DDP,
            "`broadcast_buffers`: whether a forward begins with the first rank's buffers (`forward_sync_buffers` from 2.13 on).",
        ),
        Key::new(
            "batched_grad_copy",
            Flag,
            DDP,
            "`batched_grad_copy`: whether a bucket's gradients are copied together once it is full.",
        ),
        Key::new(
            "lazy_bucket_allocation",
            Flag,
            DDP,
            "`lazy_bucket_allocation`: whether buckets are allocated when their first gradient comes, and go after backward.",
        ),
        Key::new(
            "comm_hook",
            Choice(&[Word("bf16_compress_hook"), Word("fp16_compress_hook")]),
            DDP,
            "`register_comm_hook`: the type that buckets are cast to before they are reduced.",
        ),
    ],
};

/// `[compile]`
pub(super) const COMPILE_KEYS: Table = Table {
    name: "compile",
    help: "`torch.compile`.",
    group: Group::Compile,
    owner: None,
    instead: &[
        (DDP, "DDPOptimizer cuts compiled graphs where buckets end, which is not simulated: remove the key"),
        (MEGATRON, "its fusions are keys of [megatron], such as bias_activation_fusion"),
        (ZERO, "compiled blocks have no rules under its hooks: remove the table"),
        (&["internevo", "nanotron"], "nothing is compiled: remove the table"),
        (COMPILED, "the whole step is compiled: remove the table"),
    ],
    keys: &[
        Key::new("blocks", Flag, PYTORCH_BUT_DDP, "Whether each layer is compiled on its own."),
        Key::new("model", Flag, PYTORCH_BUT_DDP, "Whether the sharded model is compiled whole."),
        Key::new("loss", Flag, PYTORCH, "Whether the loss is compiled."),
    ],
};

/// `[float8]`
pub(super) const FLOAT8_KEYS: Table = Table {
    name: "float8",
    help: "torchao's float8 linears.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (DDP, "it needs compiled layers, which are not simulated under DistributedDataParallel: remove the table"),
        (MEGATRON, "write megatron.fp8 = \"delayed\", \"tensorwise\", \"blockwise\" or \"mxfp8\""),
        (ZERO, "remove the table, or write runtime = \"fsdp2\""),
        (INTERNEVO, "its matmuls run in 16 bits: remove the table"),
        (NANOTRON, "its matmuls run in bf16: remove the table"),
        (COMPILED, "remove the table: fp8 is not simulated on XLA"),
    ],
    keys: &[
        Key::new(
            "recipe",
            Choice(&[Word("tensorwise"), Word("rowwise")]),
            PYTORCH_BUT_DDP,
            "`recipe_name`: how operands are scaled.",
        ),
        Key::new(
            "all_gather",
            Flag,
            PYTORCH_BUT_DDP,
            "`enable_fsdp_float8_all_gather`: whether parameters are gathered in float8.",
        ),
        Key::new(
            "precompute_scale",
            Flag,
            PYTORCH_BUT_DDP,
            "`precompute_float8_dynamic_scale_for_fsdp`: whether all scales are computed once after the step.",
        ),
    ],
};

/// `[activation_checkpointing]`
pub(super) const ACTIVATION_CHECKPOINTING_KEYS: Table = Table {
    name: "activation_checkpointing",
    help: "Activation checkpointing.",
    group: Group::Recompute,
    owner: None,
    instead: &[
        (DDP, "nothing is compiled or sharded: remove the key"),
        (MEGATRON, "write megatron.recompute = \"core_attn\", { uniform = 1 } or { block = 4 }"),
        (ZERO, "remove the key"),
        (INTERNEVO, "write internevo.checkpoint = true"),
        (NANOTRON, "write nanotron.recompute_layer = true"),
        (TORCH_XLA, "write torch_xla.gradient_checkpointing = true"),
        (XLA, "write xla.remat_policy = \"full\", or another of MaxText's"),
    ],
    keys: &[
        Key::new(
            "policy",
            Choice(&[
                Word("none"),
                Word("full"),
                With("every", "N"),
                With("fraction", "X"),
                Word("selective_op"),
                With("layers", "[…]"),
                With("first", "N"),
                With("save", "[…]"),
            ]),
            MODULES,
            "What is recomputed in backward.",
        ),
        Key::new("early_stop", Flag, MODULES, "Whether a recompute stops once backward has what it needs."),
        Key::new(
            "around_compiled",
            Flag,
            PYTORCH_BUT_DDP,
            "Whether the checkpoint is around a compiled layer, or is compiled with it.",
        ),
        Key::new(
            "use_reentrant",
            Flag,
            PYTORCH,
            "Whether the checkpoint is the reentrant one (`torch.utils.checkpoint`, `use_reentrant=True`).",
        ),
        Key::new(
            "around_hooks",
            Flag,
            PYTORCH_BUT_DDP,
            "Whether checkpoints are around sharded layers, so that FSDP's hooks run inside them.",
        ),
        Key::new(
            "offload",
            Choice(&[Word("default_stream"), Word("own_stream")]),
            PYTORCH,
            "The stream that copies inputs of checkpointed layers to the host and back.",
        ),
    ],
};

/// `[attention]`
pub(super) const ATTENTION_KEYS: Table = Table {
    name: "attention",
    help: "Attention kernels.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (MEGATRON, "write megatron.attention = \"flash\" or \"unfused\", or megatron.deterministic_mode"),
        (ZERO, "remove the key"),
        (INTERNEVO, "it is FlashAttention on packed sequences: remove the key"),
        (NANOTRON, "it is FlashAttention: remove the key"),
        (TORCH_XLA, "write torch_xla.attention = \"sdpa\", or another"),
        (XLA, "write xla.attention = \"flash\" or \"dot_product\""),
    ],
    keys: &[
        Key::new(
            "backend",
            Choice(&[
                Word("flash2"),
                Word("cudnn"),
                Word("flash3"),
                Word("flex"),
                Word("flash1"),
                Word("triton"),
                Word("splash"),
                Word("tokamax"),
            ]),
            CUDA,
            "Whose kernels run attention.",
        ),
        Key::new(
            "deterministic",
            Flag,
            MODULES,
            "Whether attention's backward sums in a fixed order (`torch.use_deterministic_algorithms`, `FLASH_ATTENTION_DETERMINISTIC`).",
        ),
        Key::new(
            "alibi_tensor",
            Flag,
            MODULES,
            "Whether ALiBi's biases are a tensor given to `scaled_dot_product_attention`, or slopes inside the kernel.",
        ),
        Key::new(
            "unpad",
            Flag,
            PYTORCH,
            "Whether tokens are packed without padding before attention and put back after it (`bert_padding`).",
        ),
        Key::new(
            "reads_back",
            Flag,
            MODULES,
            "Whether every call of attention first reads an answer back from the device.",
        ),
        Key::new(
            "implementation",
            Choice(&[Word("sdpa"), Word("eager"), Word("flash_attention_2")]),
            PYTORCH,
            "How transformers' classes compute attention (`attn_implementation`).",
        ),
    ],
};
