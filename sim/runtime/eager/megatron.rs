//! Rules of Megatron-Core's own operators, forward and backward; one file each.
//!
//! Its autograd functions are Python: what a function's frame holds goes when it returns, before autograd lets go of the
//! gradient it was given and of what forward saved.

mod activation;
mod catch_up;
mod column;
mod context;
mod core;
mod dispatch;
mod dispatcher;
mod dropout;
mod embedding;
mod engine;
mod expert_sizes;
mod flash;
pub mod fp8;
mod frozen;
mod grouped;
mod latent;
mod later;
mod left;
mod linear;
mod loss;
mod mamba;
mod mtp;
mod overlap;
mod products;
mod rotary;
mod routed;
mod router;
mod scores;
pub(super) mod second_run;
mod tools;
pub mod vocabulary_parallel;
mod weigh;

pub use context::{Context, Heads, Ring};
pub use dispatch::exchanges_rows;
pub use dispatcher::{Dispatcher, ExpertParallel, Routing, Stage};
pub use left::Later;

use embedding::Embed;

use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{CrossEntropy, MegatronOp};

impl Eager {
    pub(super) fn megatron(&mut self, graph: &Graph, op: &Op, kind: MegatronOp, frame: &mut Frame, results: Results) {
        match kind {
            MegatronOp::Embed { learned, dropout, summed } => {
                self.embed(graph, op, Embed { learned, dropout, summed }, frame, results);
            }
            MegatronOp::Linear { .. } => self.parallel_linear(graph, op, kind, frame, results),
            MegatronOp::Sum => self.sum_over_ranks(graph, op, frame, results),
            MegatronOp::AllReduce => self.all_reduced(graph, op, frame, results),
            MegatronOp::Gather => self.gather_over_ranks(graph, op, frame, results),
            MegatronOp::BiasDropoutAdd { .. } => self.bias_dropout_add(graph, op, kind, frame, results),
            MegatronOp::Activate { fused: true, .. } => self.bias_activation(graph, op, frame, results),
            MegatronOp::Activate { gated, .. } => self.plain_activation(graph, op, gated, frame, results),
            MegatronOp::Core { .. } => self.unfused_core(graph, op, kind, frame, results),
            MegatronOp::Norm => self.engine_norm(graph, op, frame, results),
            MegatronOp::NormLinear { .. } => self.norm_linear(graph, op, kind, frame, results),
            MegatronOp::ColumnLinear { .. } => self.column_linear(graph, op, kind, frame, results),
            MegatronOp::RowLinear { .. } => self.row_linear(graph, op, kind, frame, results),
            MegatronOp::EngineLinear { .. } => self.fp8_linear(graph, op, frame, results),
            MegatronOp::FlashCore { recompute, .. } => self.flash_core(graph, op, recompute, frame, results),
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Compiled } => {
                self.fused_vocabulary_loss(graph, op, frame, results);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Engine } => {
                self.engine_vocabulary_loss(graph, op, frame, results);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::EngineCopy } => {
                self.copying_vocabulary_loss(graph, op, frame, results);
            }
            MegatronOp::VocabularyLoss { .. } => self.vocabulary_loss(graph, op, frame, results),
            MegatronOp::MaskedMean => self.masked_mean(graph, op, frame, results),
            MegatronOp::Mamba(kind) => self.megatron_mamba(graph, op, kind, frame, results),
            MegatronOp::Latent(kind) => self.latent(graph, op, kind, frame, results),
            MegatronOp::Mtp(kind) => self.mtp(graph, op, kind, frame, results),
            MegatronOp::Routed(kind) => self.routed(graph, op, kind, frame, results),
            MegatronOp::SplitQkv => self.split_qkv(graph, op, frame, results),
            MegatronOp::Rotate { fused } => self.rotate_heads(graph, op, fused, frame, results),
        }
    }

    pub(super) fn megatron_backward(&mut self, node: Node<'_>, kind: MegatronOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, .. } = node;
        match kind {
            MegatronOp::Embed { learned, dropout, summed } => {
                self.embed_backward(node, Embed { learned, dropout, summed }, frame, gradient);
            }
            MegatronOp::Linear { .. } => self.parallel_linear_backward(node, kind, frame, gradient),
            MegatronOp::Sum => self.sum_over_ranks_backward(graph, op, frame, gradient),
            MegatronOp::AllReduce => self.accumulate(frame, op.inputs[0], gradient.into()),
            MegatronOp::Gather => self.gather_over_ranks_backward(graph, op, frame, gradient),
            MegatronOp::BiasDropoutAdd { .. } => {
                self.bias_dropout_add_backward(node, kind, frame, gradient);
            }
            MegatronOp::Activate { fused: true, .. } => {
                self.bias_activation_backward(node, frame, gradient);
            }
            MegatronOp::Activate { gated, .. } => {
                self.plain_activation_backward(node, gated, frame, gradient);
            }
            MegatronOp::Core { .. } => self.unfused_core_backward(node, kind, frame, gradient),
            MegatronOp::Norm => self.engine_norm_backward(node, frame, gradient),
            MegatronOp::NormLinear { .. } => self.norm_linear_backward(node, kind, frame, gradient),
            MegatronOp::ColumnLinear { .. } => self.column_linear_backward(node, kind, frame, gradient),
            MegatronOp::RowLinear { .. } => self.row_linear_backward(node, kind, frame, gradient),
            MegatronOp::EngineLinear { .. } => self.fp8_linear_backward(node, frame, gradient),
            MegatronOp::FlashCore { recompute, .. } => self.flash_core_backward(node, recompute, frame, gradient),
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Engine } => {
                self.engine_vocabulary_loss_backward(node, frame, gradient);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::EngineCopy } => {
                self.copying_vocabulary_loss_backward(node, frame, gradient);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Compiled } => {
                self.fused_vocabulary_loss_backward(node, frame, gradient);
            }
            MegatronOp::VocabularyLoss { .. } => self.vocabulary_loss_backward(node, frame, gradient),
            MegatronOp::MaskedMean => self.masked_mean_backward(node, frame, gradient),
            MegatronOp::Mtp(kind) => self.mtp_backward(node, kind, frame, gradient),
            MegatronOp::Mamba(kind) => self.megatron_mamba_backward(node, kind, frame, gradient),
            MegatronOp::Latent(kind) => self.latent_backward(node, kind, frame, gradient),
            MegatronOp::Routed(kind) => self.routed_backward(node, kind, frame, gradient),
            MegatronOp::SplitQkv => self.split_qkv_backward(graph, op, frame, gradient),
            MegatronOp::Rotate { fused } => self.rotate_heads_backward(node, fused, frame, gradient),
        }
    }
}
