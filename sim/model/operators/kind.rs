//! The kinds of operators of a block's forward.

use super::row::Simple;
use super::{moves, pointwise};
use crate::model::experts::ExpertOp;
use crate::model::internlm::InternLmOp;
use crate::model::layer::{GatedDelta, Mamba2};
use crate::model::megatron::MegatronOp;
use crate::model::nanotron::NanotronOp;
use crate::model::preference::PreferenceOp;
use crate::model::tensor::Redistribution;

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// One kernel over memory, of which a row says all.
    Simple(&'static Simple),
    /// `y = x·Wᵀ (+ b)`; parameters: weight, then bias if any. Without parameters these are further inputs.
    Linear {
        /// Columns of the weight.
        inputs: u64,
        /// Rows of the weight.
        outputs: u64,
    },
    /// RMSNorm in one kernel; parameter: weight. Keeps its input and one number per row.
    RmsNorm {
        /// Rows normalised.
        rows: u64,
    },
    /// LayerNorm; parameters: weight, bias if any. Keeps its input and two numbers per row.
    LayerNorm {
        /// Rows normalised.
        rows: u64,
    },
    /// A parameter in another type, made anew for one call ([`crate::model::autocast`]); no inputs.
    CastWeight,
    /// Rows of a block's own rotary table, by the positions of its tokens; no inputs.
    RotaryRows,
    /// Product with the complex rotary table, broadcast over heads; the input is viewed as complex numbers. Its second input,
    /// if any, is what it reads of the table.
    RotateComplex {
        /// Elements (complex) of the table used.
        table: u64,
    },
    /// Rotary embedding written in real numbers; see [`Rope`]. [`Rope::Complex`] is written as casts and
    /// [`OpKind::RotateComplex`].
    Rotate(Rope),
    /// One value seen by every query head; nothing is copied.
    Expand,
    /// Views of one value as several; backward concatenates their gradients.
    Split,
    /// One value in another shape; backward hands the gradient on.
    View,
    /// A view of a part of one value; backward makes zeros of the whole and copies the part in.
    Slice,
    /// Products of B·N pairs of matrices, scores or what they weigh; keeps both. The first has `rows`, the second `columns`.
    Bmm {
        /// Rows of the first.
        rows: u64,
        /// Columns of the second.
        columns: u64,
        /// What is summed over.
        inner: u64,
    },
    /// Softmax over the last axis; keeps its result.
    Softmax {
        /// Rows normalised.
        rows: u64,
    },
    /// Zeroes a random part in training; keeps a mask of a byte for each element.
    Dropout,
    /// A bias of scores in the model's type, made for one call from a mask of booleans that all blocks share; no inputs.
    MaskBias,
    /// Fused attention over q, k, v; with a bias as a fourth input ([`OpKind::MaskBias`]) the memory-efficient kernel.
    Attention {
        /// Sliding window, in keys.
        window: Option<u64>,
        /// Whether a bias is added to the scores: a tensor of N·S·S numbers that all blocks share (ALiBi).
        bias: bool,
    },
    /// Convolution, scan, gated norm and output projection of a Mamba-2; parameters: the convolution's, dt's bias, A, D, the norm's
    /// and the projection's. Keeps its input, the scan's result, and what the norm divided by.
    Mamba2(Mamba2),
    /// Convolution, decays, delta rule by chunks and gated norm of a gated DeltaNet, between its projections; parameters: the convolution's,
    /// A, dt's bias and the norm's. Its further results are what Python names until the last projection has run.
    GatedDelta(GatedDelta),
    /// Tokens packed without padding ([`crate::model::unpad`]).
    Unpad {
        /// Whether it is the first of its attention, for which the mask is made.
        first: bool,
    },
    /// Packed tokens put back where they were.
    Pad,
    /// Rows of a table; parameter: the table.
    Embedding,
    /// Negative log-likelihood over the vocabulary.
    CrossEntropy {
        /// Whether logits are cast to fp32 first.
        upcast: bool,
        /// Whether labels are shifted by one, for which they are padded.
        shifts: bool,
    },
    /// Negative log-likelihood over the vocabulary in one kernel each way, in the logits' own type.
    FlashCrossEntropy,
    /// Negative log-likelihood over the vocabulary, computed in fp32, as `torch.compile` generates it.
    CompiledCrossEntropy {
        /// Whether the loss is the mean over targets, or their sum.
        mean: bool,
    },
    /// Head and log-probabilities of the labels, over parts of the vocabulary; parameter: the head's weight.
    VocabularyLogProbs {
        /// Words of a part.
        words: u64,
    },
    /// A step of head and loss by parts, gradients made at once; [`ChunkedLoss::Parts`] has the head's weight.
    ChunkedLoss(ChunkedLoss),
    /// Log-probabilities of sequences, or a loss over pairs of them.
    Preference(PreferenceOp),
    /// Head and loss in one, gradients made in forward; parameter: the head's weight.
    FusedLinearCrossEntropy,
    /// Negative log-likelihood over logits that are split on the vocabulary, in fp32 (DTensor's `loss_parallel`).
    ParallelCrossEntropy,
    /// An exchange between the ranks of a tensor-parallel group.
    Redistribute(Redistribution),
    /// A part of a mixture of experts.
    Experts(ExpertOp),
    /// An operator of Megatron-Core's own.
    Megatron(MegatronOp),
    /// An operator of InternLM's own.
    InternLm(InternLmOp),
    /// An operator of nanotron's own.
    Nanotron(NanotronOp),
}

