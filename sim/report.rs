//! What a prediction looks like from outside, one file per format: for a person ([`text`]), for a program ([`json`]),
//! as a timeline for Perfetto and chrome://tracing ([`trace`]), as a page for a browser ([`html`]). To add a format: a file here, and its line below.

mod format;
pub mod html;
pub mod json;
pub mod layout;
pub mod page;
pub mod pipeline;
pub mod profile;
pub mod questions;
mod start_up;
pub mod text;
pub mod trace;
pub mod traced;
mod training;
mod verdict;

pub use layout::Report;
pub use trace::{Ran, Trace};
pub(crate) use verdict::lacks;
