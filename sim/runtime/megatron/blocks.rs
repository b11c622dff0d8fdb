//! Megatron-Core's modules as operators: the embedding, one block, and what stands behind the last block
//! (`core/models/gpt/gpt_model.py`, `core/transformer/transformer_layer.py`, the local layer specification).
//!
//! Parameters are registered in the order of Megatron's modules: attention's output projection before its input
//! projection.

use super::Job;
use super::ahead;
use super::experts;
use super::job::{Core, Implementation, Recompute};
use super::latent;
use super::layers::Kind;
use crate::model::block;
use crate::model::graph::{Axis, Dims, Graph, GraphBuilder, OpKind, ValueId};
use crate::model::latent::LatentAttention;
use crate::model::megatron::{Bias, MegatronOp, Reads};
use crate::model::tensor::TensorParallel;
use crate::model::{Activation, FeedForward, Norm, Position};
use crate::program::DType;

/// Attention's projection.
pub(super) const PROJ: &str = "self_attention.linear_proj";

pub(super) const BS: &[Axis] = &[Axis::B, Axis::S];
pub(super) const SS: &[Axis] = &[Axis::S, Axis::S];
pub(super) const BSD: &[Axis] = &[Axis::S, Axis::B, Axis::D];
pub(super) const BLD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const BSF: &[Axis] = &[Axis::S, Axis::B, Axis::F];
pub(super) const BSV: &[Axis] = &[Axis::S, Axis::B, Axis::V];
const BSNH: &[Axis] = &[Axis::S, Axis::B, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::S, Axis::B, Axis::K, Axis::H];
const BSQH: &[Axis] = &[Axis::S, Axis::B, Axis::Q, Axis::H];

/// The sizes of a rank's part of a micro-batch.
pub(super) fn dims(job: &Job) -> Dims {
    let tp = u64::from(job.mesh.tp);
    let tensor =
        TensorParallel { ranks: tp, sequence: job.sequence_parallel && tp > 1, loss: true, asynchronous: false };
    let dims = block::dims(&job.model, job.batch, job.seq / u64::from(job.mesh.cp), tensor);
    Dims { v: job.padded_vocabulary() / tp, ..dims }
}

/// A builder with what is asked of the job again and again.
pub(super) struct Modules<'a> {
    pub(super) g: GraphBuilder,
    pub(super) job: &'a Job,
    pub(super) dims: Dims,
}

