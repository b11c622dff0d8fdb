//! Axes of the mesh, of every runtime.

use serde::Deserialize;
use toml::Spanned;

use super::readers::{
    ALL_BUT_ZERO_AND_XLA, COMPILED, CUDA_BUT_DDP, DDP, INTERNEVO, MEGATRON, NANOTRON, PAIRS, PYTORCH, PYTORCH_BUT_DDP,
    PYTORCH_OR_MEGATRON, REPLICAS, TORCH_XLA, XLA, ZERO,
};
use super::row::between;

keys! {
    /// Mesh axes.
    #[derive(Debug, Deserialize)]
    ["mesh"] Mesh in Mesh.instead(&[
        (DDP, "every chip has a replica of the model: write mesh.dp_replicate"),
        (MEGATRON, "write mesh.dp: replicas, of which megatron.distributed_optimizer shards states"),
        (ZERO, "write mesh.dp and mesh.cp: its ranks share data and sequences"),
        (INTERNEVO, "write mesh.dp: replicas, of which internevo.zero1 share optimizer states"),
        (NANOTRON, "write mesh.dp: replicas"),
        (XLA, "axes here are pipeline, data, fsdp, fsdp_transpose, context, expert, tensor, and the same over slices, such as dcn_data"),
        (TORCH_XLA, "axes here are data, fsdp, expert and tensor, and dcn_data over slices"),
    ]);

    /// Ranks over which parameters are sharded.
    dp_shard: Option<Spanned<i64>> as between(1, 1 << 17) => PYTORCH_BUT_DDP.such_as("8")
        default PAIRS => "by size" of "torchtitan 0.2.2" at "torchtitan/config/job_config.py:324";
    /// Ranks over which shards are replicated (HSDP).
    dp_replicate: Option<Spanned<i64>> as between(1, 1 << 17) => PYTORCH.such_as("4")
        default DDP => "by size" of "PyTorch 2.15.0" at "torch/nn/parallel/distributed.py, process_group=None: the default group, of all ranks";
    /// Tensor-parallel ranks, which are neighbours.
    tp: Option<Spanned<i64>> as between(1, 1 << 17) => ALL_BUT_ZERO_AND_XLA.such_as("8")
        default INTERNEVO => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave"
        default &["megatron"] => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:20,28,45,72";
    /// Context-parallel ranks, which share a sequence.
    cp: Option<Spanned<i64>> as between(1, 1 << 17) => CUDA_BUT_DDP.such_as("2")
        default MEGATRON => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:20,28,45,72"
        default &["internevo", "nanotron"] => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Pipeline ranks.
    pp: Option<Spanned<i64>> as between(1, 1 << 17) => ALL_BUT_ZERO_AND_XLA.such_as("4").instead(&[(XLA, "write mesh.pipeline, the stages, and xla.num_pipeline_microbatches")])
        default INTERNEVO => "1" of "InternEvo v0.1.0" at "configs/7B_sft.py:65,69"
        default &["megatron"] => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:20,28,45,72";
    /// Replicas of the model.
    dp: Option<Spanned<i64>> as between(1, 1 << 17) => REPLICAS.such_as("8")
        default MEGATRON => "by size" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py"
        default NANOTRON => "by size" of "nanotron c2528430 (March 2025)" at "src/nanotron/config/config.py:222";
    /// Expert-parallel ranks: each holds its share of the experts.
    ep: Option<Spanned<i64>> as between(1, 1 << 17) => PYTORCH_OR_MEGATRON.such_as("8");
    /// Tensor-parallel ranks within an expert.
    etp: Option<Spanned<i64>> as between(1, 1 << 17) => MEGATRON.such_as("2")
        default &["megatron"] => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:75";
    /// Replicas in a slice.
    data: Option<Spanned<i64>> as between(1, 1 << 17) => COMPILED.such_as("2")
        default COMPILED => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Chips over which weights are sharded, on their embedding dimension.
    fsdp: Option<Spanned<i64>> as between(1, 1 << 17) => COMPILED.such_as("16")
        default TORCH_XLA => "by size" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Chips over which an MLP's weights are sharded on their width, and gathered.
    fsdp_transpose: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// Chips that share a sequence.
    context: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("4")
        default XLA => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Chips over which experts are sharded.
    expert: Option<Spanned<i64>> as between(1, 1 << 17) => COMPILED.such_as("8");
    /// Chips over which heads and an MLP's width are split.
    tensor: Option<Spanned<i64>> as between(1, 1 << 17) => COMPILED.such_as("4")
        default TORCH_XLA => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave"
        default XLA => "1" of "MaxText e591f30cb" at "src/maxtext/configs/base.yml:361-378";
    /// Stages of a pipeline within a slice.
    pipeline: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("4")
        default XLA => "1" of "MaxText e591f30cb" at "base.yml:317-328; configs/types.py:3575-3609";
    /// Stages of a pipeline over slices: each stage is a slice.
    dcn_pipeline: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2")
        default XLA => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Replicas over slices: each is a slice.
    dcn_data: Option<Spanned<i64>> as between(1, 1 << 17) => COMPILED.such_as("2")
        default XLA => "1" of "none" at "of the job: an axis that nobody asks for has one rank, or what the others leave";
    /// Slices that `fsdp` lies over, besides its chips in each.
    dcn_fsdp: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// Slices that `fsdp_transpose` lies over, besides its chips in each.
    dcn_fsdp_transpose: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// Slices that `context` lies over, besides its chips in each.
    dcn_context: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// Slices that `expert` lies over, besides its chips in each.
    dcn_expert: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// Slices that `tensor` lies over, besides its chips in each.
    dcn_tensor: Option<Spanned<i64>> as between(1, 1 << 17) => XLA.such_as("2");
    /// `allow_split_physical_axes`: whether a physical axis of a slice may be shared out between axes of the mesh. JAX
    /// refuses to without it.
    allow_split_physical_axes: Option<Spanned<bool>> => XLA;
    /// `logical_axis_rules`: rows such as `["embed", ["fsdp"]]`, and MaxText's for what is not written. An axis may
    /// hold other tokens (`activation_batch`), and with them shards of weights (`embed`) and experts (`exp`); parts of
    /// a sequence (`activation_length`) and shards of weights; heads, `mlp` and `vocab` together; or experts alone.
    logical_axis_rules: Option<Spanned<Vec<Spanned<toml::Value>>>> => XLA.such_as("[[\"exp\", \"expert\"], [\"embed\", [\"fsdp\", \"context\"]]]");
}

