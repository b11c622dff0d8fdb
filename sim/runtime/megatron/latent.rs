//! Latent attention as operators (`core/transformer/multi_latent_attention.py`, `MLASelfAttention`, 0.16.1;
//! `gpt_layer_specs.py` with Transformer Engine): short vectors are made by linears that every tensor-parallel rank has whole,
//! of its part of the sequence; norms stand in the linears that make heads of them.

use super::builder::{Modules, PROJ, RowLinear};
use super::refused::{FP8, FP8_SIZES};
use crate::model::graph::{Axis, OpKind, ValueId};
use crate::model::latent::LatentAttention;
use crate::model::megatron::{Bias, LatentOp, MegatronOp, Reads};
use crate::plan::megatron::{Core, Implementation, Recompute, Split};
use crate::runtime::Refusal;

const LBG: &[Axis] = &[Axis::L, Axis::B, Axis::G];
const LBJ: &[Axis] = &[Axis::L, Axis::B, Axis::J];
const LBR: &[Axis] = &[Axis::L, Axis::B, Axis::R];
const SBR: &[Axis] = &[Axis::S, Axis::B, Axis::R];
const SBNH: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::H];
const SBNR: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::R];
const SBNU: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::U];
const SBNW: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::W];
const MODULE: &str = "self_attention";

/// What the names of linears contain that every rank has whole, and makes a part of the gradient of.
pub(super) const WHOLE: &str = "down_proj.weight";

/// Parameters of latent attention, in the order of Megatron's modules.
pub(super) struct Params {
    norm: Vec<usize>,
    proj: usize,
    query: Query,
    down: usize,
    /// Norm and weight.
    up: [usize; 2],
}

#[derive(Clone, Copy)]
enum Query {
    Whole(usize),
    Ranked { down: usize, up: [usize; 2] },
}

/// What of a job's latent attention has no rules here, if anything.
pub(super) fn refuses(job: &Split) -> Option<Refusal> {
    let latent = job.model.latent()?;
    let engine = job.block.implementation == Implementation::TransformerEngine;
    let cases = [
        (
            !engine || job.block.core != Core::Flash,
            Refusal::new("latent-flash-core", "latent attention without Transformer Engine's flash core")
                .on("megatron.attention"),
        ),
        (
            !multiplies_in_fp8(job, *latent),
            Refusal::new("latent-fp8-sizes", "latent attention in fp8 of sizes that 16 does not divide")
                .on(FP8)
                .instead(FP8_SIZES),
        ),
        (
            job.mesh.cp > 1,
            Refusal::new("latent-context-parallel", "latent attention of a sequence that ranks share").on("mesh.cp"),
        ),
        (
            job.overlap_tensor.is_some(),
            Refusal::new("latent-tensor-overlap", "tensor-parallel overlap of latent attention")
                .on("megatron.tp_comm_overlap"),
        ),
        (
            job.mesh.tp > 1 && !job.sequence_parallel,
            Refusal::new("latent-without-sequence-parallel", "latent attention split over ranks without its sequence")
                .on("tensor_parallel.sequence"),
        ),
    ];
    Refusal::first(cases)
}

/// Whether fp8, if asked for, can multiply what attention's linears read and make.
fn multiplies_in_fp8(job: &Split, latent: LatentAttention) -> bool {
    let LatentAttention { heads, query_rank, rank, plain, rotated, value } = latent;
    let heads = heads / u64::from(job.mesh.tp);
    let sizes = [
        query_rank.unwrap_or(0),
        rank,
        rank + rotated,
        heads * (plain + rotated),
        heads * (plain + value),
        heads * value,
    ];
    job.matmuls.fp8().is_none() || sizes.iter().all(|size| size.is_multiple_of(16))
}

/// Positions that tables of cosines and sines are made for (`original_max_position_embeddings`).
const POSITIONS: u64 = 4096;

