//! A model as a whole: its sizes and parts, and how many parameters they have.

use std::fmt;

use super::experts::Experts;
use super::latent::LatentAttention;
use super::parts::{Dropout, FeedForward, Norm, NormPlacement, Position, QkNorm};

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
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
            return latent.params((self.width, self.heads));
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
