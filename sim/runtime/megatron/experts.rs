//! A block's mixture of experts as operators (`core/transformer/moe/moe_layer.py`, `token_dispatcher.py`, `experts.py`,
//! 0.16.1): Transformer Engine's grouped linears between two all-to-alls.

use super::Job;
use super::blocks::Modules;
use super::job::Implementation;
use crate::model::experts::{Experts, Score};
use crate::model::graph::{Axis, OpKind, ValueId};
use crate::model::megatron::experts::Scores;
use crate::model::megatron::{MegatronOp, Routed, RoutedOp};
use crate::model::{Activation, FeedForward};
use crate::program::DType;

const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const CD: &[Axis] = &[Axis::C, Axis::D];
const CX: &[Axis] = &[Axis::C, Axis::X];
const C: &[Axis] = &[Axis::C];
const SBE: &[Axis] = &[Axis::S, Axis::B, Axis::E];
const MODULE: &str = "mlp";
const EXPERTS: &str = "mlp.experts";

/// What the names of parameters that experts have begin with, and of those that their router has.
pub(super) const EXPERT: &str = "mlp.experts.";
/// The router's parameters.
pub(super) const ROUTER: &str = "mlp.router.";

/// Parameters of a mixture, in the order of Megatron's modules.
pub(super) struct Params {
    norm: Vec<usize>,
    router: Vec<usize>,
    fc1: Vec<usize>,
    fc2: Vec<usize>,
    /// Biases of the second, which are added by another operator.
    biases: Vec<usize>,
}

/// What of a job's mixture has no rules here, if anything.
pub(super) fn refuses(job: &Job) -> Option<&'static str> {
    let Some(experts) = &job.model.experts else { return None };
    let (router, mesh) = (experts.router, job.mesh);
    let gated = job.model.feed_forward == FeedForward::Gated(Activation::Silu);
    let cases = [
        (job.block.implementation != Implementation::TransformerEngine, "experts without Transformer Engine"),
        (job.matmuls.fp8().is_some(), "experts in fp8"),
        (!gated || !job.block.fused_activation, "experts whose activation is not a gated SiLU in one kernel"),
        (experts.bias && job.mesh.etp > 1, "split experts with biases"),
        (
            job.mixture.is_some_and(|run| run.router_fusion && run.auxiliary_loss),
            "a router in one kernel with a loss that balances",
        ),
        (experts.bias && job.mixture.is_some_and(|run| run.fp32_router), "experts with biases under a router in fp32"),
        (experts.shared > 0, "shared experts"),
        (router.score == Score::Sigmoid, "a router that takes sigmoids"),
        (router.correction, "a router whose choice is corrected"),
        (router.scales, "a router that scales its weights"),
        (router.groups.is_some(), "a router that chooses among groups"),
        (mesh.ep == 1 && mesh.etp != mesh.tp, "experts split otherwise than the rest without being spread over ranks"),
        (mesh.tp > 1 && !job.sequence_parallel, "experts under tensor parallelism without sequence parallelism"),
    ];
    cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what)
}

/// How many rows are where: under a load that is not balanced, on the rank that is sent the most.
fn routed(job: &Job, experts: &Experts, tokens: u64) -> Routed {
    let (ranks, tensor) = (u64::from(job.mesh.ep), u64::from(job.mesh.etp));
    let local = experts.count / ranks;
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, tokens);
    let most = counts.chunks(local.max(1) as usize).map(|own| own.iter().sum::<u64>()).max().unwrap_or(0);
    let sent = tokens * experts.top_k;
    Routed { tokens, experts: experts.count, top_k: experts.top_k, local, ranks, tensor, sent, received: most * ranks }
}

/// Registers the parameters of a mixture, if the model has one.
pub(super) fn params(m: &mut Modules) -> Option<Params> {
    let experts = m.job.model.experts.clone()?;
    let (d, tensor) = (m.dims.d, u64::from(m.job.mesh.etp));
    let (local, width) = (experts.count / u64::from(m.job.mesh.ep), experts.width / tensor);
    let norm = m.norm_params("pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias");
    let mut router = vec![m.g.param("mlp.router.weight", experts.count, d)];
    if experts.router.bias {
        router.push(m.g.param("mlp.router.bias", experts.count, 1));
    }
    let mut each = |name, rows, cols| (0..local).map(|_| m.g.param(name, rows, cols)).collect::<Vec<_>>();
    let mut fc1 = each("mlp.experts.linear_fc1.weight", 2 * width, d);
    if experts.bias {
        fc1.extend(each("mlp.experts.linear_fc1.bias", 2 * width, 1));
    }
    let fc2 = each("mlp.experts.linear_fc2.weight", d, width);
    let biases = if experts.bias { each("mlp.experts.linear_fc2.bias", d, 1) } else { vec![] };
    Some(Params { norm, router, fc1, fc2, biases })
}

