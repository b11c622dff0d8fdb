//! The forward of one decoder block, as a list of operators; that of the embedding is [`embedding`](fn@embedding)'s.
//!
//! Operators follow torchtitan's Llama (`torchtitan/models/llama3/model.py`): separate or fused projections, complex
//! rotary embedding in fp32, fused attention, a gated or plain feed-forward, residual sums out of place. The order of
//! parameters is the order modules register them, which is the order FSDP packs them.

mod embedding;
pub(super) mod parts;

pub use embedding::embedding;

use super::experts::forward as mixture;
use super::experts::{Experts, Implementation, titan};
use super::gated_delta;
use super::graph::{Dims, Graph, GraphBuilder, OpKind, ValueId};
use super::latent;
use super::layer::{self, Dense, FeedForward, GatedDelta, LatentAttention, Layer, Mamba2, Mixer, Norms};
use super::mamba;
use super::style::{Linears, Rope, Style};
use super::tensor::{self, TensorParallel};
use super::transformers;
use super::{Gating, ModelConfig, Norm, NormPlacement, Position, QkNorm};
use crate::program::DType;
use parts::{
    AttentionParams, BLD, BSD, BSF, BSKH, BSKR, BSKU, BSNH, BSNR, BSNU, BSQH, BSR, FfnParams, ROPE, activation,
    attention_params, ffn_params, norm, norm_params, rotate_real,
};

/// Sizes of a model on a micro-batch of `batch` sequences of length `seq`, as one of several tensor-parallel ranks has
/// them.
pub fn dims(model: &ModelConfig, batch: u64, seq: u64, tensor: TensorParallel) -> Dims {
    Dims {
        b: batch,
        s: seq,
        d: model.width,
        n: model.heads() / tensor.ranks,
        k: model.kv_heads() / tensor.ranks,
        h: model.head_dim(),
        r: match model.position {
            Position::Rope { dims } => dims.min(model.head_dim()),
            _ => 0,
        },
        f: model.feed_forward_width() / tensor.ranks,
        v: model.vocab / tensor.ranks,
        e: model.experts().map_or(0, |experts| experts.count),
        top_k: model.experts().map_or(0, |experts| experts.top_k),
        x: model.experts().map_or(0, |experts| experts.width),
        latent: model.latent().map_or((0, 0, 0), |latent| (latent.value, latent.query_rank.unwrap_or(0), latent.rank)),
        documents: None,
        tensor,
    }
}

