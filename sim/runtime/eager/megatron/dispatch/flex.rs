//! `MoEFlexTokenDispatcher` with DeepEP (`--moe-flex-dispatcher-backend deepep`, formerly `--moe-enable-deepep`;
//! `core/transformer/moe/fused_a2a.py`; deepseek-ai/DeepEP, `csrc/legacy/buffer.hpp`): a token goes once to every rank on
//! which it has an expert, and is multiplied for each expert there. The host waits until the device has said how many come.
//!
//! How many ranks a token reaches is the mean where all choices of experts are as likely ([`Rows::reached`]). DeepEP's own
//! buffers, which PyTorch does not see, are left out.

use super::super::super::frame::Node;
use super::super::dispatcher::Selected;
use super::super::dispatcher::{Dispatcher, ExpertParallel, Experts, Routing, WriteStage};
use super::rows::{C, CD, rows, unpermute_to};
use super::rules::Rules;
use crate::model::graph::{Axis, Graph, GraphBuilder, Op, ValueId};
use crate::model::megatron::{Routed, RoutedOp};
use crate::program::{Category, Collective, DType, Dispatch, ExchangeLibrary, MemoryKind, Rows, Way};
use crate::runtime::Refusal;
use crate::runtime::eager::frame::Results;
use crate::runtime::eager::storage::Gradient;
use crate::runtime::eager::{COMPUTE, Eager, Frame, Storage};

pub(super) const FLEX: Dispatcher = Dispatcher {
    about: "DeepEP: a token goes once to every rank on which it has an expert",
    combines: true,
    overlaps_shared: false,
    refuses,
    write,
    shared_buffer: |_, _| 0,
};

pub(super) const RULES: Rules = Rules { forward, backward };

const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const SBE: &[Axis] = &[Axis::S, Axis::B, Axis::E];

/// The steps that only it has. Weights and numbers of a token's experts.
const CHOOSE: &str = "chosen experts";
/// Tokens, with what they choose, to the ranks of their experts; and their sums back.
pub(super) const DISPATCH: &str = "dispatch";
pub(super) const COMBINE: &str = "combine";
/// What a token chooses as weights and a map of the rank's experts.
const OWN_EXPERTS: &str = "own experts";
/// The token of each row, and its weight.
const TOKENS_OF_ROWS: &str = "tokens of rows";
pub(super) const WEIGHTS_OF_ROWS: &str = "weights of rows";

/// Ranks that DeepEP has settings for (`Buffer.get_dispatch_config`).
const RANKS: [u32; 12] = [2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160];
/// Channels of 20 SMs (`--moe-deepep-num-sms`).
const CHANNELS: u64 = 10;
/// Bytes of an index, of a number.
const INDEX: u64 = 8;
const NUMBER: u64 = 4;

/// Whether a step takes rows from rank to rank.
pub(super) fn exchanges_rows(step: &str) -> bool {
    [DISPATCH, COMBINE].contains(&step)
}

fn refuses(experts: ExpertParallel) -> Option<Refusal> {
    let split = (
        experts.tensor > 1,
        Refusal::new("deepep-split-experts", "DeepEP's way to experts that are split over ranks").on("mesh.etp"),
    );
    let odd = (
        !RANKS.contains(&experts.ranks),
        Refusal::new("deepep-ranks", "DeepEP over a number of ranks that it has no settings for").on("mesh.ep"),
    );
    let capacity = (
        experts.capacity,
        Refusal::new("deepep-capacity", "experts' capacity under DeepEP").on("megatron.moe_expert_capacity_factor"),
    );
    Refusal::first([split, odd, capacity])
}

fn exchanged(routed: &Routed, way: Way) -> Rows {
    routed.exchanged(way, ExchangeLibrary::DeepEp)
}

/// Tokens that reach a rank: as many as of all tokens reach any, or more where its experts are asked for more.
pub(super) fn arrived(routed: &Routed) -> u64 {
    let mean = routed.tokens as f64 * exchanged(routed, Way::Dispatch).reached(routed.ranks);
    let most = (routed.tokens * routed.ranks) as f64;
    (mean * routed.received as f64 / routed.sent.max(1) as f64).min(most).round() as u64
}

