//! `[framework]`: versions and switches of PyTorch, and how a codebase writes a model.

use serde::Deserialize;
use toml::Spanned;

use super::experts::ExpertStyle;
use super::float8::LinearStyle;
use super::readers::{
    ALL, CUDA, DDP, INTERNEVO, MEGATRON, MODULES, NANOTRON, PYTORCH, PYTORCH_BUT_DDP, TORCH_XLA, XLA, ZERO,
};
use super::row::Choice::Word;
use super::row::Kind::Choice;
use super::row::between;
use crate::runtime::compiled::Method;

words! {
    /// Rotary embedding in eager operators.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum RopeStyle {
        /// A complex product in fp32 (torchtitan).
        Complex = "complex",
        /// The same, with rows gathered from a table of each block's own by the positions of its tokens (torchtitan 0.3.0).
        ComplexByPosition = "complex_by_position",
        /// `x·cos + rotate_half(x)·sin` (transformers).
        RotateHalf = "rotate_half",
        /// Pairs in fp32, stacked (torchtune).
        Stacked = "stacked",
    }
}

words! {
    /// Whose classes embedding, blocks and head are.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum ModulesStyle {
        /// The other keys say how they are written.
        Plain = "plain",
        /// Hugging Face transformers'.
        Transformers = "transformers",
    }
}

words! {
    /// How transformers' classes compute attention.
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum AttentionStyle {
        /// `scaled_dot_product_attention`.
        Sdpa = "sdpa",
        /// Matmuls and a softmax.
        Eager = "eager",
        /// flash-attn.
        Flash = "flash_attention_2",
    }
}

