//! A block's mixture of experts as operators (`core/transformer/moe/moe_layer.py`, `experts.py`, 0.16.1): a router, and
//! experts between a dispatcher's two ways: Transformer Engine's grouped linears, or one after the other ([`super::sequential`]).

use super::builder::{Modules, RowLinear};
use super::refused::{FP8, FP8_SIZES};
use super::sequential::Sequential;
use crate::model::drawn;
use crate::model::experts::{Experts, Router, Score};
use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use crate::model::megatron::experts::{Capacity, Choice, Scores};
use crate::model::megatron::{Bias, MegatronOp, Reads, Routed, RoutedOp};
use crate::model::{Activation, Gating};
use crate::plan::megatron::{ExpertCapacity, Mixture, Split, TokenDispatcher};
use crate::program::DType;
use crate::runtime::Refusal;
use crate::runtime::eager::{ExpertParallel, Routing, Stage};

const LBD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const SBD: &[Axis] = &[Axis::S, Axis::B, Axis::D];
const SBF: &[Axis] = &[Axis::S, Axis::B, Axis::F];
const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const CX: &[Axis] = &[Axis::C, Axis::X];
const SBE: &[Axis] = &[Axis::S, Axis::B, Axis::E];
const MODULE: &str = "mlp";
const EXPERTS: &str = "mlp.experts";
const SHARED: &str = "mlp.shared_experts";
const LATENT: &str = "mlp.latent_proj";

/// What the names of parameters that experts have begin with, and of those that their router has.
pub(super) const EXPERT: &str = "mlp.experts.";
/// The router's parameters.
pub(super) const ROUTER: &str = "mlp.router.";
/// What the names of the linears end with that make rows narrower and wide again.
pub(super) const LATENT_WEIGHT: &str = "latent_proj.weight";

/// Parameters of a mixture, in the order of Megatron's modules.
pub(super) struct Params {
    norm: Vec<usize>,
    router: Vec<usize>,
    /// The linears to and from the width that experts see, which every tensor-parallel rank has whole.
    latent: Option<[usize; 2]>,
    fc1: Vec<usize>,
    fc2: Vec<usize>,
    /// Biases of the second, which are added by another operator.
    biases: Vec<usize>,
    /// The shared experts' two, which are one wide one.
    shared: Option<[usize; 2]>,
}

/// Rows of an expert that fp8 multiplies come in multiples of so many (`Fp8Padding`: 16 but under MXFP8).
const FP8_ROWS: u64 = 16;

/// The key of whether a rank's experts are multiplied in one call.
const GROUPED: &str = "megatron.moe_grouped_gemm";
/// What to write where one after the other is not simulated.
const TOGETHER: &str = "write megatron.moe_grouped_gemm = true";

