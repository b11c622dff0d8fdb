//! Embedding and blocks as Hugging Face transformers' own classes write them (5.23.0, `models/<name>/modeling_<name>.py`).
//!
//! What the classes keep and allocate is recorded from themselves in `tests/oracles/hf-transformers.json`. They differ from
//! [`super::block`] in how norms and GELU are written, in dropout, in whether attention is one kernel, and in which copies
//! their views cost. A value that Python's `forward` still names when it returns goes with the operator that ends the block.
//!
//! To add a class: a line in [`CLASSES`], and what it alone does in [`attention`] or [`feed_forward`].

mod attention;
mod body;
mod feed_forward;

pub use body::{Blocks, Body, body};

use super::block::parts::{AttentionParams, norm, norm_params};
use super::graph::{Axis, Dims, Graph, GraphBuilder, OpKind, ValueId};
use super::layer::{self, Dense, Layer, Norms};
use super::style::{Modules, NormCode, Style};
use super::{ModelConfig, Norm, NormPlacement, Position};
use crate::program::{DType, Owner};

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BS: &[Axis] = &[Axis::B, Axis::S];
const S: &[Axis] = &[Axis::S];
const SD: &[Axis] = &[Axis::S, Axis::D];

/// What a class does that [`ModelConfig`] does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// `model_type` of its config.
    pub model_type: &'static str,
    /// How its RMSNorm is written.
    pub norm: NormCode,
    /// Whether it has `scaled_dot_product_attention` (`_supports_sdpa`).
    pub sdpa: bool,
    /// Whether it gives that a mask at any length (`allow_is_causal_skip=False`).
    pub masks: bool,
    /// How queries, keys and values are taken from their projections.
    parts: Parts,
}

/// How queries, keys and values are taken from their projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    /// A projection each.
    Own,
    /// A projection each, norms on heads after all three.
    NormedLast,
    /// A projection each; queries are scaled.
    Scaled,
    /// Parts of one, whose gradients are concatenated.
    Split,
    /// Parts of one for each head, whose gradients are concatenated and copied into order.
    SplitHeads,
    /// Parts of one; the gradient of each is zeros of the whole.
    Slices,
    /// The same, of which keys and values are copied out.
    Indexed,
}

const fn class(model_type: &'static str, norm: NormCode, parts: Parts) -> Class {
    Class { model_type, norm, sdpa: true, masks: false, parts }
}

/// The classes.
const CLASSES: [Class; 15] = [
    class("llama", NormCode::Llama, Parts::Own),
    class("mistral", NormCode::Llama, Parts::Own),
    class("qwen2", NormCode::Llama, Parts::Own),
    class("qwen3", NormCode::Llama, Parts::Own),
    class("gemma", NormCode::OnePlus, Parts::Own),
    Class { sdpa: false, ..class("gemma2", NormCode::OnePlus, Parts::Own) },
    class("gemma3_text", NormCode::OnePlus, Parts::NormedLast),
    class("phi3", NormCode::Llama, Parts::Slices),
    class("olmo2", NormCode::Wide, Parts::Own),
    class("gpt2", NormCode::Llama, Parts::Split),
    class("gpt_neox", NormCode::Llama, Parts::SplitHeads),
    class("opt", NormCode::Llama, Parts::Scaled),
    Class { sdpa: false, ..class("bloom", NormCode::Llama, Parts::Slices) },
    Class { masks: true, ..class("falcon", NormCode::Llama, Parts::Indexed) },
    Class { sdpa: false, ..class("mpt", NormCode::Llama, Parts::Split) },
];

/// The class of a `model_type`, where its rules are known.
pub fn known(model_type: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.model_type == model_type)
}

/// The `model_type`s whose rules are known, for messages.
pub fn names() -> String {
    CLASSES.map(|class| class.model_type).join(", ")
}

/// The class that writes a model's modules down, where transformers' classes are asked for.
pub fn class_of(m: &ModelConfig, style: Style) -> Option<&'static Class> {
    known(m.model_type).filter(|_| style.modules == Modules::Transformers)
}

/// A module of a block, as it registers its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Module {
    Attention,
    FeedForward,
    /// The norm before the first half, or before the second.
    Before(usize),
}

/// The order in which a class registers its modules, which is that in which FSDP packs them; norms behind come last.
fn registered(class: &Class) -> [Module; 4] {
    use Module::{Attention, Before, FeedForward};
    match class.model_type {
        "gpt2" | "bloom" | "mpt" => [Before(0), Attention, Before(1), FeedForward],
        "gpt_neox" => [Before(0), Before(1), Attention, FeedForward],
        "opt" => [Attention, Before(0), FeedForward, Before(1)],
        _ => [Attention, FeedForward, Before(0), Before(1)],
    }
}

/// Parameters of a block.
struct Params {
    attention: AttentionParams,
    ffn: feed_forward::Params,
    before: [Vec<usize>; 2],
    after: [Vec<usize>; 2],
}

