//! `[dpo]` as written.

use serde::Deserialize;
use toml::Spanned;

/// Whose trainer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum PreferenceCode {
    /// TRL's `DPOTrainer`.
    Trl,
    /// torchtune's recipes.
    Torchtune,
}

/// Where the reference's log-probabilities come from.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// A second model.
    Model,
    /// The policy without its adapters.
    AdaptersOff,
    /// The data.
    Precomputed,
}

/// `[dpo]`: direct preference optimization, over pairs of sequences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dpo {
    /// The reference.
    pub reference: Option<Spanned<Reference>>,
    /// Whose trainer computes log-probabilities and loss.
    pub implementation: Option<Spanned<PreferenceCode>>,
}
