//! What interrupts training jobs, and how often: published studies (`failures/*.toml`), a source on every number.
//!
//! A study counted interruptions of jobs on so many chips for so many days, or gives rates of parts. Either way a component has a rate
//! for each chip, so that a larger job is interrupted more often. What people plan has a rate for each job, whatever its size.
//!
//! To add a study: a TOML file in `failures/` and a line in `failures/registry.rs`.

mod error;
mod rates;
mod read;
mod registry;

pub use error::FailuresError;
pub use rates::{Component, Rate, Rates};
pub use registry::{Listed, registry};
