//! Megatron-Core's own operators, which are autograd functions and modules written by hand
//! (`megatron/core/tensor_parallel`, `core/transformer`, `core/fusions`, 0.16.1), not compositions of PyTorch's.
//!
//! Their rules, forward and backward, are in `runtime/eager/megatron/`. Tensors are laid out with the sequence first,
//! `[S, B, …]`, so that parts of the sequence lie side by side whatever the micro-batch.

pub mod experts;
pub mod latent;
pub mod mamba;

use super::Activation;
pub use experts::{Routed, RoutedOp};
pub use latent::LatentOp;
pub use mamba::MambaOp;

/// What a linear's ranks exchange around its matmuls (`core/tensor_parallel/layers.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Its input as it is, and nothing of the gradient: split on its columns, or not at all.
    Own,
    /// Its input as it is, which all ranks have: the input's gradient is all-reduced beside the weight's.
    Copied,
    /// All parts of the sequence, gathered in forward and again in backward; the input's gradient is reduced and
    /// scattered beside the weight's.
    Gathered,
}

/// What becomes of a linear's bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// It has none, or hands it to the operator that follows (`skip_bias_add`).
    Apart,
    /// Added out of place.
    Added,
    /// Added by the matmul, and its gradient summed by the weight's (cublasLt's epilogues).
    Epilogue,
}

/// Scaling of fp8 numbers (`--fp8-recipe`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Fp8Recipe {
    /// One scale a tensor, from the maxima of earlier steps, which are reduced over ranks.
    Delayed,
    /// One scale a tensor, from its own maximum.
    Tensorwise,
    /// One scale for each 1×128 of an activation and 128×128 of a weight.
    Blockwise,
    /// One scale of eight bits for each 32 numbers along the dimension that is summed over, which Blackwell's tensor cores apply.
    Mxfp8,
}

impl Fp8Recipe {
    /// Whether blocks of a tensor have scales of their own: its transposed copy is then quantised anew, not turned.
    pub fn of_blocks(self) -> bool {
        matches!(self, Fp8Recipe::Blockwise | Fp8Recipe::Mxfp8)
    }
}

/// Whose kernels the loss over the vocabulary is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum CrossEntropy {
    /// PyTorch's, one after the other.
    Composed,
    /// Four functions that inductor compiles (`--cross-entropy-loss-fusion`; `fusions/fused_cross_entropy.py`).
    Compiled,
    /// Transformer Engine's, which leave the gradient in the logits' place (`--cross-entropy-fusion-impl te`).
    Engine,
    /// The same of Transformer Engine 2.20, which copy the logits first and leave the gradient in the copy's place.
    EngineCopy,
}

/// How a linear of Transformer Engine's multiplies in fp8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// The recipe.
    pub recipe: Fp8Recipe,
    /// Whether its weight is kept in fp8, and nowhere in the type of the activations (`--fp8-param-gather`).
    pub parameters: bool,
    /// Whether the chip multiplies fp8 whichever way operands lie.
    pub any_layout: bool,
    /// Whether it keeps what it was given, which others keep or which is made again, and casts that once more in backward
    /// (`save_original_input`); if not, it keeps the fp8 copy.
    pub original: bool,
}

impl Fp8 {
    /// The same of a linear that keeps what it was given, where that is asked for: not under scales of earlier steps, which
    /// Transformer Engine refuses.
    pub fn keeping(self, original: bool) -> Fp8 {
        Fp8 { original: original && self.recipe != Fp8Recipe::Delayed, ..self }
    }

    /// Whether a tensor has a second copy, for the matmuls that read it the other way: the transposed one, which chips do without that
    /// multiply whichever way operands lie, or one whose blocks lie the other way (`pytorch/csrc/quantizer.cpp`, `create_transpose`, 2.9).
    pub fn has_columns(self) -> bool {
        self.recipe.of_blocks() || !self.any_layout
    }

    /// Whether parameters that are kept in fp8 are gathered in the type of the activations, and quantised from that: both copies of an
    /// MXFP8 tensor come from one wide one. They are gathered into the buffer of the gradients, which are not there yet
    /// (`reuse_grad_buf_for_mxfp8_param_ag`; `core/distributed/param_and_grad_buffer.py`, 0.16.1).
    pub fn gathers_wide(self) -> bool {
        self.parameters && self.recipe == Fp8Recipe::Mxfp8
    }
}

/// An operator of multi-token prediction (`core/transformer/multi_token_prediction.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpOp {
    /// Each row moved by one place, its last place zero (`roll_tensor`).
    Roll,
    /// A linear's result, split on its width, gathered from the tensor-parallel ranks and put side by side.
    GatherWidth,
    /// The rank's part of the sequence, a view; backward gathers the parts.
    OwnRows,
    /// The hidden state as it is, with losses of its own: backward gives them theirs (`MTPLossAutoScaler`). Inputs: the hidden
    /// state, losses, the loss mask.
    Ride,
    /// Where fp8 with scales of earlier steps begins (`ends` is false) or ends: maxima are reduced at the end in forward, and at
    /// the beginning in backward.
    Scales {
        /// Which.
        ends: bool,
    },
}

