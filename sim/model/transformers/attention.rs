//! Attention of transformers' classes: `sdpa` (`integrations/sdpa_attention.py`), or `eager_attention_forward` of each.

use super::super::block::parts::{AttentionParams, attention_params, norm, rotate_real};
use super::super::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use super::super::style::{AttentionCode, Rope, Style};
use super::super::{Position, QkNorm};
use super::{BSD, Parts, Whole};
use crate::program::DType;

const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::H];
const BSQH: &[Axis] = &[Axis::B, Axis::S, Axis::Q, Axis::H];
const BSNR: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::R];
const BSKR: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::R];
const BSNU: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::U];
const BSKU: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::U];
const BNSS: &[Axis] = &[Axis::B, Axis::N, Axis::S, Axis::S];
const BSS: &[Axis] = &[Axis::B, Axis::S, Axis::S];

const Q: (&str, &[Axis]) = ("xq_BSNH", BSNH);
const K: (&str, &[Axis]) = ("xk_BSKH", BSKH);
const V: (&str, &[Axis]) = ("xv_BSKH", BSKH);

/// Queries, keys and values; and what Python names until attention returns.
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    held: Vec<ValueId>,
}

/// Parameters of attention in the order of registration: OPT's keys and values, Phi-3's output come first.
pub(super) fn params(g: &mut GraphBuilder, whole: &Whole<'_>) -> AttentionParams {
    let (class, sizes) = (whole.class, whole.attention);
    if !matches!(class.model_type, "opt" | "phi3") {
        return attention_params(g, sizes, whole.norms.kind, Style::default());
    }
    let Dims { d, n, k, h, .. } = g.dims();
    let linear = |g: &mut GraphBuilder, names: [&'static str; 2], shape: (u64, u64), bias: bool| {
        let mut params = vec![g.param(names[0], shape.0, shape.1)];
        params.extend(bias.then(|| g.param(names[1], shape.0, 1)));
        params
    };
    let of_output =
        |g: &mut GraphBuilder| linear(g, ["attention.wo.weight", "attention.wo.bias"], (d, n * h), sizes.output_bias);
    let (qkv, output) = if class.model_type == "phi3" {
        let output = of_output(g);
        let rows = (n + 2 * k) * h;
        let names = ["attention.wqkv.weight", "attention.wqkv.bias"];
        (vec![linear(g, names, (rows, d), sizes.qkv_bias)], output)
    } else {
        let [xk, xv, xq] = [
            (["attention.wk.weight", "attention.wk.bias"], k),
            (["attention.wv.weight", "attention.wv.bias"], k),
            (["attention.wq.weight", "attention.wq.bias"], n),
        ]
        .map(|(names, heads)| linear(g, names, (heads * h, d), sizes.qkv_bias));
        (vec![xq, xk, xv], of_output(g))
    };
    AttentionParams { qkv, output, q_norm: vec![], k_norm: vec![] }
}

/// Attention on `x_BSD`; Python still holds the result, and until the block returns the other values.
pub(super) fn attention(
    g: &mut GraphBuilder,
    whole: &Whole<'_>,
    params: &AttentionParams,
    x: ValueId,
) -> (ValueId, Vec<ValueId>) {
    let Dims { d, n, h, .. } = g.dims();
    let mut heads = project(g, whole, params, x);
    rotate(g, whole, &mut heads);
    let (o, late) = match whole.style.attention {
        AttentionCode::Eager => scores(g, whole, &mut heads),
        AttentionCode::Sdpa | AttentionCode::Flash => (fused(g, whole, &mut heads), vec![]),
    };
    let linear = OpKind::Linear { inputs: n * h, outputs: d };
    let out = g.op("attention.wo", linear, &[o], &params.output, ("attn_BSD", BSD));
    g.drop_values(&[heads.q, heads.k, heads.v, o]);
    g.drop_values(&heads.held);
    (out, late)
}