/// The mixture on the hidden state before its norm.
pub(super) fn mixture(m: &mut Modules, x: ValueId, params: &Params) -> ValueId {
    let experts = m.job.model.experts.clone().expect("a mixture has experts");
    let run = m.job.mixture.expect("a job of a model with experts says how they are run");
    let (d, tensor, compute) = (m.dims.d, u64::from(m.job.mesh.etp), m.g.compute());
    let (routed, width) = (routed(m.job, &experts, m.dims.local_tokens()), experts.width / tensor);
    let fused = run.permute_fusion;
    let weighs = if run.fp32_router { DType::Fp32 } else { compute };
    let xn = m.norm("pre_mlp_layernorm", x, &params.norm);

    let scores = match (experts.router.score, experts.router.normalises) {
        (Score::Softmax, false) => Scores::All,
        // Softmax of the chosen is softmax of all, divided by the sum of the chosen.
        _ => Scores::Chosen,
    };
    let (auxiliary, again) = (run.auxiliary_loss, run.recompute_norm);
    let route = RoutedOp::Route { routed, scores, auxiliary, fused: run.router_fusion, again };
    let [weights, map] = m.route(route, xn, &params.router, weighs);
    m.g.resize(weights, routed.tokens * routed.experts);
    m.g.resize(map, routed.tokens * routed.experts);
    let numbered = if fused { DType::Int32 } else { DType::Int64 };
    let kind = OpKind::Megatron(MegatronOp::Routed(RoutedOp::Select { routed, fused }));
    let [chosen, of] = m.g.op_many(MODULE, kind, &[weights, map], [("chosen_C", C, weighs), ("of_C", C, numbered)]);
    m.g.resize(chosen, routed.sent);
    m.g.resize(of, if fused { routed.tokens * (2 * routed.experts + 1) } else { routed.sent });
    let op = |m: &mut Modules, kind, inputs: &[ValueId], (name, elements): (&'static str, u64), dtype| {
        let shape = if elements == routed.sent { C } else { CD };
        let kind = OpKind::Megatron(MegatronOp::Routed(kind));
        let value = m.g.op_in(MODULE, kind, inputs, &[], (name, shape), dtype);
        m.g.resize(value, elements);
        value
    };
    let rows = op(m, RoutedOp::Permute { routed, fused }, &[xn, of], ("rows_CD", routed.sent * d), compute);
    // Under an exchange the local variables name what was sent and what came until the layer returns.
    let (mut got, mut weight) = (rows, chosen);
    if routed.ranks > 1 {
        got = op(m, RoutedOp::Exchange, &[rows], ("got_CD", routed.received * d), compute);
        weight = op(m, RoutedOp::Exchange, &[chosen], ("weight_C", routed.received), weighs);
        m.g.drop_values(&[chosen]);
    }
    let (mut sorted, mut of_sorted) = (got, weight);
    if tensor > 1 {
        sorted = op(m, RoutedOp::Collect, &[sorted], ("all_CD", routed.rows() * d), compute);
        of_sorted = op(m, RoutedOp::Collect, &[of_sorted], ("weight_C", routed.rows()), weighs);
    }
    if routed.sorts() {
        let (before, weight_before) = (sorted, of_sorted);
        sorted = op(m, RoutedOp::Sort { fused }, &[before], ("sorted_CD", routed.rows() * d), compute);
        of_sorted = op(m, RoutedOp::Sort { fused }, &[weight_before], ("weight_C", routed.rows()), weighs);
        if before != got {
            m.g.drop_values(&[before, weight_before]);
        }
    }
    let grouped =
        |inputs, outputs, again| MegatronOp::Routed(RoutedOp::Grouped { inputs, outputs, local: routed.local, again });
    let up = m.megatron(EXPERTS, grouped(d, 2 * width, None), &[sorted], &params.fc1, ("up_CX", CX));
    m.g.resize(up, routed.rows() * 2 * width);
    let active = m.megatron(EXPERTS, MegatronOp::Routed(RoutedOp::Weigh), &[up, of_sorted], &[], ("act_CX", CX));
    m.g.resize(active, routed.rows() * width);
    let again = run.recompute_activation.then(|| routed.rows() * 2 * width * compute.bytes());
    let mut out = m.megatron(EXPERTS, grouped(width, d, again), &[active], &params.fc2, ("out_CD", CD));
    m.g.resize(out, routed.rows() * d);
    m.g.drop_values(&[up, active]);
    if !params.biases.is_empty() {
        let before = out;
        let kind = MegatronOp::Routed(RoutedOp::AddBiases);
        out = m.megatron(EXPERTS, kind, &[before, of_sorted], &params.biases, ("out_CD", CD));
        m.g.resize(out, routed.rows() * d);
        m.g.drop_values(&[before]);
    }
    let own: Vec<ValueId> =
        [sorted, of_sorted].into_iter().filter(|value| ![rows, chosen, got, weight].contains(value)).collect();
    for (needed, kind, elements) in [
        (routed.sorts(), RoutedOp::Sort { fused }, routed.rows() * d),
        (tensor > 1, RoutedOp::Spread, routed.received * d),
    ] {
        if needed {
            let before = out;
            out = op(m, kind, &[before], ("out_CD", elements), compute);
            m.g.drop_values(&[before]);
        }
    }
    m.g.drop_values(&own);
    if routed.ranks > 1 {
        let before = out;
        out = op(m, RoutedOp::Exchange, &[before], ("back_CD", routed.sent * d), compute);
        m.g.drop_values(&[before]);
    }
    let back = out;
    let kind = MegatronOp::Routed(RoutedOp::Unpermute { fused });
    out = m.megatron(MODULE, kind, &[back, of], &[], ("ffn_LBD", LBD));
    m.g.drop_values(&[back, rows]);
    let held = [weight, got].into_iter().filter(|value| ![rows, chosen].contains(value));
    m.g.drop_values(&held.collect::<Vec<_>>());
    // The router's results and the norm's: the dispatcher names them until it is used again.
    m.g.drop_values(&[weights, map, of, xn]);
    if routed.ranks == 1 {
        m.g.drop_values(&[chosen]);
    }
    out
}

impl Modules<'_> {
    /// The router, which has parameters and two results.
    fn route(&mut self, kind: RoutedOp, xn: ValueId, router: &[usize], dtype: DType) -> [ValueId; 2] {
        let made = [("weights_SBE", SBE, dtype), ("map_SBE", SBE, DType::Fp8)];
        let values = self.g.op_many("mlp.router", OpKind::Megatron(MegatronOp::Routed(kind)), &[xn], made);
        router.iter().for_each(|&param| self.g.reads(param));
        values
    }
}
