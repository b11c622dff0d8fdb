//! Tables of PyTorch's own runtimes, some keys of which others read.

use super::readers::{CLIPS, CUDA, FSDP, FSDP1, INTERNEVO, MEGATRON, MODULES, NANOTRON, OTHERS, PYTORCH, XLA, ZERO};
use super::row::Choice::{With, Word};
use super::row::Kind::{Choice, Count, Flag, List, Number, Other, Text};
use super::row::{Group, Key, Table};

/// `[fsdp]`
pub(super) const FSDP_KEYS: Table = Table {
    name: "fsdp",
    help: "`fully_shard`, and `FullyShardedDataParallel`.",
    group: Group::Sharding,
    owner: None,
    instead: &[
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are spread over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (XLA, "nothing is wrapped, resharded or prefetched here: the compiler gathers weights; write mesh.fsdp"),
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
            "Which modules are units of their own.",
        ),
        Key::new(
            "reshard_after_forward",
            Other("true, false, or a number of ranks"),
            FSDP,
            "Whether wrapped blocks are resharded after forward, or on how many ranks.",
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
        Key::new("override", List(&[]), FSDP, "Another reshard policy for some blocks."),
        Key::new(
            "forward_prefetch",
            Count(Some((0, 1 << 16))),
            FSDP,
            "Blocks each block prefetches explicitly in forward.",
        ),
        Key::new(
            "backward_prefetch",
            Count(Some((0, 1 << 16))),
            FSDP,
            "Blocks each block prefetches explicitly in backward.",
        ),
        Key::new(
            "shard_dim_1",
            List(&[]),
            FSDP,
            "Parameters that are sharded on their second dimension, by the ends of their names (`shard_placement_fn`).",
        ),
        Key::new("reduce_scatter_buffers", Count(Some((1, 1 << 16))), FSDP, "Reduce-scatter inputs in flight."),
        Key::new("unshard_in_backward", Flag, FSDP, "`set_unshard_in_backward`."),
        Key::new("cpu_offload", Flag, FSDP, "`CPUOffloadPolicy`."),
    ],
};

