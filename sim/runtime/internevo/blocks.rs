//! InternLM's modules as operators (`internlm/model/modeling_internlm.py`, v0.1.0).
//!
//! Parameters are registered in the order of its modules: attention's two linears, the norms, the feed-forward's three.

use crate::model::block;
use crate::model::graph::{Axis, Dims, Graph, GraphBuilder, OpKind, ValueId};
use crate::model::internlm::InternLmOp;
use crate::model::megatron::{Bias, MegatronOp, Reads};
use crate::model::tensor::TensorParallel;
use crate::model::{Activation, Attention, Layer};
use crate::program::{DType, Owner};
use crate::runtime::megatron::{Modules, Recompute, Split};

const BS: &[Axis] = &[Axis::B, Axis::S];
const SS: &[Axis] = &[Axis::S, Axis::S];
const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BSF: &[Axis] = &[Axis::B, Axis::S, Axis::F];
const BSV: &[Axis] = &[Axis::B, Axis::S, Axis::V];
const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSQH: &[Axis] = &[Axis::B, Axis::S, Axis::Q, Axis::H];

/// InternLM's own.
pub const MODULES: Modules = Modules { embedding, block, head };

fn dims(job: &Split) -> Dims {
    let tensor = TensorParallel { ranks: u64::from(job.mesh.tp), sequence: false, loss: true, asynchronous: false };
    block::dims(&job.model, job.batch, job.seq, tensor)
}

fn builder(job: &Split, name: &'static str, input: (&'static str, &'static [Axis])) -> (GraphBuilder, ValueId, Dims) {
    let dims = dims(job);
    let (g, x) = GraphBuilder::new(name, dims, job.dtype, (input.0, input.1, job.dtype));
    (g, x, dims)
}

/// What a linear split on its rows reads: all of its input, whose gradient is summed over the ranks.
fn copied(dims: Dims) -> Reads {
    if dims.tensor.splits() { Reads::Copied } else { Reads::Own }
}

fn linear(inputs: u64, outputs: u64, reads: Reads, biased: bool) -> OpKind {
    let bias = if biased { Bias::Epilogue } else { Bias::Apart };
    OpKind::Megatron(MegatronOp::Linear { inputs, outputs, reads, bias })
}

/// The embedding. Inputs: tokens, positions.
fn embedding(job: &Split) -> Graph {
    let (mut g, tokens, dims) = builder(job, "embedding", ("tokens_BS", BS));
    g.belong(Owner::Embedding);
    g.input("positions_BS", BS, job.dtype);
    let table = g.table("word_embeddings.weight", job.model.vocab, dims.d / dims.tensor.ranks);
    let out = g.op("embedding", OpKind::InternLm(InternLmOp::Embed), &[tokens], &[table], ("h_BSD", BSD));
    g.finish(out)
}

