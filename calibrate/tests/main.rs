//! What the calibrator claims: in one program, since to link one takes as long as to run it.

#![allow(clippy::unwrap_used, missing_docs)]

mod budget;
mod cuda;
mod help;
#[path = "../../tests/peak.rs"]
mod peak;
mod profiles;
mod seeds;
mod writers;
mod xla;
