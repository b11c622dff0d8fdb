//! Multi-head latent attention: keys and values of all heads from one short vector per token (arXiv 2405.04434,
//! section 2.1; operators as in torchtitan's `models/deepseek_v3/model.py` at 6b960233).
//!
//! ```text
//! q       = wq_b(norm(wq_a x))   or wq x            N heads of U + R: U plain, R rotated
//! kv, k_R = wkv_a x                                 J + R numbers; k_R is rotated and shared by all heads
//! k_U, v  = wkv_b(norm(kv))                         N heads of U and of W
//! ```

pub use super::layer::LatentAttention;

use super::graph::{Axis, Dims, GraphBuilder, OpKind, ParamId, ValueId};
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BSG: &[Axis] = &[Axis::B, Axis::S, Axis::G];
const BSJ: &[Axis] = &[Axis::B, Axis::S, Axis::J];
const BSR: &[Axis] = &[Axis::B, Axis::S, Axis::R];
const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSNR: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::R];
const BSNU: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::U];
const BSNW: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::W];
const MODULE: &str = "attention";

/// Parameters of latent attention, in the order in which they are registered.
pub(super) struct Params {
    query: Query,
    down: ParamId,
    norm: ParamId,
    up: ParamId,
    output: ParamId,
}

enum Query {
    Whole(ParamId),
    Ranked { down: ParamId, norm: ParamId, up: ParamId },
}

impl Params {
    /// Registers them.
    pub(super) fn new(g: &mut GraphBuilder, latent: LatentAttention) -> Params {
        let Dims { d, n, h, .. } = g.dims();
        let query = match latent.query_rank {
            None => Query::Whole(g.param("attention.wq.weight", n * h, d)),
            Some(rank) => Query::Ranked {
                down: g.param("attention.wq_a.weight", rank, d),
                norm: g.param("attention.q_norm.weight", rank, 1),
                up: g.param("attention.wq_b.weight", n * h, rank),
            },
        };
        Params {
            query,
            down: g.param("attention.wkv_a.weight", latent.rank + latent.rotated, d),
            norm: g.param("attention.kv_norm.weight", latent.rank, 1),
            up: g.param("attention.wkv_b.weight", n * (latent.plain + latent.value), latent.rank),
            output: g.param("attention.wo.weight", d, n * latent.value),
        }
    }
}

/// Latent attention on `x_BSD`; what has a name in its forward lives until that ends.
pub(super) fn attention(g: &mut GraphBuilder, latent: LatentAttention, x: ValueId, params: &Params) -> ValueId {
    let dims = g.dims();
    let Dims { d, n, h, .. } = dims;
    debug_assert_eq!(h, latent.head_dim(), "a head's queries are its plain and its rotated dimensions");
    let linear = |inputs, outputs| OpKind::Linear { inputs, outputs };
    let rows = dims.tokens();
    let whole = queries(g, latent, x, &params.query);
    let [q_plain, q_rotated] = g.split(MODULE, whole, [("xq_plain_BSNU", BSNU), ("xq_rot_BSNR", BSNR)]);

    let both = g.op("attention.wkv_a", linear(d, latent.rank + latent.rotated), &[x], &[params.down], ("kv_BSJ", BSJ));
    g.resize(both, rows * (latent.rank + latent.rotated));
    let [short, k_rotated] = g.split(MODULE, both, [("kv_BSJ", BSJ), ("xk_rot_BSR", BSR)]);
    g.drop_values(&[both]);
    let (q_turned, k_turned) = rotate_pair(g, (q_rotated, k_rotated), ("xq_rot_BSNR", BSNR), ("xk_rot_BSR", BSR));
    g.drop_values(&[q_rotated, k_rotated]);
    let xq = g.op(MODULE, OpKind::CONCAT, &[q_plain, q_turned], &[], ("xq_BSNH", BSNH));
    g.drop_values(&[whole]);

    let normed = g.op("attention.kv_norm", OpKind::RmsNorm { rows }, &[short], &[params.norm], ("kv_BSJ", BSJ));
    let per_head = latent.plain + latent.value;
    let wide = g.op("attention.wkv_b", linear(latent.rank, n * per_head), &[normed], &[params.up], ("kv_BSNH", BSNH));
    g.resize(wide, rows * n * per_head);
    g.drop_values(&[normed, short]);
    let [k_plain, xv] = g.split(MODULE, wide, [("xk_plain_BSNU", BSNU), ("xv_BSNW", BSNW)]);
    let of_heads = g.op(MODULE, OpKind::Expand, &[k_turned], &[], ("xk_rot_BSNR", BSNR));
    let xk = g.op(MODULE, OpKind::CONCAT, &[k_plain, of_heads], &[], ("xk_BSNH", BSNH));

    let attend = OpKind::Attention { window: None, bias: false };
    let o = g.op("attention.sdpa", attend, &[xq, xk, xv], &[], ("xo_BSNW", BSNW));
    let out = g.op("attention.wo", linear(n * latent.value, d), &[o], &[params.output], ("attn_BSD", BSD));
    g.drop_values(&[xq, q_plain, q_turned, wide, k_turned, k_plain, xv, of_heads, xk, o]);
    out
}

/// Queries of all heads.
fn queries(g: &mut GraphBuilder, latent: LatentAttention, x: ValueId, query: &Query) -> ValueId {
    let Dims { d, n, h, .. } = g.dims();
    let rows = g.dims().tokens();
    let linear = |inputs, outputs| OpKind::Linear { inputs, outputs };
    match *query {
        Query::Whole(weight) => g.op("attention.wq", linear(d, n * h), &[x], &[weight], ("xq_BSNH", BSNH)),
        Query::Ranked { down, norm, up } => {
            let rank = latent.query_rank.unwrap_or(0);
            let short = g.op("attention.wq_a", linear(d, rank), &[x], &[down], ("q_BSG", BSG));
            let normed = g.op("attention.q_norm", OpKind::RmsNorm { rows }, &[short], &[norm], ("q_BSG", BSG));
            let xq = g.op("attention.wq_b", linear(rank, n * h), &[normed], &[up], ("xq_BSNH", BSNH));
            g.drop_values(&[short, normed]);
            xq
        }
    }
}

/// A name and its axes.
type Shape = (&'static str, &'static [Axis]);

/// Rotary embedding of two values in fp32, both whole before any goes.
fn rotate_pair(g: &mut GraphBuilder, (q, k): (ValueId, ValueId), of_q: Shape, of_k: Shape) -> (ValueId, ValueId) {
    let (dims, fp32) = (g.dims(), DType::Fp32);
    let casts = g.compute() != fp32;
    let table = OpKind::RotateComplex { table: dims.s * dims.r / 2 };
    let wide = [(q, of_q), (k, of_k)]
        .map(|(x, shape)| if casts { g.op_in("attention.rope", OpKind::CAST, &[x], &[], shape, fp32) } else { x });
    let turned =
        [(wide[0], of_q), (wide[1], of_k)].map(|(x, shape)| g.op_in("attention.rope", table, &[x], &[], shape, fp32));
    if !casts {
        return (turned[0], turned[1]);
    }
    let out =
        [(turned[0], of_q), (turned[1], of_k)].map(|(x, shape)| g.op("attention.rope", OpKind::CAST, &[x], &[], shape));
    g.drop_values(&[wide[0], wide[1], turned[0], turned[1]]);
    (out[0], out[1])
}