/// What rotary embedding keeps for good: the angles, once for all blocks. Of latent attention every block has its own, and
/// cosines and sines in the parameters' type (`YarnRotaryEmbedding`).
pub(super) fn tables(
    job: &Split,
    (blocks, rotated): (u64, u64),
    angles: (u64, &'static str),
) -> Vec<(u64, &'static str)> {
    if job.model.latent().is_none() {
        return vec![angles];
    }
    let table = (POSITIONS * rotated * job.dtype.bytes(), "rotary table");
    [angles, table, table].repeat(blocks as usize)
}

/// Registers the parameters.
pub(super) fn params(m: &mut Modules, latent: LatentAttention) -> Params {
    let (d, n, h) = (m.dims.d, m.dims.n, m.dims.h);
    let LatentAttention { query_rank, rank, plain, rotated, value, .. } = latent;
    let norm = m.norm_params("input_layernorm.weight", "input_layernorm.bias");
    let proj = m.g.param("self_attention.linear_proj.weight", d, n * value);
    let query = match query_rank {
        None => Query::Whole(m.g.param("self_attention.linear_q_proj.weight", n * h, d)),
        Some(rank) => Query::Ranked {
            down: m.g.param("self_attention.linear_q_down_proj.weight", rank, d),
            up: [
                m.g.param("self_attention.linear_q_up_proj.layer_norm_weight", rank, 1),
                m.g.param("self_attention.linear_q_up_proj.weight", n * h, rank),
            ],
        },
    };
    let down = m.g.param("self_attention.linear_kv_down_proj.weight", rank + rotated, d);
    let up = [
        m.g.param("self_attention.linear_kv_up_proj.layer_norm_weight", rank, 1),
        m.g.param("self_attention.linear_kv_up_proj.weight", n * (plain + value), rank),
    ];
    Params { norm, proj, query, down, up }
}

/// A norm and a linear that makes heads.
fn heads(m: &mut Modules, x: ValueId, (inputs, [norm, weight]): (u64, [usize; 2]), elements: u64) -> ValueId {
    let (outputs, bias) = (m.g.rows(weight), Bias::Apart);
    let kind = MegatronOp::NormLinear { inputs, outputs, norms: 1, overlap: false, bias, fp8: m.job.matmuls.fp8() };
    let made = m.megatron(MODULE, kind, &[x], &[norm, weight], ("up_SBNH", SBNH));
    m.g.resize(made, elements);
    made
}

/// The hidden state behind attention, before its residual, and the norm's result.
pub(super) fn attention(
    m: &mut Modules,
    latent: LatentAttention,
    [x, mask]: [ValueId; 2],
    params: &Params,
) -> (ValueId, ValueId) {
    let (tokens, n, h, d) = (m.dims.tokens(), m.dims.n, m.dims.h, m.dims.d);
    let LatentAttention { rank, plain, rotated, value, .. } = latent;
    let xn = m.norm("input_layernorm", x, &params.norm);
    // With the norm run again its result is made anew for both.
    let fp8 = m.job.matmuls.fp8().map(|fp8| fp8.keeping(m.job.block.recompute_modules.norms));
    let own = |inputs, outputs| MegatronOp::ColumnLinear { inputs, outputs, reads: Reads::Own, fp8 };
    let short = match params.query {
        Query::Whole(_) => None,
        Query::Ranked { down, .. } => {
            let rank = m.g.rows(down);
            Some(m.megatron(MODULE, own(d, rank), &[xn], &[down], ("q_LBG", LBG)))
        }
    };
    let both = m.megatron(MODULE, own(d, rank + rotated), &[xn], &[params.down], ("kv_LBJ", LBJ));
    m.g.resize(both, m.dims.local_tokens() * (rank + rotated));
    let [kv, turned] = m.g.split(MODULE, both, [("kv_LBJ", LBJ), ("xk_rot_LBR", LBR)]);
    m.g.drop_values(&[both]);
    let latent_op = |m: &mut Modules, kind, inputs: &[ValueId], output| {
        m.megatron(MODULE, MegatronOp::Latent(kind), inputs, &[], output)
    };
    let shared = latent_op(m, LatentOp::GatherKey, &[turned], ("xk_rot_SBR", SBR));
    m.g.drop_values(&[turned]);
    let first = m.g.ops();
    let q = match (params.query, short) {
        (Query::Ranked { up, .. }, Some(short)) => heads(m, short, (m.g.rows(up[0]), up), tokens * n * h),
        (Query::Whole(weight), _) | (Query::Ranked { up: [_, weight], .. }, None) => {
            let kind =
                MegatronOp::ColumnLinear { inputs: d, outputs: n * h, reads: m.reads(), fp8: m.job.matmuls.fp8() };
            m.megatron(MODULE, kind, &[xn], &[weight], ("up_SBNH", SBNH))
        }
    };
    let wide = heads(m, kv, (rank, params.up), tokens * n * (plain + value));
    let [query, key, v] = if m.job.block.fused_rope {
        let query = latent_op(m, LatentOp::TurnQueries, &[q], ("xq_SBNH", SBNH));
        let kind = OpKind::Megatron(MegatronOp::Latent(LatentOp::TurnKeys));
        let dtype = m.g.compute();
        let made = [("xk_SBNH", SBNH, dtype), ("xv_SBNW", SBNW, dtype)];
        let [key, v] = m.g.op_many(MODULE, kind, &[wide, shared], made);
        [query, key, v]
    } else {
        let [q_plain, q_turned] = m.g.split(MODULE, q, [("xq_plain_SBNU", SBNU), ("xq_rot_SBNR", SBNR)]);
        let [k_plain, xv] = m.g.split(MODULE, wide, [("xk_plain_SBNU", SBNU), ("xv_SBNW", SBNW)]);
        let q_turned_now = latent_op(m, LatentOp::Rotate, &[q_turned], ("xq_rot_SBNR", SBNR));
        m.g.drop_values(&[q_turned]);
        let k_turned = latent_op(m, LatentOp::Rotate, &[shared], ("xk_rot_SBR", SBR));
        let query = latent_op(m, LatentOp::Join, &[q_plain, q_turned_now], ("xq_SBNH", SBNH));
        let key = latent_op(m, LatentOp::Join, &[k_plain, k_turned], ("xk_SBNH", SBNH));
        let v = latent_op(m, LatentOp::Copy, &[xv], ("xv_SBNW", SBNW));
        m.g.drop_values(&[q_plain, k_plain, xv, q_turned_now, k_turned]);
        [query, key, v]
    };
    m.g.drop_values(&[q, wide, shared]);
    let (recompute, made) = (m.job.block.recompute == Recompute::Core, m.g.ops());
    let kind = MegatronOp::FlashCore { recompute, window: None };
    let context = m.megatron("self_attention.core_attention", kind, &[query, key, v, mask], &[], ("o_SBNW", SBNW));
    if m.job.block.recompute_modules.up_projection {
        m.g.let_go_of(first..made);
    }
    let mut held = vec![query, key, v, context, kv];
    held.extend(short);
    let out = m.row_linear(
        context,
        RowLinear { module: PROJ, inputs: n * value, params: &[params.proj], held: &held, kept: true },
    );
    (out, xn)
}