fn project(g: &mut GraphBuilder, whole: &Whole<'_>, params: &AttentionParams, x: ValueId) -> Heads {
    let Dims { d, n, k, h, .. } = g.dims();
    let linear = |outputs| OpKind::Linear { inputs: d, outputs };
    let qkv = &params.qkv;
    let parts = whole.class.parts;
    if qkv.len() == 3 {
        let of_queries = |g: &mut GraphBuilder, q| normed(g, (whole, params), q, true);
        let of_keys = |g: &mut GraphBuilder, k| normed(g, (whole, params), k, false);
        let last = parts == Parts::NormedLast;
        let mut xq = g.op("attention.wq", linear(n * h), &[x], &qkv[0], Q);
        if parts == Parts::Scaled {
            let scaled = g.op("attention", OpKind::SCALE, &[xq], &[], Q);
            g.drop_values(&[xq]);
            xq = scaled;
        }
        xq = if last { xq } else { of_queries(g, xq) };
        let mut xk = g.op("attention.wk", linear(k * h), &[x], &qkv[1], K);
        xk = if last { xk } else { of_keys(g, xk) };
        let xv = g.op("attention.wv", linear(k * h), &[x], &qkv[2], V);
        if last {
            xq = of_queries(g, xq);
            xk = of_keys(g, xk);
        }
        return Heads { q: xq, k: xk, v: xv, held: vec![] };
    }
    let one = g.op("attention.wqkv", linear((n + 2 * k) * h), &[x], &qkv[0], ("xqkv", BSQH));
    let slice = |g: &mut GraphBuilder, to| g.op("attention", OpKind::Slice, &[one], &[], to);
    match parts {
        Parts::SplitHeads => {
            let [ordered] = g.split("attention", one, [("xqkv", BSQH)]);
            let [q, k, v] = g.split("attention", ordered, [Q, K, V]);
            g.drop_values(&[one, ordered]);
            Heads { q, k, v, held: vec![] }
        }
        Parts::Slices => {
            let [q, k, v] = [Q, K, V].map(|to| slice(g, to));
            g.drop_values(&[one]);
            Heads { q, k, v, held: vec![] }
        }
        Parts::Indexed => {
            let q = slice(g, Q);
            let [k, v] = [K, V].map(|to| {
                let part = slice(g, to);
                let copy = g.op("attention", OpKind::CONTIGUOUS, &[part], &[], to);
                g.drop_values(&[part]);
                copy
            });
            let mut heads = Heads { q, k, v, held: vec![one] };
            if g.dims().k > 1 && g.dims().k < g.dims().n {
                copy_out(g, &mut heads);
            }
            heads
        }
        _ => {
            let [q, k, v] = g.split("attention", one, [Q, K, V]);
            g.drop_values(&[one]);
            Heads { q, k, v, held: vec![] }
        }
    }
}

/// Falcon's newer kind gives keys and values to each query head, and copies queries out.
fn copy_out(g: &mut GraphBuilder, heads: &mut Heads) {
    let q = g.op("attention", OpKind::CONTIGUOUS, &[heads.q], &[], Q);
    g.drop_values(&[heads.q]);
    heads.q = q;
    for value in [&mut heads.k, &mut heads.v] {
        let all = g.op("attention", OpKind::REPEAT_KV, &[*value], &[], ("xk_BSNH", BSNH));
        g.drop_values(&[*value]);
        *value = all;
    }
}

