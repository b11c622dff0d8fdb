//! How a model is split over tensor-parallel ranks, and what these exchange.

/// How a model is split over the ranks of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct TensorParallel {
    /// Ranks of the group; 1: the model is whole.
    pub ranks: u64,
    /// Whether what lies between the split modules is split on the sequence.
    pub sequence: bool,
    /// Whether the loss works on logits split on the vocabulary, or gathers them.
    pub loss: bool,
    /// Whether compiled blocks exchange in parts that overlap with their matmuls (asynchronous tensor parallelism).
    pub asynchronous: bool,
}

impl TensorParallel {
    /// Every rank has the whole model.
    pub const NONE: TensorParallel = TensorParallel { ranks: 1, sequence: false, loss: false, asynchronous: false };

    /// Whether anything is split.
    pub fn splits(&self) -> bool {
        self.ranks > 1
    }
}

/// What ranks of a tensor-parallel group exchange between two operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redistribution {
    /// Parts of the sequence become the whole on every rank; backward reduces and scatters.
    Gather,
    /// Partial sums become parts of the sequence; backward gathers.
    ReduceScatter,
    /// Partial sums become the sum on every rank; backward hands the gradient on.
    AllReduce,
    /// Nothing happens in forward; backward all-reduces partial gradients.
    Copy,
    /// Parts of the vocabulary become the whole on every rank; backward takes the rank's part.
    GatherVocabulary,
}
