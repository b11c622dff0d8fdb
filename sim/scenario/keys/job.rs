//! The machine, the model, how it is split and what a step is: tables that every framework reads.

use super::readers::{
    ALL, ALL_BUT_ZERO_AND_XLA, COMPILED, CUDA, CUDA_BUT_DDP, DDP, INTERNEVO, MEGATRON, NANOTRON, OTHERS, PACKED,
    PYTORCH, PYTORCH_BUT_DDP, PYTORCH_OR_MEGATRON, REPLICAS, STAGES, TORCH_XLA, XLA, ZERO,
};
use super::row::Choice::{With, Word};
use super::row::Kind::{Choice, Count, Flag, List, Number, Other, Quantity, Text};
use super::row::{Group, Key, Table};

/// `[topology]`
pub(super) const TOPOLOGY_KEYS: Table = Table {
    name: "topology",
    help: "The machine.",
    group: Group::Hardware,
    owner: None,
    instead: &[(COMPILED, "a TPU is rented as slices: write topology.slice")],
    keys: &[
        Key::new("name", Text, ALL, "A shipped name, or the path of a topology file."),
        Key::new("nodes", Count(Some((1, 1 << 17))), ALL, "Nodes of the machine, of GPUs."),
        Key::new("slice", Text, ALL, "A slice of a TPU pod, such as `4x4`, in place of nodes."),
        Key::new("slices", Count(Some((1, 1 << 17))), ALL, "Slices, joined by the network between them."),
        Key::new("chips", Count(None), ALL, "Some chips of one node, or of each of `nodes`."),
        Key::new("profile", Text, ALL, "A profile of costs other than the topology's own: a shipped name or a path."),
        Key::new(
            "nic_bandwidth",
            Quantity("50 GB/s"),
            ALL,
            "What one GPU's share of the network between nodes carries, one direction, where it is not the topology's.",
        ),
        Key::new(
            "clocks",
            Choice(&[Word("burst"), Word("sustained")]),
            CUDA,
            "Clocks of the chips: `sustained`, as a board runs at its power limit, or `burst`, as it runs before it gets there.",
        ),
    ],
};

/// `[model]`
pub(super) const MODEL_KEYS: Table = Table {
    name: "model",
    help: "The model.",
    group: Group::Model,
    owner: None,
    instead: &[],
    keys: &[
        Key::new("name", Text, ALL, "A shipped model."),
        Key::new("huggingface", Text, ALL, "The path of a Hugging Face `config.json`, relative to the scenario."),
        Key::new(
            "config",
            Other("a table with keys of a Hugging Face config.json"),
            ALL,
            "Keys of a `config.json` in the scenario itself: with `model_type` a whole model, without a name; else what differs from the named model.",
        ),
        Key::new(
            "layers",
            Count(Some((1, 1_024))),
            ALL,
            "Layers, where the run differs from the named model: a smaller proxy, or another member of its family.",
        ),
        Key::new(
            "hidden",
            Count(Some((1, 1 << 20))),
            ALL,
            "Width of the model, for another member of its family. The number of heads stays, so the head dimension follows.",
        ),
        Key::new(
            "heads",
            Count(Some((1, 1 << 20))),
            ALL,
            "Query heads, for another member of the family. Without `kv_heads`, there are as many key-value heads.",
        ),
        Key::new("kv_heads", Count(Some((1, 1 << 20))), ALL, "Key-value heads, for another member of the family."),
        Key::new(
            "ffn",
            Count(Some((1, 1 << 20))),
            ALL,
            "Feed-forward width, for another member of the family. By default it grows with the width.",
        ),
        Key::new(
            "vocab",
            Count(Some((1, 1 << 24))),
            ALL,
            "Words of the vocabulary, for another member of the family or as the run pads them.",
        ),
        Key::new(
            "tied_head",
            Flag,
            ALL,
            "Whether the head shares the embedding's matrix, where the run differs from the config.",
        ),
        Key::new(
            "positions",
            Count(Some((1, 1 << 26))),
            ALL,
            "Rows of the table of learned positions, where the run differs from the config.",
        ),
        Key::new(
            "expert_load",
            Choice(&[Word("balanced"), With("power_law", "X"), With("measured", "[…]")]),
            ALL,
            "How tokens are distributed over experts.",
        ),
    ],
};