/// `PackedFlashBaseLayer1D`. Inputs: the hidden state, a mask that it does not read.
fn block(job: &Split, layer: &Layer) -> Graph {
    let (mut g, x, dims) = builder(job, "layers", ("h_BSD", BSD));
    g.input("mask_SS", SS, job.dtype);
    let Dims { d, n, h, f, .. } = dims;
    let params = |g: &mut GraphBuilder, weight, bias: Option<&'static str>, rows, cols| {
        let mut params = vec![g.param(weight, rows, cols)];
        params.extend(bias.map(|bias| g.param(bias, rows, 1)));
        params
    };
    let bias = |on: fn(&Attention) -> bool, name| layer.mixer.attention().is_some_and(on).then_some(name);
    let qkv_bias = bias(|attention| attention.qkv_bias, "mixer.Wqkv.bias");
    let qkv = params(&mut g, "mixer.Wqkv.weight", qkv_bias, 3 * n * h, d);
    let out_bias = bias(|attention| attention.output_bias, "mixer.out_proj.bias");
    let out = params(&mut g, "mixer.out_proj.weight", out_bias, d, n * h);
    let [norm1, norm2] = ["norm1.weight", "norm2.weight"].map(|name| g.param(name, d, 1));
    let [w1, w2] = ["mlp.w1.weight", "mlp.w2.weight"].map(|name| g.param(name, f, d));
    let w3 = g.param("mlp.w3.weight", d, f);

    // A block that runs again as a whole has no norms that do so on their own.
    let recompute = job.block.recompute == Recompute::None;
    let norm = |adds| OpKind::InternLm(InternLmOp::Norm { adds, recompute });
    g.belong(Owner::Attention);
    let hn = g.op("norm1", norm(false), &[x], &[norm1], ("xn_BSD", BSD));
    let kind = linear(d, 3 * n * h, copied(dims), qkv.len() > 1);
    let mixed = g.op("mixer.Wqkv", kind, &[hn], &qkv, ("xqkv_BSQH", BSQH));
    let turned = g.op("mixer", OpKind::InternLm(InternLmOp::Rotate), &[mixed], &[], ("xqkv_BSQH", BSQH));
    g.drop_values(&[mixed]);
    let context = g.op("mixer", OpKind::InternLm(InternLmOp::Flash), &[turned], &[], ("o_BSNH", BSNH));
    let kind = linear(n * h, d, Reads::Own, out.len() > 1);
    let attended = summed(&mut g, ("mixer.out_proj", kind), (context, &out), dims);
    g.drop_values(&[turned, context, hn]);

    g.belong(Owner::Dense);
    let outputs = [("xn_BSD", BSD, job.dtype), ("h_BSD", BSD, job.dtype)];
    let [hn, h1] = g.op_all("norm2", norm(true), &[attended, x], &[norm2], outputs);
    g.drop_values(&[attended]);
    let up = linear(d, f, copied(dims), false);
    let gate = g.op("mlp.w1", up, &[hn], &[w1], ("gate_BSF", BSF));
    let active = g.activation("mlp", Activation::Silu, gate, ("act_BSF", BSF));
    g.drop_values(&[gate]);
    let wide = g.op("mlp.w2", up, &[hn], &[w2], ("up_BSF", BSF));
    let product = g.op("mlp", OpKind::MUL, &[active, wide], &[], ("act_BSF", BSF));
    g.drop_values(&[wide, active]);
    let down = summed(&mut g, ("mlp.w3", linear(f, d, Reads::Own, false)), (product, &[w3]), dims);
    g.drop_values(&[product, hn]);
    let out = g.op("residual", OpKind::ADD, &[down, h1], &[], ("h_BSD", BSD));
    g.drop_values(&[down, h1]);
    g.finish(out)
}

/// A linear split on its columns, and the sum over ranks of what it leaves.
fn summed(
    g: &mut GraphBuilder,
    (module, kind): (&'static str, OpKind),
    (input, params): (ValueId, &[usize]),
    dims: Dims,
) -> ValueId {
    let partial = g.op(module, kind, &[input], params, ("y_BSD", BSD));
    if !dims.tensor.splits() {
        return partial;
    }
    let sum = g.op(module, OpKind::Megatron(MegatronOp::Sum), &[partial], &[], ("y_BSD", BSD));
    g.drop_values(&[partial]);
    sum
}

/// Norm, head and loss. Inputs: the hidden state, the labels.
fn head(job: &Split) -> Graph {
    let (mut g, x, dims) = builder(job, "head", ("h_BSD", BSD));
    g.input("labels_BS", BS, DType::Fp32);
    g.belong(Owner::Head);
    let norm = g.param("norm.weight", dims.d, 1);
    let weight = g.table("head.weight", dims.v, dims.d);
    let kind = OpKind::InternLm(InternLmOp::Norm { adds: false, recompute: false });
    let hn = g.op("norm", kind, &[x], &[norm], ("xn_BSD", BSD));
    let logits = g.op("head", linear(dims.d, dims.v, copied(dims), false), &[hn], &[weight], ("logits_BSV", BSV));
    g.drop_values(&[hn]);
    let one: &[Axis] = &[];
    let outputs = [("loss", one, DType::Fp32), ("output_BSV", BSV, job.dtype), ("sum", one, DType::Fp32)];
    let [loss, ..] = g.op_all("loss", OpKind::InternLm(InternLmOp::Loss), &[logits], &[], outputs);
    g.drop_values(&[logits]);
    g.finish(loss)
}