/// Attention on `x_BSD`; Python still holds the result.
fn attention(
    g: &mut GraphBuilder,
    (attention, kind, position): (&layer::Attention, Norm, Position),
    x: ValueId,
    params: &AttentionParams,
    style: Style,
) -> ValueId {
    let dims = g.dims();
    let (d, q_out, kv_out) = (dims.d, dims.n * dims.h, dims.k * dims.h);
    let linear = |inputs, outputs| style.linears.linear(inputs, outputs);
    let mut held = vec![];
    let mut gate = None;
    let (mut xq, mut xk, mut xv);
    if attention.fused_qkv || style.fused_qkv {
        let qkv = tensor::column_linear(
            g,
            "attention.wqkv",
            linear(d, q_out + 2 * kv_out),
            x,
            &params.qkv[0],
            ("xqkv", BSQH),
        );
        [xq, xk, xv] = g.split("attention", qkv, [("xq_BSNH", BSNH), ("xk_BSKH", BSKH), ("xv_BSKH", BSKH)]);
        g.drop_values(&[qkv]);
        if style.fused_qkv {
            // The parts lie side by side in each group of heads.
            let views = [xq, xk, xv];
            xq = g.op("attention", OpKind::CONTIGUOUS, &[views[0]], &[], ("xq_BSNH", BSNH));
            xk = g.op("attention", OpKind::CONTIGUOUS, &[views[1]], &[], ("xk_BSKH", BSKH));
            xv = g.op("attention", OpKind::CONTIGUOUS, &[views[2]], &[], ("xv_BSKH", BSKH));
            g.drop_values(&views);
        }
    } else {
        let outputs = if attention.output_gate { 2 * q_out } else { q_out };
        xq = tensor::column_linear(g, "attention.wq", linear(d, outputs), x, &params.qkv[0], ("xq_BSNH", BSNH));
        if attention.output_gate {
            let whole = xq;
            g.resize(whole, dims.tokens() * outputs);
            let [query, part] = g.split("attention", whole, [("xq_BSNH", BSNH), ("gate_BSNH", BSNH)]);
            gate = Some(g.op("attention", OpKind::CONTIGUOUS, &[part], &[], ("gate_BSNH", BSNH)));
            g.drop_values(&[whole, part]);
            xq = query;
        }
        xk = tensor::column_linear(g, "attention.wk", linear(d, kv_out), x, &params.qkv[1], ("xk_BSKH", BSKH));
        xv = tensor::column_linear(g, "attention.wv", linear(d, kv_out), x, &params.qkv[2], ("xv_BSKH", BSKH));
    }
    if let Some(over) = attention.qk_norm {
        let rows = |heads| if over == QkNorm::PerHead { dims.tokens() * heads } else { dims.tokens() };
        let raw = (xq, xk);
        xq = norm(g, kind, rows(dims.n), raw.0, &params.q_norm, "attention.q_norm", ("xq_BSNH", BSNH));
        g.drop_values(&[raw.0]);
        xk = norm(g, kind, rows(dims.k), raw.1, &params.k_norm, "attention.k_norm", ("xk_BSKH", BSKH));
        g.drop_values(&[raw.1]);
    }
    if let Position::Rope { .. } = position {
        (xq, xk) = match style.rope {
            Rope::Complex | Rope::ComplexByPosition => rotate(g, xq, xk, style.rope == Rope::ComplexByPosition),
            rope => rotate_real(g, xq, xk, rope, attention.qk_norm.is_some()),
        };
    }
    if style.repeat_kv && attention.heads != attention.kv_heads {
        let single = (xk, xv);
        // torchtune gives the copy the name of what it copied; torchtitan names both first.
        let renamed = style.rope == Rope::Stacked;
        xk = g.op("attention", OpKind::REPEAT_KV, &[single.0], &[], ("xk_BSNH", BSNH));
        if renamed {
            g.drop_values(&[single.0]);
        }
        xv = g.op("attention", OpKind::REPEAT_KV, &[single.1], &[], ("xv_BSNH", BSNH));
        if !renamed {
            g.drop_values(&[single.0]);
        }
        g.drop_values(&[single.1]);
    }
    let (window, bias) = (attention.window, position == Position::Alibi);
    let mut o = g.op("attention.sdpa", OpKind::Attention { window, bias }, &[xq, xk, xv], &[], ("xo_BSNH", BSNH));
    held.push(xq);
    if let Some(gate) = gate {
        let opens = g.op("attention", OpKind::SIGMOID, &[gate], &[], ("gate_BSNH", BSNH));
        let gated = g.op("attention", OpKind::MUL, &[o, opens], &[], ("xo_BSNH", BSNH));
        g.drop_values(&[opens, o]);
        held.push(gate);
        o = gated;
    }
    held.extend([xk, xv, o]);
    let out = g.op("attention.wo", linear(q_out, d), &[o], &params.output, ("attn_BSD", BSD));
    tensor::leave(g, out, "attention", "attn_BLD", &held)
}