/// What of a job's mixture has no rules here, if anything.
pub(super) fn refuses(job: &Split) -> Option<Refusal> {
    let experts = job.model.experts()?;
    let (router, mesh) = (experts.router, job.mesh);
    let silu = experts.gating == Gating::Gated(Activation::Silu);
    let grouped = job.mixture.is_none_or(|run| run.grouped);
    let cases = [
        (
            job.matmuls.fp8().is_some()
                && [experts.width / u64::from(mesh.etp), experts.latent.unwrap_or(0)]
                    .iter()
                    .any(|width| !width.is_multiple_of(FP8_ROWS)),
            Refusal::new("experts-fp8-width", "experts in fp8 of a width that 16 does not divide")
                .on(FP8)
                .instead(FP8_SIZES),
        ),
        (
            job.matmuls.fp8().is_some() && !(experts.shared / u64::from(mesh.tp)).is_multiple_of(FP8_ROWS),
            Refusal::new("shared-experts-fp8-width", "shared experts in fp8 of a width that 16 does not divide")
                .on(FP8)
                .instead(FP8_SIZES),
        ),
        (
            experts.latent.is_some() && job.runs_shared_beside(),
            Refusal::new(
                "latent-experts-shared-overlap",
                "shared experts beside an exchange of narrower rows, which Megatron-Core refuses",
            )
            .on("megatron.moe_shared_expert_overlap"),
        ),
        (
            experts.latent.is_some() && job.combines(),
            Refusal::new("latent-experts-overlap", "exchanges of narrower rows beside another micro-batch")
                .on("megatron.overlap_moe_expert_parallel_comm"),
        ),
        (
            job.block.fused_activation && !silu,
            Refusal::new("experts-activation", "experts whose activation is one kernel and not a gated SiLU")
                .on("megatron.bias_activation_fusion")
                .instead("write megatron.bias_activation_fusion = false (--no-bias-gelu-fusion)"),
        ),
        (
            !grouped && experts.bias,
            Refusal::new("sequential-experts-biases", "experts with biases, one after the other").on(GROUPED).instead(TOGETHER),
        ),
        (
            !grouped && job.matmuls.fp8().is_some(),
            Refusal::new("sequential-experts-fp8", "experts in fp8, one after the other").on(GROUPED).instead(TOGETHER),
        ),
        (
            !grouped && job.block.recompute_modules.activation,
            Refusal::new(
                "sequential-experts-activation",
                "activations of experts that are recomputed, of experts one after the other, which Megatron refuses",
            )
            .on(GROUPED).instead(TOGETHER),
        ),
        (
            !grouped && job.combines(),
            Refusal::new(
                "sequential-experts-overlap",
                "experts one after the other beside exchanges of another micro-batch",
            )
            .on(GROUPED).instead(TOGETHER),
        ),
        (
            router.score == Score::Sinkhorn
                && job.mixture.is_some_and(|run| run.auxiliary_loss || run.router_fusion || run.capacity.is_some()),
            Refusal::new(
                "sinkhorn-with-more",
                "a router that evens loads out by scaling, with a balancing loss, in one kernel or with a capacity",
            ),
        ),
        (
            experts.bias && job.mesh.etp > 1,
            Refusal::new("split-experts-biases", "split experts with biases").on("mesh.etp"),
        ),
        (
            experts.bias && job.mixture.is_some_and(|run| run.fp32_router),
            Refusal::new("experts-biases-fp32-router", "experts with biases under a router in fp32")
                .on("megatron.moe_router_fp32"),
        ),
        (
            !experts.shared.is_multiple_of(u64::from(mesh.tp)),
            Refusal::new("shared-experts-width", "shared experts whose width does not divide").on("mesh.tp"),
        ),
        (
            router.score == Score::Sigmoid && !router.normalises,
            Refusal::new("router-unnormalised-sigmoids", "a router whose sigmoids do not sum to one"),
        ),
        (
            router.correction && router.score != Score::Sigmoid,
            Refusal::new("router-corrected-softmax", "a router that corrects the choice of a softmax"),
        ),
        (
            mesh.ep == 1 && mesh.etp != mesh.tp,
            Refusal::new(
                "experts-split-alone",
                "experts split otherwise than the rest without being spread over ranks",
            )
            .on("mesh.etp"),
        ),
        (
            job.runs_shared_beside()
                && (job.combines()
                    || job.block.recompute_modules.shared
                    || !job.mixture.is_some_and(|run| run.dispatcher.row().overlaps_shared)),
            Refusal::new(
                "shared-experts-overlap",
                "overlapped shared experts with a dispatcher other than alltoall, with another micro-batch, or recomputed",
            )
            .on("megatron.moe_shared_expert_overlap"),
        ),
        (
            mesh.tp > 1 && !job.sequence_parallel,
            Refusal::new(
                "experts-without-sequence-parallel",
                "experts under tensor parallelism without sequence parallelism",
            )
            .on("tensor_parallel.sequence"),
        ),
    ];
    let parallel = |capacity| ExpertParallel { ranks: mesh.ep, tensor: mesh.etp, capacity };
    let dispatcher = || job.mixture.and_then(|run| (run.dispatcher.row().refuses)(parallel(run.capacity.is_some())));
    Refusal::first(cases).or_else(dispatcher)
}

