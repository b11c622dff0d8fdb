//! `MoEAllGatherTokenDispatcher`: all tokens of all ranks that have experts together to each of them, which picks those of
//! its own; what they make of them is reduced and scattered. How many rows there are the host reads of the device.

use super::super::super::frame::Node;
use super::super::dispatcher::Selected;
use super::super::dispatcher::{Dispatcher, Experts, Routing, WriteStage};
use super::rows::{C, CD, rows, unpermute_to};
use super::rules::Rules;
use crate::model::graph::{Axis, Graph, GraphBuilder, Op, ValueId};
use crate::model::megatron::{Routed, RoutedOp};
use crate::program::{Collective, DType, Dispatch, MemoryKind, Work};
use crate::runtime::Refusal;
use crate::runtime::eager::frame::Results;
use crate::runtime::eager::storage::Gradient;
use crate::runtime::eager::{COMPUTE, Eager, Frame, Storage};
use crate::units::Bytes;

pub(super) const ALLGATHER: Dispatcher = Dispatcher {
    about: "all rows go to all ranks",
    combines: false,
    overlaps_shared: false,
    refuses: |experts| {
        Refusal::first([(
            experts.capacity,
            Refusal::new("allgather-capacity", "experts' capacity under the all-gather dispatcher")
                .on("megatron.moe_expert_capacity_factor"),
        )])
    },
    write,
    shared_buffer: |routed, row| if peers(routed) > 1 { routed.tokens * peers(routed) * row } else { 0 },
};

pub(super) const RULES: Rules = Rules { forward, backward };

const SBE: &[Axis] = &[Axis::S, Axis::B, Axis::E];
const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];

/// The steps that only it has. Tokens, weights and map of all ranks.
const GATHER_MAP: &str = "gather map";
const GATHER_WEIGHTS: &str = "gather weights";
const GATHER_TOKENS: &str = "gather tokens";
/// The columns of the rank's experts.
const OWN_MAP: &str = "own map";
const OWN_WEIGHTS: &str = "own weights";
/// The token of each row, and its weight. Inputs: the map; weights, the map.
const TOKENS_OF_ROWS: &str = "tokens of rows";
const WEIGHTS_OF_ROWS: &str = "weights of rows";
/// The sums over ranks of a rank's tokens.
const SCATTER: &str = "scatter";

/// Bytes of an index.
const INDEX: u64 = 8;

/// Ranks that have all experts together.
fn peers(routed: &Routed) -> u64 {
    routed.ranks * routed.tensor
}

fn write(g: &mut GraphBuilder, routing: &Routing, experts: Experts<'_>, _: Option<WriteStage<'_>>) -> ValueId {
    let &Routing { routed, fused, tokens, weights, map, weighs, .. } = routing;
    let (d, compute) = (routed.width, g.compute());
    let (all, local) = (routed.tokens * peers(&routed), routed.local);
    let own = |step| RoutedOp::Own { step, routed };
    let (mut every, mut weight, mut chosen) = (tokens, weights, map);
    if peers(&routed) > 1 {
        let wide = all * routed.experts;
        chosen = rows(g, own(GATHER_MAP), &[map], ("map_SBE", SBE, wide), DType::Fp8);
        weight = rows(g, own(GATHER_WEIGHTS), &[weights], ("weights_SBE", SBE, wide), weighs);
        // The layer's name for the weights is given to the gathered ones.
        g.drop_values(&[weights]);
        every = rows(g, own(GATHER_TOKENS), &[tokens], ("all_CD", CD, all * d), compute);
    }
    let (gathered_map, gathered_weight) = (chosen, weight);
    if local < routed.experts {
        chosen = rows(g, own(OWN_MAP), &[chosen], ("map_SBE", SBE, all * local), DType::Fp8);
        weight = rows(g, own(OWN_WEIGHTS), &[weight], ("weights_SBE", SBE, all * local), weighs);
    }
    let numbered = if fused { (DType::Int32, all * (2 * local + 1)) } else { (DType::Int64, routed.rows()) };
    let of = rows(g, own(TOKENS_OF_ROWS), &[chosen], ("of_C", C, numbered.1), numbered.0);
    let kind = RoutedOp::Permute { fused, waits: false };
    let sorted = rows(g, kind, &[every, of], ("rows_CD", CD, routed.rows() * d), compute);
    let of_sorted = rows(g, own(WEIGHTS_OF_ROWS), &[weight, chosen], ("weight_C", C, routed.rows()), weighs);
    if chosen != gathered_map {
        g.drop_values(&[weight]);
    }
    if gathered_map != map {
        g.drop_values(&[gathered_map]);
    }
    let out = experts(g, [sorted, of_sorted]);
    let mut whole = unpermute_to(g, fused, [out, of], ("sums_CD", CD, all * d));
    g.drop_values(&[out, sorted]);
    if peers(&routed) > 1 {
        let before = whole;
        whole = rows(g, own(SCATTER), &[before, of_sorted], ("ffn_LBD", LBD, routed.tokens * d), compute);
        g.drop_values(&[before, every]);
    }
    let named = [tokens, map, gathered_weight, of, of_sorted];
    g.drop_values(&named);
    if chosen != gathered_map {
        g.drop_values(&[chosen]);
    }
    whole
}

