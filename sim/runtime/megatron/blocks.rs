//! A block of Megatron-Core's as operators (`core/transformer/transformer_layer.py`, the local layer specification).
//!
//! Parameters are registered in the order of Megatron's modules: attention's output projection before its input
//! projection.

use super::builder::{BLD, Modules, NormAndLinear, PROJ, RowLinear, SS, modules};
use super::experts;
use super::latent;
use super::mamba;
use crate::model::graph::{Axis, Dims, Graph, OpKind, ValueId};
use crate::model::latent::LatentAttention;
use crate::model::layer::{self, Mamba2};
use crate::model::megatron::{Bias, MegatronOp};
use crate::model::{Activation, FeedForward, Gating, Layer, Mixer, Position};
use crate::plan::megatron::{Core, Recompute, RecomputeModules, Split};

const BSF: &[Axis] = &[Axis::S, Axis::B, Axis::F];
const BSNH: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::S, Axis::B, Axis::K, Axis::H];
const BSQH: &[Axis] = &[Axis::S, Axis::B, Axis::Q, Axis::H];

/// One block. Inputs: the hidden state, the attention mask.
pub(super) fn block(job: &Split, layer: &Layer) -> Graph {
    let (mut m, x) = modules(job, "layers", ("h_LBD", BLD));
    let mask = m.g.input("mask_SS", SS, job.dtype);
    let params = block_params(&mut m, layer);
    let out = block_of(&mut m, [x, mask], (layer, &params));
    m.g.finish(out)
}

/// Parameters of a block.
pub(super) struct BlockParams {
    mixes: Mixes,
    mixture: Option<experts::Params>,
    norm: Vec<usize>,
    dense: Option<[Vec<usize>; 2]>,
}

/// Whether the feed-forward is gated, its activation, and the width of what it multiplies with first.
fn feed_forward(m: &Modules, gating: Gating) -> (bool, Activation, u64) {
    let gated = matches!(gating, Gating::Gated(_));
    (gated, gating.activation(), gating.ups() * m.dims.f)
}

/// Registers a block's parameters.
pub(super) fn block_params(m: &mut Modules, layer: &Layer) -> BlockParams {
    let Dims { d, f, .. } = m.dims;
    let (engine, bias) = (m.engine(), |on: bool, name| on.then_some(name));
    let mixes = match &layer.mixer {
        Mixer::Attention(attention) => Mixes::Plain(*attention, plain_params(m, attention)),
        Mixer::Latent(latent) => Mixes::Latent(*latent, latent::params(m, *latent)),
        Mixer::Mamba2(mamba) => Mixes::Mamba2(*mamba, mamba::params(m, *mamba)),
        Mixer::None => Mixes::Nothing,
        Mixer::GatedDelta(_) => unreachable!("gated DeltaNet is refused under Megatron"),
    };
    let mixture = layer.experts().map(|experts| experts::params(m, experts));
    let norm = if layer.dense().is_none() {
        vec![]
    } else if engine {
        m.norm_params("mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.layer_norm_bias")
    } else {
        m.norm_params("pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias")
    };
    let dense = layer.dense().map(|dense| {
        let wide = feed_forward(m, dense.gating).2;
        let fc1 = m.linear_params("mlp.linear_fc1.weight", bias(dense.bias, "mlp.linear_fc1.bias"), wide, d);
        [fc1, m.linear_params("mlp.linear_fc2.weight", bias(dense.bias, "mlp.linear_fc2.bias"), d, f)]
    });
    BlockParams { mixes, mixture, norm, dense }
}

/// A block's operators on the hidden state, under a mask.
pub(super) fn block_of(m: &mut Modules, [x, mask]: [ValueId; 2], (layer, params): (&Layer, &BlockParams)) -> ValueId {
    let (again, first) = (m.job.block.recompute_modules, m.g.ops());
    let outside = m.g.belong(layer.mixer.owner());
    let out = halves_of(m, [x, mask], (layer, params), (again, first));
    m.g.belong(outside);
    out
}

