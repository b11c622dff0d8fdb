//! What a part of a step goes to.

/// What a part of the step goes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The model's own FLOPs, forward and backward, at the chip's peak.
    Peak,
    /// What else is multiplied, at the peak: places and masks of experts, look-ups by matmul.
    Beyond,
    /// The same work on several chips.
    Repeated,
    /// What matmuls take beyond that.
    Matmuls,
    /// What attention takes beyond that.
    Attention,
    /// Kernels that memory bounds.
    Memory,
    /// Forward that runs again.
    Recompute,
    /// The optimizer's step, and clipping.
    Optimizer,
    /// Exchanges of a group that nothing hides, and the link that they cross.
    Exchange {
        /// Axes of the mesh.
        group: String,
        /// The link.
        link: String,
    },
    /// Copies to and from the host, and casts around exchanges, that nothing hides.
    Copies,
    /// The host came late.
    Host,
    /// Stages that wait for others.
    Bubble,
}
