//! What this project claims about the world, held against things it did not write.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_input;
mod command;
mod folding;
mod make;
mod oracle;
mod tidy;