/// How many rows are where: under a load that is not balanced, on the rank that is sent the most.
fn routed(job: &Split, experts: &Experts, tokens: u64) -> Routed {
    let (ranks, tensor) = (u64::from(job.mesh.ep), u64::from(job.mesh.etp));
    let local = experts.count / ranks;
    let mut counts = experts.load.tokens_per_expert(experts.count, experts.top_k, tokens);
    let capacity = job.mixture.and_then(|run| run.capacity).map(|ExpertCapacity { factor, pads }| {
        let even = (tokens * experts.top_k) as f64 / experts.count as f64;
        Capacity { rows: (even * factor.get()).ceil() as u64, pads }
    });
    if let Some(Capacity { rows, pads }) = capacity {
        counts.iter_mut().for_each(|count| *count = if pads { rows } else { rows.min(*count) });
    }
    let most = counts.chunks(local.max(1) as usize).map(|own| own.iter().sum::<u64>()).max().unwrap_or(0);
    let sent = counts.iter().sum();
    let drawn = job.mixture.is_some_and(|run| run.drawn);
    let mut received = most * ranks;
    if drawn {
        received = drawn::busiest(tokens * ranks, (experts.count, experts.top_k), ranks);
    }
    let multiple = if job.matmuls.fp8().is_some() { FP8_ROWS } else { 1 };
    let filled =
        |own: &[u64]| -> u64 { own.iter().map(|&count| (count * ranks * tensor).next_multiple_of(multiple)).sum() };
    let mut multiplied = counts.chunks(local.max(1) as usize).map(filled).max().unwrap_or(0);
    if drawn {
        // What each expert lacks to a multiple is anything below that, one as likely as another.
        multiplied = received * tensor + local * (multiple - 1) / 2;
    }
    if job.mixture.is_some_and(|run| run.dispatcher == TokenDispatcher::Hybrid) {
        // They come filled up.
        received = multiplied;
    }
    Routed {
        tokens,
        experts: experts.count,
        top_k: experts.top_k,
        local,
        ranks,
        tensor,
        capacity,
        sent,
        received,
        multiplied,
        width: experts.latent.unwrap_or(job.model.width),
        processors: job.mixture.and_then(|run| run.exchange_processors),
    }
}

/// Rows of each of the rank's experts, of which the rank that is sent the most is meant.
fn own_rows(experts: &Experts, routed: &Routed) -> Vec<u64> {
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, routed.tokens);
    let of_busiest = counts.chunks(routed.local.max(1) as usize).max_by_key(|own| own.iter().sum::<u64>());
    let all = routed.multiplied;
    let each: Vec<u64> = of_busiest.unwrap_or(&[]).iter().map(|count| count * routed.ranks * routed.tensor).collect();
    if each.iter().sum::<u64>() == all {
        return each;
    }
    // Drawn at random or cut to a capacity: as many for each.
    let local = routed.local.max(1);
    (0..local).map(|at| all / local + u64::from(at < all % local)).collect()
}

