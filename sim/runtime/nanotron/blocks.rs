//! nanotron's Llama as operators (`models/llama.py`).

use crate::model::Activation;
use crate::model::block;
use crate::model::graph::{Axis, Dims, Graph, GraphBuilder, OpKind, ValueId};
use crate::model::megatron::MegatronOp;
use crate::model::nanotron::NanotronOp;
use crate::model::tensor::TensorParallel;
use crate::program::{DType, Owner};
use crate::runtime::megatron::{Modules, Split};

const BS: &[Axis] = &[Axis::B, Axis::S];
const SS: &[Axis] = &[Axis::S, Axis::S];
const BLD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const BSF: &[Axis] = &[Axis::S, Axis::B, Axis::F];
const BSV: &[Axis] = &[Axis::S, Axis::B, Axis::V];
const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::H];
const BSQH: &[Axis] = &[Axis::S, Axis::B, Axis::Q, Axis::H];

/// nanotron's own; gathered inputs are gathered regather in backward, or kept (`tp_recompute_allgather`).
pub fn modules(regather: bool) -> Modules {
    match regather {
        true => Modules { embedding, block: |job, _| block(job, true), head: |job| head(job, true) },
        false => Modules { embedding, block: |job, _| block(job, false), head: |job| head(job, false) },
    }
}

fn builder(job: &Split, name: &'static str, input: (&'static str, &'static [Axis])) -> (GraphBuilder, ValueId, Dims) {
    let tp = u64::from(job.mesh.tp);
    let tensor = TensorParallel { ranks: tp, sequence: tp > 1, loss: true, asynchronous: false };
    let dims = block::dims(&job.model, job.batch, job.seq, tensor);
    let (g, x) = GraphBuilder::new(name, dims, job.dtype, (input.0, input.1, job.dtype));
    (g, x, dims)
}

fn own(op: NanotronOp) -> OpKind {
    OpKind::Nanotron(op)
}

fn norm(dims: Dims) -> OpKind {
    OpKind::RmsNorm { rows: dims.local_tokens() }
}

/// `TensorParallelEmbedding`. Inputs: tokens, positions.
fn embedding(job: &Split) -> Graph {
    let (mut g, tokens, dims) = builder(job, "embedding", ("tokens_BS", BS));
    g.belong(Owner::Embedding);
    let positions = g.input("positions_BS", BS, job.dtype);
    let table = g.table("word_embeddings.weight", dims.v, dims.d);
    let kind = OpKind::Megatron(MegatronOp::Embed { learned: false, dropout: false, summed: false });
    let out = g.op("embedding", kind, &[tokens, positions], &[table], ("h_LBD", BLD));
    g.finish(out)
}