impl Modules<'_> {
    pub(super) fn megatron(
        &mut self,
        module: &'static str,
        op: MegatronOp,
        inputs: &[ValueId],
        params: &[usize],
        output: (&'static str, &'static [Axis]),
    ) -> ValueId {
        self.g.op(module, OpKind::Megatron(op), inputs, params, output)
    }

    pub(super) fn norm_params(&mut self, weight: &'static str, bias: &'static str) -> Vec<usize> {
        let mut params = vec![self.g.param(weight, self.dims.d, 1)];
        if self.job.model.norm == (Norm::Layer { bias: true }) {
            params.push(self.g.param(bias, self.dims.d, 1));
        }
        params
    }

    pub(super) fn norm(&mut self, module: &'static str, input: ValueId, params: &[usize]) -> ValueId {
        if self.engine() {
            return self.megatron(module, MegatronOp::Norm, &[input], params, ("xn_LBD", BLD));
        }
        let rows = self.dims.local_tokens();
        let kind = match self.job.model.norm {
            Norm::Rms => OpKind::RmsNorm { rows },
            Norm::Layer { .. } => OpKind::LayerNorm { rows },
        };
        self.g.op(module, kind, &[input], params, ("xn_LBD", BLD))
    }

    fn linear_params(&mut self, weight: &'static str, bias: Option<&'static str>, rows: u64, cols: u64) -> Vec<usize> {
        let mut params = vec![self.g.param(weight, rows, cols)];
        params.extend(bias.map(|bias| self.g.param(bias, rows, 1)));
        params
    }

    /// What a linear split on its rows reads.
    pub(super) fn reads(&self) -> Reads {
        match (self.dims.tensor.sequence, self.dims.tensor.splits()) {
            (true, _) => Reads::Gathered,
            (false, true) => Reads::Copied,
            (false, false) => Reads::Own,
        }
    }

    /// A norm and a linear split on its rows. Also the norm's result, where it is a value of its own.
    fn up(
        &mut self,
        (norm, module): (&'static str, &'static str),
        input: ValueId,
        (norm_params, params): (&[usize], &[usize]),
        (bias, shape): (Bias, &'static [Axis]),
    ) -> (ValueId, Vec<ValueId>) {
        let (inputs, outputs) = (self.dims.d, self.g.rows(params[0]));
        if self.engine() {
            let params = [norm_params, params].concat();
            let (norms, overlap, fp8) = (norm_params.len(), self.overlap(), self.job.matmuls.fp8());
            let kind = MegatronOp::NormLinear { inputs, outputs, norms, overlap, bias, fp8 };
            return (self.megatron(module, kind, &[input], &params, ("up_SBF", shape)), vec![]);
        }
        let xn = self.norm(norm, input, norm_params);
        let kind = MegatronOp::Linear { inputs, outputs, reads: self.reads(), bias };
        (self.megatron(module, kind, &[xn], params, ("up_SBF", shape)), vec![xn])
    }

    /// Whether what tensor-parallel ranks exchange runs in parts beside matmuls.
    fn overlap(&self) -> bool {
        self.job.overlap_tensor.is_some() && self.dims.tensor.sequence
    }

    fn engine(&self) -> bool {
        self.job.block.implementation == Implementation::TransformerEngine
    }

    /// A linear split on its columns, and the sum over ranks of what it leaves. Python lets go of `held` after it. In fp8 it
    /// keeps what it was given if that is `kept` by another anyway.
    pub(super) fn row_linear(
        &mut self,
        module: &'static str,
        input: ValueId,
        (inputs, params): (u64, &[usize]),
        (held, kept): (&[ValueId], bool),
    ) -> ValueId {
        if self.engine() {
            let fp8 = self.job.matmuls.fp8().map(|fp8| fp8.keeping(kept));
            let outputs = self.dims.d;
            let overlap = self.job.overlap_tensor.filter(|_| self.overlap());
            let overlap = overlap.map(|overlap| if module == PROJ { overlap.proj } else { overlap.fc2 });
            let kind = MegatronOp::RowLinear { inputs, outputs, overlap, fp8 };
            let sum = self.megatron(module, kind, &[input], params, ("y_LBD", BLD));
            self.g.drop_values(held);
            return sum;
        }
        let kind = MegatronOp::Linear { inputs, outputs: self.dims.d, reads: Reads::Own, bias: Bias::Apart };
        let partial = self.megatron(module, kind, &[input], params, ("y_SBD", BSD));
        if !self.dims.tensor.splits() {
            self.g.drop_values(held);
            return partial;
        }
        let sum = self.megatron(module, MegatronOp::Sum, &[partial], &[], ("y_LBD", BLD));
        self.g.drop_values(&[partial]);
        self.g.drop_values(held);
        sum
    }

    fn residual(&mut self, module: &'static str, branch: ValueId, residual: ValueId, bias: Option<usize>) -> ValueId {
        let block = self.job.block;
        let kind = MegatronOp::BiasDropoutAdd { dropout: block.hidden_dropout, fused: block.fused_dropout };
        let bias: Vec<usize> = bias.into_iter().collect();
        self.megatron(module, kind, &[branch, residual], &bias, ("h_LBD", BLD))
    }
}

pub(super) fn modules<'a>(
    job: &'a Job,
    name: &'static str,
    input: (&'static str, &'static [Axis]),
) -> (Modules<'a>, ValueId) {
    let dims = dims(job);
    let (g, x) = GraphBuilder::new(name, dims, job.dtype, (input.0, input.1, job.dtype));
    (Modules { g, job, dims }, x)
}

/// The embedding. Inputs: tokens, positions.
pub(super) fn embedding(job: &Job) -> Graph {
    embedded(job, ("tokens_BS", BS), false)
}

/// What is left of it where the words are given. Inputs: their rows, positions.
fn summed_embedding(job: &Job) -> Graph {
    embedded(job, ("words_LBD", BLD), true)
}

