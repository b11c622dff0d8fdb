//! A decoder-only transformer: what it is made of, in whole logical sizes, before any sharding.
//!
//! Shape letters, used for every tensor of a model (`xq_BSNH` has shape batch × sequence × heads × head dimension):
//! `B` sequences in a micro-batch, `S` sequence length, `D` model width, `N` query heads, `K` key-value heads,
//! `H` head dimension, `F` feed-forward width, `V` vocabulary, `E` experts, `C` copies of tokens sent to experts
//! (`B·S·k`), `X` expert width, `L` the part of the sequence that one of several
//! tensor-parallel ranks holds (S where it is not split).
//!
//! [`ModelConfig`] says which parts a model has. `block` turns it into operators, forward only; backward passes, saved
//! activations, FLOPs and bytes are derived from those. To add a block type: a file under `model/` that writes its
//! forward operators, and a line in its registry. To add an importer: a file, and a line in the loader.

pub mod autocast;
pub mod block;
pub mod drawn;
pub mod experts;
pub mod fuse;
pub mod graph;
pub mod head;
pub mod huggingface;
pub mod internlm;
pub mod latent;
pub mod megatron;
pub mod nanotron;
pub mod routing;
pub mod style;
pub mod tensor;
pub mod transformers;
pub mod unpad;

use std::fmt;

use experts::Experts;
use latent::LatentAttention;

/// How activations are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// RMSNorm: one weight vector.
    Rms,
    /// LayerNorm: a weight vector, and a bias vector if true.
    Layer {
        /// Whether it has a bias.
        bias: bool,
    },
}

/// Where norms sit in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// One before attention, one before the feed-forward (Llama).
    Pre,
    /// One before and one after each (Gemma 2 and 3).
    PreAndPost,
    /// One after each, none before (OLMo 2).
    Post,
    /// Attention and feed-forward both read the block's input, each through its own norm (GPT-NeoX).
    Parallel,
    /// Attention and feed-forward share one norm of the block's input (GPT-J, Falcon 7B).
    ParallelShared,
}

/// How positions enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Rotary embedding on the first `dims` of each head (`dims` = H unless partial).
    Rope {
        /// Rotated dimensions of each head.
        dims: u64,
    },
    /// Linear biases on the attention scores; no parameters.
    Alibi,
    /// A learned table of `positions` vectors added to the embedding.
    Learned {
        /// Rows of the table.
        positions: u64,
    },
    /// None.
    None,
}

/// Pointwise function of the feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x·sigmoid(x)`.
    Silu,
    /// GELU with the error function.
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// The same, which Hugging Face's GPT-2 writes out in eight operators (`gelu_new`); elsewhere one kernel.
    GeluNew,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
}

/// The feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `w2(act(w1 x) · w3 x)`: three matrices (SwiGLU, GeGLU).
    Gated(Activation),
    /// `w2(act(w1 x))`: two matrices.
    Plain(Activation),
}

/// Norms on queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// A weight of length H, applied to every head (Qwen 3, Gemma 3).
    PerHead,
    /// A weight over all heads at once (OLMo 2).
    Full,
}

/// Probabilities of dropout in training; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// On the embedding.
    pub embedding: f64,
    /// On attention's probabilities.
    pub attention: f64,
    /// On what attention and feed-forward add to the residual stream.
    pub residual: f64,
}

impl Dropout {
    /// Whether anything is dropped.
    pub fn any(self) -> bool {
        self.embedding > 0.0 || self.attention > 0.0 || self.residual > 0.0
    }
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name for reports.
    pub name: String,
    /// Blocks.
    pub layers: u64,
    /// D: model width.
    pub width: u64,
    /// N: query heads.
    pub heads: u64,
    /// K: key-value heads.
    pub kv_heads: u64,
    /// H: head dimension.
    pub head_dim: u64,
    /// F: feed-forward width; with experts, that of the dense blocks.
    pub ffn: u64,
    /// The mixture of experts that stands in the feed-forward's place, in the blocks for which it says so.
    pub experts: Option<Experts>,
    /// Sizes of latent attention, where attention is that; queries and keys then have H = U + R dimensions.
    pub latent: Option<LatentAttention>,
    /// A learned number per head beside the scores, which no value answers to (GPT-OSS).
    pub sinks: bool,
    /// V: vocabulary, as padded in the weights.
    pub vocab: u64,
    /// Norm kind.
    pub norm: Norm,
    /// Norm placement.
    pub norm_placement: NormPlacement,
    /// Whether a norm stands between the last block and the head.
    pub final_norm: bool,
    /// Whether a norm stands on the embedding (BLOOM).
    pub embedding_norm: bool,
    /// Positions.
    pub position: Position,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub output_bias: bool,
    /// Biases in the feed-forward.
    pub ffn_bias: bool,
    /// One matrix for q, k and v (GPT-2, NeoX, MPT) instead of three.
    pub fused_qkv: bool,
    /// Norms on queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Head shares the embedding's matrix.
    pub tied_head: bool,
    /// Keys each query may see; none: all. Applies to the blocks for which [`ModelConfig::window`] says so.
    pub sliding_window: Option<u64>,
    /// Every how many blocks one sees everything (Gemma 2: 2, Gemma 3: 6); 0: all blocks slide.
    pub global_every: u64,
    /// The longest sequence that the model's file says it is for (`max_position_embeddings`), where positions are no table.
    pub context: Option<u64>,
    /// `cap·tanh(x/cap)` on the attention scores (Gemma 2).
    pub attention_softcap: bool,
    /// The same on the logits.
    pub logit_softcap: bool,
    /// Tokens that blocks of their own predict further ahead, one each (`num_nextn_predict_layers`: DeepSeek-V3).
    pub predicts_ahead: u64,
    /// The embedding is multiplied by √D (Gemma).
    pub scaled_embedding: bool,
    /// Dropout in training.
    pub dropout: Dropout,
    /// `model_type` of the config it was read from; empty if from none.
    pub model_type: &'static str,
    /// Where the numbers come from: a file, a paper, a repository.
    pub source: String,
    /// What the source says that this description leaves out, one sentence each; for the report.
    pub notes: Vec<String>,
}