fn forward(
    eager: &mut Eager,
    graph: &Graph,
    op: &Op,
    step: &'static str,
    routed: Routed,
    frame: &mut Frame,
    results: Results,
) {
    let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
    let (read, bytes, dispatch) = (input.bytes(), out.bytes(), eager.settings.forward);
    let all = routed.tokens * peers(&routed);
    let mut saved = vec![];
    let made = match step {
        GATHER_TOKENS => {
            // Into the buffer that all gathers share.
            let view = eager.storage(0, "all_gather_into_tensor");
            eager.expert_exchange(|ranks| ranks.counts, Collective::AllGather, bytes, out.dtype);
            view
        }
        GATHER_MAP | GATHER_WEIGHTS => {
            let whole = eager.storage(bytes, "all_gather_into_tensor");
            eager.expert_exchange(|ranks| ranks.counts, Collective::AllGather, bytes, out.dtype);
            whole
        }
        OWN_MAP | OWN_WEIGHTS => eager.made("aten.clone", bytes, bytes, dispatch),
        TOKENS_OF_ROWS => {
            count(eager, all * routed.local, routed.local);
            if out.dtype == DType::Int32 {
                let ids = eager.storage(bytes, "te.make_row_id_map");
                for dispatch in [dispatch, Dispatch::Extra, Dispatch::Extra] {
                    eager.pointwise("te.make_row_id_map", MemoryKind::Elementwise, bytes, bytes, dispatch);
                }
                ids
            } else {
                let mask = eager.made("aten.clone", read, read, dispatch);
                let tokens = eager.made("aten.arange", all * INDEX, 0, dispatch);
                let rows = eager.masked_select(read, Selected { rows: routed.rows(), bytes });
                [mask, tokens].into_iter().for_each(|storage| eager.release(storage));
                rows
            }
        }
        WEIGHTS_OF_ROWS => {
            let by_expert = eager.made("aten.clone", read, read, dispatch);
            let mask = eager.made("aten.clone", all * routed.local, all * routed.local, dispatch);
            let weights = eager.masked_select(all * routed.local, Selected { rows: routed.rows(), bytes });
            saved.extend([by_expert, mask]);
            weights
        }
        SCATTER => {
            // In the type of the weights.
            let wide = graph.values[op.inputs[1]].dtype;
            let [whole, part] = [read, bytes].map(|bytes| bytes / out.dtype.bytes() * wide.bytes());
            let cast = (wide != out.dtype).then(|| eager.made("aten._to_copy", whole, read, dispatch));
            let mut sums = eager.storage(part, "reduce_scatter_tensor");
            eager.expert_exchange(|ranks| ranks.counts, Collective::ReduceScatter, whole, wide);
            if let Some(cast) = cast {
                let narrow = eager.made("aten._to_copy", bytes, part, dispatch);
                [cast, sums].into_iter().for_each(|storage| eager.release(storage));
                sums = narrow;
            }
            sums
        }
        _ => unreachable!("a step of the all-gather dispatcher: {step}"),
    };
    frame.slots[op.outputs[0]] = Some(made);
    eager.keep(frame, results, &saved);
}

/// How many rows each of the rank's experts has, summed on the device and read by the host.
fn count(eager: &mut Eager, map: u64, local: u64) {
    let dispatch = eager.settings.forward;
    let counts = eager.storage(local * INDEX, "aten.sum");
    let wide = eager.made("aten.sum", map * INDEX, map, dispatch);
    eager.pointwise("aten.sum", MemoryKind::Elementwise, map * INDEX, local * INDEX, Dispatch::Extra);
    eager.release(wide);
    let work = Work::HostCopy { bytes: Bytes(local * INDEX), to_host: true };
    eager.program.launch(COMPUTE, "aten._to_copy", work, dispatch);
    eager.program.wait_for_host(COMPUTE);
    eager.release(counts);
}

fn backward(
    eager: &mut Eager,
    node: Node<'_>,
    step: &'static str,
    routed: Routed,
    frame: &mut Frame,
    gradient: Storage,
) {
    let Node { graph, op, index } = node;
    let (input, out) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
    let (bytes, read) = (input.bytes(), out.bytes());
    let result = match step {
        GATHER_TOKENS | GATHER_WEIGHTS => {
            let part = eager.temporary(bytes, "reduce_scatter_tensor");
            eager.expert_exchange(|ranks| ranks.counts, Collective::ReduceScatter, read, out.dtype);
            part
        }
        OWN_WEIGHTS => {
            let whole = eager.pointwise_gradient("aten.zeros", bytes, 0);
            eager.pointwise("aten.copy_", MemoryKind::Copy, read, read, Dispatch::Extra);
            whole
        }
        WEIGHTS_OF_ROWS => {
            let result = eager.pointwise_gradient("aten.zeros_like", bytes, 0);
            eager.masked_scatter(routed.tokens * peers(&routed) * routed.local, bytes);
            result
        }
        SCATTER => {
            let wide = graph.values[op.inputs[1]].dtype;
            let [whole, part] = [bytes, read].map(|bytes| bytes / out.dtype.bytes() * wide.bytes());
            let cast = (wide != out.dtype).then(|| eager.pointwise_gradient("aten._to_copy", part, read));
            let mut all = eager.temporary(whole, "all_gather_into_tensor");
            eager.expert_exchange(|ranks| ranks.counts, Collective::AllGather, whole, wide);
            if let Some(cast) = cast {
                let narrow = eager.pointwise_gradient("aten._to_copy", bytes, whole);
                [cast, all].into_iter().for_each(|storage| eager.release(storage));
                all = narrow;
            }
            all
        }
        _ => unreachable!("a step of the all-gather dispatcher through which gradients go: {step}"),
    };
    eager.let_go(frame, index, gradient);
    eager.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
}