/// `[mesh]`
pub(super) const MESH_KEYS: Table = Table {
    name: "mesh",
    help: "Mesh axes.",
    group: Group::Mesh,
    owner: None,
    instead: &[
        (DDP, "every chip has a replica of the model: write mesh.dp_replicate"),
        (MEGATRON, "write mesh.dp: replicas, of which megatron.distributed_optimizer shards states"),
        (ZERO, "write mesh.dp and mesh.cp: its ranks share data and sequences"),
        (INTERNEVO, "write mesh.dp: replicas, of which internevo.zero1 share optimizer states"),
        (NANOTRON, "write mesh.dp: replicas"),
        (
            XLA,
            "axes here are pipeline, data, fsdp, fsdp_transpose, context, expert, tensor, and the same over slices, such as dcn_data",
        ),
        (TORCH_XLA, "axes here are data, fsdp, expert and tensor, and dcn_data over slices"),
    ],
    keys: &[
        Key::new("dp_shard", Count(Some((1, 1 << 17))), PYTORCH_BUT_DDP, "Ranks over which parameters are sharded."),
        Key::new("dp_replicate", Count(Some((1, 1 << 17))), PYTORCH, "Ranks over which shards are replicated (HSDP)."),
        Key::new("tp", Count(Some((1, 1 << 17))), ALL_BUT_ZERO_AND_XLA, "Tensor-parallel ranks, which are neighbours."),
        Key::new("cp", Count(Some((1, 1 << 17))), CUDA_BUT_DDP, "Context-parallel ranks, which share a sequence."),
        Key::new("pp", Count(Some((1, 1 << 17))), ALL_BUT_ZERO_AND_XLA, "Pipeline ranks.")
            .instead(&[(XLA, "write mesh.pipeline, the stages, and xla.num_pipeline_microbatches")]),
        Key::new("dp", Count(Some((1, 1 << 17))), REPLICAS, "Replicas of the model."),
        Key::new(
            "ep",
            Count(Some((1, 1 << 17))),
            PYTORCH_OR_MEGATRON,
            "Expert-parallel ranks: each holds its share of the experts.",
        ),
        Key::new("etp", Count(Some((1, 1 << 17))), MEGATRON, "Tensor-parallel ranks within an expert."),
        Key::new("data", Count(Some((1, 1 << 17))), COMPILED, "Replicas in a slice."),
        Key::new(
            "fsdp",
            Count(Some((1, 1 << 17))),
            COMPILED,
            "Chips over which weights are sharded, on their embedding dimension.",
        ),
        Key::new(
            "fsdp_transpose",
            Count(Some((1, 1 << 17))),
            XLA,
            "Chips over which an MLP's weights are sharded on their width, and gathered.",
        ),
        Key::new("context", Count(Some((1, 1 << 17))), XLA, "Chips that share a sequence."),
        Key::new("expert", Count(Some((1, 1 << 17))), COMPILED, "Chips over which experts are sharded."),
        Key::new("tensor", Count(Some((1, 1 << 17))), COMPILED, "Chips over which heads and an MLP's width are split."),
        Key::new("pipeline", Count(Some((1, 1 << 17))), XLA, "Stages of a pipeline within a slice."),
        Key::new(
            "dcn_pipeline",
            Count(Some((1, 1 << 17))),
            XLA,
            "Stages of a pipeline over slices: each stage is a slice.",
        ),
        Key::new("dcn_data", Count(Some((1, 1 << 17))), COMPILED, "Replicas over slices: each is a slice."),
        Key::new(
            "dcn_fsdp",
            Count(Some((1, 1 << 17))),
            XLA,
            "Slices that `fsdp` lies over, besides its chips in each.",
        ),
        Key::new(
            "dcn_fsdp_transpose",
            Count(Some((1, 1 << 17))),
            XLA,
            "Slices that `fsdp_transpose` lies over, besides its chips in each.",
        ),
        Key::new(
            "dcn_context",
            Count(Some((1, 1 << 17))),
            XLA,
            "Slices that `context` lies over, besides its chips in each.",
        ),
        Key::new(
            "dcn_expert",
            Count(Some((1, 1 << 17))),
            XLA,
            "Slices that `expert` lies over, besides its chips in each.",
        ),
        Key::new(
            "dcn_tensor",
            Count(Some((1, 1 << 17))),
            XLA,
            "Slices that `tensor` lies over, besides its chips in each.",
        ),
        Key::new(
            "allow_split_physical_axes",
            Flag,
            XLA,
            "`allow_split_physical_axes`: whether a physical axis of a slice may be shared out between axes of the mesh. JAX refuses to without it.",
        ),
        Key::new(
            "logical_axis_rules",
            List(&[]),
            XLA,
            "`logical_axis_rules`: rows such as `[\"embed\", [\"fsdp\"]]`, and MaxText's for what is not written. An axis may hold other tokens (`activation_batch`), and with them shards of weights (`embed`) and experts (`exp`); parts of a sequence (`activation_length`) and shards of weights; heads, `mlp` and `vocab` together; or experts alone.",
        ),
    ],
};

