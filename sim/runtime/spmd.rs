//! ZeRO-3-shaped sharding on XLA, for TPUs and for GPUs: a mesh with named axes and a spec for every tensor, given to the compiler.
//!
//! ```text
//! XlaPlan ─► Block: forward operators ─► Remat: what is kept, what runs again ─► Tape: the compiled step ─► Program
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
mod gpu;
mod remat;
mod room;
mod simulated;
mod step;
mod tape;

pub use crate::plan::xla::flags::{Named as NamedFlags, Overlap};
pub use crate::plan::xla::vmem;
pub use crate::plan::xla::{
    Attention, Backend, Flags, GpuFlags, Keep, Mesh, Pipeline, Policy, Quantization, Run, Spread, TENSORS, Targets,
    Windows, XlaPlan, compiled_in,
};
pub use block::{Block, Kind, Named, Op, ROUTER, Tensor, Weight};

use super::{Flight, Framework, Modules, Refusal};
use crate::model::routing::Load;
use crate::model::{Activation, Gating, NormPlacement, Position};
use crate::program::{Budget, Program};
use crate::units::Bytes;
use room::{Held, Room, held};

/// Micro-batches beyond which nothing more is held, but for the inputs of further ones.
const ALL_ALIKE: u32 = 2;

/// What was given up, what the step then holds, and a few micro-batches of it.
struct Settled {
    room: Room,
    held: Held,
    program: Program,
}

impl XlaPlan {
    /// What every chip runs. Each writing of the step counts, as each takes its time.
    fn program(&self, budget: &Budget) -> Program {
        let Settled { room, held, program } = self.settled(budget);
        let program = if self.accumulation > ALL_ALIKE { step::program((self, budget), room) } else { program };
        Program { unsettled: room.unsettled(held, self), ..program }
    }

    /// What is given up for want of memory, found on a few micro-batches.
    fn settled(&self, budget: &Budget) -> Settled {
        let (few, inputs) = self.of_few();
        let mut room = Room::default();
        loop {
            let program = step::program((&few, budget), room);
            let held = held(&program, step::HEAD).beside(inputs);
            match room.tighter(held, self) {
                Some(tighter) => room = tighter,
                None => return Settled { room, held, program },
            }
        }
    }

    /// The same step of a few micro-batches, and what inputs of the others take, whose memory together is that of the whole step.
    pub(crate) fn of_few(&self) -> (XlaPlan, Bytes) {
        let few = XlaPlan { accumulation: self.accumulation.min(ALL_ALIKE), ..self.clone() };
        let inputs = self.inputs().saturating_sub(few.inputs());
        (few, inputs)
    }

    /// Words and targets that a step is called with \[B\].
    fn inputs(&self) -> Bytes {
        let batches = if self.multi_steps { 1 } else { u64::from(self.accumulation) };
        Bytes(2 * 4 * self.own_tokens() * batches)
    }
}

impl Framework for XlaPlan {
    fn refuses(&self) -> Option<Refusal> {
        let model = &self.model;
        let cases = [
            (
                model.experts().is_some_and(|experts| experts.load != Load::Balanced),
                Refusal::new("xla-expert-load", "experts that get different numbers of tokens, on XLA")
                    .on("model.expert_load"),
            ),
            (
                model.experts().is_some_and(|experts| experts.latent.is_some()),
                Refusal::new("xla-latent-experts", "experts that see a narrower copy of the hidden state, on XLA"),
            ),
            (
                model.latent().is_some() && self.mesh.context > 1,
                Refusal::new("xla-latent-context-parallel", "latent attention of shared sequences, on XLA")
                    .on("mesh.context"),
            ),
            (
                matches!(model.norms().placement, NormPlacement::Post | NormPlacement::Parallel),
                Refusal::new(
                    "xla-norm-placement",
                    "norms placed otherwise than before or around each half of a block, or before both, on XLA",
                ),
            ),
            (
                !matches!(model.position, Position::Rope { .. } | Position::Learned { .. }),
                Refusal::new("xla-positions", "positions other than rotary and learned ones on XLA"),
            ),
            (
                matches!(model.gating(), Gating::Plain(Activation::ReluSquared)),
                Refusal::new("xla-squared-relu", "a feed-forward with a squared ReLU on XLA"),
            ),
        ];
        Refusal::first(cases).or_else(|| gpu::refuses(self))
    }

    fn modules(&self) -> Modules {
        let attention = match self.attention {
            Attention::Splash { .. } => "splash attention kernels",
            Attention::DotProduct => "attention in matmuls around a softmax",
            Attention::Cudnn { .. } => "cuDNN's attention kernels",
        };
        let room = self.settled(&Budget::unlimited()).room;
        let mut doubts: Vec<&str> = room.doubts().chain(self.gpu().into_iter().flat_map(gpu::doubts)).collect();
        if self.late_loss() && !room.logits {
            doubts.push("logits are taken to be kept until blocks' backward is over, as in compiled steps with so many blocks or words");
        }
        if self.merges_blocks() {
            doubts.push(
                "blocks that are written out keep all that the policy would compute again: the compiler merges both",
            );
        }
        if self.mesh.dcn_data > 1 {
            doubts.push("over several slices the compiler may keep gradients whole until blocks' backward is over, which needs more");
        }
        Modules { attention: Some(attention), doubts, ..Modules::of("XLA's compiled") }
    }

    fn compile(&self, budget: &Budget) -> Flight {
        Flight::alike(self.program(budget))
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL_ALIKE, held, step};
    use crate::program::Budget;
    use crate::runtime::Plan;
    use crate::scenario::Scenario;

    #[test]
    fn further_micro_batches_hold_nothing_but_their_inputs() {
        for more in ["", "remat_policy = \"minimal\"", "optax_multi_steps = true", "num_vocab_tiling = 4"] {
            let text = format!(
                "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"2x4\"\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\n\
                 [batch]\nsequence = 8192\naccumulation = 9\n[xla]\n{more}\n"
            );
            let scenario = Scenario::parse("nine.toml", &text).unwrap_or_else(|error| panic!("{error}"));
            let Plan::Xla(job) = &scenario.job else { panic!("a step of XLA") };
            let (few, inputs) = job.of_few();
            assert_eq!(few.accumulation, ALL_ALIKE);
            let room = job.settled(&Budget::unlimited()).room;
            let held = |job| held(&step::program((job, &Budget::unlimited()), room), step::HEAD);
            assert_eq!(held(&few).beside(inputs), held(job), "{more}");
        }
    }
}
