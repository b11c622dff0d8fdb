//! Why ceilings cannot be put side by side as `--compare` asks.

use crate::hardware::HardwareError;
use crate::scenario::ScenarioError;

/// What is asked for, as `--compare` writes it.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// Nothing of this name can be varied.
    #[error("--compare cannot vary {along:?}{because}; write one of: {known}")]
    Along {
        /// As written.
        along: String,
        /// Why, where it is a thing that exists elsewhere.
        because: String,
        /// What can be varied.
        known: String,
    },
    /// Not a value of it.
    #[error(
        "--compare {along}: there is no {value:?}{hint}; write some of: {known}, separated by commas (numbers are free)"
    )]
    Value {
        /// What is varied.
        along: &'static str,
        /// As written.
        value: String,
        /// Which of them is near, in words.
        hint: String,
        /// What there is.
        known: String,
    },
    /// A machine that there is not, or whose file is broken.
    #[error(transparent)]
    Topology(#[from] Box<HardwareError>),
    /// The scenario itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}
