//! Parts of a block that a codebase's own classes write as well: parameters of its modules, norms, rotations.

use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use crate::model::style::{Rope, Style};
use crate::model::{Activation, Attention, Dense, Gating, Norm, QkNorm};

pub(in crate::model) const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
pub(in crate::model) const BLD: &[Axis] = &[Axis::B, Axis::L, Axis::D];
pub(in crate::model) const BSF: &[Axis] = &[Axis::B, Axis::S, Axis::F];
pub(in crate::model) const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
pub(in crate::model) const BSKH: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::H];
pub(in crate::model) const BSQH: &[Axis] = &[Axis::B, Axis::S, Axis::Q, Axis::H];
pub(in crate::model) const BSNR: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::R];
pub(in crate::model) const BSKR: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::R];
pub(in crate::model) const BSR: &[Axis] = &[Axis::B, Axis::S, Axis::R];
pub(in crate::model) const BSNU: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::U];
pub(in crate::model) const BSKU: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::U];
pub(in crate::model) const BS: &[Axis] = &[Axis::B, Axis::S];
pub(in crate::model) const S: &[Axis] = &[Axis::S];
pub(in crate::model) const SD: &[Axis] = &[Axis::S, Axis::D];

pub(in crate::model) const ROPE: &str = "attention.rope";
/// A name and its axes.
pub(in crate::model) type Shape = (&'static str, &'static [Axis]);

/// Parameters of a norm: its weight, and its bias if it has one.
pub(in crate::model) fn norm_params(
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

pub(in crate::model) fn norm(
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
pub(in crate::model) fn norm_op(
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

pub(in crate::model) struct AttentionParams {
    pub qkv: Vec<Vec<usize>>,
    pub output: Vec<usize>,
    pub q_norm: Vec<usize>,
    pub k_norm: Vec<usize>,
}

pub(in crate::model) fn attention_params(
    g: &mut GraphBuilder,
    attention: &Attention,
    kind: Norm,
    style: Style,
) -> AttentionParams {
    let Dims { d, n, k, h, .. } = g.dims();
    let (q, kv) = (n * h, k * h);
    let linear = |g: &mut GraphBuilder, weight, bias_name, rows, cols, bias: bool| {
        let mut params = vec![g.param(weight, rows, cols)];
        if bias {
            params.push(g.param(bias_name, rows, 1));
        }
        params
    };
    let gated = if attention.output_gate { 2 } else { 1 };
    let qkv = if attention.fused_qkv || style.fused_qkv {
        vec![linear(g, "attention.wqkv.weight", "attention.wqkv.bias", q + 2 * kv, d, attention.qkv_bias)]
    } else {
        vec![
            linear(g, "attention.wq.weight", "attention.wq.bias", gated * q, d, attention.qkv_bias),
            linear(g, "attention.wk.weight", "attention.wk.bias", kv, d, attention.qkv_bias),
            linear(g, "attention.wv.weight", "attention.wv.bias", kv, d, attention.qkv_bias),
        ]
    };
    let output = linear(g, "attention.wo.weight", "attention.wo.bias", d, q, attention.output_bias);
    let (mut q_norm, mut k_norm) = (vec![], vec![]);
    if let Some(over) = attention.qk_norm {
        let (q_width, k_width) = if over == QkNorm::PerHead { (h, h) } else { (q, kv) };
        q_norm = norm_params(g, kind, q_width, "attention.q_norm.weight", "attention.q_norm.bias");
        k_norm = norm_params(g, kind, k_width, "attention.k_norm.weight", "attention.k_norm.bias");
    }
    AttentionParams { qkv, output, q_norm, k_norm }
}

/// Rotary embedding in real numbers; partial ones split and join as the complex one does.
pub(in crate::model) fn rotate_real(
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

pub(in crate::model) struct FfnParams {
    pub w1: Vec<usize>,
    pub w2: Vec<usize>,
    pub w3: Vec<usize>,
}

pub(in crate::model) fn ffn_params(g: &mut GraphBuilder, dense: &Dense) -> FfnParams {
    let Dims { d, f, .. } = g.dims();
    let linear = |g: &mut GraphBuilder, weight, bias, rows, cols| {
        let mut params = vec![g.param(weight, rows, cols)];
        if dense.bias {
            params.push(g.param(bias, rows, 1));
        }
        params
    };
    let w1 = linear(g, "feed_forward.w1.weight", "feed_forward.w1.bias", f, d);
    let w2 = linear(g, "feed_forward.w2.weight", "feed_forward.w2.bias", d, f);
    let w3 = match dense.gating {
        Gating::Gated(_) => linear(g, "feed_forward.w3.weight", "feed_forward.w3.bias", f, d),
        Gating::Plain(_) => vec![],
    };
    FfnParams { w1, w2, w3 }
}

pub(in crate::model) fn activation(g: &mut GraphBuilder, act: Activation, h1: ValueId) -> ValueId {
    let out = g.activation("feed_forward", act, h1, ("gate_BSF", BSF));
    g.drop_values(&[h1]);
    out
}
