//! A model whose ranks share it on Megatron's axes: what Megatron-Core, InternEvo and nanotron have in common.

use super::{Block, Implementation, Matmuls, Mesh, Mixture, Overlap, Pipeline};
use crate::model::ModelConfig;
use crate::model::documents::Documents;
use crate::model::style::NormCode;
use crate::model::trained::{Lora, Trained};
use crate::plan::eager::Settings;
use crate::program::{DType, Dispatch};
use crate::schedule::order::vocabulary::VocabularySplit;
use crate::schedule::{Batching, Shape};

/// The model, how ranks share it, and how its modules are written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Split {
    /// The model; its vocabulary is padded ([`Split::padded_vocabulary`]).
    pub model: ModelConfig,
    /// `--micro-batch-size`.
    pub batch: u64,
    /// `--seq-length`.
    pub seq: u64,
    /// Documents of a sequence, where attention stays inside each; none: it sees the whole sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Micro-batches of a step on each replica.
    pub micro_batches: u32,
    /// Ranks.
    pub mesh: Mesh,
    /// `--sequence-parallel`.
    pub sequence_parallel: bool,
    /// `--tp-comm-overlap`: gathers and scatters of tensor-parallel ranks run in parts beside the matmuls they feed.
    pub overlap_tensor: Option<Overlap>,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// How blocks are written.
    pub block: Block,
    /// How experts are run; none: the model has none.
    pub mixture: Option<Mixture>,
    /// How linears multiply.
    pub matmuls: Matmuls,
    /// Type of parameters and activations (`--bf16`, `--fp16`).
    pub dtype: DType,
    /// `--make-vocab-size-divisible-by`.
    pub vocabulary_multiple: u64,
    /// cuBLAS workspace \[B\].
    pub workspace: u64,
    /// Whether it stays taken once used (PyTorch before 2.15).
    pub persistent_workspace: bool,
    /// Multiprocessors of the chip, which size the buffers of reductions.
    pub multiprocessors: u32,
    /// Whether blocks of FlashAttention 2's backward add up gradients of queries of their own (`--deterministic-mode`).
    pub copies_gradients: bool,
    /// What is trained: adapters alone; none: everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained: Option<Trained>,
}

impl Split {
    /// The adapters, where they alone are trained.
    pub fn lora(&self) -> Option<&Lora> {
        self.trained.as_ref().and_then(|trained| trained.lora.as_ref())
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        self.batch * self.seq * u64::from(self.micro_batches) * u64::from(self.mesh.dp)
    }

    /// Whether ranks can share sequences of `seq` tokens: each has two parts of them, one from each end, and under sequence
    /// parallelism tensor-parallel ranks share those.
    pub fn splits(&self, seq: u64) -> bool {
        let (tp, cp) = (u64::from(self.mesh.tp), u64::from(self.mesh.cp));
        let parts = if cp > 1 { 2 * cp } else { 1 };
        seq.is_multiple_of(parts) && (!self.sequence_parallel || (seq / cp).is_multiple_of(tp))
    }

    /// Words of the embedding: a multiple of `--make-vocab-size-divisible-by` times the tensor-parallel ranks
    /// (`megatron/training/tokenizer/tokenizer.py`, `_vocab_size_with_padding`).
    pub fn padded_vocabulary(&self) -> u64 {
        self.model.vocab.next_multiple_of(self.vocabulary_multiple * u64::from(self.mesh.tp))
    }

    /// Micro-batches after which a full pipeline does the same again: one, or where stages are virtual a group of them on all chunks.
    pub fn round(&self) -> u32 {
        if self.pipeline.virtual_stages > 1 { self.mesh.pp } else { 1 }
    }

    /// What the job's schedule is a function of.
    pub fn shape(&self) -> Shape {
        Shape { ranks: self.mesh.pp, virtual_stages: self.pipeline.virtual_stages, microbatches: self.micro_batches }
    }

    /// Whether a step's forward and backward run block beside block (`--overlap-moe-expert-parallel-comm`).
    pub fn combines(&self) -> bool {
        let batching = (self.pipeline.schedule.batching)(self.shape());
        matches!(batching, Batching::Stepwise(settings) if settings.overlap_experts)
    }

    /// Whether experts that every token passes run beside the way to the others (`--moe-shared-expert-overlap`).
    pub fn runs_shared_beside(&self) -> bool {
        let shared = self.model.experts().is_some_and(|experts| experts.shared > 0);
        shared && self.mixture.is_some_and(|run| run.shared_overlap)
    }

    /// How pipeline ranks meet over the vocabulary, where the schedule spreads it over them.
    pub fn vocabulary_split(&self) -> Option<VocabularySplit> {
        match (self.pipeline.schedule.batching)(self.shape()) {
            Batching::Vocabulary(split) => Some(split),
            _ => None,
        }
    }

    /// How modules run eagerly: Megatron's own with Python around operators; Transformer Engine's is with its kernels (`python.rs`).
    pub fn modules(&self) -> Settings {
        match self.block.implementation {
            Implementation::Local => {
                Settings { forward: Dispatch::ModuleForward, backward: Dispatch::ModuleBackward, ..self.eager() }
            }
            Implementation::TransformerEngine => self.eager(),
        }
    }

    /// How modules run eagerly.
    pub fn eager(&self) -> Settings {
        Settings {
            workspace: self.workspace,
            persistent_workspace: self.persistent_workspace,
            fused_rms_norm: true,
            norm_code: NormCode::Torch,
            layer_norm: self.block.layer_norm,
            bias_tensor: false,
            sms: self.multiprocessors,
            early_stop: false,
            copies_gradients: self.copies_gradients,
            attention_reads_back: false,
            flex_attention: false,
            unnamed_logits: false,
            offload: None,
            forward: Dispatch::EagerForward,
            backward: Dispatch::EagerBackward,
        }
    }
}
