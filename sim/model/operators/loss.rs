//! Losses, and heads that make their own: they come after the last block, where nothing is recomputed, and no compiler of
//! blocks sees them.

use super::row::{Autocast, Parameters, Row, Selective, Stop, Strides};

const LOSS: Row = Row {
    kernel: "aten._log_softmax",
    saves: &[],
    stop: Stop::After,
    unpacks: true,
    policy: None,
    selective: Selective::Never,
    autocast: Err("another loss than plain cross-entropy under torch.autocast"),
    strides: Strides::Together,
    parameters: Parameters::Own,
    compiles: Err("a loss in compiled blocks"),
};

/// Negative log-likelihood over the vocabulary, by PyTorch's operators.
pub(super) const CROSS_ENTROPY: Row = Row { autocast: Ok(Autocast::FP32), ..LOSS };
/// In one kernel each way.
pub(super) const FLASH_CROSS_ENTROPY: Row = Row { kernel: "xentropy_cuda_lib.forward", ..LOSS };
/// As `torch.compile` generates it.
pub(super) const COMPILED_CROSS_ENTROPY: Row = Row { kernel: "triton_softmax", ..LOSS };
/// Over logits that are split on the vocabulary.
pub(super) const PARALLEL_CROSS_ENTROPY: Row = LOSS;
/// With the head, in one.
pub(super) const FUSED_LINEAR_CROSS_ENTROPY: Row = LOSS;
/// With the head, over parts of the vocabulary.
pub(super) const VOCABULARY_LOG_PROBS: Row = Row { kernel: "head by vocabulary", ..LOSS };
/// With the head, over parts of the sequence.
pub(super) const CHUNKED_LOSS: Row = Row { kernel: "loss by parts", ..LOSS };
/// Over pairs of sequences.
pub(super) const PREFERENCE: Row = LOSS;
