//! A scenario: which model, on which machine, trained how. One TOML file, everything in it.
//!
//! The file as *written* ([`written`]) knows only what the user typed; the scenario as *understood* ([`understood`]) has
//! every decision taken, every default named in [`Scenario::assumptions`], and has passed the shard-plan check
//! ([`gate`]). [`mod@predict`] flies it.

pub mod error;
pub mod gate;
mod limits;
mod machine;
mod plain;
pub mod predict;
mod recompute;
pub mod remedy;
mod sharding;
pub mod understood;
pub mod written;

pub use error::ScenarioError;
pub use predict::{Prediction, predict};
pub use understood::{Runtime, Scenario};
