//! The forward of a mixture whose experts choose their tokens (expert choice, arXiv 2202.09368).
//!
//! An expert takes the ⌈T·k/E⌉ tokens whose scores for it are largest: the paper's capacity factor, how many experts a token
//! meets on average, is the model's k. No framework trains language models so; `tests/oracles/expert_choice.py` is the plain
//! form, with batched matmuls, since every expert has as many rows.

use super::forward::{Params, expert, op, scores};
use super::{ChoiceOp, ExpertOp, Experts};
use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const MODULE: &str = "feed_forward";
const EXPERTS: &str = "feed_forward.experts";

/// Tokens that each expert takes.
pub fn places(experts: &Experts, tokens: u64) -> u64 {
    (tokens * experts.top_k).div_ceil(experts.count)
}

/// The mixture on `x_BSD`.
pub(super) fn mixture(g: &mut GraphBuilder, experts: &Experts, x: ValueId, params: &Params) -> ValueId {
    let (Dims { d, x: width, e: count, .. }, compute) = (g.dims(), g.compute());
    let places = places(experts, g.dims().tokens());
    let rows = count * places;
    let x = g.op(MODULE, OpKind::View, &[x], &[], ("x_BSD", BSD));
    let scores = scores(g, x, params, ExpertOp::Choice(ChoiceOp::Score));
    let made = [("weights_C", C, compute), ("rows_C", C, DType::Int64)];
    let choose = OpKind::Experts(ExpertOp::Choice(ChoiceOp::Choose { count, places }));
    let [weights, chosen] = g.op_many(MODULE, choose, &[scores], made);
    g.resize(weights, rows);
    g.resize(chosen, rows);
    let xs = op(g, ExpertOp::Dispatch, &[x, chosen], "xs_CD", CD);
    g.resize(xs, rows * d);
    let all = |g: &mut GraphBuilder, input, (param, inputs, outputs), output| {
        let kind = ExpertOp::Choice(ChoiceOp::All { count, inputs, outputs });
        g.op(EXPERTS, OpKind::Experts(kind), &[input], &[param], output)
    };
    let h = expert(g, EXPERTS, experts.gating, xs, rows * width, |g, input, third, output| {
        let param = if third { params.w3.unwrap_or(params.w1) } else { params.w1 };
        all(g, input, (param, d, width), output)
    });
    let ys = all(g, h, (params.w2, width, d), ("ys_CD", CD));
    g.resize(ys, rows * d);
    g.drop_values(&[h]);
    let weighed = op(g, ExpertOp::Weigh, &[ys, weights], "ys_CD", CD);
    g.resize(weighed, rows * d);
    g.drop_values(&[ys]);
    let out = op(g, ExpertOp::Combine, &[weighed, chosen], "ffn_BSD", BSD);
    g.drop_values(&[x, scores, weights, chosen, xs, weighed]);
    out
}