/// A block's mixer and its feed-forward, as far as it has them.
fn halves_of(
    m: &mut Modules,
    [x, mask]: [ValueId; 2],
    (layer, params): (&Layer, &BlockParams),
    (again, first): (RecomputeModules, usize),
) -> ValueId {
    let mixed = match &params.mixes {
        Mixes::Latent(latent, params) => {
            let (out, xn) = latent::attention(m, *latent, [x, mask], params);
            Some((out, vec![xn], None, "self_attn_bda"))
        }
        Mixes::Plain(sizes, params) => {
            let (out, held, bias) = plain_attention(m, [x, mask], params, sizes);
            Some((out, held, bias, "self_attn_bda"))
        }
        Mixes::Mamba2(sizes, params) => Some((mamba::mixer(m, *sizes, x, params), vec![], None, "mamba_bda")),
        Mixes::Nothing => None,
    };
    // Transformer Engine's norms are parts of its linears, but before latent attention.
    let alone = !m.engine() || matches!(params.mixes, Mixes::Latent(..));
    if again.norms && alone {
        m.g.let_go_of(first..first + 1);
    }
    let mut h1 = x;
    if let Some((mixed, held, bias, module)) = mixed {
        h1 = m.residual(module, mixed, x, bias);
        m.g.drop_values(&[mixed]);
        m.g.drop_values(&held);
    }
    m.g.belong(layer.feed_forward.owner());
    // A block's input is its caller's.
    let own: &[ValueId] = if h1 == x { &[] } else { &[h1] };
    if let (FeedForward::Experts(experts), Some(mixture)) = (&layer.feed_forward, &params.mixture) {
        let mixed = experts::mixture(m, h1, (experts, mixture));
        let out = m.residual("mlp_bda", mixed, h1, None);
        m.g.drop_values(&[&[mixed], own].concat());
        return out;
    }
    let Some([fc1, fc2]) = params.dense.as_ref() else { return h1 };
    let (gated, activation, wide) = feed_forward(m, m.job.model.gating());
    let (norm, f) = (m.g.ops(), m.dims.f);
    let (up, hn) = m.up(
        h1,
        NormAndLinear {
            norm: "pre_mlp_layernorm",
            norm_params: &params.norm,
            linear: "mlp.linear_fc1",
            params: fc1,
            bias: Bias::Apart,
            shape: BSF,
        },
    );
    let first = if m.engine() { norm } else { m.g.ops() - 1 };
    m.g.resize(up, m.dims.tokens() * wide);
    let kind = MegatronOp::Activate { activation, gated, fused: m.job.block.fused_activation };
    let active = m.megatron("mlp", kind, &[up], &fc1[1..], ("act_SBF", BSF));
    m.g.drop_values(&[up]);
    let down = m.row_linear(
        active,
        RowLinear { module: "mlp.linear_fc2", inputs: f, params: fc2, held: &[active], kept: false },
    );
    if again.feed_forward {
        m.g.recompute_from(first);
    }
    if again.norms && !m.engine() {
        m.g.let_go_of(norm..norm + 1);
    }
    let out = m.residual("mlp_bda", down, h1, fc2.get(1).copied());
    m.g.drop_values(&hn);
    m.g.drop_values(&[&[down], own].concat());
    out
}

/// What mixes tokens in a block, and its parameters.
enum Mixes {
    Plain(layer::Attention, PlainParams),
    Latent(LatentAttention, latent::Params),
    Mamba2(Mamba2, mamba::Params),
    Nothing,
}

/// Parameters of attention of one product, its norm's among them.
struct PlainParams {
    ln1: Vec<usize>,
    sinks: Option<usize>,
    proj: Vec<usize>,
    qkv: Vec<usize>,
    heads: Vec<usize>,
}

fn plain_params(m: &mut Modules, attention: &layer::Attention) -> PlainParams {
    let Dims { d, n, k, h, .. } = m.dims;
    let bias = |on: bool, name| on.then_some(name);
    let proj_bias = bias(attention.output_bias, "self_attention.linear_proj.bias");
    let qkv_bias = bias(attention.qkv_bias, "self_attention.linear_qkv.bias");
    // Transformer Engine's linears have the norms before them as parts of theirs.
    let ln1 = (!m.engine()).then(|| m.norm_params("input_layernorm.weight", "input_layernorm.bias"));
    let sinks = attention.sinks.then(|| m.g.param("self_attention.core_attention.softmax_offset", n, 1));
    let proj = m.linear_params("self_attention.linear_proj.weight", proj_bias, d, n * h);
    let ln1 = ln1.unwrap_or_else(|| {
        m.norm_params("self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.layer_norm_bias")
    });
    let qkv = m.linear_params("self_attention.linear_qkv.weight", qkv_bias, (n + 2 * k) * h, d);
    let heads = heads_norms(m, attention);
    PlainParams { ln1, sinks, proj, qkv, heads }
}

