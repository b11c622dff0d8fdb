//! Preference optimization: losses over pairs of sequences, one chosen and one rejected, against a reference model.
//!
//! Direct preference optimization (DPO, arXiv 2305.18290, equation 7): `-log σ(β·((c − c_ref) − (r − r_ref)))`, where c and r are
//! the log-probabilities of the chosen and of the rejected sequence, each a sum over its tokens. A batch has all chosen sequences
//! first, then all rejected ones. Frameworks differ in how they compute a token's log-probability, which decides how much of the
//! logits' size is held: T tokens by V words.
//!
//! To add a framework's code: a variant of [`LogProbs`], and what it allocates in `runtime/eager/preference/`.

/// Whose code computes log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum LogProbs {
    /// `get_batch_log_probs` of torchtune (`torchtune/rlhf/sequence_processing.py`, 0.6.1): logits in fp32 are divided by a temperature,
    /// and log-softmax is kept for all tokens.
    Torchtune {
        /// Whether it is called once for the chosen half of the batch and once for the rejected (`full_dpo_distributed.py`), or once
        /// for both (`lora_dpo_distributed.py`).
        halves: bool,
    },
    /// `selective_log_softmax` of TRL (`trl/trainer/utils.py`, 1.13.0): one sequence after the other. In bf16 log-softmax is kept, in
    /// fp32 the logits.
    Trl,
}

impl LogProbs {
    /// Whether the model returns its logits in fp32 (`TransformerDecoder.unembed`).
    pub fn widens_logits(self) -> bool {
        matches!(self, LogProbs::Torchtune { .. })
    }

    /// Whether the policy's logits live until the loss has been computed.
    pub fn names_logits(self) -> bool {
        self == LogProbs::Trl
    }
}

/// An operator of such a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferenceOp {
    /// Log-probabilities of all sequences, from the logits.
    LogProbs(LogProbs),
    /// The loss, from log-probabilities, and what the trainer logs of the logits.
    Loss(LogProbs),
}

/// Sequences of a sample: one chosen, one rejected.
pub const SEQUENCES_OF_A_PAIR: u64 = 2;