/// Parameter counts of a model's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamCount {
    /// One block; with experts in it, if any block has them.
    pub block: u64,
    /// One block without experts.
    pub dense_block: u64,
    /// The token embedding, with learned positions and its norm.
    pub embedding: u64,
    /// The head; zero when it is the embedding's matrix.
    pub head: u64,
    /// The final norm.
    pub final_norm: u64,
    /// One module that predicts a token further ahead, if the model has them: a block like the last, a projection, three norms.
    pub ahead: u64,
    /// All of them, with blocks that predict further ahead.
    pub total: u64,
    /// Those that one token meets: all but the experts it is not sent to.
    pub active: u64,
}

impl ModelConfig {
    /// Parameters of one norm over `dims` numbers.
    fn norm_params(&self, dims: u64) -> u64 {
        match self.norm {
            Norm::Rms | Norm::Layer { bias: false } => dims,
            Norm::Layer { bias: true } => 2 * dims,
        }
    }

    /// Norms over the model width in one block.
    pub fn norms_per_block(&self) -> u64 {
        match self.norm_placement {
            NormPlacement::Pre | NormPlacement::Post | NormPlacement::Parallel => 2,
            NormPlacement::PreAndPost => 4,
            NormPlacement::ParallelShared => 1,
        }
    }

    fn attention_params(&self) -> u64 {
        if let Some(latent) = self.latent {
            return latent.params(self);
        }
        let d = self.width;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let norms = match self.qk_norm {
            None => 0,
            Some(QkNorm::PerHead) => 2 * self.norm_params(self.head_dim),
            Some(QkNorm::Full) => self.norm_params(q) + self.norm_params(kv),
        };
        let qkv_bias = if self.qkv_bias { q + 2 * kv } else { 0 };
        let output_bias = if self.output_bias { d } else { 0 };
        let sinks = if self.sinks { self.heads } else { 0 };
        d * (q + 2 * kv) + q * d + qkv_bias + output_bias + norms + sinks
    }

    /// Exact parameter counts.
    pub fn params(&self) -> ParamCount {
        let (d, f) = (self.width, self.ffn);
        let gated = matches!(self.feed_forward, FeedForward::Gated(_));
        let around = self.attention_params() + self.norms_per_block() * self.norm_params(d);
        let dense_block = around
            + match gated {
                true => 3 * d * f + if self.ffn_bias { 2 * f + d } else { 0 },
                false => 2 * d * f + if self.ffn_bias { f + d } else { 0 },
            };
        let mut embedding = self.vocab * d;
        if let Position::Learned { positions } = self.position {
            embedding += positions * d;
        }
        if self.embedding_norm {
            embedding += self.norm_params(d);
        }
        let head = if self.tied_head { 0 } else { self.vocab * d };
        let final_norm = if self.final_norm { self.norm_params(d) } else { 0 };
        let (mut block, mut met) = (dense_block, dense_block);
        if let Some(experts) = &self.experts {
            let (all, some) = experts.params(d, gated);
            (block, met) = (around + all, around + some);
        }
        let sparse = self.expert_blocks();
        let beside = (self.layers - sparse) * dense_block + embedding + head + final_norm;
        let (total, active) = (beside + sparse * block, beside + sparse * met);
        // Each has a block of the last kind, a projection of two hidden states to one, and three norms.
        let last =
            if self.layers > 0 && self.experts_in(self.layers - 1).is_some() { [block, met] } else { [dense_block; 2] };
        let [ahead, some] = last.map(|last| last + 2 * d * d + 3 * self.norm_params(d));
        let (total, active) = (total + self.predicts_ahead * ahead, active + self.predicts_ahead * some);
        ParamCount { block, dense_block, embedding, head, final_norm, ahead, total, active }
    }

    /// The mixture of experts of block `layer`, if it has one.
    pub fn experts_in(&self, layer: u64) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.in_block(layer))
    }

    /// Blocks with experts.
    pub fn expert_blocks(&self) -> u64 {
        (0..self.layers).filter(|&layer| self.experts_in(layer).is_some()).count() as u64
    }

    /// What a token's scores and weighted values are computed over, all heads together: N·H, or the mean of N·(U + R)
    /// and N·W under latent attention.
    pub fn attention_width(&self) -> u64 {
        match self.latent {
            Some(latent) => self.heads * (self.head_dim + latent.value) / 2,
            None => self.heads * self.head_dim,
        }
    }

    /// The sliding window of block `layer`, if it has one.
    pub fn window(&self, layer: u64) -> Option<u64> {
        match (self.sliding_window, self.global_every) {
            (None, _) => None,
            (window, 0) => window,
            (window, every) if !(layer + 1).is_multiple_of(every) => window,
            _ => None,
        }
    }
}

impl fmt::Display for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = self.params();
        write!(f, "{} ({:.3} B parameters", self.name, params.total as f64 / 1e9)?;
        if self.experts.is_some() {
            write!(f, ", {:.3} B active", params.active as f64 / 1e9)?;
        }
        write!(f, ")")
    }
}