/// Queries or keys through their norm, if they have one.
fn normed(
    g: &mut GraphBuilder,
    (whole, params): (&Whole<'_>, &AttentionParams),
    raw: ValueId,
    queries: bool,
) -> ValueId {
    let dims = g.dims();
    let Some(kind) = whole.attention.qk_norm else { return raw };
    let heads = if queries { dims.n } else { dims.k };
    let rows = if kind == QkNorm::PerHead { dims.tokens() * heads } else { dims.tokens() };
    let (params, module, to) = match queries {
        true => (&params.q_norm, "attention.q_norm", Q),
        false => (&params.k_norm, "attention.k_norm", K),
    };
    let out = norm(g, whole.norms.kind, rows, raw, params, module, to);
    g.drop_values(&[raw]);
    out
}

/// `apply_rotary_pos_emb` of each class.
fn rotate(g: &mut GraphBuilder, whole: &Whole<'_>, heads: &mut Heads) {
    if !matches!(whole.m.position, Position::Rope { .. }) {
        return;
    }
    match whole.class.parts {
        Parts::Slices => {
            // Phi-3 concatenates one after the other.
            let [q] = g.split("attention.rope", heads.q, [Q]);
            let [k] = g.split("attention.rope", heads.k, [K]);
            g.drop_values(&[heads.q, heads.k]);
            let turned_q = turned(g, q, true);
            heads.q = join(g, turned_q, Q);
            let turned_k = turned(g, k, false);
            heads.k = join(g, turned_k, K);
            g.drop_values(&[q, k]);
        }
        Parts::SplitHeads => {
            let raw = (heads.q, heads.k);
            let q = turned(g, raw.0, true);
            let k = turned(g, raw.1, false);
            heads.q = join(g, q, Q);
            heads.k = join(g, k, K);
            g.drop_values(&[raw.0, raw.1]);
        }
        Parts::Indexed if g.dims().r == g.dims().h => {
            let raw = (heads.q, heads.k);
            let of_keys = if g.elements(raw.1) == g.elements(raw.0) { ("xk_BSNH", BSNH) } else { K };
            let turn = OpKind::Rotate(Rope::RotateHalf);
            heads.q = g.op("attention.rope", turn, &[raw.0], &[], Q);
            heads.k = g.op("attention.rope", turn, &[raw.1], &[], of_keys);
            g.drop_values(&[raw.0, raw.1]);
        }
        _ => {
            let normed = whole.attention.qk_norm.is_some();
            (heads.q, heads.k) = rotate_real(g, heads.q, heads.k, Rope::RotateHalf, normed);
        }
    }
}

/// The rotated part of queries or keys, and the rest if there is any.
fn turned(g: &mut GraphBuilder, x: ValueId, queries: bool) -> (ValueId, Option<ValueId>) {
    let dims = g.dims();
    let (rotated, passed) =
        if queries { (("xq_BSNR", BSNR), ("xq_pass_BSNU", BSNU)) } else { (("xk_BSKR", BSKR), ("xk_pass_BSKU", BSKU)) };
    let part = g.op("attention.rope", OpKind::Slice, &[x], &[], rotated);
    let pass = (dims.r < dims.h).then(|| g.op("attention.rope", OpKind::Slice, &[x], &[], passed));
    let out = g.op("attention.rope", OpKind::Rotate(Rope::RotateHalf), &[part], &[], rotated);
    g.drop_values(&[part]);
    (out, pass)
}

fn join(
    g: &mut GraphBuilder,
    (part, pass): (ValueId, Option<ValueId>),
    to: (&'static str, &'static [Axis]),
) -> ValueId {
    let both: Vec<ValueId> = [Some(part), pass].into_iter().flatten().collect();
    let out = g.op("attention.rope", OpKind::CONCAT, &both, &[], to);
    g.drop_values(&both);
    out
}

/// `scaled_dot_product_attention`.
fn fused(g: &mut GraphBuilder, whole: &Whole<'_>, heads: &mut Heads) -> ValueId {
    let dims = g.dims();
    let masked =
        whole.style.attention == AttentionCode::Sdpa && (whole.class.masks || whole.attention.window.is_some());
    let mut inputs = vec![];
    if masked {
        // With a mask, heads are not shared inside the kernel; Falcon's one head of keys is given as it is.
        if g.elements(heads.k) < g.elements(heads.q) && whole.class.parts != Parts::Indexed {
            give_to_all(g, heads);
        }
        inputs.push(g.op("attention.sdpa", OpKind::MaskBias, &[], &[], ("mask_BSS", BSS)));
    }
    let kind = OpKind::Attention { window: whole.attention.window.filter(|_| !masked), bias: false };
    let all: Vec<ValueId> = [heads.q, heads.k, heads.v].into_iter().chain(inputs.iter().copied()).collect();
    let o = g.op("attention.sdpa", kind, &all, &[], ("xo_BSNH", BSNH));
    g.drop_values(&inputs);
    // Flash attention's result is laid out as its queries are: concatenated ones have heads before tokens.
    let by_heads = matches!(whole.m.position, Position::Rope { .. })
        && matches!(whole.class.parts, Parts::Slices | Parts::SplitHeads);
    // Compiled, Phi-3's queries are concatenated with tokens first.
    let laid_out = whole.style.compiled && whole.class.parts == Parts::Slices;
    if !by_heads || masked || laid_out || dims.n == 1 {
        return o;
    }
    let copy = g.op("attention", OpKind::CONTIGUOUS, &[o], &[], ("xo_BSNH", BSNH));
    g.drop_values(&[o]);
    copy
}

/// Keys and values for every query head (`repeat_kv`): copies, but of a single head a view. Python names both until
/// attention returns.
fn give_to_all(g: &mut GraphBuilder, heads: &mut Heads) {
    let kind = if g.dims().k == 1 { OpKind::Expand } else { OpKind::REPEAT_KV };
    let single = [heads.k, heads.v];
    heads.k = g.op("attention", kind, &[heads.k], &[], ("xk_BSNH", BSNH));
    heads.v = g.op("attention", kind, &[heads.v], &[], ("xv_BSNH", BSNH));
    heads.held.extend(single);
}

/// Scores, their softmax, and what they weigh, operator by operator.
fn scores(g: &mut GraphBuilder, whole: &Whole<'_>, heads: &mut Heads) -> (ValueId, Vec<ValueId>) {
    let (dims, compute, m) = (g.dims(), g.compute(), whole.m);
    let Dims { s, h, .. } = dims;
    let repeats = g.elements(heads.k) < g.elements(heads.q);
    if repeats {
        give_to_all(g, heads);
    }
    let alibi = m.position == Position::Alibi;
    if alibi {
        // Gradients of queries and keys come with heads before tokens, or are scaled (`baddbmm`): a copy of each.
        let raw = (heads.q, heads.k);
        [heads.q] = g.split("attention", raw.0, [Q]);
        [heads.k] = g.split("attention", raw.1, [("xk_BSNH", BSNH)]);
        g.drop_values(&[raw.0, raw.1]);
    }
    if dims.b > 1 {
        // `bmm` takes stacks of matrices: a view with tokens before heads is copied.
        heads.q = copy(g, heads.q, "xq_BSNH");
        if !repeats {
            heads.k = copy(g, heads.k, "xk_BSNH");
            heads.v = copy(g, heads.v, "xv_BSNH");
        }
    }
    let op = |g: &mut GraphBuilder, kind, from: ValueId, goes: bool| {
        let out = g.op("attention.scores", kind, &[from], &[], ("scores_BNSS", BNSS));
        if goes {
            g.drop_values(&[from]);
        }
        out
    };
    let product = OpKind::Bmm { rows: s, columns: s, inner: h };
    let mut score = g.op("attention.scores", product, &[heads.q, heads.k], &[], ("scores_BNSS", BNSS));
    // BLOOM scales inside the product, and names scores with and without mask until it returns.
    let names = whole.class.model_type == "bloom";
    if names {
        heads.held.push(score);
    } else {
        score = op(g, OpKind::SCALE, score, true);
    }
    if whole.attention.softcap {
        for kind in [OpKind::SCALE, OpKind::TANH, OpKind::SCALE] {
            score = op(g, kind, score, true);
        }
    }
    if alibi && !names {
        // MPT adds biases, then fills in where the mask hides, which zeroes gradients there.
        score = op(g, OpKind::ADD, score, true);
        score = op(g, OpKind::SCALE, score, true);
        heads.held.push(score);
    } else {
        score = op(g, OpKind::ADD, score, !names);
        if names {
            heads.held.push(score);
        }
    }
    let rows = dims.b * dims.n * s;
    let named = alibi;
    let wide = compute != DType::Fp32 && whole.class.model_type != "gpt2";
    let mut weights = score;
    if wide {
        let cast = g.op_in("attention.scores", OpKind::CAST, &[score], &[], ("scores_BNSS", BNSS), DType::Fp32);
        let soft =
            g.op_in("attention.scores", OpKind::Softmax { rows }, &[cast], &[], ("probs_BNSS", BNSS), DType::Fp32);
        g.drop_values(&[cast]);
        weights = op(g, OpKind::CAST, soft, true);
        if !named {
            g.drop_values(&[score]);
        }
    } else {
        weights = op(g, OpKind::Softmax { rows }, weights, !named);
    }
    if m.dropout.attention.get() > 0.0 {
        weights = op(g, OpKind::Dropout, weights, true);
    }
    let product = OpKind::Bmm { rows: s, columns: h, inner: s };
    let context = g.op("attention.scores", product, &[weights, heads.v], &[], ("xo_BSNH", BSNH));
    let out = copy(g, context, "xo_BSNH");
    (out, vec![weights])
}

fn copy(g: &mut GraphBuilder, from: ValueId, name: &'static str) -> ValueId {
    let out = g.op("attention", OpKind::CONTIGUOUS, &[from], &[], (name, BSNH));
    g.drop_values(&[from]);
    out
}
