//! Mixture of experts: a feed-forward of many small ones, of which a router picks a few for each token
//! (arXiv 2101.03961; Mixtral, arXiv 2401.04088; fine-grained with shared experts, arXiv 2401.06066).
//!
//! ```text
//! y = shared(x) + Σ over the chosen e of weight_e · expert_e(x)     weights, choices = router(x)
//! ```
//!
//! Parameters of a block's mixture, E experts of width X of which each token meets k, shared ones S wide together:
//! `3·D·X·E + D·E + 3·D·S` (gated, without biases); active are `3·D·X·k + D·E + 3·D·S`.

pub mod choice;
mod config;
pub(super) mod forward;
mod ops;
pub mod titan;

pub use config::{Experts, Implementation, Router, Score};
pub use ops::{ChoiceOp, ExpertOp, TitanOp};
