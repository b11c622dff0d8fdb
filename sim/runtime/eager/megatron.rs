//! Rules of Megatron-Core's own operators, forward and backward; one file each.
//!
//! Its autograd functions are Python: what a function's frame holds goes when it returns, before autograd lets go of the
//! gradient it was given and of what forward saved.

mod activation;
mod ahead;
mod column;
mod context;
mod core;
mod dispatch;
mod dropout;
mod embedding;
mod engine;
mod flash;
pub mod fp8;
mod grouped;
mod latent;
pub mod later;
mod linear;
mod loss;
mod overlap;
mod rotary;
mod routed;
mod router;
mod scores;
pub mod spread;

pub use context::{Context, Heads, Parts, Ring, WAYS, Way};
pub use dispatch::{DISPATCHERS, Dispatcher, Routing, Stage, crosses};
pub use overlap::{STREAMS as BUFFER_STREAMS, UserBuffers};
pub use routed::ExpertRanks;

use super::forward::Results;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::{CrossEntropy, MegatronOp};
use crate::program::{Collective, Comm, DType, Dispatch, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    pub(super) fn megatron(&mut self, graph: &Graph, op: &Op, kind: MegatronOp, frame: &mut Frame, results: Results) {
        match kind {
            MegatronOp::Embed { learned, dropout, summed } => {
                self.embed(graph, op, (learned, dropout, summed), frame, results);
            }
            MegatronOp::Linear { .. } => self.parallel_linear(graph, op, kind, frame, results),
            MegatronOp::Sum => self.sum_over_ranks(graph, op, frame, results),
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
            MegatronOp::FlashCore { again, .. } => self.flash_core(graph, op, again, frame, results),
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Compiled } => {
                self.fused_vocabulary_loss(graph, op, frame, results);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Engine } => {
                self.engine_vocabulary_loss(graph, op, frame, results);
            }
            MegatronOp::VocabularyLoss { .. } => self.vocabulary_loss(graph, op, frame, results),
            MegatronOp::MaskedMean => self.masked_mean(graph, op, frame, results),
            MegatronOp::Latent(kind) => self.latent(graph, op, kind, frame, results),
            MegatronOp::Ahead(kind) => self.ahead(graph, op, kind, frame, results),
            MegatronOp::Routed(kind) => self.routed(graph, op, kind, frame, results),
            MegatronOp::SplitQkv => self.split_qkv(graph, op, frame, results),
            MegatronOp::Rotate { fused } => self.rotate_heads(graph, op, fused, frame, results),
        }
    }

    pub(super) fn megatron_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        (index, kind): (usize, MegatronOp),
        frame: &mut Frame,
        gradient: Storage,
    ) {
        match kind {
            MegatronOp::Embed { learned, dropout, summed } => {
                self.embed_backward(graph, op, (index, learned, dropout, summed), frame, gradient);
            }
            MegatronOp::Linear { .. } => self.parallel_linear_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::Sum => self.sum_over_ranks_backward(graph, op, frame, gradient),
            MegatronOp::Gather => self.gather_over_ranks_backward(graph, op, frame, gradient),
            MegatronOp::BiasDropoutAdd { .. } => {
                self.bias_dropout_add_backward(graph, op, (index, kind), frame, gradient);
            }
            MegatronOp::Activate { fused: true, .. } => {
                self.bias_activation_backward(graph, op, index, frame, gradient);
            }
            MegatronOp::Activate { gated, .. } => {
                self.plain_activation_backward(graph, op, (index, gated), frame, gradient);
            }
            MegatronOp::Core { .. } => self.unfused_core_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::Norm => self.engine_norm_backward(graph, op, index, frame, gradient),
            MegatronOp::NormLinear { .. } => self.norm_linear_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::ColumnLinear { .. } => self.column_linear_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::RowLinear { .. } => self.row_linear_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::EngineLinear { .. } => self.fp8_linear_backward(graph, op, index, frame, gradient),
            MegatronOp::FlashCore { again, .. } => self.flash_core_backward(graph, op, (index, again), frame, gradient),
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Engine } => {
                self.engine_vocabulary_loss_backward(graph, op, index, frame, gradient);
            }
            MegatronOp::VocabularyLoss { kernels: CrossEntropy::Compiled } => {
                self.fused_vocabulary_loss_backward(graph, op, index, frame, gradient);
            }
            MegatronOp::VocabularyLoss { .. } => self.vocabulary_loss_backward(graph, op, index, frame, gradient),
            MegatronOp::MaskedMean => self.masked_mean_backward(graph, op, index, frame, gradient),
            MegatronOp::Ahead(kind) => self.ahead_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::Latent(kind) => self.latent_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::Routed(kind) => self.routed_backward(graph, op, (index, kind), frame, gradient),
            MegatronOp::SplitQkv => self.split_qkv_backward(graph, op, frame, gradient),
            MegatronOp::Rotate { fused } => self.rotate_heads_backward(graph, op, (index, fused), frame, gradient),
        }
    }

    /// Lets go of what compiled functions have kept, when the checkpoint around them returns.
    pub fn let_go_of_lingering(&mut self) {
        for storage in std::mem::take(&mut self.lingering).into_iter().rev() {
            self.release(storage);
        }
    }

    /// What compiled functions have kept stays as long as a result that is a view of theirs.
    pub fn lingers_with(&mut self, result: Storage) {
        let lingering = std::mem::take(&mut self.lingering);
        self.lingers_with.extend(lingering.into_iter().map(|kept| (result, kept)));
    }

    /// A live value of a running frame.
    pub(super) fn value(frame: &Frame, value: usize) -> Storage {
        frame.slots[value].expect("an operator reads live values")
    }

    /// Keeps blocks for backward, whose references it takes over, or lets go of them.
    pub(super) fn keep(&mut self, frame: &mut Frame, results: Results, saved: &[Storage]) {
        if results == Results::Save {
            frame.saved.extend_from_slice(saved);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            for &storage in saved {
                self.release(storage);
            }
        }
    }

    /// A new block and the memory-bound kernel that writes it.
    pub(super) fn made(&mut self, name: &'static str, bytes: u64, read: u64, dispatch: Dispatch) -> Storage {
        let storage = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Elementwise, read, bytes, dispatch);
        storage
    }

    /// Issues a collective of the tensor-parallel ranks, to be waited for later. `bytes`: the whole buffer.
    pub(super) fn begin_exchange(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let Some(tensor) = self.tensor else { return };
        self.program.wait_stream(tensor.stream, self.stream);
        self.program.collective(tensor.stream, Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype });
    }

    /// Waits for the collectives of the tensor-parallel ranks issued so far.
    pub(super) fn end_exchange(&mut self) {
        let Some(tensor) = self.tensor else { return };
        self.program.wait_stream(self.stream, tensor.stream);
    }

    /// A collective that the stream at hand waits for at once.
    pub(super) fn exchange_now(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        if let Some(tensor) = self.tensor.filter(|_| self.in_line) {
            let comm = Comm { kind, group: tensor.group, bytes: Bytes(bytes), dtype };
            return self.program.collective(self.stream, comm);
        }
        self.begin_exchange(kind, bytes, dtype);
        self.end_exchange();
    }

    /// Launches a kernel.
    pub(super) fn launch(&mut self, name: &'static str, work: Work, dispatch: Dispatch) {
        self.program.launch(self.stream, name, work, dispatch);
    }
}
