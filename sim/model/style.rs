//! How a codebase writes a model down, where codebases that compute the same launch and keep different things.
//!
//! The defaults are torchtitan's of 2025: complex rotary embedding, and attention kernels that share each key-value head
//! among its query heads.

use super::experts::Implementation;
use super::megatron::MegatronOp;
use super::operators::OpKind;
pub use super::operators::Rope;

/// What multiplies in a block's linears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Linears {
    /// `nn.Linear`, in the type of its input.
    #[default]
    Torch,
    /// Transformer Engine's `Linear` under `fp8_autocast`, with delayed scaling.
    EngineFp8,
}

impl Linears {
    /// One linear.
    pub fn linear(self, inputs: u64, outputs: u64) -> OpKind {
        match self {
            Linears::Torch => OpKind::Linear { inputs, outputs },
            Linears::EngineFp8 => OpKind::Megatron(MegatronOp::EngineLinear { inputs, outputs }),
        }
    }
}

/// Whose classes embedding, blocks and head are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Modules {
    /// Those of [`super::block`], with what else a [`Style`] says.
    #[default]
    Plain,
    /// Those of Hugging Face transformers ([`super::transformers`]).
    Transformers,
}

/// How transformers' classes compute attention (`attn_implementation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum AttentionCode {
    /// `scaled_dot_product_attention`; what a window hides is a mask, which the memory-efficient kernel takes.
    #[default]
    Sdpa,
    /// Matmuls and a softmax.
    Eager,
    /// flash-attn's kernel, which knows windows.
    Flash,
}

/// How RMSNorm is written where it is not one kernel; `u` is the input in fp32 and `r` what it is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum NormCode {
    /// PyTorch's own composition (2.4 to 2.6): `w · type(u·r)`.
    #[default]
    Torch,
    /// `w · type(u·r)`, statement by statement (transformers, Llama and most others).
    Llama,
    /// `type(w · (u·r))` (transformers, OLMo 2).
    Wide,
    /// `type((u·r) · (1 + float(w)))` (transformers, Gemma).
    OnePlus,
}

/// How the model is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Style {
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether keys and values are copied to every query head before attention (`repeat_kv`).
    pub repeat_kv: bool,
    /// Whether queries, keys and values come from one linear and are then copied apart (torchtitan 0.3.0), whatever the model's
    /// weights were published as.
    pub fused_qkv: bool,
    /// How experts are run, where there are any.
    pub experts: Implementation,
    /// Linears of dense blocks; the head's is PyTorch's.
    pub linears: Linears,
    /// Whose classes.
    pub modules: Modules,
    /// How those compute attention.
    pub attention: AttentionCode,
    /// Whether blocks are compiled, which may lay values out in another way.
    pub compiled: bool,
}