/// Rotary embedding in fp32 on the first R dimensions of each head; the rest passes beside it and is joined again. The rows of
/// the table may be gathered by position, for every sequence its own.
fn rotate(g: &mut GraphBuilder, xq: ValueId, xk: ValueId, by_position: bool) -> (ValueId, ValueId) {
    let (dims, compute, fp32) = (g.dims(), g.compute(), DType::Fp32);
    let sequences = if by_position { dims.b } else { 1 };
    let table = OpKind::RotateComplex { table: sequences * dims.s * dims.r / 2 };
    let (mut raw, mut pass) = ((xq, xk), None);
    let rows = by_position.then(|| g.op_in(ROPE, OpKind::RotaryRows, &[], &[], ("rows_BSR", BSR), fp32));
    if dims.r < dims.h {
        let [q, q_pass] = g.split(ROPE, xq, [("xq_BSNR", BSNR), ("xq_pass_BSNU", BSNU)]);
        g.drop_values(&[xq]);
        let [k, k_pass] = g.split(ROPE, xk, [("xk_BSKR", BSKR), ("xk_pass_BSKU", BSKU)]);
        g.drop_values(&[xk]);
        (raw, pass) = ((q, k), Some((q_pass, k_pass)));
    }
    let (mut q32, mut k32) = raw;
    if compute != fp32 {
        q32 = g.op_in(ROPE, OpKind::CAST, &[raw.0], &[], ("xq_fp32_BSNR", BSNR), fp32);
        k32 = g.op_in(ROPE, OpKind::CAST, &[raw.1], &[], ("xk_fp32_BSKR", BSKR), fp32);
    }
    let read = |x: ValueId| [Some(x), rows].into_iter().flatten().collect::<Vec<_>>();
    let q_rot = g.op_in(ROPE, table, &read(q32), &[], ("xq_rot_BSNR", BSNR), fp32);
    let k_rot = g.op_in(ROPE, table, &read(k32), &[], ("xk_rot_BSKR", BSKR), fp32);
    let (mut q, mut k) = (q_rot, k_rot);
    if compute != fp32 {
        q = g.op(ROPE, OpKind::CAST, &[q_rot], &[], ("xq_BSNR", BSNR));
        k = g.op(ROPE, OpKind::CAST, &[k_rot], &[], ("xk_BSKR", BSKR));
        g.drop_values(&[q32, k32, q_rot, k_rot]);
    }
    g.drop_values(rows.as_slice());
    g.drop_values(&[raw.0, raw.1]);
    if let Some((q_pass, k_pass)) = pass {
        let (q_part, k_part) = (q, k);
        q = g.op(ROPE, OpKind::CONCAT, &[q_part, q_pass], &[], ("xq_BSNH", BSNH));
        g.drop_values(&[q_part]);
        k = g.op(ROPE, OpKind::CONCAT, &[k_part, k_pass], &[], ("xk_BSKH", BSKH));
        g.drop_values(&[k_part, q_pass, k_pass]);
    }
    (q, k)
}

fn feed_forward(g: &mut GraphBuilder, dense: &Dense, x: ValueId, params: &FfnParams, linears: Linears) -> ValueId {
    let Dims { d, f, .. } = g.dims();
    let (up, down) = (linears.linear(d, f), linears.linear(f, d));
    let h1 = tensor::column_linear(g, "feed_forward.w1", up, x, &params.w1, ("h1_BSF", BSF));
    let hidden = match dense.gating {
        Gating::Gated(act) => {
            let gate = activation(g, act, h1);
            let h3 = tensor::column_linear(g, "feed_forward.w3", up, x, &params.w3, ("h3_BSF", BSF));
            let product = g.op("feed_forward", OpKind::MUL, &[gate, h3], &[], ("h_BSF", BSF));
            g.drop_values(&[gate, h3]);
            product
        }
        Gating::Plain(act) => activation(g, act, h1),
    };
    let out = g.op("feed_forward.w2", down, &[hidden], &params.w2, ("ffn_BSD", BSD));
    tensor::leave(g, out, "feed_forward", "ffn_BLD", &[hidden])
}

/// What stands in a block's first half.
enum First<'l> {
    Heads(&'l layer::Attention, AttentionParams),
    Latent(LatentAttention, latent::Params),
    Mamba2(Mamba2, mamba::Params),
    GatedDelta(GatedDelta, gated_delta::Params),
}