impl Params {
    fn new(g: &mut GraphBuilder, whole: &Whole<'_>) -> Params {
        let (mut attention, mut ffn) = (None, None);
        let mut before = [vec![], vec![]];
        let (class, width, Norms { kind, placement }) = (whole.class, whole.m.width, whole.norms);
        for module in registered(class) {
            match module {
                Module::Attention => attention = Some(attention::params(g, whole)),
                Module::FeedForward => ffn = Some(feed_forward::Params::new(g, class, whole.dense)),
                Module::Before(_) if placement == NormPlacement::Post => {}
                Module::Before(1) if placement == NormPlacement::ParallelShared => {}
                Module::Before(at) => {
                    let names =
                        [("attention_norm.weight", "attention_norm.bias"), ("ffn_norm.weight", "ffn_norm.bias")][at];
                    before[at] = norm_params(g, kind, width, names.0, names.1);
                }
            }
        }
        let mut after = [vec![], vec![]];
        if matches!(placement, NormPlacement::Post | NormPlacement::PreAndPost) {
            after[0] = norm_params(g, kind, width, "attention_post_norm.weight", "attention_post_norm.bias");
            after[1] = norm_params(g, kind, width, "ffn_post_norm.weight", "ffn_post_norm.bias");
        }
        Params {
            attention: attention.expect("every class registers attention"),
            ffn: ffn.expect("every class registers a feed-forward"),
            before,
            after,
        }
    }
}

/// A layer whose operators are being written down.
struct Whole<'m> {
    m: &'m ModelConfig,
    class: &'m Class,
    attention: &'m layer::Attention,
    dense: &'m Dense,
    norms: Norms,
    style: Style,
}

/// One layer of a model.
///
/// # Panics
/// If it has experts or latent attention: the classes whose rules are known have neither.
pub fn block(m: &ModelConfig, class: &Class, (dims, compute): (Dims, DType), layer: &Layer, style: Style) -> Graph {
    let (mut graph, x) = GraphBuilder::new("layers", dims, compute, ("x_BSD", BSD, compute));
    let g = &mut graph;
    let (Some(attention), Some(dense)) = (layer.mixer.attention(), layer.dense()) else {
        panic!("{} has attention of heads and a dense feed-forward in every layer", class.model_type);
    };
    let whole = Whole { m, class, attention, dense, norms: layer.norms, style };
    let params = Params::new(g, &whole);
    let out = match layer.norms.placement {
        NormPlacement::Parallel | NormPlacement::ParallelShared => parallel(g, &whole, &params, x),
        _ => in_turn(g, &whole, &params, x),
    };
    graph.finish(out)
}

/// Whether a block returns attention's weights beside its result, which the loop over blocks then names until the next one
/// returns.
fn returns_weights(class: &Class) -> bool {
    matches!(class.model_type, "bloom" | "mpt" | "falcon")
}

/// Until when `forward` of a block names what the norm before a half made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// Until the half has returned, whose result takes its name.
    Half,
    /// Until the next norm's result takes its name (BLOOM, MPT).
    Norm,
    /// Until the sum takes its name; what is added, until the block returns (GPT-2).
    Sum,
}

/// Attention, then the feed-forward on what that made.
fn in_turn(g: &mut GraphBuilder, whole: &Whole<'_>, rest: &Params, x: ValueId) -> ValueId {
    let (m, kind, rows) = (whole.m, whole.norms.kind, g.dims().tokens());
    let named = match whole.class.model_type {
        "gpt2" => Named::Sum,
        "bloom" | "mpt" => Named::Norm,
        _ => Named::Half,
    };
    let before = |g: &mut GraphBuilder, at: usize, value| match rest.before[at].is_empty() {
        true => value,
        false => norm(g, kind, rows, value, &rest.before[at], ["attention_norm", "ffn_norm"][at], ("xn_BSD", BSD)),
    };
    let after = |g: &mut GraphBuilder, at: usize, value| {
        if rest.after[at].is_empty() {
            return dropout(g, value, m.dropout.residual.get());
        }
        let module = ["attention_post_norm", "ffn_post_norm"][at];
        let out = norm(g, kind, rows, value, &rest.after[at], module, ("post_BSD", BSD));
        g.drop_values(&[value]);
        out
    };
    // Without a norm the half reads what is added up.
    let goes = |g: &mut GraphBuilder, now: Named, made: ValueId, at: usize| {
        if named == now && !rest.before[at].is_empty() {
            g.drop_values(&[made]);
        }
    };
    g.belong(Owner::Attention);
    let xn = before(g, 0, x);
    let (attn, late) = attention::attention(g, whole, &rest.attention, xn);
    goes(g, Named::Half, xn, 0);
    let attn = after(g, 0, attn);
    let h = g.op("residual", OpKind::ADD, &[x, attn], &[], ("h_BSD", BSD));
    goes(g, Named::Sum, xn, 0);
    if named != Named::Sum {
        g.drop_values(&[attn]);
    }
    g.belong(Owner::Dense);
    let hn = before(g, 1, h);
    goes(g, Named::Norm, xn, 0);
    let ff = feed_forward::feed_forward(g, whole.dense, hn, &rest.ffn);
    goes(g, Named::Half, hn, 1);
    let ff = after(g, 1, ff);
    let out = g.op("residual", OpKind::ADD, &[h, ff], &[], ("out_BSD", BSD));
    goes(g, Named::Sum, hn, 1);
    g.drop_values(&[ff]);
    if named == Named::Sum {
        g.drop_values(&[attn]);
    }
    goes(g, Named::Norm, hn, 1);
    g.drop_values(&[h]);
    if !returns_weights(whole.class) {
        g.drop_values(&late);
    }
    out
}

