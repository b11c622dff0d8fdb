//! How a block is written, and what of it runs again in backward.

use crate::model::megatron::CrossEntropy;
use crate::plan::eager::LayerNorm;

/// Which modules a block is made of (`--transformer-impl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Implementation {
    /// Megatron's own modules.
    Local,
    /// Transformer Engine's: fused norm and linear, fused attention.
    TransformerEngine,
}

/// Whose program runs: a release of Megatron-Core, with the Transformer Engine of its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Release {
    /// 0.16.1, with 2.9.
    #[default]
    V0_16,
    /// 0.19.2, with 2.20.2: losses of tokens further ahead are a function of their own, whose logits are gone when it returns
    /// (`process_mtp_loss`, `core/transformer/multi_token_prediction.py`).
    V0_19,
}

/// How scores become a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Core {
    /// Batched matmuls around a scaled, masked softmax (`core/transformer/dot_product_attention.py`).
    Unfused {
        /// Whether scale, mask and softmax are one kernel (`--masked-softmax-fusion`).
        fused_softmax: bool,
    },
    /// One kernel for all of it, forward and backward: FlashAttention or cuDNN's, whichever the software has.
    Flash,
}

/// What is run again in backward (`--recompute-granularity`, `--recompute-method`, `--recompute-num-layers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention core (`selective`, module `core_attn`).
    Core,
    /// Whole blocks, `layers` of them as one: the input of each such group is kept (`full`, `uniform`).
    Uniform {
        /// `--recompute-num-layers`.
        layers: u64,
    },
    /// The first `layers` blocks of each stage, each on its own (`full`, `block`).
    Block {
        /// `--recompute-num-layers`.
        layers: u64,
    },
}

/// Parts of a block that are run again in backward (`--recompute-modules`), beside attention's core. Of norms, the experts'
/// activation and what latent attention makes of its short vectors the results are let go of, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct RecomputeModules {
    /// `layernorm`: the norms before attention and before the feed-forward that are modules of their own.
    pub norms: bool,
    /// `moe_act`: the activation of experts.
    pub activation: bool,
    /// `mla_up_proj`: queries, keys and values of latent attention.
    pub up_projection: bool,
    /// `mlp`: the feed-forward of a block without experts.
    pub feed_forward: bool,
    /// `moe`: the mixture of experts.
    pub mixture: bool,
    /// `shared_experts`: the experts that every token passes.
    pub shared: bool,
}

/// How a block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Block {
    /// Whose modules.
    pub implementation: Implementation,
    /// Whose kernels LayerNorm is, of Megatron's own modules (`--no-persist-layer-norm`).
    pub layer_norm: LayerNorm,
    /// Attention's core.
    pub core: Core,
    /// Whether there is dropout on what is added to the hidden state (`--hidden-dropout` above 0).
    pub hidden_dropout: bool,
    /// Whether there is dropout on attention's probabilities (`--attention-dropout` above 0).
    pub attention_dropout: bool,
    /// Whether bias and activation are one kernel (`--bias-gelu-fusion`, `--bias-swiglu-fusion`).
    pub fused_activation: bool,
    /// Whether experts' squared ReLU and the weights of their rows are one kernel (`use_fused_weighted_squared_relu`).
    pub fused_squared_relu: bool,
    /// Whether bias, dropout and residual are one kernel (`--bias-dropout-fusion`).
    pub fused_dropout: bool,
    /// Whether rotary embeddings are one kernel (`--apply-rope-fusion`).
    pub fused_rope: bool,
    /// Whose kernels the loss over the vocabulary is made of (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`).
    pub cross_entropy: CrossEntropy,
    /// Whose program runs.
    pub release: Release,
    /// What is run again in backward.
    pub recompute: Recompute,
    /// Which parts of it are, besides.
    pub recompute_modules: RecomputeModules,
}

impl Block {
    /// A framework's own modules, which answer to none of Megatron's switches but what runs again.
    pub fn own(recompute: Recompute, cross_entropy: CrossEntropy) -> Block {
        Block {
            implementation: Implementation::Local,
            layer_norm: LayerNorm::Torch,
            core: Core::Flash,
            hidden_dropout: false,
            attention_dropout: false,
            fused_activation: false,
            fused_squared_relu: false,
            fused_dropout: false,
            fused_rope: true,
            cross_entropy,
            release: Release::default(),
            recompute,
            recompute_modules: RecomputeModules::default(),
        }
    }
}
