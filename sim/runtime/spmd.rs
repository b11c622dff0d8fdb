//! ZeRO-3-shaped sharding on TPU XLA: a mesh with named axes and a spec for every tensor, given to the compiler.
//!
//! ```text
//! Job ─► Block: forward operators ─► Remat: what is kept, what runs again ─► Tape: the compiled step ─► Program
//! ```
//!
//! Nothing is wrapped and nothing hooks in: the compiler places collectives, fuses, orders and gives every buffer its
//! address once. A program of this lane is that schedule: its instructions cost the host nothing, memory is what is live at
//! once, and a collective begins where the schedule has it.
//!
//! The model is written as MaxText writes it (AI-Hypercomputer/maxtext@e591f30cb: `models/llama2.py`, `layers/decoders.py`,
//! `configs/base.yml`): parameters and AdamW's moments in fp32, sharded by the logical rules; one scan over blocks; bf16
//! compute. What the compiler makes of such a step was read off compiled ones (`tests/oracles/xla_steps.json`).

mod block;
mod emit;
mod flags;
mod mesh;
mod remat;
mod step;
mod tape;
mod windows;

pub use block::{Block, Kind, Named, Op, Tensor, Weight};
pub use flags::Flags;
pub use mesh::Mesh;
pub use remat::{Keep, Policy, TENSORS};
pub use windows::Windows;

use serde::Deserialize;

use super::{Flight, Framework, Modules, Parts};
use crate::model::experts::{Experts, Score};
use crate::model::{Activation, FeedForward, ModelConfig, Norm, NormPlacement, Position};

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// The splash kernel; gradients of queries, keys and values in one kernel, or in two.
    Splash {
        /// `sa_use_fused_bwd_kernel`.
        fused_backward: bool,
    },
    /// Matmuls around a softmax (`attention: dot_product`).
    DotProduct,
}

/// How the loss finds the logit of the right word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Targets {
    /// By a product with one-hot rows (MaxText's `cross_entropy_with_logits`): everything is elementwise or a sum, and the
    /// compiler keeps no logits but those that the matmul makes, in bf16, and their gradient beside them.
    OneHot,
    /// By index (`take_along_axis`): what is indexed is an array in fp32 of its own.
    Indexed,
}

/// A training job, fully decided.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model.
    pub model: ModelConfig,
    /// Sequences of a step on each chip (`per_device_batch_size`); fewer than one where chips share a sequence.
    pub batch: u64,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Axes.
    pub mesh: Mesh,
    /// What of forward is kept for backward, and where.
    pub remat: Policy,
    /// Whether blocks run in one loop (`scan_layers`), or are written out one after the other.
    pub scan: bool,
    /// Attention.
    pub attention: Attention,
    /// What the compiler's flags let it do.
    pub flags: Flags,
    /// Which matmuls exchange in windows, where the flags allow it.
    pub windows: Windows,
    /// How the loss finds the logit of the right word.
    pub targets: Targets,
    /// Parts that the loss is computed in (`num_vocab_tiling`).
    pub vocab_tiling: u64,
    /// Embedding by a matmul with one-hot rows (`use_iota_embed`).
    pub iota_embed: bool,
    /// Places of experts over tokens sent (`capacity_factor`); none where the model has no experts.
    pub capacity_factor: Option<f64>,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Device-to-host reads that the loop waits for in a step (`.item()`, a logged metric).
    pub host_syncs: u32,
}

impl Job {
    /// Tokens on each chip in a step.
    pub fn own_tokens(&self) -> u64 {
        self.batch * self.seq
    }

    /// Places of all experts for a sequence: as many for each (`moe.py`, `generate_masks`).
    pub fn places(&self, experts: &Experts) -> u64 {
        let sent = (self.seq * experts.top_k) as f64 * self.capacity_factor.unwrap_or(1.0);
        (sent / experts.count as f64).floor().max(1.0) as u64 * experts.count
    }

    /// Tokens of one step of the whole job: chips of the tensor axis share theirs.
    pub fn tokens(&self) -> u64 {
        self.own_tokens() * u64::from(self.mesh.data_ranks())
    }
}

impl Framework for Job {
    fn parts(&self) -> Parts<'_> {
        Parts::Compiled(self)
    }

    fn refuses(&self) -> Option<&'static str> {
        let model = &self.model;
        let cases = [
            (model.latent.is_some(), "latent attention on XLA"),
            (
                model.experts.is_some() && self.capacity_factor.is_none(),
                "experts without a capacity_factor, whose rows are sorted, on XLA",
            ),
            (
                model.experts.as_ref().is_some_and(|experts| experts.shared > 0 || experts.dense_first > 0),
                "shared experts, or dense blocks beside those with experts, on XLA",
            ),
            (
                model.experts.as_ref().is_some_and(|experts| experts.router.score != Score::Softmax),
                "a router that is not a softmax, on XLA",
            ),
            (model.sinks, "attention sinks"),
            (model.norm != Norm::Rms, "norms other than RMSNorm on XLA"),
            (
                !matches!(model.norm_placement, NormPlacement::Pre | NormPlacement::PreAndPost),
                "norms placed otherwise than before or around each half of a block, on XLA",
            ),
            (!matches!(model.position, Position::Rope { .. }), "positions other than rotary ones on XLA"),
            (
                !matches!(model.feed_forward, FeedForward::Gated(Activation::Silu | Activation::GeluTanh)),
                "a feed-forward other than a gated one on XLA",
            ),
            (model.qkv_bias || model.output_bias || model.ffn_bias, "biases on XLA"),
        ];
        cases.into_iter().find(|(applies, _)| *applies).map(|(_, what)| what)
    }

    fn modules(&self) -> Modules {
        let attention = match self.attention {
            Attention::Splash { .. } => "splash attention kernels",
            Attention::DotProduct => "attention in matmuls around a softmax",
        };
        Modules { attention: Some(attention), ..Modules::of("XLA's compiled") }
    }

    fn compile(&self) -> Flight {
        Flight::alike(step::program(self))
    }
}