keys! {
    /// What differs between PyTorch's versions, and between codebases for the same model.
    #[derive(Debug, Default, Deserialize)]
    ["framework"] Framework in Rest.instead(&[
        (DDP, "it is a switch of other runtimes: remove the key"),
        (MEGATRON, "write megatron.implementation = \"transformer_engine\" or \"local\", and its fusions"),
        (ZERO, "remove the key"),
        (INTERNEVO, "its modules are InternLM's: remove the key"),
        (NANOTRON, "its modules are its own: remove the key"),
        (TORCH_XLA, "remove the table: it is torch_xla 2.9, compiled whole"),
        (XLA, "remove the table: it is MaxText's model, compiled whole"),
    ]);

    /// The training code and its release, such as `torchtitan 0.2.2`. It sets the keys that the file leaves out.
    release: Option<Spanned<String>> => MODULES.such_as("\"torchtitan 0.3.0\"");
    /// The release that ran, where the file has the defaults of another one. The step's interval is wider.
    unknown_release: Option<Spanned<String>> => ALL.such_as("\"0.3.1\"");
    /// Switches of the run that are not simulated, each with what it changes, as importers write them. The step's interval is
    /// wider.
    not_simulated: Option<Vec<Spanned<String>>> => ALL.such_as("[\"validation.enable = true: validation runs between steps\"]");
    /// Whether RMSNorm is one kernel (2.6: composed of pointwise ones).
    fused_rms_norm: Option<bool> => MODULES
        default PYTORCH => "true" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "aten _fused_rms_norm; torchtitan nn.RMSNorm"
        default ZERO => "true" of "transformers 5.23.0" at "src/transformers/models/llama/modeling_llama.py:51-66";
    /// Release of cuBLAS, `major.minor`, where it is not the profile's.
    cublas: Option<Spanned<String>> => CUDA.such_as("\"12.8\"");
    /// `CUDA_LAUNCH_BLOCKING` in the environment: the host waits for every launch.
    launch_blocking: Option<bool> => CUDA
        default CUDA => "false" of "CUDA" at "NVIDIA CUDA C++ Programming Guide, CUDA Environment Variables, CUDA_LAUNCH_BLOCKING (0 unless set)";
    /// `CUDA_DEVICE_MAX_CONNECTIONS` in the environment: how many queues the device takes work from, 1 to 32.
    device_max_connections: Option<Spanned<u32>> as between(1, 32) => CUDA.such_as("8")
        default &["megatron"] => "1" of "NVIDIA/Megatron-LM core_v0.16.1" at "megatron/training/arguments.py:927-953"
        default NANOTRON => "1" of "nanotron c2528430 (March 2025)" at "README.md:60, examples/bench_llama_7b.py:93; src/nanotron/parallel/utils.py";
    /// Whether a cuBLAS workspace stays taken once used (before PyTorch 2.15, or `TORCH_CUBLAS_WORKSPACE_CACHE=1`).
    persistent_cublas_workspace: Option<bool> => CUDA
        default MODULES => "false" of "PyTorch 2.15.0" at "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp, TORCH_CUBLAS_WORKSPACE_CACHE (string in 2.15.0's libtorch_cuda.so)"
        default &["deepspeed", "internevo", "megatron", "nanotron"] => "true" of "PyTorch before 2.15" at "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp, cublas_handle_stream_to_workspace; pytorch/pytorch#194311 gives workspaces back";
    /// Whose classes the model's modules are.
    modules: Option<Spanned<ModulesStyle>> => PYTORCH
        default PYTORCH => "\"plain\"" of "none" at "of the job or the machine: no framework has a default";
    /// How the model's code writes rotary embeddings.
    rope: Option<RopeStyle> => MODULES.instead(&[(MEGATRON, "write megatron.rope_fusion")])
        default MODULES => "\"complex\"" of "torchtitan 0.2.2" at "torchtitan/models/llama3/model/model.py, apply_rotary_emb (view_as_complex)";
    /// Whether the model's code copies keys and values to every query head.
    repeat_kv: Option<bool> => MODULES
        default MODULES => "false" of "PyTorch 2.15.0; torchtitan 0.2.2, torchtitan 0.3.0" at "scaled_dot_product_attention(enable_gqa=True); held to both releases by tests/oracle/torchtitan.rs";
    /// Whether queries, keys and values come from one linear and are then copied apart.
    fused_qkv: Option<bool> => PYTORCH
        default PYTORCH => "false" of "torchtitan 0.2.2" at "torchtitan/models/llama3/model/model.py, Attention.__init__ (wq, wk, wv)";
    /// Whether forward, loss and backward of a micro-batch are one CUDA graph (torchtitan 0.3.0).
    cuda_graphs: Option<bool> => PYTORCH_BUT_DDP
        default &["fsdp2"] => "false" of "PyTorch 2.15.0; torchtitan 0.2.2" at "torch/cuda/graphs.py: none unless captured; torchtitan 0.3.0 has them (release)";
    /// How experts are run.
    experts: Option<Spanned<ExpertStyle>> => PYTORCH
        default &["fsdp2"] => "\"grouped\"" of "transformers 5.23.0; torchtitan 0.2.2, torchtitan 0.3.0" at "src/transformers/modeling_utils.py:1883-1884; torchtitan/models/moe";
    /// Which library multiplies in linears.
    linears: Option<Spanned<LinearStyle>> => PYTORCH;
    /// How context-parallel ranks exchange keys and values.
    context_parallel_rotate_method: Option<Spanned<Method>> as Choice(&[Word("allgather"), Word("alltoall")]) => PYTORCH_BUT_DDP
        default &["fsdp2"] => "\"allgather\"" of "PyTorch 2.15.0; torchtitan 0.2.2" at "torch/distributed/tensor/experimental/_context_parallel/_attention.py:77; job_config.py:446";
    /// Which parts of a sequence each context-parallel rank gets.
    context_parallel_load_balancer: Option<Spanned<LoadBalancer>> => PYTORCH_BUT_DDP
        default &["fsdp2"] => "\"headtail\"" of "torchtitan 0.2.2" at "torchtitan/config/job_config.py, context_parallel_load_balancer = \"headtail\"; torch/distributed/tensor/experimental/_context_parallel/_attention.py, _cp_options.enable_load_balance";
}

words! {
    /// How ranks that share a sequence divide its causal work (torchtitan's `context_parallel_load_balancer`).
    #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
    pub enum LoadBalancer {
        /// A part of the sequence's head and one of its tail each.
        HeadTail = "headtail",
        /// Each the next share: the last rank has most of the work.
        None = "none",
    }
}
