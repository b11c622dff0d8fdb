//! The end of a model: final norm, head and loss, as one list of operators.
//!
//! Losses differ in how much of the logits they hold at once, T tokens by V words; see [`Loss`]. To add one: a variant,
//! and its operators in [`head`].

use super::ModelConfig;
use super::autocast::autocast;
use super::block::parts::norm_op;
use super::graph::{Axis, ChunkedLoss, Dims, Graph, GraphBuilder, OpKind, ValueId};
use super::preference::{LogProbs, PreferenceOp};
use super::tensor::{self, Redistribution};
use crate::program::{DType, Owner};

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];
const BLD: &[Axis] = &[Axis::B, Axis::L, Axis::D];
const BSV: &[Axis] = &[Axis::B, Axis::S, Axis::V];

/// How the loss is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Loss {
    /// Logits are cast to fp32 (torchtitan's `cross_entropy_loss`).
    Fp32CrossEntropy {
        /// Whether cast and cross-entropy are one `torch.compile` graph.
        compiled: bool,
    },
    /// Cross-entropy in the logits' own type.
    Bf16CrossEntropy {
        /// Whether it is a `torch.compile` graph.
        compiled: bool,
    },
    /// flash-attn's fused kernel, on logits in their own type.
    FlashCrossEntropy,
    /// The head is applied to each of `chunks` parts of the sequence inside the model, and the loss to each part's
    /// logits afterwards: all logits live at once, but only one part in fp32 (torchtune's `CEWithChunkedOutputLoss`).
    ChunkedOutput {
        /// Parts of the sequence.
        chunks: u32,
        /// Whether cast and cross-entropy of a part are one `torch.compile` graph.
        compiled: bool,
    },
    /// Head and loss together for one part after the other: one part's logits live (torchtune's
    /// `LinearCrossEntropyLoss`). Log-softmax is kept for all.
    ChunkedLinear {
        /// Parts of the sequence.
        chunks: u32,
    },
    /// Head, loss and their backward for one part after the other, inside the loss (torchtitan's `ChunkedCELoss`, from 0.3.0 on
    /// `ChunkedLossWrapper`).
    ChunkedGradients {
        /// Parts of the sequence.
        chunks: u32,
        /// Whether cast and cross-entropy of a part are one `torch.compile` graph.
        compiled: bool,
        /// Whether the loss gathers the head's parameters itself before the first part (`lm_head.unshard()`, 0.3.0), or leaves that
        /// to the head's forward, whose gather is then held until the step's end.
        unshards: bool,
    },
    /// Log-probabilities of the labels over parts of the vocabulary, in eager operators (prime-rl's head for
    /// reinforcement learning).
    VocabularyChunked {
        /// Words of a part.
        words: u32,
    },
    /// Gradients are computed in forward, one part after the other, and nothing else is kept: Liger's fused linear
    /// cross-entropy (arXiv 2410.10989, section 3.2; `liger_kernel/ops/fused_linear_cross_entropy.py`). A part has
    /// `next_power_of_2(⌈T / ⌈V/D⌉⌉)` tokens.
    FusedLinear,
    /// A loss over pairs of sequences, between whose two operators the reference model runs ([`super::preference`]).
    Preference(LogProbs),
}

impl Default for Loss {
    fn default() -> Self {
        Loss::Fp32CrossEntropy { compiled: false }
    }
}

impl Loss {
    /// Whether `torch.compile` generates it.
    pub fn compiled(self) -> bool {
        match self {
            Loss::Fp32CrossEntropy { compiled }
            | Loss::Bf16CrossEntropy { compiled }
            | Loss::ChunkedOutput { compiled, .. }
            | Loss::ChunkedGradients { compiled, .. } => compiled,
            Loss::FlashCrossEntropy
            | Loss::ChunkedLinear { .. }
            | Loss::FusedLinear
            | Loss::VocabularyChunked { .. }
            | Loss::Preference(_) => false,
        }
    }

    /// Whether the model hands all its logits to the loss.
    pub fn sees_whole_logits(self) -> bool {
        matches!(
            self,
            Loss::Fp32CrossEntropy { .. }
                | Loss::Bf16CrossEntropy { .. }
                | Loss::FlashCrossEntropy
                | Loss::Preference(_)
        )
    }
}

/// Head and loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Operators.
    pub graph: Graph,
    /// Operators of the final norm, at the beginning.
    pub norm: usize,
    /// The first operator after the model's own forward.
    pub loss_from: usize,
    /// Logits as the loss is handed them, if it is, and the first operator after the last of them.
    pub logits: (Vec<ValueId>, usize),
}