/// `[pipeline]`
pub(super) const PIPELINE_KEYS: Table = Table {
    name: "pipeline",
    help: "The pipeline over `mesh.pp`.",
    group: Group::Mesh,
    owner: None,
    instead: &[
        (DDP, "every rank has the whole model: remove the table"),
        (ZERO, "its pipelines are runtime = \"deepspeed\": remove the table"),
        (INTERNEVO, "InternEvo v0.1 has no pipelines: remove the table"),
        (NANOTRON, "write nanotron.pp_engine = \"1f1b\" or \"afab\""),
        (TORCH_XLA, "a model is not split into stages there: remove the table"),
        (XLA, "write mesh.pipeline, and xla.num_pipeline_microbatches"),
    ],
    keys: &[
        Key::new(
            "schedule",
            Text,
            PYTORCH_OR_MEGATRON,
            "The name of a schedule, or under FSDP2 a file in PyTorch's CSV.",
        ),
        Key::new("virtual_stages", Count(Some((1, 1 << 16))), PYTORCH_OR_MEGATRON, "Stages on each rank."),
        Key::new("layers", List(&[]), STAGES, "Layers of each stage, where they are not equal."),
        Key::new(
            "overlap_p2p",
            Flag,
            PYTORCH_OR_MEGATRON,
            "`overlap_p2p_comm`: whether messages between stages overlap with compute.",
        ),
        Key::new(
            "scatter_gather",
            Flag,
            PYTORCH_OR_MEGATRON,
            "`scatter_gather_tensors_in_pipeline`, which had an effect until March 2023.",
        ),
        Key::new(
            "layers_per_stage",
            Count(Some((1, 1 << 16))),
            PYTORCH_OR_MEGATRON,
            "torchtitan's `pipeline_parallel_layers_per_stage`: the number of stages follows.",
        ),
        Key::new(
            "first_stage_less_layers",
            Count(Some((0, 1 << 16))),
            PYTORCH_OR_MEGATRON,
            "torchtitan's `pipeline_parallel_first_stage_less_layers`: layers that the first stage lacks for the embedding.",
        ),
        Key::new(
            "last_stage_less_layers",
            Count(Some((0, 1 << 16))),
            PYTORCH_OR_MEGATRON,
            "torchtitan's `pipeline_parallel_last_stage_less_layers`: layers that the last stage lacks for the head.",
        ),
    ],
};

