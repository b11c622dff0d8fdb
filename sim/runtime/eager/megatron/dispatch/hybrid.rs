//! `MoEFlexTokenDispatcher` with Hybrid-EP (`--moe-flex-dispatcher-backend hybridep`; `core/transformer/moe/token_dispatcher.py`,
//! `_HybridEPManager`, `fused_a2a.py`, 0.16.1; deepseek-ai/DeepEP, branch `hybrid-ep`): one call takes a token to every rank on which it
//! has an expert and puts its rows in the order of experts, filled up to the multiple that fp8 needs. The host waits until the device has
//! said how many come.
//!
//! How many ranks a token reaches is the mean where all choices of experts are as likely. Hybrid-EP's own buffers, which PyTorch does not
//! see, are left out.

use super::super::super::frame::Node;
use super::super::dispatcher::{Dispatcher, ExpertParallel, Experts, Routing, WriteStage};
use super::flex::{COMBINE, DISPATCH, WEIGHTS_OF_ROWS, arrived};
use super::rows::{C, CD, LBD, rows};
use super::rules::Rules;
use crate::model::graph::{Axis, Graph, GraphBuilder, Op, ValueId};
use crate::model::megatron::{Routed, RoutedOp};
use crate::program::{Category, Collective, DType, Dispatch, ExchangeLibrary, MemoryKind, Way};
use crate::runtime::Refusal;
use crate::runtime::eager::frame::Results;
use crate::runtime::eager::storage::Gradient;
use crate::runtime::eager::{Eager, Frame, Storage};

pub(super) const HYBRID: Dispatcher = Dispatcher {
    about: "Hybrid-EP: a token goes once to every rank on which it has an expert, and its rows are put in order there",
    combines: true,
    overlaps_shared: false,
    refuses,
    write,
    shared_buffer: |_, _| 0,
};

pub(super) const RULES: Rules = Rules { forward, backward };

/// Weights of experts in fp32, the only type that it takes.
const WIDE: &str = "weights in fp32";
const SBE: &[Axis] = &[Axis::S, Axis::B, Axis::E];
/// Bytes of a number.
const NUMBER: u64 = 4;

fn refuses(experts: ExpertParallel) -> Option<Refusal> {
    let split = (
        experts.tensor > 1,
        Refusal::new("hybridep-split-experts", "Hybrid-EP's way to experts that are split over ranks").on("mesh.etp"),
    );
    let capacity = (
        experts.capacity,
        Refusal::new("hybridep-capacity", "experts' capacity under Hybrid-EP")
            .on("megatron.moe_expert_capacity_factor"),
    );
    Refusal::first([split, capacity])
}

fn write(g: &mut GraphBuilder, routing: &Routing, experts: Experts<'_>, _: Option<WriteStage<'_>>) -> ValueId {
    let &Routing { routed, tokens, weights, map, weighs, .. } = routing;
    let (d, compute) = (routed.width, g.compute());
    let own = |step| RoutedOp::Own { step, routed };
    let chosen = routed.tokens * routed.experts;
    let wide = match weighs {
        DType::Fp32 => weights,
        _ => rows(g, own(WIDE), &[weights], ("weights_SBE", SBE, chosen), DType::Fp32),
    };
    let sorted = rows(g, own(DISPATCH), &[tokens, wide], ("rows_CD", CD, routed.rows() * d), compute);
    let of_sorted = rows(g, own(WEIGHTS_OF_ROWS), &[wide, sorted], ("weight_C", C, routed.rows()), DType::Fp32);
    let out = experts(g, [sorted, of_sorted]);
    g.drop_values(&[sorted, of_sorted]);
    let back = rows(g, own(COMBINE), &[out], ("ffn_LBD", LBD, routed.tokens * d), compute);
    g.drop_values(&[out, weights, wide, map, tokens]);
    back
}

/// The call's kernels over the ranks that have all experts together; the default stream waits for them.
fn exchange(eager: &mut Eager, routed: &Routed, way: Way, row: u64) {
    let kind = Collective::Rows(routed.exchanged(way, ExchangeLibrary::HybridEp));
    eager.expert_exchange(|ranks| ranks.counts, kind, routed.tokens * row, DType::Bf16);
}

/// Rows into the order of experts, or the sums of a token's rows: what lies in the buffer of the exchange is read, or written, each row
/// once and whole.
fn permute(eager: &mut Eager, routed: &Routed, row: u64, dispatch: Dispatch) {
    let (came, rows) = (arrived(routed) * row, routed.rows() * row);
    eager.pointwise("hybrid_ep.permute", MemoryKind::Gather, came, rows, dispatch);
}

fn unpermute(eager: &mut Eager, routed: &Routed, row: u64, dispatch: Dispatch) {
    let (came, rows) = (arrived(routed) * row, routed.rows() * row);
    eager.pointwise("hybrid_ep.unpermute", MemoryKind::Gather, rows, came, dispatch);
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
    let (bytes, dispatch, row) = (out.bytes(), eager.settings.forward, routed.width * out.dtype.bytes());
    let mut saved = vec![];
    let made = match step {
        WIDE => eager.made("aten._to_copy", bytes, input.bytes(), dispatch),
        DISPATCH => {
            // Where each token goes, which of a rank's experts it has, and which row it becomes.
            let handle = [routed.tokens * routed.ranks * NUMBER, routed.tokens * routed.ranks * routed.local];
            saved.extend(handle.map(|bytes| eager.storage(bytes, "hybrid_ep.handle")));
            eager.program.wait_for_host(eager.stream);
            saved.push(eager.storage(arrived(&routed) * routed.local * NUMBER, "hybrid_ep.handle"));
            let rows = eager.storage(bytes, "hybrid_ep.rows");
            exchange(eager, &routed, Way::Dispatch, row);
            permute(eager, &routed, row, dispatch);
            rows
        }
        WEIGHTS_OF_ROWS => eager.storage(bytes, "hybrid_ep.rows"),
        COMBINE => {
            let sums = eager.storage(bytes, "hybrid_ep.sums");
            unpermute(eager, &routed, row, dispatch);
            exchange(eager, &routed, Way::Combine, row);
            sums
        }
        _ => unreachable!("a step of Hybrid-EP: {step}"),
    };
    frame.slots[op.outputs[0]] = Some(made);
    eager.keep(frame, results, &saved);
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
    let (bytes, row, dispatch) = (input.bytes(), routed.width * out.dtype.bytes(), eager.settings.backward);
    let of_pass = |eager: &mut Eager| eager.storage_as(bytes, Category::BackwardTemporary, "hybrid_ep.rows");
    let result = match step {
        WIDE => eager.pointwise_gradient("aten._to_copy", bytes, out.bytes()),
        DISPATCH => {
            let sums = of_pass(eager);
            unpermute(eager, &routed, row, dispatch);
            exchange(eager, &routed, Way::Combine, row);
            sums
        }
        // They come back with the tokens'.
        WEIGHTS_OF_ROWS => of_pass(eager),
        COMBINE => {
            let rows = of_pass(eager);
            exchange(eager, &routed, Way::Dispatch, row);
            permute(eager, &routed, row, dispatch);
            rows
        }
        _ => unreachable!("a step of Hybrid-EP: {step}"),
    };
    eager.let_go(frame, index, gradient);
    eager.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
}