/// How the sum of a row-parallel product is scattered beside its matmul (`proj_fprop` and `fc2_fprop` of `--tp-comm-overlap-cfg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Scatter {
    /// `pipeline`: in parts of the columns, by a kernel on so many SMs (`num_sm`), which the matmul leaves to it; 0: it
    /// leaves none (without `set_sm_margin`), and is slowed while the kernel runs.
    Pipeline(u8),
    /// `ring_exchange`: in parts of the rows, each sent to the rank that adds them up.
    Ring,
}

/// Whether a module of Transformer Engine's reduces maxima of fp8 numbers after its backward in a second run
/// (`pytorch/distributed.py`, 2.9: a linear of a second run leaves it open which module is the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduces {
    /// It has no maxima.
    Never,
    /// It does.
    Once,
    /// It does, and none behind it does: a norm that is a module of its own, grouped linears.
    AndEnds,
}

/// One operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MegatronOp {
    /// `LanguageModelEmbedding`: words of the rank's part of the table, summed over ranks or reduced and scattered;
    /// learned positions; dropout. Inputs: tokens, positions. Parameters: words, positions if learned.
    Embed {
        /// Whether positions are learned.
        learned: bool,
        /// Whether there is dropout.
        dropout: bool,
        /// Whether the words' rows are given in the tokens' place, looked up on all pipeline ranks and summed.
        summed: bool,
    },
    /// `LinearWithGradAccumulationAndAsyncCommunication`. Parameters: weight, bias if any.
    Linear {
        /// Columns of the rank's part of the weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
        /// What is exchanged.
        reads: Reads,
        /// The bias.
        bias: Bias,
    },
    /// The sum over ranks of what a linear split on its columns leaves: reduced and scattered under sequence
    /// parallelism, all-reduced in place without.
    Sum,
    /// The sum over ranks of what each has of all tokens, all-reduced in place; backward hands the gradient on
    /// (`reduce_from_tensor_model_parallel_region`).
    AllReduce,
    /// All parts of the sequence, gathered from the ranks that share it; backward reduces and scatters. As it is where none do.
    Gather,
    /// Bias, dropout and residual sum (`fusions/fused_bias_dropout.py`). Inputs: a branch, the residual. Parameter: the
    /// bias, if any.
    BiasDropoutAdd {
        /// Whether there is dropout.
        dropout: bool,
        /// Whether it is one kernel.
        fused: bool,
    },
    /// Bias and activation (`fusions/fused_bias_gelu.py`, `fused_bias_swiglu.py`). Parameter: the bias, if any.
    Activate {
        /// The function.
        activation: Activation,
        /// Whether the input's second half is multiplied with the activated first.
        gated: bool,
        /// Whether it is one kernel.
        fused: bool,
    },
    /// Queries, keys and values out of the mixed product of one linear: queries are copied side by side where a group
    /// has several of them, the rest are views (`core/transformer/attention.py`, `SelfAttention`).
    SplitQkv,
    /// Rotary embedding of queries or keys (`models/common/embeddings/rope_utils.py`).
    Rotate {
        /// Whether it is one kernel.
        fused: bool,
    },
    /// Batched matmuls around a scaled, masked softmax and dropout (`core/transformer/dot_product_attention.py`).
    /// Inputs: queries, keys, values, the mask.
    Core {
        /// Whether scale, mask and softmax are one kernel.
        fused_softmax: bool,
        /// Whether probabilities are dropped.
        dropout: bool,
        /// Whether linear biases are added to the scores by the first matmul, which starts from a copy of them (BLOOM:
        /// bigscience-workshop/Megatron-DeepSpeed@49d21af2, `megatron/model/transformer.py`).
        biased: bool,
        /// Whether it is recomputed in backward (`--recompute-granularity selective`).
        recompute: bool,
    },
    /// A norm of Transformer Engine's. Parameters: weight, bias if any.
    Norm,
    /// Transformer Engine's `LayerNormLinear`: norm, gather, linear, as one autograd function. Parameters: the norm's, the
    /// linear's. Outputs: the product; the norm's result, gathered, where that is asked for (`return_layernorm_output`).
    NormLinear {
        /// Columns of the rank's part of the weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
        /// How many of the parameters are the norm's.
        norms: usize,
        /// Whether what is exchanged runs in parts beside the matmul (`--tp-comm-overlap`).
        overlap: bool,
        /// The bias.
        bias: Bias,
        /// fp8 matmuls, if so.
        fp8: Option<Fp8>,
    },
    /// Transformer Engine's `Linear` without a norm, split on its rows or whole on every rank. Parameter: the weight.
    ColumnLinear {
        /// Columns of the weight.
        inputs: u64,
        /// Rows of the rank's part of it.
        outputs: u64,
        /// What is exchanged.
        reads: Reads,
        /// fp8 matmuls, if so.
        fp8: Option<Fp8>,
    },
    /// Transformer Engine's `Linear` in fp8 in a model that says nothing of micro-batches: its weight is cast for each.
    /// Parameters: weight, bias if any.
    EngineLinear {
        /// Columns of the weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
    },
    /// Transformer Engine's `Linear`, split on its columns, with the sum over ranks of what it leaves. Parameters: weight,
    /// and the bias it hands on, if any.
    RowLinear {
        /// Columns of the rank's part of the weight.
        inputs: u64,
        /// Its rows.
        outputs: u64,
        /// How what is summed is scattered beside the matmul, if so; then its gradient is gathered beside one, too.
        overlap: Option<Scatter>,
        /// fp8 matmuls, if so.
        fp8: Option<Fp8>,
    },
    /// Scores, softmax and context in one kernel, forward and backward (cuDNN's or FlashAttention). Inputs: queries, keys,
    /// values, the mask.
    FlashCore {
        /// Whether it is recomputed in backward.
        recompute: bool,
        /// Keys that a query reaches; none: all before it.
        window: Option<u64>,
    },
    /// Cross-entropy of every token over logits split on the vocabulary (`core/tensor_parallel/cross_entropy.py`).
    /// Inputs: logits.
    VocabularyLoss {
        /// Whose kernels it is made of.
        kernels: CrossEntropy,
    },
    /// What latent attention does between its projections.
    Latent(LatentOp),
    /// What a Mamba-2 mixer does between its linears.
    Mamba(MambaOp),
    /// What multi-token prediction does beside ordinary modules.
    Mtp(MtpOp),
    /// What a mixture of experts does.
    Routed(RoutedOp),
    /// The masked mean of the losses (`pretrain_gpt.py`, `loss_func`). Inputs: losses, the loss mask. Outputs: the loss,
    /// the number of tokens, the two together for the log.
    MaskedMean,
}