/// Attention and feed-forward on the block's input, each through its own norm or both through one.
fn parallel(g: &mut GraphBuilder, whole: &Whole<'_>, rest: &Params, x: ValueId) -> ValueId {
    let (m, kind, rows) = (whole.m, whole.norms.kind, g.dims().tokens());
    g.belong(Owner::Attention);
    let xn = norm(g, kind, rows, x, &rest.before[0], "attention_norm", ("xn_BSD", BSD));
    let shared = rest.before[1].is_empty();
    // Falcon norms twice before anything else; GPT-NeoX norms again for the feed-forward.
    let early = whole.class.model_type == "falcon" && !shared;
    let second = |g: &mut GraphBuilder| {
        let before = g.belong(Owner::Dense);
        let normed = norm(g, kind, rows, x, &rest.before[1], "ffn_norm", ("xf_BSD", BSD));
        g.belong(before);
        normed
    };
    let mut hn = if early { Some(second(g)) } else { None };
    let (attn, late) = attention::attention(g, whole, &rest.attention, xn);
    if !shared {
        g.drop_values(&[xn]);
    }
    let attn = dropout(g, attn, m.dropout.residual.get());
    let read = match (shared, hn.take()) {
        (true, _) => xn,
        (false, Some(made)) => made,
        (false, None) => second(g),
    };
    g.belong(Owner::Dense);
    let ff = feed_forward::feed_forward(g, whole.dense, read, &rest.ffn);
    g.drop_values(&[read]);
    let ff = dropout(g, ff, m.dropout.residual.get());
    let both = g.op("residual", OpKind::ADD, &[ff, attn], &[], ("both_BSD", BSD));
    let out = g.op("residual", OpKind::ADD, &[both, x], &[], ("out_BSD", BSD));
    g.drop_values(&[both, ff, attn]);
    if !returns_weights(whole.class) {
        g.drop_values(&late);
    }
    out
}

/// Dropout, where there is any; Python lets go of what it was given.
fn dropout(g: &mut GraphBuilder, value: ValueId, probability: f64) -> ValueId {
    if probability == 0.0 {
        return value;
    }
    let out = g.op("dropout", OpKind::Dropout, &[value], &[], ("dropped_BSD", BSD));
    g.drop_values(&[value]);
    out
}

/// Token embedding, with learned positions, scaling, a norm and dropout where the model has them. What the model's `forward`
/// names until it returns is not let go of.
pub fn embedding(m: &ModelConfig, dims: Dims, compute: DType) -> Graph {
    let (mut graph, tokens) = GraphBuilder::new("tok_embeddings", dims, compute, ("tokens_BS", BS, DType::Int64));
    let g = &mut graph;
    g.belong(Owner::Embedding);
    let table = g.table("tok_embeddings.weight", dims.v, m.width);
    let mut h = g.op("tok_embeddings", OpKind::Embedding, &[tokens], &[table], ("h_BSD", BSD));
    if let Position::Learned { positions } = m.position {
        let table = g.table("pos_embeddings.weight", positions, m.width);
        // OPT counts the positions of each sequence.
        let (rows, shape) = if m.model_type == "opt" { (BS, BSD) } else { (S, SD) };
        let rows = g.op_in("pos_embeddings", OpKind::POSITIONS, &[], &[], ("pos_S", rows), DType::Int64);
        let pos = g.op("pos_embeddings", OpKind::Embedding, &[rows], &[table], ("pos_SD", shape));
        h = g.op("pos_embeddings", OpKind::ADD, &[h, pos], &[], ("h_BSD", BSD));
    }
    if m.scaled_embedding {
        let scaled = g.op("tok_embeddings", OpKind::SCALE, &[h], &[], ("h_BSD", BSD));
        g.drop_values(&[h]);
        h = scaled;
    }
    if let Some(kind) = m.embedding_norm {
        let params = norm_params(g, kind, m.width, "embedding_norm.weight", "embedding_norm.bias");
        h = norm(g, kind, dims.tokens(), h, &params, "embedding_norm", ("h_BSD", BSD));
    }
    let out = dropout(g, h, m.dropout.embedding.get());
    graph.finish(out)
}

/// Whether the norm of a model is written out in pointwise operators, and how.
pub fn norm_code(m: &ModelConfig, style: Style) -> NormCode {
    class_of(m, style).filter(|_| m.norms().kind == Norm::Rms).map_or(NormCode::Torch, |class| class.norm)
}