impl Head {
    /// The same under autocast, in a model whose hidden state is fp32.
    pub fn autocast(self) -> Head {
        let (graph, begins) = autocast(self.graph, DType::Fp32);
        let (logits, handed) = self.logits;
        Head { graph, norm: begins[self.norm], loss_from: begins[self.loss_from], logits: (logits, begins[handed]) }
    }
}

/// Final norm, head and loss. With a tied head the weight is the embedding's and no parameter is added.
///
/// With `output`, the model's wrapper casts the logits to that type before the loss sees them
/// (`MixedPrecisionPolicy.output_dtype` of the root); only for losses over whole logits.
///
/// `inside`: whether the model computes the loss itself, of labels that it shifts.
pub fn head(m: &ModelConfig, dims: Dims, compute: DType, (loss, inside): (Loss, bool), output: Option<DType>) -> Head {
    let (mut graph, x) = GraphBuilder::new("output", dims, compute, ("x_BSD", BLD, compute));
    let g = &mut graph;
    g.belong(Owner::Head);
    let mut h = x;
    if let Some(kind) = m.final_norm {
        h = norm_op(g, kind, dims.local_tokens(), x, ("norm", "norm.weight", "norm.bias"));
    }
    let norm = g.ops();
    let weight = g.table("output.weight", dims.v, m.width);
    let after_norm = |g: &mut GraphBuilder| {
        if m.final_norm.is_some() {
            g.drop_values(&[h]);
        }
    };
    let mut handed = (vec![], 0);
    let (loss_from, out) = match loss {
        Loss::Fp32CrossEntropy { .. } | Loss::Bf16CrossEntropy { .. } | Loss::FlashCrossEntropy => {
            let logits = project_whole(g, m, h, weight);
            after_norm(g);
            let logits = softcap(g, m, logits, dims.tokens());
            let from = g.ops();
            let mut seen = logits;
            if let Some(dtype) = output.filter(|&dtype| dtype != compute) {
                seen = g.op_in("output", OpKind::CAST, &[logits], &[], ("logits_BSV", BSV), dtype);
                g.drop_values(&[logits]);
            }
            handed = (vec![seen], g.ops());
            let own_type = matches!(loss, Loss::Bf16CrossEntropy { .. });
            let kind = match loss {
                Loss::FlashCrossEntropy => OpKind::FlashCrossEntropy,
                _ if dims.tensor.loss => OpKind::ParallelCrossEntropy,
                _ if loss.compiled() => OpKind::CompiledCrossEntropy { mean: true },
                _ => OpKind::CrossEntropy { upcast: !own_type, shifts: inside },
            };
            let dtype = if own_type { compute } else { DType::Fp32 };
            let out = g.op_in("loss", kind, &[seen], &[], ("loss", &[]), dtype);
            g.drop_values(&[seen]);
            (from, out)
        }
        Loss::Preference(code) => {
            let mut seen = project_whole(g, m, h, weight);
            if !code.widens_logits() {
                after_norm(g);
            }
            seen = softcap(g, m, seen, dims.tokens());
            if code.widens_logits() && compute != DType::Fp32 {
                seen = cast_logits(g, seen, DType::Fp32);
            }
            if code.widens_logits() {
                after_norm(g);
            }
            let from = g.ops();
            let returned = if code.widens_logits() { DType::Fp32 } else { compute };
            if let Some(dtype) = output.filter(|&dtype| dtype != returned) {
                seen = cast_logits(g, seen, dtype);
            }
            handed = (vec![seen], g.ops());
            (from, preference(g, (seen, output.unwrap_or(returned)), code))
        }
        Loss::ChunkedOutput { chunks, compiled } => {
            let parts = parts(g, dims, h, chunks);
            let logits: Vec<ValueId> = parts
                .iter()
                .map(|&(part, tokens)| {
                    let logits = project_part(g, m, part, weight, tokens);
                    softcap(g, m, logits, tokens)
                })
                .collect();
            g.drop_values(&parts.iter().map(|&(part, _)| part).collect::<Vec<_>>());
            after_norm(g);
            let from = g.ops();
            handed = (logits.clone(), from);
            let kind = match compiled {
                true => OpKind::CompiledCrossEntropy { mean: false },
                false => OpKind::CrossEntropy { upcast: true, shifts: false },
            };
            let mut total = None;
            for &logits in &logits {
                let part = g.op_in("loss", kind, &[logits], &[], ("loss", &[]), DType::Fp32);
                total = Some(add_up(g, total, part));
            }
            let out = mean(g, total);
            g.drop_values(&logits);
            (from, out)
        }
        Loss::ChunkedLinear { chunks } => {
            let from = g.ops();
            let parts = parts(g, dims, h, chunks);
            let mut total = None;
            for &(part, tokens) in &parts {
                let logits = project_part(g, m, part, weight, tokens);
                let logits = softcap(g, m, logits, tokens);
                let kind = OpKind::CrossEntropy { upcast: true, shifts: false };
                let part = g.op_in("loss", kind, &[logits], &[], ("loss", &[]), DType::Fp32);
                g.drop_values(&[logits]);
                total = Some(add_up(g, total, part));
            }
            let out = mean(g, total);
            g.drop_values(&parts.iter().map(|&(part, _)| part).collect::<Vec<_>>());
            after_norm(g);
            (from, out)
        }
        Loss::ChunkedGradients { chunks, compiled, .. } => {
            let from = g.ops();
            (from, chunked_gradients(g, h, weight, (chunks, compiled)))
        }
        Loss::FusedLinear | Loss::VocabularyChunked { .. } => {
            let from = g.ops();
            let kind = match loss {
                Loss::VocabularyChunked { words } => OpKind::VocabularyLogProbs { words: words.into() },
                _ => OpKind::FusedLinearCrossEntropy,
            };
            let out = g.op_in("loss", kind, &[h], &[weight], ("loss", &[]), DType::Fp32);
            after_norm(g);
            (from, out)
        }
    };
    if handed.0.is_empty() {
        handed.1 = loss_from;
    }
    Head { graph: graph.finish(out), norm, loss_from, logits: handed }
}