impl MegatronOp {
    /// How many of so many parameters are of the module that runs it first.
    pub fn module_params(self, params: usize) -> usize {
        match self {
            // These read the bias of the linear before them, whose module it belongs to.
            MegatronOp::BiasDropoutAdd { .. } | MegatronOp::Activate { .. } => 0,
            // Positions are looked up by a module of their own, after words.
            MegatronOp::Embed { .. } => params.min(1),
            MegatronOp::Linear { .. }
            | MegatronOp::Sum
            | MegatronOp::AllReduce
            | MegatronOp::Gather
            | MegatronOp::SplitQkv
            | MegatronOp::Rotate { .. }
            | MegatronOp::Core { .. }
            | MegatronOp::Norm
            | MegatronOp::NormLinear { .. }
            | MegatronOp::ColumnLinear { .. }
            | MegatronOp::EngineLinear { .. }
            | MegatronOp::RowLinear { .. }
            | MegatronOp::FlashCore { .. }
            | MegatronOp::VocabularyLoss { .. }
            | MegatronOp::Latent(_)
            | MegatronOp::Mamba(_)
            | MegatronOp::Mtp(_)
            | MegatronOp::Routed(_)
            | MegatronOp::MaskedMean => params,
        }
    }

    /// Whether it reduces maxima of fp8 numbers in a second run.
    pub fn reduces(self) -> Reduces {
        match self {
            MegatronOp::Norm | MegatronOp::Routed(RoutedOp::Grouped { .. }) => Reduces::AndEnds,
            MegatronOp::NormLinear { .. } | MegatronOp::ColumnLinear { .. } | MegatronOp::RowLinear { .. } => {
                Reduces::Once
            }
            MegatronOp::Embed { .. }
            | MegatronOp::Linear { .. }
            | MegatronOp::Sum
            | MegatronOp::AllReduce
            | MegatronOp::Gather
            | MegatronOp::BiasDropoutAdd { .. }
            | MegatronOp::Activate { .. }
            | MegatronOp::SplitQkv
            | MegatronOp::Rotate { .. }
            | MegatronOp::Core { .. }
            | MegatronOp::EngineLinear { .. }
            | MegatronOp::FlashCore { .. }
            | MegatronOp::VocabularyLoss { .. }
            | MegatronOp::Latent(_)
            | MegatronOp::Mamba(_)
            | MegatronOp::Mtp(_)
            | MegatronOp::Routed(
                RoutedOp::Route { .. }
                | RoutedOp::Count { .. }
                | RoutedOp::Select { .. }
                | RoutedOp::Permute { .. }
                | RoutedOp::Exchange
                | RoutedOp::Collect
                | RoutedOp::Scatter
                | RoutedOp::Sort { .. }
                | RoutedOp::Fill
                | RoutedOp::AddBiases
                | RoutedOp::Weigh { .. }
                | RoutedOp::Own { .. }
                | RoutedOp::Unpermute { .. }
                | RoutedOp::AddShared,
            )
            | MegatronOp::MaskedMean => Reduces::Never,
        }
    }
}
