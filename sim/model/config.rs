//! A model as a whole: its sizes and parts, and how many parameters they have.

use std::fmt;

use super::experts::Experts;
use super::layer::{Attention, Dense, FeedForward, GatedDelta, LatentAttention, Layer, Layers, Mixer, Norms};
use super::operators::Activation;
use super::parts::{Dropout, Gating, Norm, Position, QkNorm};

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ModelConfig {
    /// Name for reports.
    pub name: String,
    /// Its layers.
    pub layers: Layers,
    /// D: model width.
    pub width: u64,
    /// V: vocabulary, as padded in the weights.
    pub vocab: u64,
    /// The norm between the last layer and the head, if there is one.
    pub final_norm: Option<Norm>,
    /// The norm on the embedding, if there is one (BLOOM).
    pub embedding_norm: Option<Norm>,
    /// Positions.
    pub position: Position,
    /// Head shares the embedding's matrix.
    pub tied_head: bool,
    /// The longest sequence that the model's file says it is for (`max_position_embeddings`), where positions are no table.
    pub context: Option<u64>,
    /// `cap·tanh(x/cap)` on the logits (Gemma 2).
    pub logit_softcap: bool,
    /// Tokens that blocks of their own predict further ahead, one each (`num_nextn_predict_layers`: DeepSeek-V3).
    pub mtp_layers: u64,
    /// Layers of such a block; none: one like the last (`mtp_hybrid_override_pattern`: Nemotron 3 Super).
    pub mtp_block: Vec<Layer>,
    /// All such blocks are one, used again for each token (`mtp_use_repeated_layer`).
    pub mtp_repeated: bool,
    /// The embedding is multiplied by √D (Gemma).
    pub scaled_embedding: bool,
    /// Cosines and sines of the rotary embedding are multiplied by a factor (YaRN's attention factor: GPT-OSS).
    pub rope_scaled: bool,
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
    /// One layer; with experts in it, if any kind of layer has them.
    pub block: u64,
    /// The token embedding, with learned positions and its norm.
    pub embedding: u64,
    /// The head; zero when it is the embedding's matrix.
    pub head: u64,
    /// The final norm.
    pub final_norm: u64,
    /// One module that predicts a token further ahead, if the model has them: its layers, a projection, three norms.
    pub ahead: u64,
    /// All of them, with blocks that predict further ahead.
    pub total: u64,
    /// Those that one token meets: all but the experts it is not sent to.
    pub active: u64,
}

impl ModelConfig {
    /// Exact parameter counts.
    pub fn params(&self) -> ParamCount {
        let d = self.width;
        let mut embedding = self.vocab * d;
        if let Position::Learned { positions } = self.position {
            embedding += positions * d;
        }
        embedding += self.embedding_norm.map_or(0, |norm| norm.params(d));
        let head = if self.tied_head { 0 } else { self.vocab * d };
        let final_norm = self.final_norm.map_or(0, |norm| norm.params(d));
        let kinds: Vec<(u64, u64)> = self.layers.kinds().iter().map(|kind| kind.params(d)).collect();
        let (mut total, mut active) = (embedding + head + final_norm, embedding + head + final_norm);
        for id in self.layers.ids() {
            let (all, met) = kinds[id.index()];
            (total, active) = (total + all, active + met);
        }
        // Each has layers, a projection of two hidden states to one, and three norms.
        let last = self.layers.last();
        let beside = 2 * d * d + 3 * last.norms.kind.params(d);
        let each = self.ahead().iter().map(|layer| layer.params(d));
        let (all, met) = each.fold((0, 0), |(all, met), (more, also)| (all + more, met + also));
        let ahead = all + beside;
        let (total, active) = (total + self.mtp_sets() * ahead, active + self.mtp_layers * (met + beside));
        let sparse = self.layers.kinds().iter().find(|kind| kind.experts().is_some());
        let block = sparse.unwrap_or(last).params(d).0;
        ParamCount { block, embedding, head, final_norm, ahead, total, active }
    }

    /// Layers of a block that predicts a token further ahead.
    pub fn ahead(&self) -> &[Layer] {
        if self.mtp_block.is_empty() { std::slice::from_ref(self.layers.last()) } else { &self.mtp_block }
    }

    /// How many blocks that predict further ahead have parameters of their own.
    pub fn mtp_sets(&self) -> u64 {
        if self.mtp_repeated { self.mtp_layers.min(1) } else { self.mtp_layers }
    }

    /// Layers with experts.
    pub fn expert_blocks(&self) -> u64 {
        self.layers.iter().filter(|layer| layer.experts().is_some()).count() as u64
    }

