//! What blocks of memory are for.

use strum::VariantArray;

/// What a block of memory is for; the groups of the peak breakdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
pub enum Category {
    /// The rank's shard of the parameters, as the optimizer sees it.
    Parameter,
    /// Buffers (rotary tables) and the input batch.
    Buffer,
    /// First and second moments, step counters.
    OptimizerState,
    /// Full parameters, gathered for use.
    UnshardedParameter,
    /// The rank's shard cast to the compute dtype, before an all-gather.
    AllGatherInput,
    /// What an all-gather writes, before it is copied out into parameters.
    AllGatherOutput,
    /// Parameters kept on a smaller mesh between forward and backward (`reshard_after_forward = N`).
    PostForwardShard,
    /// Full gradients in the reduce dtype, packed for the reduce-scatter.
    ReduceScatterInput,
    /// The rank's shard of the gradients.
    ShardedGradient,
    /// Full gradients as autograd leaves them.
    UnshardedGradient,
    /// Made in forward: kept for backward, or still in use.
    Activation,
    /// Logits and the loss over the vocabulary.
    Logits,
    /// Made by re-running a checkpointed forward.
    Recompute,
    /// Made in backward: gradients of activations, temporaries.
    BackwardTemporary,
    /// Made by the optimizer step or gradient clipping.
    OptimizerTemporary,
    /// Library workspaces (cuBLAS).
    Workspace,
    /// A reference model, which is not trained: its parameters, and all that its forward takes.
    Reference,
}

impl Category {
    /// All categories, in declaration order.
    pub const ALL: &[Category] = Category::VARIANTS;

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Category::Parameter => "sharded parameters",
            Category::Buffer => "buffers and inputs",
            Category::OptimizerState => "optimizer state",
            Category::UnshardedParameter => "unsharded parameters",
            Category::AllGatherInput => "all-gather input",
            Category::AllGatherOutput => "all-gather output",
            Category::PostForwardShard => "post-forward shards",
            Category::ReduceScatterInput => "reduce-scatter input",
            Category::ShardedGradient => "sharded gradients",
            Category::UnshardedGradient => "unsharded gradients",
            Category::Activation => "activations",
            Category::Logits => "logits and loss",
            Category::Recompute => "recomputed activations",
            Category::BackwardTemporary => "backward temporaries",
            Category::OptimizerTemporary => "optimizer temporaries",
            Category::Workspace => "workspaces",
            Category::Reference => "reference model",
        }
    }
}