/// `[batch]`
pub(super) const BATCH_KEYS: Table = Table {
    name: "batch",
    help: "Batch and sequence.",
    group: Group::Batch,
    owner: None,
    instead: &[
        (DDP, "it is a switch of fully_shard: remove the key"),
        (MEGATRON, "gradients are reduced after the last micro-batch: remove the key"),
        (ZERO, "zero.stage says when gradients are reduced: remove the key"),
        (INTERNEVO, "gradients are reduced in the last micro-batch: remove the key"),
        (NANOTRON, "gradients are reduced with the last micro-batch: remove the key"),
        (COMPILED, "write batch.micro: sequences on each chip"),
    ],
    keys: &[
        Key::new("sequence", Count(Some((1, 1 << 26))), ALL, "Tokens per sequence."),
        Key::new("micro", Count(Some((1, 1 << 16))), ALL, "Sequences per rank and micro-batch: chips that share their sequences (`tp`, `cp`, `tensor`, `context`) have them together. With `[dpo]` pairs of them."),
        Key::new(
            "per_device_batch_size",
            Number,
            XLA,
            "The same as MaxText counts: sequences over all chips. `batch.micro` is this × `mesh.tensor` × `mesh.context`.",
        )
        .instead(&[(OTHERS, "it is MaxText's: write batch.micro")]),
        Key::new("accumulation", Count(Some((1, 1 << 16))), ALL, "Micro-batches per step."),
        Key::new(
            "global",
            Count(Some((1, i64::MAX / (1 << 26)))),
            ALL,
            "Sequences of a step, of all ranks: `accumulation` follows.",
        ),
        Key::new("global_tokens", Count(Some((1, i64::MAX))), ALL, "Tokens of a step, of all ranks: `accumulation` follows."),
        Key::new(
            "documents",
            Choice(&[With("length", "N"), With("lengths", "[…]"), With("lognormal", "{…}"), With("squares", "N")]),
            PACKED,
            "How long the documents are that are packed into a sequence, with attention that stays inside each. Without the key attention sees the whole sequence.",
        )
        .instead(&[
            (COMPILED, "masks by segment hide no block that is computed: remove batch.documents"),
            (OTHERS, "a mask by document is simulated under fsdp2, fsdp1, ddp, single_device and megatron: remove batch.documents"),
        ]),
        Key::new(
            "packing",
            Choice(&[Word("whole"), Word("cut")]),
            PACKED,
            "Whether documents are packed whole, or are a stream that is cut at the end of every sequence.",
        )
        .instead(&[(OTHERS, "it is about batch.documents, which is not read either: remove the key")]),
        Key::new("sync_every_micro_batch", Flag, PYTORCH, "Whether gradients are reduced after every micro-batch."),
        Key::new("set_is_last_backward", Flag, PYTORCH_BUT_DDP, "Whether the loop calls `set_is_last_backward`."),
        Key::new(
            "all_reduce_every_micro_batch",
            Flag,
            PYTORCH_BUT_DDP,
            "Whether replicas all-reduce after every micro-batch, or only after the last (`set_requires_all_reduce(False)`).",
        )
        .instead(&[(OTHERS, "it is a switch of fully_shard's replicas: remove the key")]),
    ],
};

/// `[tensor_parallel]`
pub(super) const TENSOR_PARALLEL_KEYS: Table = Table {
    name: "tensor_parallel",
    help: "How modules are split over `mesh.tp`.",
    group: Group::Rest,
    owner: None,
    instead: &[
        (DDP, "every rank has the whole model: remove the table"),
        (
            &["megatron", "deepspeed", "internevo", "nanotron"],
            "the loss is always taken of split words: remove the key",
        ),
        (ZERO, "its ranks share data and sequences: remove the table"),
        (COMPILED, "the compiler places what tensor parallelism exchanges: write mesh.tensor"),
    ],
    keys: &[
        Key::new(
            "sequence",
            Flag,
            ALL_BUT_ZERO_AND_XLA,
            "Sequence parallelism: whether activations between tensor-parallel modules are sharded on the sequence.",
        ),
        Key::new("loss", Flag, PYTORCH_BUT_DDP, "Whether the loss takes logits that are sharded on the vocabulary."),
        Key::new(
            "asynchronous",
            Flag,
            PYTORCH_BUT_DDP,
            "Whether compiled layers split their exchanges into parts that overlap with matmuls (async TP).",
        ),
    ],
};

