//! The forward of a mixture as torchtitan writes it: its router, token dispatchers and grouped experts
//! (`torchtitan/models/common/{moe,token_dispatcher}.py` at 6b960233, June 2026).
//!
//! Scores are made in fp32; which experts are chosen depends on a bias that no gradient reaches. Copies of tokens are put in
//! the order of experts. Where experts are spread over ranks, copies go there in one all-to-all, whose sizes the host reads
//! first, are put in the order of the rank's experts, and come back in another. Weights meet what the experts make.
//! Names stay alive until their function returns.

use super::forward::op as step;
use super::{ExpertOp, Experts, Score, TitanOp};
use crate::model::Gating;
use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ParamId, ValueId};
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BSE: &[Axis] = &[Axis::B, Axis::S, Axis::E];
const BSX: &[Axis] = &[Axis::B, Axis::S, Axis::X];
const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const CX: &[Axis] = &[Axis::C, Axis::X];
const E: &[Axis] = &[Axis::E];
const MODULE: &str = "moe";
const EXPERTS: &str = "moe.experts";
const SHARED: &str = "moe.shared_experts";

/// Parameters in the order in which modules register them.
pub(in crate::model) struct Params {
    w1: ParamId,
    w2: ParamId,
    w3: Option<ParamId>,
    gate: ParamId,
    shared: Option<(ParamId, ParamId, Option<ParamId>)>,
}

/// Whether a parameter is one of the routed experts', by its name.
pub fn is_routed(name: &str) -> bool {
    name.starts_with("moe.experts.")
}

impl Params {
    /// Registers them; a rank has `1/ranks` of the experts.
    pub(in crate::model) fn new(g: &mut GraphBuilder, experts: &Experts, ranks: u64) -> Params {
        let (Dims { d, e, x, .. }, width) = (g.dims(), experts.shared);
        let gated = matches!(experts.gating, Gating::Gated(_));
        let own = e / ranks;
        let w1 = g.experts("moe.experts.w1", own, (x, d));
        let w2 = g.experts("moe.experts.w2", own, (d, x));
        let w3 = gated.then(|| g.experts("moe.experts.w3", own, (x, d)));
        let gate = g.param("moe.router.gate.weight", e, d);
        let shared = (width > 0).then(|| {
            let first = g.param("moe.shared_experts.w1.weight", width, d);
            let last = g.param("moe.shared_experts.w2.weight", d, width);
            (first, last, gated.then(|| g.param("moe.shared_experts.w3.weight", width, d)))
        });
        Params { w1, w2, w3, gate, shared }
    }
}

fn titan(kind: TitanOp) -> OpKind {
    OpKind::Experts(ExpertOp::Titan(kind))
}