/// Logits in another type.
fn cast_logits(g: &mut GraphBuilder, logits: ValueId, dtype: DType) -> ValueId {
    let cast = g.op_in("output", OpKind::CAST, &[logits], &[], ("logits_BSV", BSV), dtype);
    g.drop_values(&[logits]);
    cast
}

/// Log-probabilities and a loss over pairs: two operators at the end.
fn preference(g: &mut GraphBuilder, (logits, dtype): (ValueId, DType), code: LogProbs) -> ValueId {
    let log_probs = OpKind::Preference(PreferenceOp::LogProbs(code));
    let made = g.op_in("loss", log_probs, &[logits], &[], ("log_probs", &[]), dtype);
    g.resize(made, g.dims().b);
    let mut read = vec![made];
    if code.names_logits() {
        read.push(logits);
    } else {
        g.drop_values(&[logits]);
    }
    let loss = OpKind::Preference(PreferenceOp::Loss(code));
    let out = g.op_in("loss", loss, &read, &[], ("loss", &[]), dtype);
    g.drop_values(&read);
    out
}

/// torchtitan's loss by parts: copies of the parts, where they do not lie side by side, and a buffer; all parts; the last
/// part's gradient; the whole. Four operators at the end, of which the second reads the weight.
fn chunked_gradients(g: &mut GraphBuilder, h: ValueId, weight: usize, (chunks, compiled): (u32, bool)) -> ValueId {
    let (tokens, d) = (g.dims().tokens(), g.dims().d);
    let rows = tokens / u64::from(chunks.max(1));
    let copies: Vec<ValueId> = (0..if g.dims().b > 1 { chunks } else { 0 })
        .map(|_| {
            let copy = g.op("loss", OpKind::CONTIGUOUS, &[h], &[], ("xn_part_BSD", BSD));
            g.resize(copy, rows * d);
            copy
        })
        .collect();
    let step = OpKind::ChunkedLoss;
    let buffer = g.op_in("loss", step(ChunkedLoss::Buffer), &[h], &[], ("gradient_BSD", BSD), DType::Fp32);
    let compute = g.compute();
    let made = [("logits_BSV", BSV, compute), ("gradient_BSD", BSD, compute)];
    let parts = step(ChunkedLoss::Parts { chunks, compiled });
    let [logits, of_hidden] = g.op_all("loss", parts, &[h], &[weight], made);
    g.resize(logits, rows * g.dims().v);
    g.resize(of_hidden, rows * d);
    let sum = g.op_in("loss", step(ChunkedLoss::Last), &[of_hidden], &[], ("loss", &[]), DType::Fp32);
    let out = g.op_in("loss", step(ChunkedLoss::Whole), &[h], &[], ("loss", &[]), DType::Fp32);
    let (last, others) = copies.split_last().map_or((None, &[][..]), |(last, others)| (Some(*last), others));
    g.drop_values(others);
    g.drop_values(&[buffer, logits]);
    g.drop_values(last.as_slice());
    g.drop_values(&[sum, h]);
    out
}

