//! Logs of training runs, read for what they say of steps: times, rates, memory, MFU.
//!
//! A format is a list of words that stand before figures, in `log/formats.toml`. A log is of the format that most of its lines fit.

mod formats;
mod read;
mod steady;

pub use read::{LogError, Run, names, read};
pub use steady::Steady;
