//! What a kernel can be for.

use super::super::parts::CollectiveKind;

/// What a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Matrix multiplications.
    Matmul,
    /// Attention's own kernels, forward and backward.
    Attention,
    /// Convolutions.
    Convolution,
    /// Norms, activations, sums, losses, embeddings.
    Pointwise,
    /// The optimizer's step, with clipping of gradients.
    Optimizer,
    /// Collectives of a kind.
    Collective(CollectiveKind),
    /// Copies between memories, and packing of buffers.
    Copy,
    /// Memory set to a value.
    Set,
    /// What neither operator nor name tells.
    Other,
}

impl Class {
    /// Its name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Class::Matmul => "matmul",
            Class::Attention => "attention",
            Class::Convolution => "convolution",
            Class::Pointwise => "norm and pointwise",
            Class::Optimizer => "optimizer",
            Class::Collective(kind) => kind.label(),
            Class::Copy => "copy",
            Class::Set => "memory set",
            Class::Other => "other",
        }
    }
}

impl CollectiveKind {
    /// Its name in reports.
    pub fn label(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllToAll => "all-to-all",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::SendRecv => "send and receive",
            CollectiveKind::Other => "other collective",
        }
    }
}
