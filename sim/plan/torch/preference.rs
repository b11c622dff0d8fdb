//! Where the log-probabilities of a reference model come from, in a loss over pairs of sequences.

/// The reference model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Reference {
    /// A second model, whose parameters are there beside the policy's. It runs forward without gradients.
    Model,
    /// The policy without its adapters, which runs forward once more without gradients.
    AdaptersOff,
    /// None: its log-probabilities came with the data.
    Precomputed,
}

impl Reference {
    /// Whether it runs in a step.
    pub fn runs(self) -> bool {
        self != Reference::Precomputed
    }
}
