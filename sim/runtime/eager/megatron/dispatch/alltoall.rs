//! `MoEAlltoAllTokenDispatcher`: each row to the rank of its expert, and back.

use super::{C, CD, Dispatcher, Experts, MODULE, Routing, no_backward, no_forward, rows};
use crate::model::graph::{GraphBuilder, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::program::DType;

pub(super) const ALLTOALL: Dispatcher = Dispatcher {
    name: "alltoall",
    about: "rows go to the ranks of their experts",
    combines: true,
    refuses: |_| None,
    write,
    shared_buffer: |_, _| 0,
    forward: no_forward,
    backward: no_backward,
};

fn write(g: &mut GraphBuilder, routing: &Routing, experts: Experts<'_>) -> ValueId {
    let &Routing { routed, fused, tokens, weights, map, weighs } = routing;
    let (d, compute) = (g.dims().d, g.compute());
    let numbered = if fused { DType::Int32 } else { DType::Int64 };
    let kind = OpKind::Megatron(MegatronOp::Routed(RoutedOp::Select { routed, fused }));
    let [chosen, of] = g.op_many(MODULE, kind, &[weights, map], [("chosen_C", C, weighs), ("of_C", C, numbered)]);
    g.resize(chosen, routed.sent);
    g.resize(of, if fused { routed.tokens * (2 * routed.experts + 1) } else { routed.sent });
    let wide = |name, count| (name, CD, count * d);
    let kind = RoutedOp::Permute { fused, waits: routed.capacity.is_none() };
    let sorted_by_rank = rows(g, kind, &[tokens, of], wide("rows_CD", routed.sent), compute);
    // Under an exchange the local variables name what was sent and what came until the layer returns.
    let (mut got, mut weight) = (sorted_by_rank, chosen);
    if routed.ranks > 1 {
        got = rows(g, RoutedOp::Exchange, &[sorted_by_rank], wide("got_CD", routed.received), compute);
        weight = rows(g, RoutedOp::Exchange, &[chosen], ("weight_C", C, routed.received), weighs);
        g.drop_values(&[chosen]);
    }
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
        (routed.tensor > 1, RoutedOp::Spread, routed.received),
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
        g.drop_values(&[before]);
    }
    let back = out;
    out = super::unpermute(g, fused, [back, of]);
    g.drop_values(&[back, sorted_by_rank]);
    let held = [weight, got].into_iter().filter(|value| ![sorted_by_rank, chosen].contains(value));
    g.drop_values(&held.collect::<Vec<_>>());
    // The router's results and the norm's: the dispatcher names them until it is used again.
    g.drop_values(&[weights, map, of, tokens]);
    if routed.ranks == 1 {
        g.drop_values(&[chosen]);
    }
    out
}
