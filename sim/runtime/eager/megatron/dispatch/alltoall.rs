//! `MoEAlltoAllTokenDispatcher`: each row to the rank of its expert, and back.
//!
//! Shared experts may overlap with it, on a stream of their own:
//!
//! ```text
//! dispatcher  counts │ rows in order │ exchange │ sort │ experts │ sort │ exchange │ sums, to which the shared ones' are added
//! side stream        └ gather ·················  └ first ··············           └ second, scatter ┘
//! ```
//!
//! In backward each exchange of rows comes as soon as its gradient is there, and so do gather and scatter.

use super::super::dispatcher::{Dispatcher, Experts, Routing, Stage, WriteStage};
use super::rows::{C, CD, LBD, MODULE, rows, unpermute};
use crate::model::graph::{GraphBuilder, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::program::DType;

pub(super) const ALLTOALL: Dispatcher = Dispatcher {
    about: "rows go to the ranks of their experts",
    combines: true,
    overlaps_shared: true,
    refuses: |_| None,
    write,
    shared_buffer: |_, _| 0,
};

fn write(g: &mut GraphBuilder, routing: &Routing, experts: Experts<'_>, mut shared: Option<WriteStage<'_>>) -> ValueId {
    let &Routing { routed, fused, tokens, passing, weights, map, weighs } = routing;
    let (d, compute) = (routed.width, g.compute());
    let numbered = if fused { DType::Int32 } else { DType::Int64 };
    let flat = g.op(MODULE, OpKind::View, &[tokens], &[], ("tokens_LBD", LBD));
    let counted = shared.is_some() && !routed.pads();
    if counted {
        let counts = rows(g, RoutedOp::Count { routed }, &[map], ("counts_C", C, 0), DType::Int64);
        g.drop_values(&[counts]);
    }
    // A stage of the shared experts, where what they read has been made.
    let mut stage = |g: &mut GraphBuilder, stage, from: Option<ValueId>| {
        shared.as_mut().zip(from).map(|(write, from)| write(g, stage, from))
    };
    let gathered = stage(g, Stage::Gather, Some(flat));
    let kind = OpKind::Megatron(MegatronOp::Routed(RoutedOp::Select { routed, fused, counted }));
    let [chosen, of] = g.op_many(MODULE, kind, &[weights, map], [("chosen_C", C, weighs), ("of_C", C, numbered)]);
    g.resize(chosen, routed.sent);
    g.resize(of, if fused { routed.tokens * (2 * routed.experts + 1) } else { routed.sent });
    let wide = |name, count| (name, CD, count * d);
    let kind = RoutedOp::Permute { fused, waits: routed.capacity.is_none() };
    let sorted_by_rank = rows(g, kind, &[flat, of], wide("rows_CD", routed.sent), compute);
    if passing {
        g.drop_values(&[tokens, flat]);
    }
    // Under an exchange the local variables name what was sent and what came until the layer returns.
    let (mut got, mut weight) = (sorted_by_rank, chosen);
    if routed.ranks > 1 {
        got = rows(g, RoutedOp::Exchange, &[sorted_by_rank], wide("got_CD", routed.received), compute);
        if gathered.is_some() {
            g.comes_early();
        }
        weight = rows(g, RoutedOp::Exchange, &[chosen], ("weight_C", C, routed.received), weighs);
        g.drop_values(&[chosen]);
    }
    let active = stage(g, Stage::First, gathered);
    let (mut sorted, mut of_sorted) = (got, weight);
    if routed.tensor > 1 {
        sorted = rows(g, RoutedOp::Collect, &[sorted], wide("all_CD", routed.rows()), compute);
        of_sorted = rows(g, RoutedOp::Collect, &[of_sorted], ("weight_C", C, routed.rows()), weighs);
    }
    if routed.sorts() {
        let (before, weight_before) = (sorted, of_sorted);
        sorted = rows(g, RoutedOp::Sort { fused }, &[before], wide("sorted_CD", routed.rows()), compute);
        of_sorted = rows(g, RoutedOp::Sort { fused }, &[weight_before], ("weight_C", C, routed.rows()), weighs);
        if before != got {
            g.drop_values(&[before, weight_before]);
        }
    }
    let mut out = experts(g, [sorted, of_sorted]);
    let own: Vec<ValueId> = [sorted, of_sorted]
        .into_iter()
        .filter(|value| ![sorted_by_rank, chosen, got, weight].contains(value))
        .collect();
    for (needed, kind, count) in [
        (routed.sorts(), RoutedOp::Sort { fused }, routed.rows()),
        (routed.tensor > 1, RoutedOp::Scatter, routed.received),
    ] {
        if needed {
            let before = out;
            out = rows(g, kind, &[before], wide("out_CD", count), compute);
            g.drop_values(&[before]);
        }
    }
    g.drop_values(&own);
    if routed.ranks > 1 {
        let before = out;
        out = rows(g, RoutedOp::Exchange, &[before], wide("back_CD", routed.sent), compute);
        if gathered.is_some() {
            g.comes_early();
        }
        g.drop_values(&[before]);
    }
    let back = out;
    let every = stage(g, Stage::Second, active);
    out = unpermute(g, fused, [back, of]);
    if let Some(every) = every {
        let routed = out;
        let elements = g.elements(routed);
        out = rows(g, RoutedOp::AddShared, &[routed, every], ("ffn_LBD", LBD, elements), compute);
        g.drop_values(&[routed, every]);
    }
    g.drop_values(&[back, sorted_by_rank]);
    let held = [weight, got].into_iter().filter(|value| ![sorted_by_rank, chosen].contains(value));
    g.drop_values(&held.collect::<Vec<_>>());
    // The router's results and the norm's: the dispatcher names them until it is used again.
    g.drop_values(&[weights, map, of]);
    if !passing {
        g.drop_values(&[tokens, flat]);
    }
    if routed.ranks == 1 {
        g.drop_values(&[chosen]);
    }
    out
}
