//! What stands before a model's first block and behind its last, as operators, and the modules that Megatron-Core's chunks are
//! made of (`core/models/gpt/gpt_model.py`, 0.16.1).

use super::blocks::block;
use super::builder::{BLD, BS, modules};
use super::modules::Modules;
use super::mtp;
use crate::model::Position;
use crate::model::graph::{Axis, Graph, OpKind};
use crate::model::megatron::MegatronOp;
use crate::plan::megatron::Split;
use crate::program::{DType, Owner};

/// Which ends of the model a chunk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// It is the model's first, with the embedding.
    pub first: bool,
    /// It is the model's last, with the head.
    pub last: bool,
}

impl Ends {
    /// A chunk that is the whole model.
    pub const BOTH: Ends = Ends { first: true, last: true };
    /// A chunk of blocks alone.
    pub const NONE: Ends = Ends { first: false, last: false };
}

/// Megatron-Core's own.
pub(super) const MODULES: Modules = Modules { embedding, block, head };

/// The embedding. Inputs: tokens, positions.
fn embedding(job: &Split) -> Graph {
    embedded(job, ("tokens_BS", BS), false)
}

/// What is left of it where the words are given. Inputs: their rows, positions.
fn summed_embedding(job: &Split) -> Graph {
    embedded(job, ("words_LBD", BLD), true)
}

fn embedded(job: &Split, input: (&'static str, &'static [Axis]), summed: bool) -> Graph {
    let (mut m, tokens) = modules(job, "embedding", input);
    m.g.belong(Owner::Embedding);
    let positions = m.g.input("positions_BS", BS, job.dtype);
    let mut params = vec![];
    if !summed {
        params.push(m.g.table("word_embeddings.weight", m.dims.v, m.dims.d));
    }
    let learned = match job.model.position {
        Position::Learned { positions } => Some(positions),
        _ => None,
    };
    params.extend(learned.map(|rows| m.g.table("position_embeddings.weight", rows, m.dims.d)));
    let kind = MegatronOp::Embed { learned: learned.is_some(), dropout: job.block.hidden_dropout, summed };
    let mut out = m.megatron("embedding", kind, &[tokens, positions], &params, ("h_LBD", BLD));
    if job.model.embedding_norm.is_some() {
        let norm = m.norm_params("embedding.norm.weight", "embedding.norm.bias");
        let normed = m.norm("embedding.norm", out, &norm);
        m.g.drop_values(&[out]);
        out = normed;
    }
    m.g.finish(out)
}

/// What stands behind the last block: norm, head, the loss of every token, their masked mean.
fn head(job: &Split) -> Graph {
    if job.model.mtp_layers > 0 {
        return mtp::head(job);
    }
    let (mut m, x) = modules(job, "head", ("h_LBD", BLD));
    m.g.belong(Owner::Head);
    let mask = m.g.input("loss_mask_BS", BS, DType::Fp32);
    let ln = m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    let weight = m.g.table("output_layer.weight", m.dims.v, m.dims.d);
    let xn = m.norm("decoder.final_layernorm", x, &ln);
    let logits = m.logits(xn, weight);
    // A frozen head keeps nothing of it, and the model names it until the losses are there.
    let named = job.trained.is_some();
    if !named {
        m.g.drop_values(&[xn]);
    }
    let losses = m.losses(logits);
    m.g.drop_values(&[logits]);
    if named {
        m.g.drop_values(&[xn]);
    }
    let loss = m.mean(losses, mask);
    m.g.finish(loss)
}

/// What stands behind the last block where the head is elsewhere: norm, and the result in fp32, which `Float16Module`
/// hands on from a pipeline's last rank.
fn last_norm(job: &Split) -> Graph {
    let (mut m, x) = modules(job, "last norm", ("h_LBD", BLD));
    m.g.belong(Owner::Head);
    m.g.input("loss_mask_BS", BS, DType::Fp32);
    let ln = m.norm_params("decoder.final_layernorm.weight", "decoder.final_layernorm.bias");
    let xn = m.norm("decoder.final_layernorm", x, &ln);
    let out = m.g.op_in("decoder", OpKind::CAST, &[xn], &[], ("h_LBD", BLD), DType::Fp32);
    m.g.drop_values(&[xn]);
    m.g.finish(out)
}

/// A rank's part of a table that pipeline ranks share.
fn part_of_table(job: &Split, name: &'static str) -> Graph {
    let (mut m, x) = modules(job, name, ("h_LBD", BLD));
    m.g.table(name, m.dims.v / u64::from(job.mesh.pp), m.dims.d);
    m.g.finish(x)
}

/// The stage's own modules where pipeline ranks share the vocabulary: all but its tables.
pub(super) const WITHOUT_TABLES: Modules = Modules { embedding: summed_embedding, block, head: last_norm };

/// The tables, each of a chunk of its own.
pub(super) const TABLES: Modules = Modules {
    embedding: |job| part_of_table(job, "word_embeddings.weight"),
    block,
    head: |job| part_of_table(job, "output_layer.weight"),
};