/// `[precision]`
pub(super) const PRECISION_KEYS: Table = Table {
    name: "precision",
    help: "Types of parameters, gradients and logits.",
    group: Group::Precision,
    owner: None,
    instead: &[
        (
            DDP,
            "parameters are used, and gradients reduced, in the type they are stored in: write precision.storage, or precision.autocast",
        ),
        (ZERO, "parameters are bf16, what is stepped fp32: remove the key"),
        (INTERNEVO, "parameters that are stepped are kept in fp32: remove the key"),
        (NANOTRON, "gradients and what is stepped are in fp32: remove the key"),
        (TORCH_XLA, "write torch_xla.precision = \"autocast\" or \"bfloat16\""),
        (XLA, "parameters are in fp32 and computed with in bf16, as MaxText's defaults are: remove the table"),
    ],
    keys: &[
        Key::new(
            "storage",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            PYTORCH,
            "Type of the stored parameters.",
        )
        .instead(&[(MEGATRON, "write megatron.main_params_dtype for the parameters that are stepped")]),
        Key::new(
            "param",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            CUDA_BUT_DDP,
            "Type that layers compute in: `MixedPrecisionPolicy.param_dtype`.",
        ),
        Key::new(
            "reduce",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            PYTORCH_BUT_DDP,
            "Type in which gradients are reduced: `MixedPrecisionPolicy.reduce_dtype`.",
        )
        .instead(&[(MEGATRON, "write megatron.grad_reduce_in_fp32 = true or false")]),
        Key::new(
            "output",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            PYTORCH,
            "`MixedPrecisionPolicy.output_dtype` of the root: the type logits are handed to the loss in.",
        )
        .instead(&[(MEGATRON, "remove it: the loss is computed in fp32")]),
        Key::new("tf32", Flag, PYTORCH, "Whether fp32 matmuls run in tf32.")
            .instead(&[(MEGATRON, "remove it: matmuls are in precision.param, or in megatron.fp8")]),
        Key::new(
            "autocast",
            Choice(&[Word("bf16"), Word("fp16"), Word("fp32"), Word("fp8"), Word("int32"), Word("int64")]),
            PYTORCH,
            "The type of `torch.autocast` around forward and loss; absent: it is off.",
        )
        .instead(&[(MEGATRON, "remove it: parameters are in precision.param, beside fp32 ones that are stepped")]),
        Key::new("autocast_cache", Flag, PYTORCH, "`cache_enabled` of `torch.autocast`.")
            .instead(&[(MEGATRON, "remove it: there is no autocast")]),
    ],
};

/// `[measured]`
pub(super) const MEASURED_KEYS: Table = Table {
    name: "measured",
    help: "What the run measured, where it has been run.",
    group: Group::Rest,
    owner: None,
    instead: &[],
    keys: &[
        Key::new(
            "step_time",
            Other("a time, a list of times, or a table of p10 and p50 and p90"),
            ALL,
            "Time of a steady step; of several the median counts.",
        ),
        Key::new(
            "tokens_per_second_per_chip",
            Other("a number, a list of numbers, or a table of p10 and p50 and p90"),
            ALL,
            "The rate of tokens, in place of `step_time`.",
        ),
        Key::new(
            "counted_tokens_per_step",
            Count(None),
            ALL,
            "Tokens of a step that the rate counts, where padding is left out of it.",
        ),
        Key::new("allocated", Quantity("80 GB"), ALL, "Peak of `memory_allocated`."),
        Key::new("reserved", Quantity("80 GB"), ALL, "Peak of `memory_reserved`."),
        Key::new(
            "peak_memory",
            Quantity("80 GB"),
            ALL,
            "A peak of memory that is not said to be allocated or reserved.",
        ),
        Key::new("mfu", Number, ALL, "Model FLOPs utilisation, between 0 and 1."),
        Key::new("mfu_convention", Text, ALL, "The convention of `mfu`, by the name that `run --mfu-all` prints."),
        Key::new("out_of_memory", Flag, ALL, "The run ended out of memory."),
        Key::new("source", Text, ALL, "Who measured it, where it is written down."),
        Key::new("date", Text, ALL, "The day it was measured on, as YYYY-MM-DD: `check` keeps a history by it."),
        Key::new("commit", Text, ALL, "The commit of the code that ran."),
        Key::new("lane", Text, ALL, "The lane it is counted in."),
        Key::new("hardware", Text, ALL, "The hardware it is counted under."),
        Key::new("grade", Text, ALL, "How complete the receipt is: A, B or C."),
        Key::new(
            "family",
            Text,
            ALL,
            "Runs measured together, such as a model by one publisher: its interval rests on other families alone.",
        ),
    ],
};
