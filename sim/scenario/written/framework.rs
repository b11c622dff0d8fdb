//! `[framework]`: versions and switches of PyTorch, and how a codebase writes a model.

use serde::Deserialize;
use toml::Spanned;

use super::{ExpertStyle, LinearStyle};
use crate::runtime::compiled::Method;

/// Rotary embedding in eager operators.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RopeStyle {
    /// A complex product in fp32 (torchtitan).
    Complex,
    /// The same, with rows gathered from a table of each block's own by the positions of its tokens (torchtitan 0.3.0).
    ComplexByPosition,
    /// `x·cos + rotate_half(x)·sin` (transformers).
    RotateHalf,
    /// Pairs in fp32, stacked (torchtune).
    Stacked,
}

/// Whose classes embedding, blocks and head are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ModulesStyle {
    /// The other keys say how they are written.
    Plain,
    /// Hugging Face transformers'.
    Transformers,
}

/// How transformers' classes compute attention.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum AttentionStyle {
    /// `scaled_dot_product_attention`.
    Sdpa,
    /// Matmuls and a softmax.
    Eager,
    /// flash-attn.
    #[serde(rename = "flash_attention_2")]
    Flash,
}

/// `[framework]`: what differs between PyTorch's versions, and between codebases for the same model; the defaults are
/// 2.15's, and torchtitan's of 2025.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Framework {
    /// Whose training code it is, in which release, such as `torchtitan 0.2.2`: keys that the file leaves out are as there.
    pub release: Option<Spanned<String>>,
    /// The release that ran, where the file has the defaults of another one: the step's interval is wider.
    pub unknown_release: Option<Spanned<String>>,
    /// Whether RMSNorm is one kernel (2.6: composed of pointwise ones).
    pub fused_rms_norm: Option<bool>,
    /// Release of cuBLAS, `major.minor`, where it is not the profile's.
    pub cublas: Option<Spanned<String>>,
    /// `CUDA_LAUNCH_BLOCKING` in the environment: the host waits for every launch.
    pub launch_blocking: Option<bool>,
    /// `CUDA_DEVICE_MAX_CONNECTIONS` in the environment: how many queues the device takes work from, 1 to 32.
    pub device_max_connections: Option<Spanned<u32>>,
    /// Whether a cuBLAS workspace stays taken once used (before PyTorch 2.15, or `TORCH_CUBLAS_WORKSPACE_CACHE=1`).
    pub persistent_cublas_workspace: Option<bool>,
    /// Whose classes the model's modules are.
    pub modules: Option<Spanned<ModulesStyle>>,
    /// How the model's code writes rotary embeddings.
    pub rope: Option<RopeStyle>,
    /// Whether the model's code copies keys and values to every query head.
    pub repeat_kv: Option<bool>,
    /// Whether queries, keys and values come from one linear and are then copied apart.
    pub fused_qkv: Option<bool>,
    /// Whether forward, loss and backward of a micro-batch are one CUDA graph (torchtitan 0.3.0).
    pub cuda_graphs: Option<bool>,
    /// How experts are run.
    pub experts: Option<Spanned<ExpertStyle>>,
    /// What multiplies in linears.
    pub linears: Option<Spanned<LinearStyle>>,
    /// How ranks that share a sequence get each other's keys and values.
    pub context_parallel_rotate_method: Option<Spanned<Method>>,
    /// Which parts of a sequence each of them has.
    pub context_parallel_load_balancer: Option<Spanned<LoadBalancer>>,
}

fill!(Framework {
    release, unknown_release, cublas, device_max_connections, modules, experts, linears, context_parallel_rotate_method,
    context_parallel_load_balancer,
} {
    fused_rms_norm, launch_blocking, persistent_cublas_workspace, rope, repeat_kv, fused_qkv, cuda_graphs,
});

/// How ranks that share a sequence divide its causal work (torchtitan's `context_parallel_load_balancer`).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LoadBalancer {
    /// A part of the sequence's head and one of its tail each.
    HeadTail,
    /// Each the next share: the last rank has most of the work.
    None,
}
