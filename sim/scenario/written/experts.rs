//! `model.expert_load`.

use serde::Deserialize;

/// How experts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertStyle {
    /// One expert after the other.
    Loop,
    /// All in one grouped matmul.
    Grouped,
    /// As torchtitan writes a mixture.
    Torchtitan,
    /// Experts choose tokens.
    ExpertChoice,
}

/// How tokens spread over experts.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertLoad {
    /// Every expert gets as many as any other.
    Balanced,
    /// The i-th expert's share falls with this power of i.
    PowerLaw(f64),
    /// As counted: one number for each expert.
    Measured(Vec<i64>),
}