impl<'l> First<'l> {
    fn new(g: &mut GraphBuilder, layer: &'l Layer, style: Style) -> Option<First<'l>> {
        Some(match &layer.mixer {
            Mixer::Attention(attention) => {
                First::Heads(attention, attention_params(g, attention, layer.norms.kind, style))
            }
            Mixer::Latent(latent) => First::Latent(*latent, latent::Params::new(g, *latent)),
            Mixer::Mamba2(mamba) => First::Mamba2(*mamba, mamba::Params::new(g, *mamba)),
            Mixer::GatedDelta(delta) => First::GatedDelta(*delta, gated_delta::Params::new(g, *delta)),
            Mixer::None => return None,
        })
    }
}

impl First<'_> {
    fn forward(&self, g: &mut GraphBuilder, (kind, position): (Norm, Position), style: Style, x: ValueId) -> ValueId {
        match self {
            First::Heads(sizes, params) => attention(g, (sizes, kind, position), x, params, style),
            First::Latent(sizes, params) => latent::attention(g, *sizes, x, params),
            First::Mamba2(sizes, params) => mamba::mixer(g, *sizes, x, params),
            First::GatedDelta(sizes, params) => gated_delta::mixer(g, *sizes, x, params),
        }
    }
}

/// What stands in a block's second half.
enum Second<'l> {
    Dense(&'l Dense, FfnParams),
    Mixture(&'l Experts, mixture::Params),
    Titan(&'l Experts, titan::Params, u64),
}

impl<'l> Second<'l> {
    fn new(g: &mut GraphBuilder, layer: &'l Layer, style: Style) -> Option<Second<'l>> {
        Some(match (&layer.feed_forward, style.experts) {
            (FeedForward::None, _) => return None,
            (FeedForward::Dense(dense), _) => Second::Dense(dense, ffn_params(g, dense)),
            (FeedForward::Experts(experts), Implementation::Torchtitan { ranks }) => {
                Second::Titan(experts, titan::Params::new(g, experts, ranks), ranks)
            }
            (FeedForward::Experts(experts), _) => Second::Mixture(experts, mixture::Params::new(g, experts)),
        })
    }

    fn forward(&self, g: &mut GraphBuilder, style: Style, x: ValueId) -> ValueId {
        match self {
            Second::Dense(dense, params) => feed_forward(g, dense, x, params, style.linears),
            Second::Mixture(experts, params) => mixture::mixture(g, experts, style.experts, x, params),
            Second::Titan(experts, params, ranks) => titan::mixture(g, experts, *ranks, x, params),
        }
    }
}

/// A layer that is a mixer alone, or a feed-forward alone: a norm, the one part, and the residual sum.
fn alone(
    g: &mut GraphBuilder,
    (m, layer, style): (&ModelConfig, &Layer, Style),
    x: ValueId,
    (first, second): (Option<First<'_>>, Option<Second<'_>>),
) -> ValueId {
    let (kind, d) = (layer.norms.kind, m.width);
    let params = norm_params(g, kind, d, "norm.weight", "norm.bias");
    g.belong(if first.is_some() { layer.mixer.owner() } else { layer.feed_forward.owner() });
    let normed = norm(g, kind, g.dims().local_tokens(), x, &params, "norm", ("xn_BSD", BLD));
    let made = match (first, second) {
        (Some(first), _) => first.forward(g, (kind, m.position), style, normed),
        (None, Some(second)) => second.forward(g, style, normed),
        (None, None) => unreachable!("a layer has a part: those that have none are refused"),
    };
    g.drop_values(&[normed]);
    let out = g.op("residual", OpKind::ADD, &[x, made], &[], ("out_BSD", BLD));
    g.drop_values(&[made]);
    out
}

/// One layer of a model.
pub fn block(m: &ModelConfig, dims: Dims, compute: DType, layer: &Layer, style: Style) -> Graph {
    if let Some(class) = transformers::class_of(m, style) {
        return transformers::block(m, class, (dims, compute), layer, style);
    }
    let (mut graph, x) = GraphBuilder::new("layers", dims, compute, ("x_BSD", BLD, compute));
    let g = &mut graph;
    let (rows, d) = (dims.local_tokens(), m.width);
    let (first, second) = match (First::new(g, layer, style), Second::new(g, layer, style)) {
        (Some(first), Some(second)) => (first, second),
        (first, second) => {
            let out = alone(g, (m, layer, style), x, (first, second));
            return graph.finish(out);
        }
    };
    let Norms { kind, placement } = layer.norms;
    let pre = placement != NormPlacement::Post;
    let post = matches!(placement, NormPlacement::Post | NormPlacement::PreAndPost);
    let (mut attn_norm, mut ffn_norm) = (vec![], vec![]);
    let (mut attn_post, mut ffn_post) = (vec![], vec![]);
    if pre {
        attn_norm = norm_params(g, kind, d, "attention_norm.weight", "attention_norm.bias");
        if placement != NormPlacement::ParallelShared {
            ffn_norm = norm_params(g, kind, d, "ffn_norm.weight", "ffn_norm.bias");
        }
    }
    if post {
        attn_post = norm_params(g, kind, d, "attention_post_norm.weight", "attention_post_norm.bias");
        ffn_post = norm_params(g, kind, d, "ffn_post_norm.weight", "ffn_post_norm.bias");
    }
    let post_norm = |g: &mut GraphBuilder, value, params: &[usize], module| {
        if !post {
            return value;
        }
        let out = norm(g, kind, rows, value, params, module, ("post_BSD", BLD));
        g.drop_values(&[value]);
        out
    };
    g.belong(layer.mixer.owner());
    let attn_in = if pre { norm(g, kind, rows, x, &attn_norm, "attention_norm", ("xn_BSD", BLD)) } else { x };
    let whole = tensor::enter(g, attn_in, "attention");
    let attn = first.forward(g, (kind, m.position), style, whole);
    if whole != attn_in {
        g.drop_values(&[whole]);
    }
    let shared = placement == NormPlacement::ParallelShared;
    if pre && !shared {
        g.drop_values(&[attn_in]);
    }
    let attn = post_norm(g, attn, &attn_post, "attention_post_norm");
    let out = if matches!(placement, NormPlacement::Parallel | NormPlacement::ParallelShared) {
        g.belong(layer.feed_forward.owner());
        let ffn_in = if shared { attn_in } else { norm(g, kind, rows, x, &ffn_norm, "ffn_norm", ("xf_BSD", BLD)) };
        let whole = tensor::enter(g, ffn_in, "feed_forward");
        let ff = second.forward(g, style, whole);
        if whole != ffn_in {
            g.drop_values(&[whole]);
        }
        if !shared {
            g.drop_values(&[ffn_in]);
        }
        let both = g.op("residual", OpKind::ADD, &[attn, ff], &[], ("both_BSD", BLD));
        g.drop_values(&[attn, ff]);
        let out = g.op("residual", OpKind::ADD, &[x, both], &[], ("out_BSD", BLD));
        g.drop_values(&[both]);
        if shared {
            g.drop_values(&[ffn_in]);
        }
        out
    } else {
        let h = g.op("residual", OpKind::ADD, &[x, attn], &[], ("h_BSD", BLD));
        g.drop_values(&[attn]);
        g.belong(layer.feed_forward.owner());
        let ffn_in = if pre { norm(g, kind, rows, h, &ffn_norm, "ffn_norm", ("hn_BSD", BLD)) } else { h };
        let whole = tensor::enter(g, ffn_in, "feed_forward");
        let ff = second.forward(g, style, whole);
        if whole != ffn_in {
            g.drop_values(&[whole]);
        }
        if pre {
            g.drop_values(&[ffn_in]);
        }
        let ff = post_norm(g, ff, &ffn_post, "ffn_post_norm");
        let out = g.op("residual", OpKind::ADD, &[h, ff], &[], ("out_BSD", BLD));
        g.drop_values(&[ff, h]);
        out
    };
    graph.finish(out)
}
