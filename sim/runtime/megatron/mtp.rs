//! Multi-token prediction (`core/transformer/multi_token_prediction.py`, `core/models/gpt/gpt_model.py`, 0.16.1;
//! DeepSeek-V3, arXiv 2412.19437, section 2.2): behind the last block modules that each predict one token further ahead.
//!
//! ```text
//! hidden ─► final norm ─┬─► hnorm ─┐
//! tokens, rolled ─► embedding ─► enorm ─┴► eh_proj ─► block ─► norm ─► the next module …
//! ```
//!
//! A module reads the hidden state before it and the words' rows of the tokens moved by one. It has a block of the model's last kind, or the
//! layers of a pattern of its own (`mtp_hybrid_override_pattern`). All may be one and the same (`mtp_use_repeated_layer`). The stage with the
//! head has all of them, and a copy of the words' table. The head multiplies with each result; the losses ride on the hidden state, to whose
//! gradient theirs is added on the way back (`MTPLossAutoScaler`). The final norm is on the stage with the last block, which need not be the
//! head's (`has_final_layernorm_in_this_stage`).

use std::ops::Range;

use super::blocks::{self, BlockParams};
use super::builder::{self, BLD, BS, BSD, Modules, SS};
use super::refused::{FP8, FP8_SIZES, MULTI_TOKEN, WITHOUT_MULTI_TOKEN};
use crate::model::Position;
use crate::model::graph::{Axis, Graph, Op, OpKind, ValueId};
use crate::model::megatron::{Bias, MegatronOp, MtpOp};
use crate::plan::megatron::{Implementation, Recompute, Release, Split};
use crate::program::{DType, Owner};
use crate::runtime::Refusal;
use crate::schedule::Placement;

const MODULE: &str = "mtp";
const NORM: &str = "mtp.final_layernorm";