/// The mixture on `x_BSD`, its experts over `ranks`.
pub(in crate::model) fn mixture(
    g: &mut GraphBuilder,
    experts: &Experts,
    ranks: u64,
    x: ValueId,
    params: &Params,
) -> ValueId {
    let Dims { d, e, top_k, .. } = g.dims();
    let (tokens, fp32, wide) = (g.dims().tokens(), DType::Fp32, g.compute());
    let (sent, received) = (tokens * top_k, received(experts, tokens, ranks));

    // The router.
    let gate = titan(TitanOp::Gate { inputs: d, outputs: e });
    let logits = g.op_in("moe.router.gate", gate, &[x], &[params.gate], ("logits_BSE", BSE), fp32);
    let score =
        if experts.router.score == Score::Sigmoid { titan(TitanOp::Sigmoid) } else { OpKind::Experts(ExpertOp::Score) };
    let scores = g.op_in(MODULE, score, &[logits], &[], ("scores_BSE", BSE), fp32);
    g.drop_values(&[logits]);
    let mut biased = g.op_in(MODULE, titan(TitanOp::Bias), &[scores], &[], ("scores_BSE", BSE), fp32);
    let mut others = None;
    if let Some((groups, chosen)) = experts.router.groups {
        let made = [("scores_BSE", BSE, fp32), ("others_E", E, DType::Fp8)];
        let [limited, mask] = g.op_many(MODULE, titan(TitanOp::Limit { groups, chosen }), &[biased], made);
        g.resize(mask, tokens * groups);
        g.drop_values(&[biased]);
        (biased, others) = (limited, Some(mask));
    }
    let made = [("largest_C", C, fp32), ("choices_C", C, DType::Int64)];
    let [largest, choices] = g.op_many(MODULE, titan(TitanOp::Choose), &[biased], made);
    let mut weights = g.op_in(MODULE, titan(TitanOp::Gather), &[scores, choices], &[], ("weights_C", C), fp32);
    let mut scale = |g: &mut GraphBuilder, kind| {
        let before = weights;
        weights = g.op_in(MODULE, kind, &[before], &[], ("weights_C", C), fp32);
        g.drop_values(&[before]);
    };
    if experts.router.normalises {
        scale(g, titan(TitanOp::Normalise));
    }
    scale(g, OpKind::SCALE);
    g.drop_values(&[biased, largest]);
    g.drop_values(others.as_slice());
    // The map holds truth values, of one byte as fp8's.
    let [map, counts] = g.op_many(
        MODULE,
        titan(TitanOp::Map),
        &[choices],
        [("map_BSE", BSE, DType::Fp8), ("counts_E", E, DType::Int64)],
    );

    // To the experts.
    let made = [("order_C", C, DType::Int64), ("rows_C", C, DType::Int64)];
    let [order, rows] = g.op_many(MODULE, OpKind::Experts(ExpertOp::Sort), &[choices], made);
    let picked = g.op_in(MODULE, OpKind::Experts(ExpertOp::Pick), &[weights, order], &[], ("weights_C", C), fp32);
    g.drop_values(&[order]);
    let taken = step(g, ExpertOp::Titan(TitanOp::Take), &[x, rows], "xs_CD", CD);
    let (mut xs, mut of_experts, mut places) = (taken, counts, None);
    if ranks > 1 {
        let counted = g.op_in(MODULE, titan(TitanOp::Count { ranks }), &[counts], &[], ("counts_E", E), DType::Int64);
        let got = step(g, ExpertOp::Titan(TitanOp::Exchange), &[taken], "got_CD", CD);
        g.resize(got, received * d);
        let made = [("xs_CD", CD, wide), ("places_C", C, DType::Int64), ("counts_E", E, DType::Int64)];
        let [sorted, from, own] = g.op_many(MODULE, titan(TitanOp::Permute), &[got, counted], made);
        g.resize(sorted, received * d);
        g.resize(from, received);
        g.resize(own, e / ranks);
        g.drop_values(&[got, taken, counted]);
        (xs, of_experts, places) = (sorted, own, Some(from));
    }
    let ys = run(g, experts.gating, (xs, of_experts), (e / ranks, received), params);

    // And back.
    let mut back = ys;
    if let Some(places) = places {
        let placed = step(g, ExpertOp::Titan(TitanOp::Unpermute), &[ys, places], "ys_CD", CD);
        g.resize(placed, received * d);
        back = step(g, ExpertOp::Titan(TitanOp::Exchange), &[placed], "back_CD", CD);
        g.resize(back, sent * d);
        g.drop_values(&[placed]);
    }
    let zeros = step(g, ExpertOp::Titan(TitanOp::Zeros), &[], "zeros_BSD", BSD);
    let weighed = step(g, ExpertOp::Titan(TitanOp::Weigh), &[back, picked], "ys_CD", CD);
    if back != ys {
        g.drop_values(&[back]);
    }
    let mut out = step(g, ExpertOp::Titan(TitanOp::Scatter), &[zeros, rows, weighed], "ffn_BSD", BSD);
    g.drop_values(&[zeros, weighed]);
    if of_experts != counts {
        g.drop_values(&[of_experts]);
    }
    g.drop_values(&[ys, xs, rows, picked]);
    g.drop_values(places.as_slice());

    // The shared experts.
    let mut held = None;
    if let Some((first, last, third)) = params.shared {
        let (rows, width) = (tokens * experts.shared, experts.shared);
        let up = |g: &mut GraphBuilder, param, name| {
            let value = g.op(SHARED, OpKind::Linear { inputs: d, outputs: width }, &[x], &[param], (name, BSX));
            g.resize(value, rows);
            value
        };
        let h1 = up(g, first, "h1_BSX");
        let mut hidden = g.activation(SHARED, experts.gating.activation(), h1, ("gate", BSX));
        g.drop_values(&[h1]);
        if let Some(third) = third {
            let (gate, h3) = (hidden, up(g, third, "h3_BSX"));
            hidden = g.op(SHARED, OpKind::MUL, &[gate, h3], &[], ("h_BSX", BSX));
            g.resize(hidden, rows);
            g.drop_values(&[gate, h3]);
        }
        let shared =
            g.op(SHARED, OpKind::Linear { inputs: width, outputs: d }, &[hidden], &[last], ("shared_BSD", BSD));
        g.drop_values(&[hidden]);
        let both = g.op(MODULE, OpKind::ADD, &[out, shared], &[], ("ffn_BSD", BSD));
        g.drop_values(&[out]);
        (out, held) = (both, Some(shared));
    }
    g.drop_values(&[weights, choices, scores, map, counts]);
    g.drop_values(held.as_slice());
    out
}

/// Rows that the rank with the busiest experts receives, where every rank's tokens spread alike.
fn received(experts: &Experts, tokens: u64, ranks: u64) -> u64 {
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, tokens);
    let own = (experts.count / ranks).max(1) as usize;
    counts.chunks(own).map(|part| part.iter().sum::<u64>()).max().unwrap_or(0) * ranks
}

/// The rank's experts on `received` rows (`GroupedExperts._experts_forward`).
fn run(
    g: &mut GraphBuilder,
    gating: Gating,
    (xs, counts): (ValueId, ValueId),
    (count, received): (u64, u64),
    params: &Params,
) -> ValueId {
    let Dims { d, x: width, .. } = g.dims();
    let ends = g.op_in(EXPERTS, titan(TitanOp::Ends), &[counts], &[], ("ends_E", E), DType::Int32);
    g.resize(ends, count);
    let all = |g: &mut GraphBuilder, input, (param, inputs, outputs), (name, shape)| {
        let kind = titan(TitanOp::All { count, inputs, outputs });
        let value = g.op(EXPERTS, kind, &[input, ends], &[param], (name, shape));
        g.resize(value, received * outputs);
        value
    };
    let h1 = all(g, xs, (params.w1, d, width), ("h1_CX", CX));
    let h3 = params.w3.map(|w3| all(g, xs, (w3, d, width), ("h3_CX", CX)));
    let mut hidden = g.activation(EXPERTS, gating.activation(), h1, ("gate", CX));
    if let Some(h3) = h3 {
        let gate = hidden;
        hidden = g.op(EXPERTS, OpKind::MUL, &[gate, h3], &[], ("h_CX", CX));
        g.resize(hidden, received * width);
        g.drop_values(&[gate]);
    }
    let ys = all(g, hidden, (params.w2, width, d), ("ys_CD", CD));
    g.drop_values(&[ends, h1]);
    g.drop_values(h3.as_slice());
    g.drop_values(&[hidden]);
    ys
}
