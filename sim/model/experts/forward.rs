//! The forward of a mixture as operators: router, dispatch, experts, combine.
//!
//! Written as PyTorch runs the plain form: softmax, `topk`, `argsort`, `index_select`, experts one after the other or in
//! grouped matmuls, `index_add`. Names stay alive until the function returns, as Python's local variables do.

use super::{ExpertOp, Experts, Implementation, Score, choice};
use crate::model::Gating;
use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ParamId, ValueId};
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BSE: &[Axis] = &[Axis::B, Axis::S, Axis::E];
const BS: &[Axis] = &[Axis::B, Axis::S];
const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const CX: &[Axis] = &[Axis::C, Axis::X];
const E: &[Axis] = &[Axis::E];
const BSX: &[Axis] = &[Axis::B, Axis::S, Axis::X];
const MODULE: &str = "feed_forward";
const SHARED: &str = "feed_forward.shared_experts";
const SHARED_GATE: &str = "feed_forward.shared_expert_gate";
const EXPERTS: &str = "feed_forward.experts";

/// Parameters of a mixture, in the order in which FSDP packs them: those of submodules come first.
pub(in crate::model) struct Params {
    gate: ParamId,
    /// Of the shared experts together: first, last, and third of a gated one.
    shared: Option<(ParamId, ParamId, Option<ParamId>)>,
    /// What weighs the shared experts' result.
    shared_gate: Option<ParamId>,
    pub(super) w1: ParamId,
    pub(super) w3: Option<ParamId>,
    pub(super) w2: ParamId,
}

impl Params {
    /// Registers them.
    pub(in crate::model) fn new(g: &mut GraphBuilder, experts: &Experts) -> Params {
        let (Dims { d, e, x, .. }, width) = (g.dims(), experts.shared);
        let gated = matches!(experts.gating, Gating::Gated(_));
        let gate = g.param("feed_forward.gate.weight", e, d);
        let shared = (width > 0).then(|| {
            let first = g.param("feed_forward.shared_experts.w1.weight", width, d);
            let last = g.param("feed_forward.shared_experts.w2.weight", d, width);
            (first, last, gated.then(|| g.param("feed_forward.shared_experts.w3.weight", width, d)))
        });
        let weighed = width > 0 && experts.shared_gate;
        let shared_gate = weighed.then(|| g.param("feed_forward.shared_expert_gate.weight", 1, d));
        let w1 = g.experts("feed_forward.w1", e, (x, d));
        let w3 = gated.then(|| g.experts("feed_forward.w3", e, (x, d)));
        let w2 = g.experts("feed_forward.w2", e, (d, x));
        Params { gate, shared, shared_gate, w1, w3, w2 }
    }
}

pub(super) fn op(
    g: &mut GraphBuilder,
    kind: ExpertOp,
    inputs: &[ValueId],
    name: &'static str,
    shape: &'static [Axis],
) -> ValueId {
    g.op(MODULE, OpKind::Experts(kind), inputs, &[], (name, shape))
}

/// Logits of all experts in fp32, by the router's linear.
fn logits(g: &mut GraphBuilder, x: ValueId, params: &Params) -> ValueId {
    let (dims, compute) = (g.dims(), g.compute());
    let router = OpKind::Linear { inputs: dims.d, outputs: dims.e };
    let mut logits = g.op("feed_forward.gate", router, &[x], &[params.gate], ("logits_BSE", BSE));
    if compute != DType::Fp32 {
        let wide = g.op_in(MODULE, OpKind::CAST, &[logits], &[], ("logits_BSE", BSE), DType::Fp32);
        g.drop_values(&[logits]);
        logits = wide;
    }
    logits
}

/// Scores of all experts in fp32, by the router's logits and the operator `score`.
pub(super) fn scores(g: &mut GraphBuilder, x: ValueId, params: &Params, score: ExpertOp) -> ValueId {
    let logits = logits(g, x, params);
    let scores = g.op_in(MODULE, OpKind::Experts(score), &[logits], &[], ("scores_BSE", BSE), DType::Fp32);
    g.drop_values(&[logits]);
    scores
}

/// The mixture on `x_BSD`.
pub(in crate::model) fn mixture(
    g: &mut GraphBuilder,
    experts: &Experts,
    implementation: Implementation,
    x: ValueId,
    params: &Params,
) -> ValueId {
    if implementation == Implementation::ExpertChoice {
        return choice::mixture(g, experts, x, params);
    }
    let (dims, compute) = (g.dims(), g.compute());
    let block_input = x;
    let x = g.op(MODULE, OpKind::View, &[block_input], &[], ("x_BSD", BSD));
    let (scores, choose) = match experts.router.score {
        Score::SoftmaxOfChosen => (logits(g, x, params), ExpertOp::ChooseFirst),
        _ => (scores(g, x, params, ExpertOp::Score), ExpertOp::Choose),
    };
    let made = [("weights_C", C, compute), ("choices_C", C, DType::Int64)];
    let [weights, choices] = g.op_many(MODULE, OpKind::Experts(choose), &[scores], made);
    let made = [("order_C", C, DType::Int64), ("rows_C", C, DType::Int64)];
    let [order, rows] = g.op_many(MODULE, OpKind::Experts(ExpertOp::Sort), &[choices], made);
    let xs = op(g, ExpertOp::Dispatch, &[x, rows], "xs_CD", CD);
    let ran = match implementation {
        Implementation::Loop => one_by_one(g, experts, xs, params),
        _ => all_at_once(g, experts.gating, xs, params),
    };
    let picked = op(g, ExpertOp::Pick, &[weights, order], "weights_C", C);
    let weighed = op(g, ExpertOp::Weigh, &[ran.ys, picked], "ys_CD", CD);
    g.drop_values(&[picked, ran.ys]);
    let mut out = op(g, ExpertOp::Combine, &[weighed, rows], "ffn_BSD", BSD);
    if let Some((first, last, third)) = params.shared {
        let (tokens, width) = (dims.tokens(), experts.shared);
        let up = OpKind::Linear { inputs: dims.d, outputs: width };
        let hidden = expert(g, SHARED, experts.gating, block_input, tokens * width, |g, input, is_third, (name, _)| {
            let param = if is_third { third.unwrap_or(first) } else { first };
            g.op(SHARED, up, &[input], &[param], (name, BSX))
        });
        let down = OpKind::Linear { inputs: width, outputs: dims.d };
        let mut y = g.op(SHARED, down, &[hidden], &[last], ("shared_BSD", BSD));
        g.drop_values(&[hidden]);
        if let Some(param) = params.shared_gate {
            y = weigh_shared(g, block_input, y, param);
        }
        let both = g.op(MODULE, OpKind::ADD, &[out, y], &[], ("ffn_BSD", BSD));
        g.drop_values(&[y, out]);
        out = both;
    }
    g.drop_values(&[x, scores, weights, choices, order, rows, xs]);
    g.drop_values(&ran.before);
    g.drop_values(&[weighed]);
    g.drop_values(&ran.after);
    out
}