/// What of a job's modules has no rules here, if anything.
pub(super) fn refuses(job: &Split) -> Option<Refusal> {
    if job.model.mtp_layers == 0 {
        return None;
    }
    let together = matches!(job.block.recompute, Recompute::Uniform { layers } if layers > 1);
    let (combines, maxima) = (job.combines(), job.matmuls.reduces_maxima());
    let dense = job.model.ahead().iter().all(|layer| layer.experts().is_none());
    let cases = [
        (job.vocabulary_split().is_some(), Refusal::new("multi-token-shared-vocabulary", "multi-token prediction with a vocabulary that pipeline ranks share").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (
            combines && job.model.mtp_layers > 1,
            Refusal::new("multi-token-several-combined", "multi-token prediction by several modules with exchanges overlapped with another micro-batch, which Megatron-Core refuses").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN),
        ),
        (
            combines && (dense || job.mesh.pp == 1),
            Refusal::new("multi-token-dense-combined", "multi-token prediction by a dense layer, or without a pipeline, with exchanges overlapped with another micro-batch, which Megatron-Core refuses").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN),
        ),
        (
            combines && maxima,
            Refusal::new("multi-token-combined-delayed-fp8", "multi-token prediction with exchanges overlapped with another micro-batch, in fp8 with scales of earlier steps").on(FP8).instead(FP8_SIZES),
        ),
        (
            norm_apart(job) && maxima,
            Refusal::new("multi-token-alone-delayed-fp8", "multi-token prediction on a stage without blocks, in fp8 with scales of earlier steps").on(FP8).instead(FP8_SIZES),
        ),
        (
            job.pipeline.schedule.placement != Placement::Loop,
            Refusal::new("multi-token-v-placement", "multi-token prediction where the first and the last stage are one rank's").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN),
        ),
        (job.mesh.cp > 1, Refusal::new("multi-token-context-parallel", "multi-token prediction of a sequence that ranks share").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (
            maxima && matches!(job.block.recompute, Recompute::Uniform { .. }),
            Refusal::new("multi-token-recomputed-delayed-fp8", "multi-token prediction with recomputed layers, in fp8 with scales of earlier steps").on(FP8).instead(FP8_SIZES),
        ),
        (job.overlap_tensor.is_some(), Refusal::new("multi-token-tensor-overlap", "tensor-parallel overlap of multi-token prediction").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (matches!(job.model.position, Position::Learned { .. }), Refusal::new("multi-token-learned-positions", "multi-token prediction with learned positions").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (job.model.embedding_norm.is_some(), Refusal::new("multi-token-embedding-norm", "multi-token prediction with a norm on the embedding").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (
            job.model.tied_head && job.mesh.pp > 1,
            Refusal::new("multi-token-tied-head", "multi-token prediction over stages with a head tied to the embedding").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN),
        ),
        (job.mesh.tp > 1 && !job.sequence_parallel, Refusal::new("multi-token-without-sequence-parallel", "multi-token prediction split over ranks without its sequence").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
        (together, Refusal::new("multi-token-recomputed-together", "multi-token prediction with several layers recomputed as one, which Megatron-Core refuses").on(MULTI_TOKEN).instead(WITHOUT_MULTI_TOKEN)),
    ];
    Refusal::first(cases)
}

/// Whether the final norm is on a stage before the head's, which has no blocks.
pub(super) fn norm_apart(job: &Split) -> bool {
    job.model.mtp_layers > 0 && job.pipeline.layers.last() == Some(&0)
}

/// That norm. Inputs: the hidden state, the loss mask, which it does not read.
pub(super) fn norm(job: &Split) -> Graph {
    let (mut m, x) = builder::modules(job, "final norm", ("h_LBD", BLD));
    m.g.belong(Owner::Head);
    m.g.input("loss_mask_BS", BS, DType::Fp32);
    let params = m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    let xn = m.norm("decoder.final_layernorm", x, &params);
    m.g.finish(xn)
}

/// Where among a head's operators its one module begins, its block has ended, and the module ends.
pub(super) fn cuts(head: &Graph) -> [usize; 3] {
    let of = |op: &Op, kind: MtpOp| op.kind == OpKind::Megatron(MegatronOp::Mtp(kind));
    let begins = head.ops.iter().position(|op| of(op, MtpOp::Roll));
    let block = head.ops.iter().position(|op| op.module == NORM);
    let ends = head.ops.iter().rposition(|op| op.kind == OpKind::CONCAT).map(|at| at + 1);
    [begins, block, ends].map(|at| at.expect("a head with a module of multi-token prediction has its parts"))
}

/// Parameters of a module.
struct Params {
    tokens: Vec<usize>,
    hidden: Vec<usize>,
    projection: usize,
    block: Vec<BlockParams>,
    norm: Vec<usize>,
}

/// What a module is given of the micro-batch: tokens and positions, moved once for each module.
struct Moved {
    tokens: ValueId,
    positions: ValueId,
}

impl Modules<'_> {
    fn mtp(&mut self, op: MtpOp, inputs: &[ValueId], output: (&'static str, &'static [Axis])) -> ValueId {
        self.megatron(MODULE, MegatronOp::Mtp(op), inputs, &[], output)
    }

    /// Moved by one, its last place zero.
    fn rolled(&mut self, value: ValueId, (name, dtype): (&'static str, DType)) -> ValueId {
        let roll = OpKind::Megatron(MegatronOp::Mtp(MtpOp::Roll));
        self.g.op_in(MODULE, roll, &[value], &[], (name, BS), dtype)
    }

    /// The same value, where fp8 begins or ends: each module multiplies under scales of its own (`get_fp8_context`), once to make
    /// one hidden state of two and once in its block.
    fn scales(&mut self, value: ValueId, ends: bool) -> ValueId {
        if !self.job.matmuls.reduces_maxima() {
            return value;
        }
        let elements = self.g.elements(value);
        let same = self.mtp(MtpOp::Scales { ends }, &[value], ("h_LBD", BLD));
        self.g.resize(same, elements);
        self.g.drop_values(&[value]);
        same
    }

    /// The hidden state and the words' rows of the next tokens as one hidden state.
    fn joined(&mut self, [words, hidden]: [ValueId; 2], params: &Params) -> ValueId {
        let (d, tp, tokens) = (self.dims.d, u64::from(self.job.mesh.tp), self.dims.local_tokens());
        let embedded = self.norm("mtp.enorm", words, &params.tokens);
        let normed = self.norm("mtp.hnorm", hidden, &params.hidden);
        let both = self.g.op(MODULE, OpKind::CONCAT, &[embedded, normed], &[], ("both_LBD", BLD));
        self.g.resize(both, 2 * d * tokens);
        self.g.drop_values(&[normed]);
        let both = self.scales(both, false);
        let (inputs, outputs, reads) = (2 * d, d / tp, self.reads());
        let kind = match self.job.block.implementation {
            Implementation::TransformerEngine => {
                MegatronOp::ColumnLinear { inputs, outputs, reads, fp8: self.job.matmuls.fp8() }
            }
            Implementation::Local => MegatronOp::Linear { inputs, outputs, reads, bias: Bias::Apart },
        };
        let mut out = self.megatron("mtp.eh_proj", kind, &[both], &[params.projection], ("h_SBD", BSD));
        self.g.resize(out, self.dims.tokens() * outputs);
        self.g.drop_values(&[both]);
        if tp > 1 {
            let part = out;
            let whole = self.mtp(MtpOp::GatherWidth, &[part], ("h_SBD", BSD));
            self.g.drop_values(&[part]);
            out = self.mtp(MtpOp::OwnRows, &[whole], ("h_LBD", BLD));
            self.g.drop_values(&[whole]);
        }
        self.g.drop_values(&[embedded]);
        let out = self.scales(out, true);
        self.scales(out, false)
    }
}

/// What stands behind the last block: the final norm, the modules, the head and the loss of each and of the model itself.
pub(super) fn head(job: &Split) -> Graph {
    let (mut m, x) = builder::modules(job, "head", ("h_LBD", BLD));
    m.g.belong(Owner::Head);
    let loss_mask = m.g.input("loss_mask_BS", BS, DType::Fp32);
    let [tokens, labels, positions] =
        ["tokens_BS", "labels_BS", "positions_BS"].map(|name| m.g.input(name, BS, DType::Int64));
    let mask = m.g.input("mask_SS", SS, job.dtype);
    let (d, v, count) = (m.dims.d, m.dims.v, job.model.mtp_layers);
    let layers = job.model.ahead();
    let last =
        (!norm_apart(job)).then(|| m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias"));
    let modules: Vec<Params> = (0..job.model.mtp_sets())
        .map(|_| Params {
            tokens: m.norm_params("mtp.enorm.weight", "mtp.enorm.bias"),
            hidden: m.norm_params("mtp.hnorm.weight", "mtp.hnorm.bias"),
            projection: m.g.param("mtp.eh_proj.weight", d / u64::from(job.mesh.tp), 2 * d),
            block: layers.iter().map(|layer| blocks::block_params(&mut m, layer)).collect(),
            norm: m.norm_params("mtp.final_layernorm.weight", "mtp.final_layernorm.bias"),
        })
        .collect();
    let weight = m.g.table("output_layer.weight", v, d);
    let words = m.g.table("word_embeddings.weight", v, d);

    let xn = match last {
        Some(params) => m.norm("decoder.final_layernorm", x, &params),
        // Part by part no decoder is called; where it is, one without blocks hands on a copy.
        None if job.combines() => x,
        None => m.g.op("decoder", OpKind::CONTIGUOUS, &[x], &[], ("h_LBD", BLD)),
    };
    let mut moved = Moved { tokens, positions };
    let mut hidden = vec![xn];
    for at in 0..count as usize {
        let params = &modules[at.min(modules.len() - 1)];
        let before = [moved.tokens, moved.positions];
        moved = Moved {
            tokens: m.rolled(moved.tokens, ("tokens_BS", DType::Int64)),
            positions: m.rolled(moved.positions, ("positions_BS", DType::Int64)),
        };
        if before != [tokens, positions] {
            m.g.drop_values(&before);
        }
        let embed = MegatronOp::Embed { learned: false, dropout: job.block.hidden_dropout, summed: false };
        let embedded = m.megatron("embedding", embed, &[moved.tokens, moved.positions], &[words], ("h_LBD", BLD));
        let (first, given) = (m.g.ops(), hidden[hidden.len() - 1]);
        let joined = m.joined([embedded, given], params);
        let mut out = joined;
        for (layer, params) in layers.iter().zip(&params.block) {
            let given = out;
            out = blocks::block_of(&mut m, [given, mask], (layer, params));
            m.g.drop_values(&[given]);
        }
        let out = m.scales(out, true);
        let normed = m.norm(NORM, out, &params.norm);
        m.g.drop_values(&[out]);
        if matches!(job.block.recompute, Recompute::Uniform { .. }) {
            m.g.recompute_from(first);
        }
        m.g.drop_values(&[embedded]);
        hidden.push(normed);
    }
    let all = m.g.op(MODULE, OpKind::CONCAT, &hidden, &[], ("all_LBD", BLD));
    m.g.resize(all, (1 + count) * m.dims.local_tokens() * d);
    m.g.drop_values(&hidden[1..]);
    m.g.drop_values(&[moved.tokens, moved.positions]);
    let parts = m.g.split_many(MODULE, all, ("h_LBD", BLD), hidden.len());
    m.g.drop_values(&[all]);

    // What it was given is the caller's.
    let own = if xn == x { vec![] } else { vec![xn] };
    let (mut main, mut held, mut named) = (parts[0], own, None);
    let first = held.len();
    let (mut labels, mut shown) = (labels, loss_mask);
    for &part in &parts[1..] {
        let logits = m.logits(part, weight);
        // Python's variable names the module's before until now, the last one's until the function returns.
        m.g.drop_values(named.replace(logits).as_slice());
        let before = (held.len() > first).then_some([labels, shown]);
        labels = m.rolled(labels, ("labels_BS", DType::Int64));
        shown = m.rolled(shown, ("loss_mask_BS", DType::Fp32));
        m.g.drop_values(before.as_ref().map_or(&[], |both| &both[..]));
        let losses = m.losses(logits);
        let given = main;
        main = m.mtp(MtpOp::Ride, &[given, losses, shown], ("h_LBD", BLD));
        m.g.drop_values(&[losses]);
        if given != parts[0] {
            m.g.drop_values(&[given]);
        }
        held.push(part);
    }
    held.extend([labels, shown]);
    held.extend(named);
    if job.block.release == Release::V0_19 {
        m.g.drop_values(&held.split_off(first));
    }
    let logits = m.logits(main, weight);
    let losses = m.losses(logits);
    m.g.drop_values(&held);
    m.g.drop_values(&[parts[0], main, logits]);
    let loss = m.mean(losses, loss_mask);
    m.g.finish(loss)
}

/// Where among a head's parameters those of a module lie that is used for every token further ahead, if it is.
pub(super) fn repeated(job: &Split, head: &Graph) -> Option<Range<usize>> {
    let named = |name: &str| head.params.iter().position(|param| param.name == name);
    let begins = named("mtp.enorm.weight").filter(|_| job.model.mtp_sets() < job.model.mtp_layers)?;
    Some(begins..named("output_layer.weight")?)
}

/// Words of the last stage's own table that its modules read, and weights of the head, by how often a micro-batch uses each.
pub(super) fn uses(job: &Split, alone: bool) -> [u32; 2] {
    let count = job.model.mtp_layers as u32;
    let heads = 1 + count;
    let words = count + u32::from(alone);
    if job.model.tied_head && alone { [words + heads, 0] } else { [words, heads] }
}
