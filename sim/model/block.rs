//! The forward of one decoder block, as a list of operators; that of the embedding is [`embedding`]'s.
//!
//! Operators follow torchtitan's Llama (`torchtitan/models/llama3/model.py`): separate or fused projections, complex
//! rotary embedding in fp32, fused attention, a gated or plain feed-forward, residual sums out of place. The order of
//! parameters is the order modules register them, which is the order FSDP packs them.

mod embedding;

pub use embedding::embedding;

use super::experts::forward as mixture;
use super::experts::{Experts, Implementation, titan};
use super::graph::{Axis, Dims, Graph, GraphBuilder, OpKind, ValueId};
use super::latent::{self, LatentAttention};
use super::style::{Linears, Rope, Style};
use super::tensor::{self, TensorParallel};
use super::transformers;
use super::{Activation, FeedForward, ModelConfig, Norm, NormPlacement, Position, QkNorm};
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BLD: &[Axis] = &[Axis::B, Axis::L, Axis::D];
const BSF: &[Axis] = &[Axis::B, Axis::S, Axis::F];
const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::H];
const BSQH: &[Axis] = &[Axis::B, Axis::S, Axis::Q, Axis::H];
const BSNR: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::R];
const BSKR: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::R];
const BSR: &[Axis] = &[Axis::B, Axis::S, Axis::R];
const BSNU: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::U];
const BSKU: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::U];
const BS: &[Axis] = &[Axis::B, Axis::S];
const S: &[Axis] = &[Axis::S];
const SD: &[Axis] = &[Axis::S, Axis::D];

/// Sizes of a model on a micro-batch of `batch` sequences of length `seq`, as one of several tensor-parallel ranks has
/// them.
pub fn dims(model: &ModelConfig, batch: u64, seq: u64, tensor: TensorParallel) -> Dims {
    Dims {
        b: batch,
        s: seq,
        d: model.width,
        n: model.heads / tensor.ranks,
        k: model.kv_heads / tensor.ranks,
        h: model.head_dim,
        r: match model.position {
            Position::Rope { dims } => dims.min(model.head_dim),
            _ => 0,
        },
        f: model.ffn / tensor.ranks,
        v: model.vocab / tensor.ranks,
        e: model.experts.as_ref().map_or(0, |experts| experts.count),
        top_k: model.experts.as_ref().map_or(0, |experts| experts.top_k),
        x: model.experts.as_ref().map_or(0, |experts| experts.width),
        latent: model.latent.map_or((0, 0, 0), |latent| (latent.value, latent.query_rank.unwrap_or(0), latent.rank)),
        tensor,
    }
}

/// Parameters of a norm: its weight, and its bias if it has one.
pub(super) fn norm_params(
    g: &mut GraphBuilder,
    norm: Norm,
    width: u64,
    weight: &'static str,
    bias: &'static str,
) -> Vec<usize> {
    let mut params = vec![g.param(weight, width, 1)];
    if norm == (Norm::Layer { bias: true }) {
        params.push(g.param(bias, width, 1));
    }
    params
}

pub(super) fn norm(
    g: &mut GraphBuilder,
    norm: Norm,
    rows: u64,
    input: ValueId,
    params: &[usize],
    module: &'static str,
    output: (&'static str, &'static [Axis]),
) -> ValueId {
    let kind = match norm {
        Norm::Rms => OpKind::RmsNorm { rows },
        Norm::Layer { .. } => OpKind::LayerNorm { rows },
    };
    g.op(module, kind, &[input], params, output)
}