/// `[fsdp1]`
pub(super) const FSDP1_KEYS: Table = Table {
    name: "fsdp1",
    help: "What only `FullyShardedDataParallel` has.",
    group: Group::Sharding,
    owner: None,
    instead: &[
        (MEGATRON, "Megatron-Core shards optimizer states: write megatron.distributed_optimizer = true"),
        (ZERO, "what is sharded is zero.stage: remove the table"),
        (INTERNEVO, "its optimizer states are spread over internevo.zero1 replicas"),
        (NANOTRON, "write nanotron.zero_stage = 1 to share optimizer states"),
        (XLA, "nothing is wrapped here: the compiler gathers weights; write mesh.fsdp"),
    ],
    keys: &[
        Key::new("use_orig_params", Flag, FSDP1, "`use_orig_params`."),
        Key::new("backward_prefetch", Choice(&[Word("pre"), Word("post"), Word("none")]), FSDP1, "`BackwardPrefetch`."),
        Key::new("limit_all_gathers", Flag, FSDP1, "`limit_all_gathers`."),
        Key::new(
            "always_pads",
            Flag,
            FSDP1,
            "Whether gradients are padded, and so copied, even by nothing (PyTorch 1.13).",
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
        (MEGATRON, "its fusions are keys of [megatron], such as bias_activation_fusion"),
        (ZERO, "compiled blocks have no rules under its hooks: remove the table"),
        (&["internevo", "nanotron"], "nothing is compiled: remove the table"),
        (XLA, "the whole step is compiled: remove the table"),
    ],
    keys: &[
        Key::new("blocks", Flag, PYTORCH, "Whether each block is compiled on its own."),
        Key::new("model", Flag, PYTORCH, "Whether what fully_shard has made of the model is compiled whole."),
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
        (MEGATRON, "write megatron.fp8 = \"delayed\", \"tensorwise\" or \"blockwise\""),
        (ZERO, "remove the table, or write runtime = \"fsdp2\""),
        (INTERNEVO, "its matmuls run in 16 bits: remove the table"),
        (NANOTRON, "its matmuls run in bf16: remove the table"),
        (XLA, "remove the table: fp8 is not simulated on XLA"),
    ],
    keys: &[
        Key::new("recipe", Choice(&[Word("tensorwise"), Word("rowwise")]), PYTORCH, "`recipe_name`."),
        Key::new("all_gather", Flag, PYTORCH, "`enable_fsdp_float8_all_gather`."),
        Key::new("precompute_scale", Flag, PYTORCH, "`precompute_float8_dynamic_scale_for_fsdp`."),
    ],
};

/// `[activation_checkpointing]`
pub(super) const ACTIVATION_CHECKPOINTING_KEYS: Table = Table {
    name: "activation_checkpointing",
    help: "Activation checkpointing.",
    group: Group::Recompute,
    owner: None,
    instead: &[
        (MEGATRON, "write megatron.recompute = \"core_attn\", { uniform = 1 } or { block = 4 }"),
        (ZERO, "remove the key"),
        (INTERNEVO, "write internevo.checkpoint = true"),
        (NANOTRON, "write nanotron.recompute_layer = true"),
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
            PYTORCH,
            "Whether the checkpoint stands around a compiled block, or is compiled with it.",
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
            PYTORCH,
            "Whether checkpoints stand around sharded layers, whose hooks then run inside them: `checkpoint(layer, x)` in the model's forward.",
        ),
        Key::new(
            "offload",
            Choice(&[Word("default_stream"), Word("own_stream")]),
            PYTORCH,
            "The stream on which inputs of checkpointed blocks go to the host and come back.",
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
            "Whether attention's backward adds up in one order (`torch.use_deterministic_algorithms`, `FLASH_ATTENTION_DETERMINISTIC`).",
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

/// `[loss]`
pub(super) const LOSS_KEYS: Table = Table {
    name: "loss",
    help: "The loss.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (MEGATRON, "write megatron.cross_entropy_loss_fusion"),
        (ZERO, "the module computes its loss itself, so logits go with it: remove the key"),
        (INTERNEVO, "it is flash-attention's cross-entropy: remove the table"),
        (NANOTRON, "it is its own cross-entropy over split words: remove the table"),
        (XLA, "write xla.num_vocab_tiling to take the loss in parts"),
    ],
    keys: &[
        Key::new(
            "kind",
            Choice(&[
                Word("fp32"),
                Word("bf16"),
                Word("flash_cross_entropy"),
                Word("chunked_output"),
                Word("chunked_linear"),
                Word("chunked_gradients"),
                Word("vocabulary_chunked"),
                Word("fused_linear"),
            ]),
            MODULES,
            "Which loss, and in how many parts.",
        ),
        Key::new("chunks", Count(Some((1, 1 << 16))), MODULES, "Parts of the sequence."),
        Key::new("words", Count(Some((1, 1 << 20))), MODULES, "Words of a part of the vocabulary."),
        Key::new(
            "keep_logits",
            Other("true, false, or \"backward\""),
            PYTORCH,
            "How long the loop's variable holds the logits.",
        ),
        Key::new("inside_model", Flag, PYTORCH, "Whether the model's forward computes the loss."),
        Key::new(
            "unshards_head",
            Flag,
            PYTORCH,
            "Whether a loss by parts that makes gradients gathers the head's parameters itself (torchtitan 0.3.0).",
        ),
        Key::new(
            "unnamed_logits",
            Flag,
            PYTORCH,
            "Whether no variable names the logits, so that they go once they are cast: `F.cross_entropy(model(x).float(), y)`.",
        ),
    ],
};

/// `[optimizer]`
pub(super) const OPTIMIZER_KEYS: Table = Table {
    name: "optimizer",
    help: "The optimizer.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (MEGATRON, "it is Adam in one kernel: remove the key, or see megatron.exp_avg_dtype"),
        (ZERO, "the optimizer steps one flat tensor when all gradients are there: remove the key"),
        (INTERNEVO, "it is torch's AdamW under HybridZeroOptimizer, which clips: remove the table"),
        (NANOTRON, "it is AdamW in one kernel on parameters in fp32, and clips: remove the table"),
        (XLA, "it is AdamW with moments in fp32; write xla.gradient_clipping"),
    ],
    keys: &[
        Key::new("name", Text, MODULES, "`adamw`, `adam`, `sgd` or `decoupled_adamw`."),
        Key::new("implementation", Text, MODULES, "`fused`, `foreach` or `for_loop`."),
        Key::new("weight_decay", Number, MODULES, "Weight decay: zero saves a kernel where it is one of its own."),
        Key::new(
            "momentum",
            Number,
            PYTORCH,
            "SGD's momentum, a state of the size of the parameters unless it is zero.",
        ),
        Key::new("nesterov", Flag, PYTORCH, "Whether SGD's momentum is Nesterov's."),
        Key::new("amsgrad", Flag, PYTORCH, "Whether Adam keeps the maximum of its second moments, as a third state."),
        Key::new(
            "master_weights",
            Flag,
            PYTORCH,
            "Whether the optimizer steps copies in fp32 of parameters in a narrower type, and writes them back.",
        ),
        Key::new("capturable", Flag, PYTORCH, "Whether Adam's number of steps is on the device, for a CUDA graph."),
        Key::new("maximize", Flag, PYTORCH, "Whether the optimizer climbs."),
        Key::new(
            "step_on_device",
            Flag,
            PYTORCH,
            "Whether the number of steps is a tensor on the device that the host reads for each parameter.",
        ),
        Key::new("clip_grad_norm", Flag, CLIPS, "Whether gradients are clipped to a norm."),
        Key::new(
            "scale_gradients",
            Flag,
            PYTORCH,
            "Whether each gradient is multiplied by a number before the step, one parameter after the other.",
        ),
        Key::new(
            "in_backward",
            Flag,
            PYTORCH,
            "Whether each parameter is stepped in backward, as soon as its gradient is there.",
        ),
    ],
};

/// `[loop]`
pub(super) const LOOP_KEYS: Table = Table {
    name: "loop",
    help: "What the training loop does besides forward, backward and optimizer.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (MEGATRON, "write megatron.check_for_nan for the numbers that its loop reads back"),
        (ZERO, "its engine reads numbers back itself: remove the table"),
        (INTERNEVO, "its loop drains the device where its timers start and stop: remove the table"),
        (NANOTRON, "its loop takes the time after a barrier: remove the table"),
        (XLA, "write xla.host_syncs_per_step"),
    ],
    keys: &[
        Key::new(
            "train_metrics",
            Count(Some((0, 1000))),
            PYTORCH,
            "Cross-entropy metrics computed on the logits of each micro-batch.",
        ),
        Key::new(
            "host_syncs_per_step",
            Count(Some((0, 1000))),
            PYTORCH,
            "Numbers read back from the device at the end of a step.",
        ),
    ],
};