fn embedded(job: &Job, input: (&'static str, &'static [Axis]), summed: bool) -> Graph {
    let (mut m, tokens) = modules(job, "embedding", input);
    let positions = m.g.input("positions_BS", BS, job.dtype);
    let mut params = vec![];
    if !summed {
        params.push(m.g.param("word_embeddings.weight", m.dims.v, m.dims.d));
    }
    let learned = match job.model.position {
        Position::Learned { positions } => Some(positions),
        _ => None,
    };
    params.extend(learned.map(|rows| m.g.param("position_embeddings.weight", rows, m.dims.d)));
    let kind = MegatronOp::Embed { learned: learned.is_some(), dropout: job.block.hidden_dropout, summed };
    let mut out = m.megatron("embedding", kind, &[tokens, positions], &params, ("h_LBD", BLD));
    if job.model.embedding_norm {
        let norm = m.norm_params("embedding.norm.weight", "embedding.norm.bias");
        let normed = m.norm("embedding.norm", out, &norm);
        m.g.drop_values(&[out]);
        out = normed;
    }
    m.g.finish(out)
}

/// One block. Inputs: the hidden state, the attention mask.
pub(super) fn block(job: &Job, kind: Kind) -> Graph {
    let (mut m, x) = modules(job, "layers", ("h_LBD", BLD));
    let mask = m.g.input("mask_SS", SS, job.dtype);
    let params = block_params(&mut m, kind);
    let out = block_of(&mut m, [x, mask], (kind, &params));
    m.g.finish(out)
}

/// Parameters of a block.
pub(super) struct BlockParams {
    attend: Attend,
    mixture: Option<experts::Params>,
    norm: Vec<usize>,
    dense: Option<[Vec<usize>; 2]>,
}

/// Whether the feed-forward is gated, its activation, and the width of what it multiplies with first.
fn feed_forward(m: &Modules) -> (bool, Activation, u64) {
    match m.job.model.feed_forward {
        FeedForward::Gated(activation) => (true, activation, 2 * m.dims.f),
        FeedForward::Plain(activation) => (false, activation, m.dims.f),
    }
}

/// Registers a block's parameters.
pub(super) fn block_params(m: &mut Modules, kind: Kind) -> BlockParams {
    let Dims { d, f, .. } = m.dims;
    let (model, engine, wide) = (&m.job.model, m.engine(), feed_forward(m).2);
    let bias = |on: bool, name| on.then_some(name);
    let attend = match model.latent {
        Some(latent) => Attend::Latent(latent, latent::params(m, latent)),
        None => Attend::Plain(plain_params(m)),
    };
    let mixture = kind.experts.then(|| experts::params(m)).flatten();
    let norm = if mixture.is_some() {
        vec![]
    } else if engine {
        m.norm_params("mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.layer_norm_bias")
    } else {
        m.norm_params("pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias")
    };
    let dense = mixture.is_none().then(|| {
        let fc1 = m.linear_params("mlp.linear_fc1.weight", bias(model.ffn_bias, "mlp.linear_fc1.bias"), wide, d);
        [fc1, m.linear_params("mlp.linear_fc2.weight", bias(model.ffn_bias, "mlp.linear_fc2.bias"), d, f)]
    });
    BlockParams { attend, mixture, norm, dense }
}