/// The hidden state behind attention, before its residual; what Python holds until that is added; the bias that is added
/// with it.
fn plain_attention(
    m: &mut Modules,
    [x, mask]: [ValueId; 2],
    PlainParams { ln1, sinks, proj, qkv, heads }: &PlainParams,
    sizes: &layer::Attention,
) -> (ValueId, Vec<ValueId>, Option<usize>) {
    let added = if sizes.qkv_bias { Bias::Added } else { Bias::Apart };
    let (mixed, xn) = m.up(
        x,
        NormAndLinear {
            norm: "input_layernorm",
            norm_params: ln1,
            linear: "self_attention.linear_qkv",
            params: qkv,
            bias: added,
            shape: BSQH,
        },
    );
    let (context, mut held) = attention(m, (mixed, mask), (heads, *sinks), sizes.window);
    held.extend([mixed, context]);
    let attended = m.row_linear(
        context,
        RowLinear { module: PROJ, inputs: m.dims.n * m.dims.h, params: proj, held: &held, kept: true },
    );
    (attended, xn, proj.get(1).copied())
}

/// Norms of queries and of keys, head by head, where the model has them (`--qk-layernorm`).
fn heads_norms(m: &mut Modules, attention: &layer::Attention) -> Vec<usize> {
    let names = ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"];
    let norms = if attention.qk_norm.is_some() { &names[..] } else { &[] };
    norms.iter().map(|name| m.g.param(name, m.dims.h, 1)).collect()
}

/// Attention between its projections; also what Python holds until it returns.
fn attention(
    m: &mut Modules,
    (mixed, mask): (ValueId, ValueId),
    (norms, sinks): (&[usize], Option<usize>),
    window: Option<u64>,
) -> (ValueId, Vec<ValueId>) {
    let block = m.job.block;
    let dtype = m.g.compute();
    let shapes = [("xq_SBNH", BSNH, dtype), ("xk_SBKH", BSKH, dtype), ("xv_SBKH", BSKH, dtype)];
    let split = OpKind::Megatron(MegatronOp::SplitQkv);
    let [mut q, mut key, v] = m.g.op_many("self_attention", split, &[mixed], shapes);
    let mut held = vec![q, key, v];
    if let &[of_queries, of_keys] = norms {
        q = m.megatron("self_attention", MegatronOp::Norm, &[q], &[of_queries], ("xq_SBNH", BSNH));
        key = m.megatron("self_attention", MegatronOp::Norm, &[key], &[of_keys], ("xk_SBKH", BSKH));
        held.extend([q, key]);
    }
    if matches!(m.job.model.position, Position::Rope { .. }) {
        // Transformer Engine's kernel knows no factor: Megatron-Core falls back (`apply_rotary_pos_emb`, `rope_utils.py`).
        let rotate = MegatronOp::Rotate { fused: block.fused_rope && !m.job.model.rope_scaled };
        q = m.megatron("self_attention", rotate, &[q], &[], ("xq_SBNH", BSNH));
        key = m.megatron("self_attention", rotate, &[key], &[], ("xk_SBKH", BSKH));
        held.extend([q, key]);
    }
    let recompute = block.recompute == Recompute::Core;
    let biased = m.job.model.position == Position::Alibi;
    let kind = match block.core {
        Core::Unfused { fused_softmax } => {
            MegatronOp::Core { fused_softmax, dropout: block.attention_dropout, biased, recompute }
        }
        Core::Flash => MegatronOp::FlashCore { recompute, window },
    };
    let sinks: Vec<usize> = sinks.into_iter().collect();
    let context = m.megatron("self_attention.core_attention", kind, &[q, key, v, mask], &sinks, ("o_SBNH", BSNH));
    (context, held)
}