/// A norm with parameters of its own over the model width. `names`: module, weight, bias.
pub(super) fn norm_op(
    g: &mut GraphBuilder,
    kind: Norm,
    rows: u64,
    input: ValueId,
    names: (&'static str, &'static str, &'static str),
) -> ValueId {
    let width = g.dims().d;
    let params = norm_params(g, kind, width, names.1, names.2);
    norm(g, kind, rows, input, &params, names.0, ("xn_BSD", BLD))
}

pub(super) struct AttentionParams {
    pub qkv: Vec<Vec<usize>>,
    pub output: Vec<usize>,
    pub q_norm: Vec<usize>,
    pub k_norm: Vec<usize>,
}

pub(super) fn attention_params(g: &mut GraphBuilder, m: &ModelConfig, style: Style) -> AttentionParams {
    let Dims { d, n, k, h, .. } = g.dims();
    let (q, kv) = (n * h, k * h);
    let linear = |g: &mut GraphBuilder, weight, bias_name, rows, cols, bias: bool| {
        let mut params = vec![g.param(weight, rows, cols)];
        if bias {
            params.push(g.param(bias_name, rows, 1));
        }
        params
    };
    let qkv = if m.fused_qkv || style.fused_qkv {
        vec![linear(g, "attention.wqkv.weight", "attention.wqkv.bias", q + 2 * kv, d, m.qkv_bias)]
    } else {
        vec![
            linear(g, "attention.wq.weight", "attention.wq.bias", q, d, m.qkv_bias),
            linear(g, "attention.wk.weight", "attention.wk.bias", kv, d, m.qkv_bias),
            linear(g, "attention.wv.weight", "attention.wv.bias", kv, d, m.qkv_bias),
        ]
    };
    let output = linear(g, "attention.wo.weight", "attention.wo.bias", d, q, m.output_bias);
    let (mut q_norm, mut k_norm) = (vec![], vec![]);
    if let Some(kind) = m.qk_norm {
        let (q_width, k_width) = if kind == QkNorm::PerHead { (m.head_dim, m.head_dim) } else { (q, kv) };
        q_norm = norm_params(g, m.norm, q_width, "attention.q_norm.weight", "attention.q_norm.bias");
        k_norm = norm_params(g, m.norm, k_width, "attention.k_norm.weight", "attention.k_norm.bias");
    }
    AttentionParams { qkv, output, q_norm, k_norm }
}

/// Attention on `x_BSD`; Python still holds the result.
fn attention(
    g: &mut GraphBuilder,
    m: &ModelConfig,
    x: ValueId,
    params: &AttentionParams,
    (window, style): (Option<u64>, Style),
) -> ValueId {
    let dims = g.dims();
    let (d, q_out, kv_out) = (dims.d, dims.n * dims.h, dims.k * dims.h);
    let linear = |inputs, outputs| style.linears.linear(inputs, outputs);
    let mut held = vec![];
    let (mut xq, mut xk, mut xv);
    if m.fused_qkv || style.fused_qkv {
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
        xq = tensor::column_linear(g, "attention.wq", linear(d, q_out), x, &params.qkv[0], ("xq_BSNH", BSNH));
        xk = tensor::column_linear(g, "attention.wk", linear(d, kv_out), x, &params.qkv[1], ("xk_BSKH", BSKH));
        xv = tensor::column_linear(g, "attention.wv", linear(d, kv_out), x, &params.qkv[2], ("xv_BSKH", BSKH));
    }
    if let Some(kind) = m.qk_norm {
        let rows = |heads| if kind == QkNorm::PerHead { dims.tokens() * heads } else { dims.tokens() };
        let raw = (xq, xk);
        xq = norm(g, m.norm, rows(dims.n), raw.0, &params.q_norm, "attention.q_norm", ("xq_BSNH", BSNH));
        g.drop_values(&[raw.0]);
        xk = norm(g, m.norm, rows(dims.k), raw.1, &params.k_norm, "attention.k_norm", ("xk_BSKH", BSKH));
        g.drop_values(&[raw.1]);
    }
    if let Position::Rope { .. } = m.position {
        (xq, xk) = match style.rope {
            Rope::Complex | Rope::ComplexByPosition => rotate(g, xq, xk, style.rope == Rope::ComplexByPosition),
            rope => rotate_real(g, xq, xk, rope, m.qk_norm.is_some()),
        };
    }
    if style.repeat_kv && m.heads != m.kv_heads {
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
    let bias = m.position == Position::Alibi;
    let o = g.op("attention.sdpa", OpKind::Attention { window, bias }, &[xq, xk, xv], &[], ("xo_BSNH", BSNH));
    held.extend([xq, xk, xv, o]);
    let out = g.op("attention.wo", linear(q_out, d), &[o], &params.output, ("attn_BSD", BSD));
    tensor::leave(g, out, "attention", "attn_BLD", &held)
}

const ROPE: &str = "attention.rope";

/// A name and its axes.
type Shape = (&'static str, &'static [Axis]);

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

/// Rotary embedding in real numbers; partial ones split and join as the complex one does.
pub(super) fn rotate_real(
    g: &mut GraphBuilder,
    xq: ValueId,
    xk: ValueId,
    rope: Rope,
    normed: bool,
) -> (ValueId, ValueId) {
    let dims = g.dims();
    let (mut q, mut k) = (xq, xk);
    let halves = rope == Rope::RotateHalf;
    if halves && !normed {
        // Heads come before tokens: the gradient is copied back into the order of the projection (a split in one).
        [q] = g.split(ROPE, xq, [("xq_BSNH", BSNH)]);
        [k] = g.split(ROPE, xk, [("xk_BSKH", BSKH)]);
        g.drop_values(&[xq, xk]);
    }
    let one = |g: &mut GraphBuilder, x: ValueId, whole: Shape, part: Shape, rest: Shape| {
        if dims.r == dims.h {
            return g.op(ROPE, OpKind::Rotate(rope), &[x], &[], whole);
        }
        let [rotated, pass] = g.split(ROPE, x, [part, rest]);
        let turned = g.op(ROPE, OpKind::Rotate(rope), &[rotated], &[], part);
        g.drop_values(&[rotated]);
        let out = g.op(ROPE, OpKind::CONCAT, &[turned, pass], &[], whole);
        g.drop_values(&[turned, pass]);
        out
    };
    let raw = (q, k);
    q = one(g, raw.0, ("xq_BSNH", BSNH), ("xq_BSNR", BSNR), ("xq_pass_BSNU", BSNU));
    if !halves {
        g.drop_values(&[raw.0]);
    }
    k = one(g, raw.1, ("xk_BSKH", BSKH), ("xk_BSKR", BSKR), ("xk_pass_BSKU", BSKU));
    if halves {
        g.drop_values(&[raw.0]);
    }
    g.drop_values(&[raw.1]);
    (q, k)
}

pub(super) struct FfnParams {
    pub w1: Vec<usize>,
    pub w2: Vec<usize>,
    pub w3: Vec<usize>,
}

pub(super) fn ffn_params(g: &mut GraphBuilder, m: &ModelConfig) -> FfnParams {
    let Dims { d, f, .. } = g.dims();
    let linear = |g: &mut GraphBuilder, weight, bias, rows, cols| {
        let mut params = vec![g.param(weight, rows, cols)];
        if m.ffn_bias {
            params.push(g.param(bias, rows, 1));
        }
        params
    };
    let w1 = linear(g, "feed_forward.w1.weight", "feed_forward.w1.bias", f, d);
    let w2 = linear(g, "feed_forward.w2.weight", "feed_forward.w2.bias", d, f);
    let w3 = match m.feed_forward {
        FeedForward::Gated(_) => linear(g, "feed_forward.w3.weight", "feed_forward.w3.bias", f, d),
        FeedForward::Plain(_) => vec![],
    };
    FfnParams { w1, w2, w3 }
}

pub(super) fn activation(g: &mut GraphBuilder, act: Activation, h1: ValueId) -> ValueId {
    let out = g.activation("feed_forward", act, h1, ("gate_BSF", BSF));
    g.drop_values(&[h1]);
    out
}

fn feed_forward(g: &mut GraphBuilder, m: &ModelConfig, x: ValueId, params: &FfnParams, linears: Linears) -> ValueId {
    let Dims { d, f, .. } = g.dims();
    let (up, down) = (linears.linear(d, f), linears.linear(f, d));
    let h1 = tensor::column_linear(g, "feed_forward.w1", up, x, &params.w1, ("h1_BSF", BSF));
    let hidden = match m.feed_forward {
        FeedForward::Gated(act) => {
            let gate = activation(g, act, h1);
            let h3 = tensor::column_linear(g, "feed_forward.w3", up, x, &params.w3, ("h3_BSF", BSF));
            let product = g.op("feed_forward", OpKind::MUL, &[gate, h3], &[], ("h_BSF", BSF));
            g.drop_values(&[gate, h3]);
            product
        }
        FeedForward::Plain(act) => activation(g, act, h1),
    };
    let out = g.op("feed_forward.w2", down, &[hidden], &params.w2, ("ffn_BSD", BSD));
    tensor::leave(g, out, "feed_forward", "ffn_BLD", &[hidden])
}

/// What stands in a block's first half.
enum Attention {
    Heads(AttentionParams),
    Latent(LatentAttention, latent::Params),
}

/// What stands in a block's second half.
enum Second<'m> {
    Dense(FfnParams),
    Mixture(&'m Experts, mixture::Params),
    Titan(&'m Experts, titan::Params, u64),
}

impl<'m> Second<'m> {
    fn new(g: &mut GraphBuilder, m: &'m ModelConfig, variant: Variant, style: Style) -> Second<'m> {
        match (m.experts.as_ref().filter(|_| variant.experts), style.experts) {
            (None, _) => Second::Dense(ffn_params(g, m)),
            (Some(experts), Implementation::Torchtitan { ranks }) => {
                Second::Titan(experts, titan::Params::new(g, experts, m.feed_forward, ranks), ranks)
            }
            (Some(experts), _) => Second::Mixture(experts, mixture::Params::new(g, experts, m.feed_forward)),
        }
    }

    fn forward(&self, g: &mut GraphBuilder, m: &ModelConfig, style: Style, x: ValueId) -> ValueId {
        match self {
            Second::Dense(params) => feed_forward(g, m, x, params, style.linears),
            Second::Mixture(experts, params) => {
                mixture::mixture(g, experts, (m.feed_forward, style.experts), x, params)
            }
            Second::Titan(experts, params, ranks) => titan::mixture(g, experts, (m.feed_forward, *ranks), x, params),
        }
    }
}

/// In what a block differs from the others of its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// Keys each query may see; none: all.
    pub window: Option<u64>,
    /// Whether it has experts.
    pub experts: bool,
}

/// One decoder block.
pub fn block(m: &ModelConfig, dims: Dims, compute: DType, variant: Variant, style: Style) -> Graph {
    if let Some(class) = transformers::class_of(m, style) {
        return transformers::block(m, class, (dims, compute), variant, style);
    }
    let (mut graph, x) = GraphBuilder::new("layers", dims, compute, ("x_BSD", BLD, compute));
    let g = &mut graph;
    let (rows, d) = (dims.local_tokens(), m.width);
    let attn_params = match m.latent {
        None => Attention::Heads(attention_params(g, m, style)),
        Some(latent) => Attention::Latent(latent, latent::Params::new(g, latent)),
    };
    let second = Second::new(g, m, variant, style);
    let placement = m.norm_placement;
    let pre = placement != NormPlacement::Post;
    let post = matches!(placement, NormPlacement::Post | NormPlacement::PreAndPost);
    let (mut attn_norm, mut ffn_norm) = (vec![], vec![]);
    let (mut attn_post, mut ffn_post) = (vec![], vec![]);
    if pre {
        attn_norm = norm_params(g, m.norm, d, "attention_norm.weight", "attention_norm.bias");
        if placement != NormPlacement::ParallelShared {
            ffn_norm = norm_params(g, m.norm, d, "ffn_norm.weight", "ffn_norm.bias");
        }
    }
    if post {
        attn_post = norm_params(g, m.norm, d, "attention_post_norm.weight", "attention_post_norm.bias");
        ffn_post = norm_params(g, m.norm, d, "ffn_post_norm.weight", "ffn_post_norm.bias");
    }
    let post_norm = |g: &mut GraphBuilder, value, params: &[usize], module| {
        if !post {
            return value;
        }
        let out = norm(g, m.norm, rows, value, params, module, ("post_BSD", BLD));
        g.drop_values(&[value]);
        out
    };
    let attn_in = if pre { norm(g, m.norm, rows, x, &attn_norm, "attention_norm", ("xn_BSD", BLD)) } else { x };
    let whole = tensor::enter(g, attn_in, "attention");
    let attn = match &attn_params {
        Attention::Heads(params) => attention(g, m, whole, params, (variant.window, style)),
        Attention::Latent(sizes, params) => latent::attention(g, *sizes, whole, params, variant.window),
    };
    if whole != attn_in {
        g.drop_values(&[whole]);
    }
    let shared = placement == NormPlacement::ParallelShared;
    if pre && !shared {
        g.drop_values(&[attn_in]);
    }
    let attn = post_norm(g, attn, &attn_post, "attention_post_norm");
    let out = if matches!(placement, NormPlacement::Parallel | NormPlacement::ParallelShared) {
        let ffn_in = if shared { attn_in } else { norm(g, m.norm, rows, x, &ffn_norm, "ffn_norm", ("xf_BSD", BLD)) };
        let whole = tensor::enter(g, ffn_in, "feed_forward");
        let ff = second.forward(g, m, style, whole);
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
        let ffn_in = if pre { norm(g, m.norm, rows, h, &ffn_norm, "ffn_norm", ("hn_BSD", BLD)) } else { h };
        let whole = tensor::enter(g, ffn_in, "feed_forward");
        let ff = second.forward(g, m, style, whole);
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