fn write(g: &mut GraphBuilder, routing: &Routing, experts: Experts<'_>, _: Option<WriteStage<'_>>) -> ValueId {
    let &Routing { routed, fused, tokens, weights, map, .. } = routing;
    let (d, compute) = (routed.width, g.compute());
    let (came, local, chosen) = (arrived(&routed), routed.local, routed.tokens * routed.top_k);
    let own = |step| RoutedOp::Own { step, routed };
    // Weights, and numbers of experts.
    let choice = rows(g, own(CHOOSE), &[weights], ("choice_C", C, chosen), DType::Fp32);
    let got = rows(g, own(DISPATCH), &[tokens, choice], ("got_CD", CD, came * d), compute);
    let of_got = rows(g, own(OWN_EXPERTS), &[choice, got], ("weights_SBE", SBE, came * local), DType::Fp32);
    let numbered = if fused { (DType::Int32, came * (2 * local + 1)) } else { (DType::Int64, routed.rows()) };
    let of = rows(g, own(TOKENS_OF_ROWS), &[of_got], ("of_C", C, numbered.1), numbered.0);
    let sorted =
        rows(g, RoutedOp::Permute { fused, waits: false }, &[got, of], ("rows_CD", CD, routed.rows() * d), compute);
    let of_sorted = rows(g, own(WEIGHTS_OF_ROWS), &[of_got], ("weight_C", C, routed.rows()), DType::Fp32);
    let out = experts(g, [sorted, of_sorted]);
    let sums = unpermute_to(g, fused, [out, of], ("sums_CD", CD, came * d));
    g.drop_values(&[out, sorted, of_sorted]);
    let back = rows(g, own(COMBINE), &[sums], ("ffn_LBD", LBD, routed.tokens * d), compute);
    // The dispatcher names the others until it is used again.
    g.drop_values(&[sums, weights, map, tokens, choice, got, of_got, of]);
    back
}

/// A kernel of DeepEP's over the ranks that have all experts together; the default stream waits for it.
fn exchange(eager: &mut Eager, routed: &Routed, way: Way, row: u64) {
    let kind = Collective::Rows(exchanged(routed, way));
    eager.expert_exchange(|ranks| ranks.counts, kind, routed.tokens * row, DType::Bf16);
}

