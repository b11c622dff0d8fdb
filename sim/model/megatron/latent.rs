//! What latent attention does in Megatron-Core between its projections (`core/transformer/multi_latent_attention.py`,
//! `MLASelfAttention`, 0.16.1). Heads of U plain and R rotated dimensions, values of W.

/// One operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentOp {
    /// The rotated part of the keys, which all heads share: of all parts of the sequence where ranks hold parts. Its input
    /// is a view of rows that lie apart.
    GatherKey,
    /// Rotary embedding of what is rotated, even and odd dimensions put apart first (`rope_utils.py`).
    Rotate,
    /// Plain and rotated dimensions of each head side by side; the second may be one for all heads.
    Join,
    /// A head's part as a tensor of its own (`contiguous`).
    Copy,
    /// Both rotations in one kernel each (`--apply-rope-fusion`, `fusions/fused_mla_yarn_rope_apply.py`): queries in place.
    TurnQueries,
    /// Keys, rotated, and values. Inputs: their product, the rotated part of the keys. Outputs: keys, values.
    TurnKeys,
}