/// Registers the parameters of a mixture.
pub(super) fn params(m: &mut Modules, experts: &Experts) -> Params {
    let (d, tensor) = (m.dims.d, u64::from(m.job.mesh.etp));
    let (local, width) = (experts.count / u64::from(m.job.mesh.ep), experts.width / tensor);
    let ups = experts.gating.ups();
    let norm = m.norm_params("pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias");
    let mut router = vec![m.g.param("mlp.router.weight", experts.count, d)];
    if experts.router.bias {
        router.push(m.g.param("mlp.router.bias", experts.count, 1));
    }
    let latent = experts.latent.map(|latent| {
        let down = m.g.param("mlp.fc1_latent_proj.weight", latent, d);
        [down, m.g.param("mlp.fc2_latent_proj.weight", d, latent)]
    });
    let d = experts.latent.unwrap_or(d);
    let grouped = m.job.mixture.is_none_or(|run| run.grouped);
    let mut expert = |name, rows, cols| m.g.expert(name, rows, cols);
    let (mut fc1, mut fc2) = (vec![], vec![]);
    for _ in 0..if grouped { 0 } else { local } {
        fc1.push(expert("mlp.experts.local_experts.linear_fc1.weight", ups * width, d));
        fc2.push(expert("mlp.experts.local_experts.linear_fc2.weight", d, width));
    }
    let mut each = |name, rows, cols| (0..local).map(|_| expert(name, rows, cols)).collect::<Vec<_>>();
    if grouped {
        fc1 = each("mlp.experts.linear_fc1.weight", ups * width, d);
        if experts.bias {
            fc1.extend(each("mlp.experts.linear_fc1.bias", ups * width, 1));
        }
        fc2 = each("mlp.experts.linear_fc2.weight", d, width);
    }
    let biases = if experts.bias { each("mlp.experts.linear_fc2.bias", d, 1) } else { vec![] };
    let (tp, wide, d) = (u64::from(m.job.mesh.tp), experts.shared, m.dims.d);
    let shared = (wide > 0).then(|| {
        let up = m.g.param("mlp.shared_experts.linear_fc1.weight", ups * wide / tp, d);
        [up, m.g.param("mlp.shared_experts.linear_fc2.weight", d, wide / tp)]
    });
    Params { norm, router, latent, fc1, fc2, biases, shared }
}

