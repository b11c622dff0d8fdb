//! Which part of the model an instruction belongs to.
//!
//! An operator of the model knows its part ([`Op::owner`](crate::model::graph::Op)). What it launches and takes carries the part beside
//! the scope, in one number ([`ScopeId`](super::ScopeId)), so that sums by part cost no look-up. To add a part: a variant here, and
//! who says so where operators are written down (`GraphBuilder::belong`).

use strum::VariantArray;

/// A part of the model, or what the model does not say a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
#[repr(u8)]
pub enum Owner {
    /// No part: what runs between modules.
    #[default]
    Rest,
    /// The embedding, with positions and its norm.
    Embedding,
    /// Attention of heads, with its norms and its residual sum, as all that follow.
    Attention,
    /// Latent attention.
    Latent,
    /// Mamba-2.
    Mamba2,
    /// Gated DeltaNet.
    GatedDelta,
    /// A feed-forward that all tokens pass.
    Dense,
    /// Experts, with their router and shared experts.
    Experts,
    /// The final norm, the head and the loss.
    Head,
    /// The optimizer and gradient clipping.
    Optimizer,
}

impl Owner {
    /// All parts, in declaration order.
    pub const ALL: &[Owner] = Owner::VARIANTS;

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in reports.
    pub fn label(self) -> &'static str {
        match self {
            Owner::Rest => "between modules",
            Owner::Embedding => "embedding",
            Owner::Attention => "attention",
            Owner::Latent => "latent attention",
            Owner::Mamba2 => "Mamba-2",
            Owner::GatedDelta => "gated DeltaNet",
            Owner::Dense => "feed-forward",
            Owner::Experts => "experts",
            Owner::Head => "head",
            Owner::Optimizer => "optimizer",
        }
    }
}
