//! The loss, the optimizer, the loop and what PyTorch's versions differ in: tables some keys of which others read.

use super::readers::{
    ALL, CLIPS, COMPILED, CUDA, DDP, INTERNEVO, MEGATRON, MODULES, NANOTRON, OTHERS, PYTORCH, PYTORCH_BUT_DDP, STEPS,
    TORCH_XLA, XLA, ZERO,
};
use super::row::Choice::Word;
use super::row::Kind::{Choice, Count, Flag, Number, Other, Text};
use super::row::{Group, Key, Table};

/// `[loss]`
pub(super) const LOSS_KEYS: Table = Table {
    name: "loss",
    help: "The loss.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (DDP, "nothing is sharded: remove the key"),
        (MEGATRON, "write megatron.cross_entropy_loss_fusion"),
        (ZERO, "the module computes its loss itself, so logits go with it: remove the key"),
        (INTERNEVO, "it is flash-attention's cross-entropy: remove the table"),
        (NANOTRON, "it is its own cross-entropy over split words: remove the table"),
        (TORCH_XLA, "it is F.cross_entropy over logits in fp32: remove the table"),
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
            "Which loss, and in how many parts. fp32: on logits cast to fp32. bf16: on logits as they are. flash_cross_entropy: \
             flash-attn's kernel. chunked_output: the head by parts inside the model. chunked_linear: head and loss by parts. \
             chunked_gradients: their backward too. vocabulary_chunked: by parts of the vocabulary. fused_linear: Liger's head \
             and loss in one, which never holds all logits.",
        ),
        Key::new("chunks", Count(Some((1, 1 << 16))), MODULES, "Parts of the sequence."),
        Key::new("words", Count(Some((1, 1 << 20))), MODULES, "Words of a part of the vocabulary."),
        Key::new(
            "keep_logits",
            Other("true, false, or \"backward\""),
            PYTORCH,
            "How long the training loop's variable holds the logits.",
        ),
        Key::new("inside_model", Flag, PYTORCH, "Whether the model's forward computes the loss."),
        Key::new(
            "unshards_head",
            Flag,
            PYTORCH_BUT_DDP,
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
        (DDP, "gradients are reduced before any is stepped: remove the key"),
        (MEGATRON, "it is Adam in one kernel: remove the key, or see megatron.exp_avg_dtype"),
        (ZERO, "the optimizer steps one flat tensor when all gradients are there: remove the key"),
        (INTERNEVO, "it is torch's AdamW under HybridZeroOptimizer, which clips: remove the table"),
        (NANOTRON, "it is AdamW in one kernel on parameters in fp32, and clips: remove the table"),
        (TORCH_XLA, "it is torch.optim.AdamW; write torch_xla.clip_grad_norm"),
        (XLA, "of optax's optimizers only the name is stated here; write xla.gradient_clipping and xla.mu_dtype"),
    ],
    keys: &[
        Key::new(
            "name",
            Text,
            STEPS,
            "`adamw`, `adam`, `sgd`, `decoupled_adamw`, `muon` (for the layers' matrices, with `adamw` for the rest), or on one device bitsandbytes' `adamw_8bit` or `lion_8bit`. On XLA optax's `adamw`, `adafactor` or `sgd`.",
        ),
        Key::new("implementation", Text, MODULES, "`fused`, `foreach` or `for_loop`."),
        Key::new("weight_decay", Number, MODULES, "Weight decay. Zero saves a kernel where it is a kernel of its own."),
        Key::new(
            "momentum",
            Number,
            PYTORCH,
            "SGD's momentum, which is a state of the parameters' size unless it is zero.",
        ),
        Key::new("nesterov", Flag, PYTORCH, "Whether SGD's or Muon's momentum is Nesterov's."),
        Key::new("amsgrad", Flag, PYTORCH, "Whether Adam keeps the maximum of its second moments, as a third state."),
        Key::new(
            "master_weights",
            Flag,
            PYTORCH,
            "Whether the optimizer steps copies in fp32 of parameters in a narrower type, and writes them back.",
        ),
        Key::new("capturable", Flag, PYTORCH, "Whether Adam's number of steps is on the device, for a CUDA graph."),
        Key::new("maximize", Flag, PYTORCH, "Whether the optimizer maximizes the objective."),
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
            PYTORCH_BUT_DDP,
            "Whether each parameter is stepped in backward, as soon as its gradient is ready.",
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
        (COMPILED, "write xla.host_syncs_per_step"),
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
        (DDP, "it is a switch of other runtimes: remove the key"),
        (MEGATRON, "write megatron.implementation = \"transformer_engine\" or \"local\", and its fusions"),
        (ZERO, "remove the key"),
        (INTERNEVO, "its modules are InternLM's: remove the key"),
        (NANOTRON, "its modules are its own: remove the key"),
        (TORCH_XLA, "remove the table: it is torch_xla 2.9, compiled whole"),
        (XLA, "remove the table: it is MaxText's model, compiled whole"),
    ],
    keys: &[
        Key::new(
            "release",
            Text,
            MODULES,
            "The training code and its release, such as `torchtitan 0.2.2`. It sets the keys that the file leaves out.",
        ),
        Key::new(
            "unknown_release",
            Text,
            ALL,
            "The release that ran, where the file has the defaults of another one. The step's interval is wider.",
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
            PYTORCH_BUT_DDP,
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
            "Which library multiplies in linears.",
        ),
        Key::new(
            "context_parallel_rotate_method",
            Choice(&[Word("allgather"), Word("alltoall")]),
            PYTORCH_BUT_DDP,
            "How context-parallel ranks exchange keys and values.",
        ),
        Key::new(
            "context_parallel_load_balancer",
            Choice(&[Word("headtail"), Word("none")]),
            PYTORCH_BUT_DDP,
            "Which parts of a sequence each context-parallel rank gets.",
        ),
    ],
};

/// `[memory]`
pub(super) const MEMORY_KEYS: Table = Table {
    name: "memory",
    help: "The allocator.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (DDP, "it is of parameters that fully_shard has sharded: remove the key"),
        (COMPILED, "the compiler gives every buffer its place: there is no allocator to set"),
    ],
    keys: &[
        Key::new("expandable_segments", Flag, CUDA, "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`."),
        Key::new(
            "initialisation",
            Choice(&[Word("in_place"), Word("truncated_normal")]),
            PYTORCH_BUT_DDP,
            "How parameters are initialised, where that leaves blocks in the allocator's cache.",
        )
        .instead(&[(OTHERS, "it is of parameters that fully_shard has sharded: remove the key")]),
    ],
};