/// A block's operators on the hidden state, under a mask.
pub(super) fn block_of(m: &mut Modules, [x, mask]: [ValueId; 2], (kind, params): (Kind, &BlockParams)) -> ValueId {
    let (again, first) = (m.job.block.again, m.g.ops());
    let (attended, held, bias) = match &params.attend {
        Attend::Latent(latent, params) => {
            let (out, xn) = latent::attention(m, *latent, [x, mask], params);
            (out, vec![xn], None)
        }
        Attend::Plain(params) => plain_attention(m, [x, mask], params, kind.window),
    };
    // Transformer Engine's norms are parts of its linears, but before latent attention.
    let alone = !m.engine() || matches!(params.attend, Attend::Latent(..));
    if again.norms && alone {
        m.g.let_go_of(first..first + 1);
    }
    let h1 = m.residual("self_attn_bda", attended, x, bias);
    m.g.drop_values(&[attended]);
    m.g.drop_values(&held);

    if let Some(mixture) = &params.mixture {
        let mixed = experts::mixture(m, h1, mixture);
        let out = m.residual("mlp_bda", mixed, h1, None);
        m.g.drop_values(&[mixed, h1]);
        return out;
    }
    let [fc1, fc2] = params.dense.as_ref().expect("a block is dense or has experts");
    let (gated, activation, wide) = feed_forward(m);
    let (norm, f) = (m.g.ops(), m.dims.f);
    let (up, hn) = m.up(("pre_mlp_layernorm", "mlp.linear_fc1"), h1, (&params.norm, fc1), (Bias::Apart, BSF));
    let first = m.g.ops() - 1;
    m.g.resize(up, m.dims.tokens() * wide);
    let kind = MegatronOp::Activate { activation, gated, fused: m.job.block.fused_activation };
    let active = m.megatron("mlp", kind, &[up], &fc1[1..], ("act_SBF", BSF));
    m.g.drop_values(&[up]);
    let down = m.row_linear("mlp.linear_fc2", active, (f, fc2), (&[active], false));
    if again.feed_forward {
        m.g.again_from(first);
    }
    if again.norms && !m.engine() {
        m.g.let_go_of(norm..norm + 1);
    }
    let out = m.residual("mlp_bda", down, h1, fc2.get(1).copied());
    m.g.drop_values(&hn);
    m.g.drop_values(&[down, h1]);
    out
}

/// Attention of a block and its parameters.
enum Attend {
    Plain(PlainParams),
    Latent(LatentAttention, latent::Params),
}

/// Parameters of attention of one product, its norm's among them.
struct PlainParams {
    ln1: Vec<usize>,
    sinks: Option<usize>,
    proj: Vec<usize>,
    qkv: Vec<usize>,
    heads: Vec<usize>,
}

fn plain_params(m: &mut Modules) -> PlainParams {
    let Dims { d, n, k, h, .. } = m.dims;
    let model = &m.job.model;
    let bias = |on: bool, name| on.then_some(name);
    let proj_bias = bias(model.output_bias, "self_attention.linear_proj.bias");
    let qkv_bias = bias(model.qkv_bias, "self_attention.linear_qkv.bias");
    // Transformer Engine's linears have the norms before them as parts of theirs.
    let ln1 = (!m.engine()).then(|| m.norm_params("input_layernorm.weight", "input_layernorm.bias"));
    let sinks = model.sinks.then(|| m.g.param("self_attention.core_attention.softmax_offset", n, 1));
    let proj = m.linear_params("self_attention.linear_proj.weight", proj_bias, d, n * h);
    let ln1 = ln1.unwrap_or_else(|| {
        m.norm_params("self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.layer_norm_bias")
    });
    let qkv = m.linear_params("self_attention.linear_qkv.weight", qkv_bias, (n + 2 * k) * h, d);
    let heads = heads_norms(m);
    PlainParams { ln1, sinks, proj, qkv, heads }
}

/// The hidden state behind attention, before its residual; what Python holds until that is added; the bias that is added
/// with it.
fn plain_attention(
    m: &mut Modules,
    [x, mask]: [ValueId; 2],
    PlainParams { ln1, sinks, proj, qkv, heads }: &PlainParams,
    window: Option<u64>,
) -> (ValueId, Vec<ValueId>, Option<usize>) {
    let added = if m.job.model.qkv_bias { Bias::Added } else { Bias::Apart };
    let (mixed, xn) = m.up(("input_layernorm", "self_attention.linear_qkv"), x, (ln1, qkv), (added, BSQH));
    let (context, mut held) = attention(m, (mixed, mask), (heads, *sinks), window);
    held.extend([mixed, context]);
    let attended = m.row_linear(PROJ, context, (m.dims.n * m.dims.h, proj), (&held, true));
    (attended, xn, proj.get(1).copied())
}