/// `[framework]`
pub(super) const FRAMEWORK_KEYS: Table = Table {
    name: "framework",
    help: "What differs between PyTorch's versions, and between codebases for the same model.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (MEGATRON, "write megatron.implementation = \"transformer_engine\" or \"local\", and its fusions"),
        (ZERO, "remove the key"),
        (INTERNEVO, "its modules are InternLM's: remove the key"),
        (NANOTRON, "its modules are its own: remove the key"),
        (XLA, "remove the table: it is MaxText's model, compiled whole"),
    ],
    keys: &[
        Key::new(
            "release",
            Text,
            MODULES,
            "Whose training code it is, in which release, such as `torchtitan 0.2.2`: keys that the file leaves out are as there.",
        ),
        Key::new("fused_rms_norm", Flag, MODULES, "Whether RMSNorm is one kernel (2.6: composed of pointwise ones)."),
        Key::new("cublas", Text, CUDA, "Release of cuBLAS, `major.minor`, where it is not the profile's."),
        Key::new(
            "launch_blocking",
            Flag,
            CUDA,
            "`CUDA_LAUNCH_BLOCKING` in the environment: the host waits for every launch.",
        ),
        Key::new(
            "device_max_connections",
            Count(Some((1, 32))),
            CUDA,
            "`CUDA_DEVICE_MAX_CONNECTIONS` in the environment: how many queues the device takes work from, 1 to 32.",
        ),
        Key::new(
            "persistent_cublas_workspace",
            Flag,
            CUDA,
            "Whether a cuBLAS workspace stays taken once used (before PyTorch 2.15, or `TORCH_CUBLAS_WORKSPACE_CACHE=1`).",
        ),
        Key::new(
            "modules",
            Choice(&[Word("plain"), Word("transformers")]),
            PYTORCH,
            "Whose classes the model's modules are.",
        ),
        Key::new(
            "rope",
            Choice(&[Word("complex"), Word("complex_by_position"), Word("rotate_half"), Word("stacked")]),
            MODULES,
            "How the model's code writes rotary embeddings.",
        )
        .instead(&[(MEGATRON, "write megatron.rope_fusion")]),
        Key::new("repeat_kv", Flag, MODULES, "Whether the model's code copies keys and values to every query head."),
        Key::new(
            "fused_qkv",
            Flag,
            PYTORCH,
            "Whether queries, keys and values come from one linear and are then copied apart.",
        ),
        Key::new(
            "cuda_graphs",
            Flag,
            PYTORCH,
            "Whether forward, loss and backward of a micro-batch are one CUDA graph (torchtitan 0.3.0).",
        ),
        Key::new(
            "experts",
            Choice(&[Word("loop"), Word("grouped"), Word("torchtitan"), Word("expert_choice")]),
            PYTORCH,
            "How experts are run.",
        ),
        Key::new(
            "linears",
            Choice(&[Word("torch"), Word("transformer_engine_fp8")]),
            PYTORCH,
            "What multiplies in linears.",
        ),
        Key::new(
            "context_parallel_rotate_method",
            Choice(&[Word("allgather"), Word("alltoall")]),
            PYTORCH,
            "How ranks that share a sequence get each other's keys and values.",
        ),
        Key::new(
            "context_parallel_load_balancer",
            Choice(&[Word("headtail"), Word("none")]),
            PYTORCH,
            "Which parts of a sequence the ranks that share it have.",
        ),
    ],
};

/// `[memory]`
pub(super) const MEMORY_KEYS: Table = Table {
    name: "memory",
    help: "The allocator.",
    group: Group::Rest,
    owner: None,
    instead: &[(XLA, "the compiler gives every buffer its place: there is no allocator to set")],
    keys: &[
        Key::new("expandable_segments", Flag, CUDA, "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`."),
        Key::new(
            "initialisation",
            Choice(&[Word("in_place"), Word("truncated_normal")]),
            PYTORCH,
            "How parameters are initialised, where that leaves blocks in the allocator's cache.",
        )
        .instead(&[(OTHERS, "it is of parameters that fully_shard has sharded: remove the key")]),
    ],
};
