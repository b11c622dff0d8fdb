//! What a Mamba-2 mixer of Megatron-Core's does between its two linears (`core/ssm/mamba_mixer.py`, `mamba_context_parallel.py`, 0.16.1).

use crate::model::layer::Mamba2;

/// One of its operators. Sizes are those of the rank's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MambaOp {
    /// Sequences before tokens, which are copied for it where there are several.
    SequencesFirst,
    /// Tokens before sequences.
    TokensFirst,
    /// Ranks that share a sequence exchange tokens for heads: the projection's five parts one after the other.
    ToHeads {
        /// Sizes of the tensor-parallel rank's heads.
        mamba: Mamba2,
        /// Ranks.
        ranks: u64,
    },
    /// And back, of the scan's result.
    ToTokens,
    /// Convolution and scan, whose result is multiplied by the gate. Parameters: the convolution's, dt's bias, A and D.
    Scan(Mamba2),
    /// The norm of each group.
    Norm {
        /// Groups.
        groups: u64,
    },
}