/// A storage of the pool of DeepEP's stream.
fn taken(eager: &mut Eager, bytes: u64) -> Storage {
    let stream = eager.ranks_of_experts().and_then(|ranks| ranks.counts).map_or(COMPUTE, |(_, stream)| stream);
    eager.storage_on(stream, bytes, Category::Activation, "deep_ep")
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
    let (came, ranks) = (arrived(&routed), routed.ranks);
    let map = came * routed.local;
    let mut saved = vec![];
    let made = match step {
        CHOOSE => {
            // Numbers of experts go on as part of what backward needs.
            let numbers = eager.storage(routed.sent * INDEX, "aten.topk");
            let narrow = eager.storage(routed.sent * input.dtype.bytes(), "aten.topk");
            eager.pointwise("aten.topk", MemoryKind::Elementwise, read, routed.sent * INDEX, dispatch);
            eager.pointwise("aten.topk", MemoryKind::Elementwise, read, routed.sent * INDEX, Dispatch::Extra);
            saved.push(numbers);
            if input.dtype == DType::Fp32 {
                narrow
            } else {
                let wide = eager.made("aten._to_copy", bytes, bytes / 2, dispatch);
                eager.release(narrow);
                wide
            }
        }
        DISPATCH => {
            // How many go where, known to all and to the host before there is room for what comes.
            let layout = [ranks * NUMBER, routed.experts * NUMBER].map(|bytes| taken(eager, bytes));
            let here = taken(eager, routed.tokens * ranks);
            eager.pointwise(
                "deep_ep.layout",
                MemoryKind::Elementwise,
                routed.sent * INDEX,
                routed.tokens * ranks,
                dispatch,
            );
            let matrices = [ranks * ranks, ranks * CHANNELS].map(|numbers| taken(eager, numbers * NUMBER));
            let row = routed.width * out.dtype.bytes();
            exchange(eager, &routed, Way::Notify, row);
            eager.program.wait_for_host(eager.stream);
            let got = taken(eager, bytes);
            let handle = [came, ranks * CHANNELS, routed.tokens * ranks].map(|numbers| taken(eager, numbers * NUMBER));
            exchange(eager, &routed, Way::Dispatch, row);
            layout.into_iter().for_each(|storage| eager.release(storage));
            saved.push(here);
            saved.extend(matrices);
            saved.extend(handle);
            got
        }
        OWN_EXPERTS => {
            let picked = [INDEX, NUMBER].map(|each| taken(eager, came * routed.top_k * each));
            let counted = came * routed.top_k;
            let whole = eager.made("aten.zeros", map * INDEX, 0, dispatch);
            let weights = eager.made("aten.zeros", bytes, 0, dispatch);
            let mask = eager.made("aten.ne", counted, counted * INDEX, dispatch);
            let expert = eager.masked_select(counted, Selected { rows: routed.rows(), bytes: routed.rows() * INDEX });
            let token = eager.made("aten.repeat_interleave", routed.rows() * INDEX, came * INDEX, dispatch);
            eager.pointwise(
                "aten.index_put_",
                MemoryKind::Scatter,
                routed.rows() * INDEX,
                routed.rows() * INDEX,
                dispatch,
            );
            let chosen = eager.masked_select(counted, Selected { rows: routed.rows(), bytes: routed.rows() * NUMBER });
            eager.pointwise(
                "aten.index_put_",
                MemoryKind::Scatter,
                routed.rows() * NUMBER,
                routed.rows() * NUMBER,
                dispatch,
            );
            let narrow = eager.made("aten._to_copy", map, map * INDEX, dispatch);
            [whole, chosen].into_iter().for_each(|storage| eager.release(storage));
            saved.extend(picked);
            saved.extend([mask, expert, token, narrow]);
            weights
        }
        TOKENS_OF_ROWS if out.dtype == DType::Int32 => {
            let ids = eager.storage(bytes, "te.make_row_id_map");
            for dispatch in [dispatch, Dispatch::Extra, Dispatch::Extra] {
                eager.pointwise("te.make_row_id_map", MemoryKind::Elementwise, bytes, bytes, dispatch);
            }
            ids
        }
        TOKENS_OF_ROWS => {
            let mask = eager.made("aten.clone", map, map, dispatch);
            let numbers = eager.made("aten.arange", came * INDEX, 0, dispatch);
            let tokens = eager.masked_select(map, Selected { rows: routed.rows(), bytes });
            eager.release(numbers);
            saved.push(mask);
            tokens
        }
        WEIGHTS_OF_ROWS => {
            let by_expert = eager.made("aten.clone", read, read, dispatch);
            let weights = eager.masked_select(map, Selected { rows: routed.rows(), bytes });
            saved.push(by_expert);
            weights
        }
        COMBINE => {
            let sums = taken(eager, bytes);
            exchange(eager, &routed, Way::Combine, routed.width * out.dtype.bytes());
            sums
        }
        _ => unreachable!("a step of the flex dispatcher: {step}"),
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
    let (bytes, read, row) = (input.bytes(), out.bytes(), routed.width * out.dtype.bytes());
    let result = match step {
        COMBINE => {
            let rows = taken(eager, bytes);
            let handle = [arrived(&routed), routed.ranks * CHANNELS, routed.tokens * routed.ranks];
            let handle = handle.map(|numbers| taken(eager, numbers * NUMBER));
            exchange(eager, &routed, Way::Dispatch, row);
            handle.into_iter().for_each(|storage| eager.release(storage));
            rows
        }
        DISPATCH => {
            let sums = taken(eager, bytes);
            let weights = taken(eager, routed.sent * NUMBER);
            exchange(eager, &routed, Way::Combine, row);
            // The function has two results: the weights' gradient has come back with the tokens'.
            if let Some(of_rows) = frame.gradients[op.inputs[1]].take() {
                eager.release(of_rows.storage);
            }
            eager.accumulate(frame, op.inputs[1], weights.into());
            sums
        }
        WEIGHTS_OF_ROWS => {
            let result = eager.pointwise_gradient("aten.zeros_like", bytes, 0);
            eager.masked_scatter(arrived(&routed) * routed.local, bytes);
            result
        }
        OWN_EXPERTS => {
            let picked = eager.pointwise_gradient("aten.index", routed.rows() * NUMBER, read);
            let result = eager.pointwise_gradient("aten.zeros", arrived(&routed) * routed.top_k * NUMBER, 0);
            eager.pointwise(
                "aten.index_put_",
                MemoryKind::Scatter,
                routed.rows() * NUMBER,
                routed.rows() * NUMBER,
                Dispatch::Extra,
            );
            eager.release(picked);
            result
        }
        CHOOSE => eager.pointwise_gradient("aten.scatter", bytes, read + routed.sent * INDEX),
        _ => unreachable!("a step of the flex dispatcher through which gradients go: {step}"),
    };
    eager.let_go(frame, index, gradient);
    eager.accumulate(frame, op.inputs[0], Gradient { storage: result, view: true });
}