/// The mixture on the hidden state before its norm.
pub(super) fn mixture(m: &mut Modules, x: ValueId, (experts, params): (&Experts, &Params)) -> ValueId {
    let run = m.job.mixture.expect("a job of a model with experts says how they are run");
    let (tensor, compute) = (u64::from(m.job.mesh.etp), m.g.compute());
    let (routed, width) = (routed(m.job, experts, m.dims.local_tokens()), experts.width / tensor);
    let d = routed.width;
    let weighs = if run.fp32_router { DType::Fp32 } else { compute };
    let (again, norm) = (m.job.block.recompute_modules, m.g.ops());
    let xn = m.norm("pre_mlp_layernorm", x, &params.norm);
    let first = m.g.ops();
    let overlaps = m.job.runs_shared_beside();
    let shared = params.shared.filter(|_| !overlaps).map(|params| shared(m, xn, (params, experts)));
    if again.shared && !again.mixture && shared.is_some() {
        m.g.recompute_from(first);
    }
    let scores = match (experts.router.score, experts.router.normalises) {
        (Score::Sinkhorn, _) => Scores::Sinkhorn,
        (Score::Sigmoid, _) => Scores::Sigmoid,
        (Score::Softmax, false) => Scores::All,
        // Softmax of the chosen is softmax of all, divided by the sum of the chosen.
        _ => Scores::Chosen,
    };
    let Router { correction, groups, scales, .. } = experts.router;
    let choice = Choice { correction, groups, scales };
    let auxiliary = run.auxiliary_loss;
    let route = RoutedOp::Route { routed, scores, choice, auxiliary, fused: run.router_fusion };
    let [weights, map] = m.route(route, xn, &params.router, weighs);
    m.g.resize(weights, routed.tokens * routed.experts);
    m.g.resize(map, routed.tokens * routed.experts);
    let tokens = params.latent.map_or(xn, |[down, _]| through(m, xn, down, [m.dims.d, d]));
    let (fused, passing) = (run.permute_fusion, params.latent.is_some());
    let routing = Routing { routed, fused, tokens, passing, weights, map, weighs };
    let fp8 = m.job.matmuls.fp8();
    let (ups, gated) = (experts.gating.ups(), matches!(experts.gating, Gating::Gated(_)));
    let (activation, squared) = (m.job.block.fused_activation, m.job.block.fused_squared_relu && experts.square_relu());
    let weigh = RoutedOp::Weigh { gated, fused: activation || squared, clamped: experts.clamped };
    let own = own_rows(experts, &routed);
    let (engine, widths) = (m.engine(), [d, ups * width, width]);
    let mut each = |g: &mut GraphBuilder, given: [ValueId; 2]| {
        if !run.grouped {
            let params = [&params.fc1[..], &params.fc2[..]];
            return Sequential { engine, rows: &own, widths, params, weigh }.write(g, given);
        }
        let op = |g: &mut GraphBuilder, kind, inputs: &[ValueId], params: &[usize], (name, shape, columns)| {
            let value = g.op(EXPERTS, OpKind::Megatron(MegatronOp::Routed(kind)), inputs, params, (name, shape));
            g.resize(value, routed.multiplied * columns);
            value
        };
        let grouped = |inputs, outputs, original| {
            let fp8 = fp8.map(|fp8| fp8.keeping(original));
            RoutedOp::Grouped { inputs, outputs, local: routed.local, fp8 }
        };
        let filled = routed.fills().then(|| {
            let fill = |g: &mut GraphBuilder, value, columns, dtype, output| {
                let kind = OpKind::Megatron(MegatronOp::Routed(RoutedOp::Fill));
                let filled = g.op_in(EXPERTS, kind, &[value], &[], output, dtype);
                g.resize(filled, routed.multiplied * columns);
                filled
            };
            let rows = fill(g, given[0], d, compute, ("filled_CD", CD));
            [rows, fill(g, given[1], 1, weighs, ("filled_C", C))]
        });
        let [rows, weights] = filled.unwrap_or(given);
        let up = op(g, grouped(d, ups * width, false), &[rows], &params.fc1, ("up_CX", CX, ups * width));
        let active = op(g, weigh, &[up, weights], &[], ("act_CX", CX, width));
        let weigh = g.ops() - 1;
        let mut out = op(g, grouped(width, d, again.activation), &[active], &params.fc2, ("out_CD", CD, d));
        // What runs again as a whole lets go of its parts by itself.
        if again.activation && !again.mixture {
            g.let_go_of(weigh..weigh + 1);
        }
        let mut held = vec![up, active];
        if !params.biases.is_empty() {
            g.drop_values(&held);
            let before = out;
            out = op(g, RoutedOp::AddBiases, &[before, weights], &params.biases, ("out_CD", CD, d));
            held = vec![before];
        }
        if let Some(filled) = filled {
            let before = out;
            out = op(g, RoutedOp::Fill, &[before], &[], ("out_CD", CD, d));
            g.resize(out, routed.rows() * d);
            held.extend(filled);
            held.push(before);
        }
        g.drop_values(&held);
        out
    };
    let mut stage = params.shared.map(|params| beside(m, (params, experts)));
    let stage = stage.as_mut().filter(|_| overlaps).map(|stage| stage as &mut _);
    let routed = (run.dispatcher.row().write)(&mut m.g, &routing, &mut each, stage);
    let mut out = routed;
    if let Some([_, up]) = params.latent {
        out = through(m, routed, up, [d, m.dims.d]);
        m.g.drop_values(&[routed, xn]);
    }
    if let Some(shared) = shared {
        let routed = out;
        out = m.g.op(MODULE, OpKind::ADD, &[routed, shared], &[], ("ffn_LBD", LBD));
        m.g.drop_values(&[routed, shared]);
    }
    if again.mixture {
        m.g.recompute_from(first);
    }
    if again.norms {
        m.g.let_go_of(norm..norm + 1);
    }
    out
}

/// A linear to or from the width that experts see, of the rank's own tokens (`TELinear`, duplicated).
fn through(m: &mut Modules, x: ValueId, weight: usize, [inputs, outputs]: [u64; 2]) -> ValueId {
    let tokens = m.dims.local_tokens();
    let kind = MegatronOp::ColumnLinear { inputs, outputs, reads: Reads::Own, fp8: m.job.matmuls.fp8() };
    let made = m.megatron(LATENT, kind, &[x], &[weight], ("latent_LBD", LBD));
    m.g.resize(made, tokens * outputs);
    made
}

