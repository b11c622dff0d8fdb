//! Feed-forwards of transformers' classes.

use super::super::block::parts::{FfnParams, activation, ffn_params};
use super::super::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use super::super::{Activation, Dense, Gating};
use super::{BSD, Class};

const BSF: &[Axis] = &[Axis::B, Axis::S, Axis::F];
const BSFF: &[Axis] = &[Axis::B, Axis::S, Axis::F];

/// Parameters of a feed-forward.
pub(super) enum Params {
    /// A matrix each.
    Own(FfnParams),
    /// Gate and up as one matrix (Phi-3), and down.
    Fused(usize, usize),
}

impl Params {
    pub fn new(g: &mut GraphBuilder, class: &Class, dense: &Dense) -> Params {
        let Dims { d, f, .. } = g.dims();
        if class.model_type == "phi3" {
            let both = g.param("feed_forward.w13.weight", 2 * f, d);
            return Params::Fused(both, g.param("feed_forward.w2.weight", d, f));
        }
        Params::Own(ffn_params(g, dense))
    }
}

/// The feed-forward on `x_BSD`; Python still holds the result.
pub(super) fn feed_forward(g: &mut GraphBuilder, dense: &Dense, x: ValueId, params: &Params) -> ValueId {
    let Dims { d, f, .. } = g.dims();
    let up = OpKind::Linear { inputs: d, outputs: f };
    let down = OpKind::Linear { inputs: f, outputs: d };
    let (hidden, w2) = match (params, dense.gating) {
        (Params::Fused(w13, w2), Gating::Gated(act) | Gating::Plain(act)) => {
            let kind = OpKind::Linear { inputs: d, outputs: 2 * f };
            let both = g.op("feed_forward.w13", kind, &[x], &[*w13], ("h13_BSF", BSFF));
            let elements = 2 * g.elements(both);
            g.resize(both, elements);
            let [gate, up] = g.split("feed_forward", both, [("h1_BSF", BSF), ("h3_BSF", BSF)]);
            let act = g.activation("feed_forward", act, gate, ("gate_BSF", BSF));
            let product = g.op("feed_forward", OpKind::MUL, &[up, act], &[], ("h_BSF", BSF));
            g.drop_values(&[act, both, gate, up]);
            (product, vec![*w2])
        }
        (Params::Own(own), Gating::Gated(act)) => {
            let h1 = g.op("feed_forward.w1", up, &[x], &own.w1, ("h1_BSF", BSF));
            let gate = written_activation(g, act, h1);
            let h3 = g.op("feed_forward.w3", up, &[x], &own.w3, ("h3_BSF", BSF));
            let product = g.op("feed_forward", OpKind::MUL, &[gate, h3], &[], ("h_BSF", BSF));
            g.drop_values(&[gate, h3]);
            (product, own.w2.clone())
        }
        (Params::Own(own), Gating::Plain(act)) => {
            let h1 = g.op("feed_forward.w1", up, &[x], &own.w1, ("h1_BSF", BSF));
            (written_activation(g, act, h1), own.w2.clone())
        }
    };
    let out = g.op("feed_forward.w2", down, &[hidden], &w2, ("ffn_BSD", BSD));
    g.drop_values(&[hidden]);
    out
}

/// An activation; `gelu_new` is eight operators (`activations.py:59`):
/// `0.5·x · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
fn written_activation(g: &mut GraphBuilder, act: Activation, x: ValueId) -> ValueId {
    if act != Activation::GeluNew {
        return activation(g, act, x);
    }
    let shape = ("gelu_BSF", BSF);
    let op = |g: &mut GraphBuilder, kind, inputs: &[ValueId]| g.op("feed_forward", kind, inputs, &[], shape);
    let half = op(g, OpKind::SCALE, &[x]);
    let cube = op(g, OpKind::SQUARE, &[x]);
    let scaled = op(g, OpKind::SCALE, &[cube]);
    g.drop_values(&[cube]);
    let sum = op(g, OpKind::ADD, &[x, scaled]);
    g.drop_values(&[scaled]);
    let inner = op(g, OpKind::SCALE, &[sum]);
    g.drop_values(&[sum]);
    let tanh = op(g, OpKind::TANH, &[inner]);
    g.drop_values(&[inner]);
    let shifted = op(g, OpKind::ADD, &[tanh]);
    g.drop_values(&[tanh]);
    let out = op(g, OpKind::MUL, &[half, shifted]);
    g.drop_values(&[shifted, half, x]);
    out
}