/// `LlamaDecoderLayer`. Inputs: the hidden state, a mask.
fn block(job: &Split, regather: bool) -> Graph {
    let (mut g, x, dims) = builder(job, "layers", ("h_LBD", BLD));
    let mask = g.input("mask_SS", SS, job.dtype);
    let Dims { d, n, k, h, f, .. } = dims;
    let input_norm = g.param("input_layernorm.weight", d, 1);
    let qkv = g.param("attn.qkv_proj.weight", (n + 2 * k) * h, d);
    let out = g.param("attn.o_proj.weight", d, n * h);
    let second_norm = g.param("post_attention_layernorm.weight", d, 1);
    let gate_up = g.param("mlp.gate_up_proj.weight", 2 * f, d);
    let down = g.param("mlp.down_proj.weight", d, f);

    g.belong(Owner::Attention);
    let hn = g.op("input_layernorm", norm(dims), &[x], &[input_norm], ("xn_LBD", BLD));
    let kind = own(NanotronOp::Column { inputs: d, outputs: (n + 2 * k) * h, regather });
    let mixed = g.op("attn.qkv_proj", kind, &[hn], &[qkv], ("xqkv_SBQH", BSQH));
    let dtype = g.compute();
    let shapes = [("xq_BSNH", BSNH, dtype), ("xk_BSKH", BSKH, dtype), ("xv_BSKH", BSKH, dtype)];
    let [q, key, v] = g.op_many("attn", own(NanotronOp::Heads), &[mixed], shapes);
    let flash = OpKind::Megatron(MegatronOp::FlashCore { recompute: false, window: None });
    let context = g.op("attn.attention", flash, &[q, key, v, mask], &[], ("o_BSNH", BSNH));
    let ordered = g.op("attn", own(NanotronOp::Transpose), &[context], &[], ("o_SBNH", BSNH));
    g.drop_values(&[context]);
    let kind = own(NanotronOp::Row { inputs: n * h, outputs: d });
    let attended = g.op("attn.o_proj", kind, &[ordered], &[out], ("y_LBD", BLD));
    g.drop_values(&[mixed, q, key, v, ordered, hn]);
    let h1 = g.op("residual", OpKind::ADD, &[attended, x], &[], ("h_LBD", BLD));
    g.drop_values(&[attended]);

    g.belong(Owner::Dense);
    let hn = g.op("post_attention_layernorm", norm(dims), &[h1], &[second_norm], ("xn_LBD", BLD));
    let kind = own(NanotronOp::Column { inputs: d, outputs: 2 * f, regather });
    let up = g.op("mlp.gate_up_proj", kind, &[hn], &[gate_up], ("up_SBF", BSF));
    g.resize(up, dims.tokens() * 2 * f);
    let [gate, linear] = g.split("mlp", up, [("gate_SBF", BSF), ("up_SBF", BSF)]);
    let active = g.activation("mlp", Activation::Silu, gate, ("act_SBF", BSF));
    let product = g.op("mlp", OpKind::MUL, &[active, linear], &[], ("act_SBF", BSF));
    g.drop_values(&[up, gate, linear, active]);
    let kind = own(NanotronOp::Row { inputs: f, outputs: d });
    let lowered = g.op("mlp.down_proj", kind, &[product], &[down], ("y_LBD", BLD));
    g.drop_values(&[product, hn]);
    let out = g.op("residual", OpKind::ADD, &[lowered, h1], &[], ("h_LBD", BLD));
    g.drop_values(&[lowered, h1]);
    g.finish(out)
}

/// Norm, head, logits in fp32, losses, their masked mean. Inputs: the hidden state, the label mask.
fn head(job: &Split, regather: bool) -> Graph {
    let (mut g, x, dims) = builder(job, "head", ("h_LBD", BLD));
    let mask = g.input("label_mask_BS", BS, DType::Fp32);
    g.belong(Owner::Head);
    let (d, v) = (dims.d, dims.v);
    let weight_norm = g.param("final_layer_norm.weight", d, 1);
    let weight = g.table("output_layer.weight", v, d);
    let hn = g.op("final_layer_norm", norm(dims), &[x], &[weight_norm], ("xn_LBD", BLD));
    let kind = own(NanotronOp::Column { inputs: d, outputs: v, regather });
    let logits = g.op("lm_head", kind, &[hn], &[weight], ("logits_SBV", BSV));
    let wide = g.op_in("cast_to_fp32", OpKind::CAST, &[logits], &[], ("logits_SBV", BSV), DType::Fp32);
    g.drop_values(&[logits, hn]);
    let losses = g.op_in("loss", own(NanotronOp::Loss), &[wide], &[], ("losses_BS", BS), DType::Fp32);
    let one: &[Axis] = &[];
    let outputs = [("loss", one, DType::Fp32), ("tokens", one, DType::Fp32), ("report", one, DType::Fp32)];
    let [loss, ..] = g.op_many("loss", OpKind::Megatron(MegatronOp::MaskedMean), &[losses, mask], outputs);
    g.drop_values(&[losses, wide]);
    g.finish(loss)
}
