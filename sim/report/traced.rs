//! What a trace says, before it is held against a prediction: what it is, its steps, where their time went, its largest kernels.
//!
//! [`summary`] counts, [`text`] writes it for a person; as JSON, the summary is written as it is.

mod kernels;
mod summary;
mod text;

pub use summary::{Choice, NoStep, Summary};
