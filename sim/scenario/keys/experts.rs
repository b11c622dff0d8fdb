//! `model.expert_load`.

use serde::Deserialize;

words! {
    /// How experts are run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    pub enum ExpertStyle {
        /// One expert after the other.
        Loop = "loop",
        /// All in one grouped matmul.
        Grouped = "grouped",
        /// As torchtitan writes a mixture.
        Torchtitan = "torchtitan",
        /// Experts choose tokens.
        ExpertChoice = "expert_choice",
    }
}

words! {
    /// How tokens spread over experts.
    #[derive(Clone, Debug, Deserialize)]
    pub enum ExpertLoad {
        /// Every expert gets as many as any other.
        Balanced = "balanced",
        /// The i-th expert's share falls with this power of i.
        PowerLaw(f64) = "power_law" of "X",
        /// As counted: one number for each expert.
        Measured(Vec<i64>) = "measured" of "[…]",
    }
}
