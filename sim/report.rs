//! What a prediction looks like from outside, one file per format.
//!
//! Today: [`trace`], a timeline for Perfetto and chrome://tracing. To add a format: a file here, and its line below.

pub mod trace;

pub use trace::Trace;
