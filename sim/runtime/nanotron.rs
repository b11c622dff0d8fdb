//! nanotron (huggingface/nanotron@c2528430, March 2025): Megatron's split of the model, with a step of its own.
//!
//! ```text
//! NanotronPlan ─► for each pipeline rank: Rank ─► Program
//!              │  Chunk of nanotron's modules: forward and backward of one micro-batch
//!              │  messages one after the other, each announced by two others
//!              └─ Update: gradients in fp32 reduced, clipped, stepped; parameters gathered slice by slice
//! ```
//!
//! Gradients are added to a buffer in fp32 after each backward. Without ZeRO, DDP's buckets are reduced beside the last
//! backward, in fp32; with it, the whole buffer is all-reduced at once when all is done.

mod blocks;
mod buckets;
mod messages;
mod placement;
mod step;
mod update;

pub use crate::plan::nanotron::NanotronPlan;
pub use blocks::modules;
pub use placement::placement;

use super::{Flight, Framework, megatron};
use crate::model::{Activation, Gating, Norm, Position};
use crate::program::Budget;
use crate::runtime::{self, Refusal};

impl Framework for NanotronPlan {
    /// Linears whose communication is asynchronous refuse to run without (`src/nanotron/parallel/utils.py`,
    /// `assert_cuda_max_connections_set_to_1`).
    fn asks_for_one_queue(&self) -> bool {
        true
    }

    fn refuses(&self) -> Option<Refusal> {
        let model = &self.split.model;
        let cases = [
            (model.norms().kind != Norm::Rms, Refusal::new("nanotron-norm", "norms other than RMSNorm under nanotron")),
            (
                model.gating() != Gating::Gated(Activation::Silu),
                Refusal::new("nanotron-feed-forward", "a feed-forward other than SwiGLU under nanotron"),
            ),
            (
                !matches!(model.position, Position::Rope { .. }),
                Refusal::new("nanotron-positions", "positions other than rotary ones under nanotron"),
            ),
            (model.has_biases(), Refusal::new("nanotron-biases", "biases under nanotron")),
            (model.has_sinks(), Refusal::new("nanotron-sinks", "attention sinks")),
        ];
        Refusal::first(cases).or_else(|| megatron::Chunk::refuses(&self.split))
    }

    fn modules(&self) -> runtime::Modules {
        runtime::Modules::of("nanotron's own")
    }

    fn recompute_flag(&self) -> Option<&'static str> {
        Some("nanotron.recompute_layer")
    }

    /// The programs of all pipeline ranks.
    fn compile(&self, budget: &Budget) -> Flight {
        Flight::in_turn((0..self.split.mesh.pp).map(|rank| step::program((self, budget), rank)).collect())
    }
}