/// The experts that every token passes (`shared_experts.py`), ahead of the router.
fn shared(m: &mut Modules, xn: ValueId, ([up, down], experts): ([usize; 2], &Experts)) -> ValueId {
    let (d, width, tokens) = (m.dims.d, experts.shared / u64::from(m.job.mesh.tp), m.dims.tokens());
    let (ups, activate) = (experts.gating.ups(), activate(m.job, experts));
    // Its input is the router's, too, which keeps it.
    let again = m.job.block.recompute_modules;
    let fp8 = m.job.matmuls.fp8().map(|fp8| fp8.keeping(!again.shared || again.norms));
    let (inputs, outputs, reads) = (d, ups * width, m.reads());
    let kind = if m.engine() {
        MegatronOp::ColumnLinear { inputs, outputs, reads, fp8 }
    } else {
        MegatronOp::Linear { inputs, outputs, reads, bias: Bias::Apart }
    };
    let both = m.megatron(SHARED, kind, &[xn], &[up], ("up_SBF", SBF));
    m.g.resize(both, tokens * outputs);
    let active = m.megatron(SHARED, activate, &[both], &[], ("act_SBF", SBF));
    m.g.resize(active, tokens * width);
    m.g.drop_values(&[both]);
    m.row_linear(active, RowLinear { module: SHARED, inputs: width, params: &[down], held: &[active], kept: false })
}

/// The same beside a dispatcher, stage by stage: linears exchange nothing, gather and scatter are operators of their own.
fn beside(
    m: &Modules,
    ([up, down], experts): ([usize; 2], &Experts),
) -> impl FnMut(&mut GraphBuilder, Stage, ValueId) -> ValueId + use<> {
    let (d, width, tokens) = (m.dims.d, experts.shared / u64::from(m.job.mesh.tp), m.dims.tokens());
    let (ups, activate) = (experts.gating.ups(), activate(m.job, experts));
    let fp8 = m.job.matmuls.fp8();
    let linear = |inputs, outputs, fp8| MegatronOp::ColumnLinear { inputs, outputs, reads: Reads::Own, fp8 };
    let op = move |g: &mut GraphBuilder, kind, from, params: &[usize], (name, shape): (&'static str, _), columns| {
        let made = g.op(SHARED, OpKind::Megatron(kind), &[from], params, (name, shape));
        g.resize(made, tokens * columns);
        g.drop_values(&[from]);
        made
    };
    move |g, stage, from| match stage {
        Stage::Gather => {
            let view = g.op(SHARED, OpKind::View, &[from], &[], ("x_LBD", LBD));
            g.on_side_stream(|g| {
                let whole = op(g, MegatronOp::Gather, view, &[], ("x_SBD", SBD), d);
                g.comes_early();
                whole
            })
        }
        Stage::First => g.on_side_stream(|g| {
            // Its input is kept as it is.
            let kind = linear(d, ups * width, fp8.map(|fp8| fp8.keeping(true)));
            let both = op(g, kind, from, &[up], ("up_SBF", SBF), ups * width);
            op(g, activate, both, &[], ("act_SBF", SBF), width)
        }),
        Stage::Second => g.on_side_stream(|g| {
            let partial = op(g, linear(width, d, fp8), from, &[down], ("out_SBD", SBD), d);
            let sum = g.op(SHARED, OpKind::Megatron(MegatronOp::Sum), &[partial], &[], ("shared_LBD", LBD));
            g.comes_early();
            g.drop_values(&[partial]);
            sum
        }),
    }
}

/// The activation of shared experts.
fn activate(job: &Split, experts: &Experts) -> MegatronOp {
    let gated = matches!(experts.gating, Gating::Gated(_));
    MegatronOp::Activate { activation: experts.gating.activation(), gated, fused: job.block.fused_activation }
}

/// Bytes that rows take in the buffer that all gathers share.
pub(super) fn shared_buffer(job: &Split, dims: Dims) -> u64 {
    let of = |(experts, run): (&Experts, Mixture)| {
        let routed = routed(job, experts, dims.local_tokens());
        (run.dispatcher.row().shared_buffer)(&routed, routed.width * job.dtype.bytes())
    };
    job.model.experts().zip(job.mixture).map_or(0, of)
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