    /// The attention of its layers, which differs in windows only ([`Layers`]): all but the window is that of every layer that has
    /// some. Without attention: what mixes tokens in the first layer that mixes them.
    pub fn mixer(&self) -> &Mixer {
        let mixers = || self.layers.kinds().iter().map(|kind| &kind.mixer);
        let attention = mixers().find(|mixer| mixer.attends());
        attention.or_else(|| mixers().find(|mixer| **mixer != Mixer::None)).unwrap_or(&self.layers.kinds()[0].mixer)
    }

    /// Whether every layer is attention and then a feed-forward.
    pub fn is_transformer(&self) -> bool {
        let plain = |kind: &Layer| kind.mixer.attends() && kind.feed_forward != FeedForward::None;
        self.layers.kinds().iter().all(plain)
    }

    /// Whether any layer multiplies what attention or shared experts make by a gate.
    pub fn has_gates(&self) -> bool {
        self.layers.kinds().iter().any(Layer::has_gate)
    }

    /// The gated DeltaNet of its layers, if some have one.
    pub fn gated_delta(&self) -> Option<&GatedDelta> {
        self.layers.kinds().iter().find_map(|kind| match &kind.mixer {
            Mixer::GatedDelta(delta) => Some(delta),
            _ => None,
        })
    }

    /// Attention of its layers, if it is that of heads: all but the window is that of every layer.
    pub fn attention(&self) -> Option<&Attention> {
        self.mixer().attention()
    }

    /// Latent attention of its layers, if it is that.
    pub fn latent(&self) -> Option<&LatentAttention> {
        self.mixer().latent()
    }

    /// N: query heads of every layer.
    pub fn heads(&self) -> u64 {
        self.mixer().heads()
    }

    /// K: key-value heads of every layer.
    pub fn kv_heads(&self) -> u64 {
        self.mixer().kv_heads()
    }

    /// H: head dimension of every layer.
    pub fn head_dim(&self) -> u64 {
        self.mixer().head_dim()
    }

    /// Whether any kind of layer has a window.
    pub fn has_windows(&self) -> bool {
        self.layers.kinds().iter().any(|kind| kind.window().is_some())
    }

    /// Whether queries and keys of every layer have norms, and which.
    pub fn qk_norm(&self) -> Option<QkNorm> {
        self.attention().and_then(|attention| attention.qk_norm)
    }

    /// Whether attention of every layer has sinks.
    pub fn has_sinks(&self) -> bool {
        self.attention().is_some_and(|attention| attention.sinks)
    }

    /// Whether attention of every layer caps its scores.
    pub fn caps_scores(&self) -> bool {
        self.attention().is_some_and(|attention| attention.softcap)
    }

    /// Whether queries, keys and values of every layer come from one matrix.
    pub fn fuses_qkv(&self) -> bool {
        self.attention().is_some_and(|attention| attention.fused_qkv)
    }

    /// The norms of every layer.
    pub fn norms(&self) -> Norms {
        self.layers.kinds()[0].norms
    }

    /// The mixture of experts, which is the same in all kinds of layers that have one; none if no kind has.
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.kinds().iter().find_map(|kind| kind.experts())
    }

    /// The dense feed-forward, which is the same in all kinds of layers that have one; none if no kind has.
    pub fn dense(&self) -> Option<&Dense> {
        self.layers.kinds().iter().find_map(|kind| kind.dense())
    }

    /// How hidden values of every layer's feed-forward are made; where no layer has one, what a Mamba-2 applies to its convolution.
    pub fn gating(&self) -> Gating {
        let gating = self.layers.kinds().iter().find_map(|kind| kind.feed_forward.gating());
        gating.unwrap_or(Gating::Plain(Activation::Silu))
    }

    /// F: width of the dense feed-forward; where no kind of layer has one, that of one expert.
    pub fn feed_forward_width(&self) -> u64 {
        self.dense().map(|dense| dense.width).or(self.experts().map(|experts| experts.width)).unwrap_or(0)
    }

    /// Whether any linear of a layer has a bias, but for those of experts.
    pub fn has_biases(&self) -> bool {
        self.attention().is_some_and(|attention| attention.qkv_bias || attention.output_bias)
            || self.dense().is_some_and(|dense| dense.bias)
    }
}

impl fmt::Display for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = self.params();
        write!(f, "{} ({:.3} B parameters", self.name, params.total as f64 / 1e9)?;
        if self.experts().is_some() {
            write!(f, ", {:.3} B active", params.active as f64 / 1e9)?;
        }
        write!(f, ")")
    }
}