/// Norms of queries and of keys, head by head, where the model has them (`--qk-layernorm`).
fn heads_norms(m: &mut Modules) -> Vec<usize> {
    let names = ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"];
    let norms = if m.job.model.qk_norm.is_some() { &names[..] } else { &[] };
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
        let rotate = MegatronOp::Rotate { fused: block.fused_rope };
        q = m.megatron("self_attention", rotate, &[q], &[], ("xq_SBNH", BSNH));
        key = m.megatron("self_attention", rotate, &[key], &[], ("xk_SBKH", BSKH));
        held.extend([q, key]);
    }
    let again = block.recompute == Recompute::Core;
    let biased = m.job.model.position == Position::Alibi;
    let kind = match block.core {
        Core::Unfused { fused_softmax } => {
            MegatronOp::Core { fused_softmax, dropout: block.attention_dropout, biased, again }
        }
        Core::Flash => MegatronOp::FlashCore { again, window },
    };
    let sinks: Vec<usize> = sinks.into_iter().collect();
    let context = m.megatron("self_attention.core_attention", kind, &[q, key, v, mask], &sinks, ("o_SBNH", BSNH));
    (context, held)
}

/// What stands behind the last block: norm, head, the loss of every token, their masked mean.
pub(super) fn head(job: &Job) -> Graph {
    if job.model.predicts_ahead > 0 {
        return ahead::head(job);
    }
    let (mut m, x) = modules(job, "head", ("h_LBD", BLD));
    let mask = m.g.input("loss_mask_BS", BS, DType::Fp32);
    let ln = m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    let weight = m.g.param("output_layer.weight", m.dims.v, m.dims.d);
    let xn = m.norm("decoder.final_layernorm", x, &ln);
    let logits = m.logits(xn, weight);
    m.g.drop_values(&[xn]);
    let losses = m.losses(logits);
    m.g.drop_values(&[logits]);
    let loss = m.mean(losses, mask);
    m.g.finish(loss)
}

impl Modules<'_> {
    /// The head.
    pub(super) fn logits(&mut self, xn: ValueId, weight: usize) -> ValueId {
        let kind =
            MegatronOp::Linear { inputs: self.dims.d, outputs: self.dims.v, reads: self.reads(), bias: Bias::Apart };
        self.megatron("output_layer", kind, &[xn], &[weight], ("logits_SBV", BSV))
    }

    /// The loss of every token.
    pub(super) fn losses(&mut self, logits: ValueId) -> ValueId {
        let kind = OpKind::Megatron(MegatronOp::VocabularyLoss { kernels: self.job.block.cross_entropy });
        self.g.op_in("loss", kind, &[logits], &[], ("losses_BS", BS), DType::Fp32)
    }

    /// Their masked mean, with what is reported.
    pub(super) fn mean(&mut self, losses: ValueId, mask: ValueId) -> ValueId {
        let one: &[Axis] = &[];
        let outputs = [("loss", one, DType::Fp32), ("tokens", one, DType::Fp32), ("report", one, DType::Fp32)];
        let [loss, ..] = self.g.op_many("loss", OpKind::Megatron(MegatronOp::MaskedMean), &[losses, mask], outputs);
        self.g.drop_values(&[losses]);
        loss
    }
}

/// What stands behind the last block where the head is elsewhere: norm, and the result in fp32, which `Float16Module`
/// hands on from a pipeline's last rank.
fn last_norm(job: &Job) -> Graph {
    let (mut m, x) = modules(job, "last norm", ("h_LBD", BLD));
    m.g.input("loss_mask_BS", BS, DType::Fp32);
    let ln = m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    let xn = m.norm("decoder.final_layernorm", x, &ln);
    let out = m.g.op_in("decoder", OpKind::CAST, &[xn], &[], ("h_LBD", BLD), DType::Fp32);
    m.g.drop_values(&[xn]);
    m.g.finish(out)
}

/// A rank's part of a table that pipeline ranks share.
fn part_of_table(job: &Job, name: &'static str) -> Graph {
    let (mut m, x) = modules(job, name, ("h_LBD", BLD));
    m.g.param(name, m.dims.v / u64::from(job.mesh.pp), m.dims.d);
    m.g.finish(x)
}

/// The stage's own modules where pipeline ranks share the vocabulary: all but its tables.
pub(super) const WITHOUT_TABLES: super::Modules =
    super::Modules { embedding: summed_embedding, block, head: last_norm };

/// The tables, each of a chunk of its own.
pub(super) const TABLES: super::Modules = super::Modules {
    embedding: |job| part_of_table(job, "word_embeddings.weight"),
    block,
    head: |job| part_of_table(job, "output_layer.weight"),
};
