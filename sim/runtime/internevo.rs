//! InternEvo v0.1.0: InternLM's training framework of July 2023, with tensor parallelism as Megatron's and ZeRO-1 by whole
//! parameters (InternLM/InternEvo@e1cefaef: `internlm/solver/optimizer/hybrid_zero_optim.py`, `train.py`).
//!
//! ```text
//! InternEvoPlan ─► Chunk of InternLM's modules: forward and backward      Zero: buckets of gradients ─► owners ─► broadcasts
//! ```
//!
//! Every parameter belongs to one rank of a group, which may be a part of the replicas. Gradients are all-reduced over all
//! replicas, in buckets: before each the host drains the device. The owner steps what is its own and broadcasts it.
//! Nothing of that is beside the next forward.

mod blocks;
mod owners;
mod step;
mod zero;

pub use crate::plan::internevo::InternEvoPlan;
pub use blocks::MODULES;
pub use owners::Owners;

use super::{Flight, Framework, megatron};
use crate::model::{Activation, Gating, Norm, Position};
use crate::program::Budget;
use crate::runtime::{self, Refusal};

impl Framework for InternEvoPlan {
    fn refuses(&self) -> Option<Refusal> {
        let model = &self.split.model;
        let cases = [
            (
                model.norms().kind != Norm::Rms,
                Refusal::new("internevo-norm", "norms other than RMSNorm under InternEvo"),
            ),
            (
                model.gating() != Gating::Gated(Activation::Silu),
                Refusal::new("internevo-feed-forward", "a feed-forward other than SwiGLU under InternEvo"),
            ),
            (
                !matches!(model.position, Position::Rope { .. }),
                Refusal::new("internevo-positions", "positions other than rotary ones under InternEvo"),
            ),
            (
                model.heads() != model.kv_heads(),
                Refusal::new("internevo-shared-kv-heads", "shared key-value heads under InternEvo"),
            ),
            (
                model.dense().is_some_and(|dense| dense.bias),
                Refusal::new("internevo-ffn-biases", "biases in the feed-forward under InternEvo"),
            ),
            (model.tied_head, Refusal::new("internevo-tied-head", "a tied head under InternEvo")),
            (model.has_sinks(), Refusal::new("internevo-sinks", "attention sinks")),
        ];
        Refusal::first(cases).or_else(|| megatron::Chunk::refuses(&self.split))
    }

    fn modules(&self) -> runtime::Modules {
        runtime::Modules::of("InternLM's own")
    }

    fn recompute_flag(&self) -> Option<&'static str> {
        Some("internevo.checkpoint")
    }

    /// The program of all ranks, which is that of the rank that owns most: the others wait for what it broadcasts.
    fn compile(&self, budget: &Budget) -> Flight {
        Flight::alike(step::program(self, budget))
    }
}