/// What shared experts made, times a number for each token: the sigmoid of a linear of its own.
fn weigh_shared(g: &mut GraphBuilder, x: ValueId, y: ValueId, param: ParamId) -> ValueId {
    let gate = OpKind::Linear { inputs: g.dims().d, outputs: 1 };
    let logit = g.op(SHARED_GATE, gate, &[x], &[param], ("gate_BS", BS));
    let weight = g.op(SHARED_GATE, OpKind::SIGMOID, &[logit], &[], ("gate_BS", BS));
    g.drop_values(&[logit]);
    let weighed = op(g, ExpertOp::Weigh, &[y, weight], "shared_BSD", BSD);
    g.drop_values(&[weight, y]);
    weighed
}

/// A name and its axes.
type Shape = (&'static str, &'static [Axis]);

/// What the experts made, and the local variables that go before and after it.
struct Ran {
    ys: ValueId,
    before: Vec<ValueId>,
    after: Vec<ValueId>,
}

/// The hidden values, `elements` of them, of a gated or plain feed-forward whose linears are
/// `linear(input, third or first, output)`.
pub(super) fn expert(
    g: &mut GraphBuilder,
    module: &'static str,
    gating: Gating,
    x: ValueId,
    elements: u64,
    linear: impl Fn(&mut GraphBuilder, ValueId, bool, Shape) -> ValueId,
) -> ValueId {
    let h1 = linear(g, x, false, ("h1_CX", CX));
    g.resize(h1, elements);
    let gate = g.activation(module, gating.activation(), h1, ("gate_CX", CX));
    g.drop_values(&[h1]);
    if !matches!(gating, Gating::Gated(_)) {
        return gate;
    }
    let h3 = linear(g, x, true, ("h3_CX", CX));
    g.resize(h3, elements);
    let h = g.op(module, OpKind::MUL, &[gate, h3], &[], ("h_CX", CX));
    g.resize(h, elements);
    g.drop_values(&[gate, h3]);
    h
}

fn one_by_one(g: &mut GraphBuilder, experts: &Experts, xs: ValueId, params: &Params) -> Ran {
    let Dims { d, x: width, .. } = g.dims();
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, g.dims().tokens());
    let parts = g.split_many(MODULE, xs, ("x_CD", CD), counts.len());
    for (&part, rows) in parts.iter().zip(&counts) {
        g.resize(part, rows * d);
    }
    let one = |g: &mut GraphBuilder, expert, input, (param, inputs, outputs), output| {
        let kind = ExpertOp::One { expert, count: experts.count, inputs, outputs };
        g.op(EXPERTS, OpKind::Experts(kind), &[input], &[param], output)
    };
    let mut outs = vec![];
    for (at, (&part, &rows)) in (0..).zip(parts.iter().zip(&counts)) {
        let h = expert(g, EXPERTS, experts.gating, part, rows * width, |g, input, third, output| {
            let param = if third { params.w3.unwrap_or(params.w1) } else { params.w1 };
            one(g, at, input, (param, d, width), output)
        });
        let out = one(g, at, h, (params.w2, width, d), ("y_CD", CD));
        g.resize(out, rows * d);
        g.drop_values(&[h]);
        outs.push(out);
    }
    let (last, others) = parts.split_last().expect("there are experts");
    g.drop_values(others);
    let ys = g.op(MODULE, OpKind::CONCAT, &outs, &[], ("ys_CD", CD));
    outs.push(*last);
    Ran { ys, before: vec![], after: outs }
}

fn all_at_once(g: &mut GraphBuilder, gating: Gating, xs: ValueId, params: &Params) -> Ran {
    let Dims { d, x: width, e: count, .. } = g.dims();
    let rows = g.dims().size(Axis::C);
    let ends = g.op_in(MODULE, OpKind::Experts(ExpertOp::Offsets), &[], &[], ("ends_E", E), DType::Int32);
    let all = |g: &mut GraphBuilder, input, (param, inputs, outputs), output| {
        let kind = ExpertOp::All { count, inputs, outputs };
        g.op(EXPERTS, OpKind::Experts(kind), &[input, ends], &[param], output)
    };
    let h = expert(g, EXPERTS, gating, xs, rows * width, |g, input, third, output| {
        let param = if third { params.w3.unwrap_or(params.w1) } else { params.w1 };
        all(g, input, (param, d, width), output)
    });
    let ys = all(g, h, (params.w2, width, d), ("ys_CD", CD));
    Ran { ys, before: vec![ends, h], after: vec![] }
}