/// Logits of all tokens: of the rank's part of the vocabulary where the loss takes that, else of all of it.
fn project_whole(g: &mut GraphBuilder, m: &ModelConfig, h: ValueId, weight: usize) -> ValueId {
    let Dims { d, v, tensor, .. } = g.dims();
    let whole = tensor::enter(g, h, "output");
    let linear = OpKind::Linear { inputs: d, outputs: v };
    let mut logits = tensor::column_linear(g, "output", linear, whole, &[weight], ("logits_BSV", BSV));
    if whole != h {
        g.drop_values(&[whole]);
    }
    if tensor.splits() && !tensor.loss {
        let part = logits;
        let gather = OpKind::Redistribute(Redistribution::GatherVocabulary);
        logits = g.op("output", gather, &[part], &[], ("logits_BSV", BSV));
        g.resize(logits, g.dims().tokens() * m.vocab);
        g.drop_values(&[part]);
    }
    logits
}

/// Logits of some tokens.
fn project(g: &mut GraphBuilder, m: &ModelConfig, h: ValueId, weight: usize, tokens: u64) -> ValueId {
    let linear = OpKind::Linear { inputs: m.width, outputs: m.vocab };
    let logits = g.op("output", linear, &[h], &[weight], ("logits_BSV", BSV));
    g.resize(logits, tokens * m.vocab);
    logits
}

/// Logits of a part of the sequence. Of several sequences the parts do not lie side by side, and the matmul takes, and keeps,
/// a copy that does (`at::linear`).
fn project_part(g: &mut GraphBuilder, m: &ModelConfig, part: ValueId, weight: usize, tokens: u64) -> ValueId {
    if g.dims().b == 1 {
        return project(g, m, part, weight, tokens);
    }
    let copy = g.op("output", OpKind::CONTIGUOUS, &[part], &[], ("xn_part_BSD", BSD));
    g.resize(copy, tokens * m.width);
    let logits = project(g, m, copy, weight, tokens);
    g.drop_values(&[copy]);
    logits
}

/// `cap·tanh(x/cap)`, a statement each.
fn softcap(g: &mut GraphBuilder, m: &ModelConfig, mut logits: ValueId, tokens: u64) -> ValueId {
    if m.logit_softcap {
        for kind in [OpKind::SCALE, OpKind::TANH, OpKind::SCALE] {
            let next = g.op("output", kind, &[logits], &[], ("logits_BSV", BSV));
            g.resize(next, tokens * m.vocab);
            g.drop_values(&[logits]);
            logits = next;
        }
    }
    logits
}

/// Views of parts of the sequence, with their tokens, as `Tensor.chunk(chunks, dim=1)` cuts it.
fn parts(g: &mut GraphBuilder, dims: Dims, h: ValueId, chunks: u32) -> Vec<(ValueId, u64)> {
    let rows = dims.s.div_ceil(u64::from(chunks.max(1)));
    let tokens: Vec<u64> = (0..dims.s.div_ceil(rows)).map(|at| dims.b * rows.min(dims.s - at * rows)).collect();
    let views = g.split_many("output", h, ("xn_part_BSD", BSD), tokens.len());
    for (&view, &tokens) in views.iter().zip(&tokens) {
        g.resize(view, tokens * dims.d);
    }
    views.into_iter().zip(tokens).collect()
}

fn add_up(g: &mut GraphBuilder, total: Option<ValueId>, part: ValueId) -> ValueId {
    let inputs: Vec<ValueId> = total.into_iter().chain([part]).collect();
    let sum = g.op_in("loss", OpKind::ADD, &inputs, &[], ("loss", &[]), DType::Fp32);
    g.drop_values(&[part]);
    g.drop_values(&total.into_iter().collect::<Vec<_>>());
    sum
}

fn mean(g: &mut GraphBuilder, total: Option<ValueId>) -> ValueId {
    let total = total.expect("a sequence has at least one part");
    let out = g.op_in("loss", OpKind::SCALE, &[total], &[], ("loss", &[]), DType::Fp32);
    g.drop_values(&[total]);
    out
}