keys! {
    /// How modules are split over `mesh.tp`.
    #[derive(Debug, Deserialize)]
    ["tensor_parallel"] TensorParallel in Rest.instead(&[
        (DDP, "every rank has the whole model: remove the table"),
        (&["megatron", "deepspeed", "internevo", "nanotron"], "the loss is always taken of split words: remove the key"),
        (ZERO, "its ranks share data and sequences: remove the table"),
        (COMPILED, "the compiler places what tensor parallelism exchanges: write mesh.tensor"),
    ]);

    /// Sequence parallelism: whether activations between tensor-parallel modules are sharded on the sequence.
    sequence: Option<bool> => ALL_BUT_ZERO_AND_XLA
        default &["deepspeed"] => "false" of "Megatron-DeepSpeed 8387ae17" at "megatron/arguments.py has no sequence parallelism"
        default &["fsdp2"] => "true" of "torchtitan 0.2.2; torchtitan 0.3.0" at "config/configs.py:160 (0.3.0)"
        default &["megatron"] => "false" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/core/model_parallel_config.py:39";
    /// Whether the loss takes logits that are sharded on the vocabulary.
    loss: Option<bool> => PYTORCH_BUT_DDP
        default &["fsdp2"] => "true" of "torchtitan 0.2.2; torchtitan 0.3.0" at "torchtitan/components/loss.py (0.2.2); models/llama3/config_registry.py llama3_8b (0.3.0)";
    /// Whether compiled layers split their exchanges into parts that overlap with matmuls (async TP).
    asynchronous: Option<Spanned<bool>> => PYTORCH_BUT_DDP;
}