/// A step of torchtitan's loss by parts; each reads first the hidden state, or what is left of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkedLoss {
    /// The buffer of the hidden state's gradient.
    Buffer,
    /// All parts; makes the last one's logits and its gradient of the hidden state.
    Parts {
        /// Parts of the sequence.
        chunks: u32,
        /// Whether cross-entropy is compiled.
        compiled: bool,
    },
    /// That gradient into the buffer.
    Last,
    /// The buffer in the hidden state's type; makes the loss.
    Whole,
}

/// Rotary embedding in eager operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Rope {
    /// `view_as_complex(x.float()) · freqs_cis`, and back (torchtitan).
    #[default]
    Complex,
    /// The same with rows that every block gathers from a table of its own by the positions of its tokens (torchtitan 0.3.0).
    ComplexByPosition,
    /// `x·cos + rotate_half(x)·sin` in the model's own type (Hugging Face transformers).
    RotateHalf,
    /// Even and odd elements in fp32, rotated on their own and stacked; the table's rows are gathered for every call and
    /// kept (torchtune, with `input_pos`).
    Stacked,
}

impl OpKind {
    /// Conversion to the output's type.
    pub const CAST: OpKind = OpKind::Simple(&pointwise::CAST);
    /// A copy with rows next to each other, of a part that has them apart.
    pub const CONTIGUOUS: OpKind = OpKind::Simple(&moves::CONTIGUOUS);
    /// Key-value heads copied to each of their query heads.
    pub const REPEAT_KV: OpKind = OpKind::Simple(&moves::REPEAT_KV);
    /// Product of two values.
    pub const MUL: OpKind = OpKind::Simple(&pointwise::MUL);
    /// Sum of two values, of which the second may lack the batch axis; or of one and what needs no gradient.
    pub const ADD: OpKind = OpKind::Simple(&pointwise::ADD);
    /// Product with, or quotient by, a number.
    pub const SCALE: OpKind = OpKind::Simple(&pointwise::SCALE);
    /// Hyperbolic tangent.
    pub const TANH: OpKind = OpKind::Simple(&pointwise::TANH);
    /// [`pointwise::SIGMOID`].
    pub const SIGMOID: OpKind = OpKind::Simple(&pointwise::SIGMOID);
    /// Square, or a higher power.
    pub const SQUARE: OpKind = OpKind::Simple(&pointwise::SQUARE);
    /// Row indices 0 … S−1, made anew; no inputs.
    pub const POSITIONS: OpKind = OpKind::Simple(&moves::POSITIONS);
    /// Values joined on one axis.
    pub const CONCAT: OpKind = OpKind::Simple(&moves::CONCAT);

    /// Whether it multiplies by a weight that is a parameter of its module, or was cast from one.
    pub fn is_linear(self) -> bool {
        matches!(self, OpKind::Linear { .. })
    }

    /// Rows that it normalises by a kernel of its own, if it is a norm.
    pub fn normed_rows(self) -> Option<u64> {
        if let OpKind::RmsNorm { rows } | OpKind::LayerNorm { rows } = self { Some(rows) } else { None }
    }

    /// Whether it is a module of its own, though it has no parameters: an activation.
    pub fn is_activation(self) -> bool {
        matches!(self, OpKind::Simple(simple) if simple.module)
    }

    /// Whether it is attention in one kernel.
    pub fn is_attention(self) -> bool {
        matches!(self, OpKind::Attention { .. })
    }
}
