//! What the compiler gives up where a step needs more than 95 % of a chip's memory by its own estimate
//! (`xla_jf_rematerialization_percent_shared_memory_limit` of libtpu 0.0.42.1): what it can have again for its next use is dropped
//! at the instruction that needs too much, the largest first (openxla/xla,
//! `xla/hlo/transforms/simplifiers/hlo_rematerialization.cc`), in what lies around loops before loops themselves.
//!
//! Around the loss those are the gathered head and the last norm's result; where the loss is left for when the loop back is over,
//! logits. What goes in blocks was read off steps of v6e that are near the limit or beyond it (`tests/oracles/xla_steps.json`):
//! weights gathered for two uses; where that is not enough, the sum behind attention's projection, and values: each the result of
//! one matmul of what is there anyway.

use super::tape::KEPT;
use crate::plan::xla::flags::Overlap;
use crate::plan::xla::{Logarithms, Targets, XlaPlan};
use crate::program::{Instr, Program};
use crate::units::Bytes;

/// The share of a chip's memory beyond which something is given up, in thousandths. The compiler's limit is 95 %, of an estimate that it
/// makes before buffers have their places. Of the peak as it is predicted here that is more: a step that needs 95.4 % keeps its logits
/// (8 blocks of Llama 3.1 8B on 2 × 4 chips, ten sequences of 4,096), and of those that need more than 98 % all give something up.
const LIMIT: u64 = 965;

/// What is given up so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) blocks: Blocks,
    /// The head is gathered for each of its uses.
    pub(super) head: bool,
    /// The last norm is computed again for the head's gradient.
    pub(super) normed: bool,
    /// Logits are computed again for a loss that waits for the loop back.
    pub(super) logits: bool,
}

/// What is given up in the loops over blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blocks {
    /// Nothing.
    #[default]
    Ample,
    /// Weights are gathered for each use.
    Scarce,
    /// Results of matmuls, too.
    Short,
}

impl Room {
    /// What the compiler gives up next for a step that needs `held`; none where there is enough, or nothing left to give up.
    /// On GPUs nothing is given up: the measured recipes switch that pass off (`xla_disable_hlo_passes=rematerialization`).
    pub(super) fn tighter(self, held: Held, job: &XlaPlan) -> Option<Room> {
        if job.gpu().is_some() {
            return None;
        }
        let limit = Bytes(job.hbm.0 / 1000 * LIMIT);
        if held.loss > limit && job.vocab_tiling < 2 {
            let normed = job.in_memory(false) && !self.normed;
            let larger =
                job.stream() * job.own_tokens() > job.model.width * job.model.vocab / u64::from(job.mesh.tensor);
            match (!self.head && job.mesh.shards() > 1, normed) {
                (true, normed) if !(normed && larger) => return Some(Room { head: true, ..self }),
                (_, true) => return Some(Room { normed: true, ..self }),
                _ => {}
            }
        }
        let kept = match job.targets {
            Targets::OneHot => job.late_loss() && !job.loss_writes_gradient(),
            Targets::LogSoftmax => job.logarithms() == Logarithms::Apart,
            Targets::Indexed => false,
        };
        let blocks = match self.blocks {
            _ if held.blocks <= limit => return None,
            _ if kept && !self.logits => {
                return Some(Room { logits: true, ..self });
            }
            Blocks::Ample => Blocks::Scarce,
            Blocks::Scarce => Blocks::Short,
            Blocks::Short => return None,
        };
        Some(Room { blocks, ..self })
    }

    /// What may be held besides at the peak, where the compiler's order is not known (`tests/oracles/xla-edge.json`).
    ///
    /// The last turn of a loop that copies from the host is written out behind it. Logits that the loss asks for behind the loop are
    /// made again somewhere in that turn. What is kept in HBM the turn finds in a copy, whole; not in all steps. Where chips share
    /// words and exchange in windows, the gradient of logits may lie beside them.
    pub(super) fn unsettled(self, held: Held, job: &XlaPlan) -> Bytes {
        // In bf16.
        let logits = Bytes(2 * job.own_tokens() * (job.model.vocab / u64::from(job.mesh.tensor)));
        let (scatter, gather) = (job.flags.scatter, job.flags.gather_backward);
        let turn = job.remat.offloads() && scatter != Overlap::Asynchronous;
        let again = if turn && self.logits { logits } else { Bytes(0) };
        let shared = job.mesh.tensor > 1 || job.mesh.context > 1;
        let copied = if turn && gather != Overlap::Asynchronous && !shared { held.kept } else { Bytes(0) };
        let one_hot = job.targets == Targets::OneHot && job.vocab_tiling < 2;
        let beside = if one_hot && job.shares_words_in_windows() { logits } else { Bytes(0) };
        let most = (held.blocks + again + copied).max(held.loss + beside);
        most.saturating_sub(held.blocks.max(held.loss))
    }

    /// What a reader of the plan should know of it.
    pub(super) fn doubts(self) -> impl Iterator<Item = &'static str> {
        let blocks = match self.blocks {
            Blocks::Ample => None,
            Blocks::Scarce => Some("short of memory the compiler gathers weights again for every use"),
            Blocks::Short => Some("short of memory the compiler gathers and computes again what lives too long"),
        };
        let around = [
            (self.head, "short of memory the compiler gathers the head for each of its uses"),
            (self.normed, "short of memory the compiler computes the last norm again for the head's gradient"),
            (self.logits, "short of memory the compiler computes logits again for the loss"),
        ];
        blocks.into_iter().chain(around.into_iter().filter(|(given_up, _)| *given_up).map(|(_, what)| what))
    }
}

/// The most that a program holds at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Around the loss.
    loss: Bytes,
    /// Elsewhere.
    blocks: Bytes,
    /// What forward keeps for backward.
    kept: Bytes,
}

impl Held {
    /// The same with something besides that is held all the time.
    pub(super) fn beside(self, more: Bytes) -> Held {
        Held { loss: self.loss + more, blocks: self.blocks + more, ..self }
    }
}

/// The most that a program holds at once. The region named `loss` is the loss until another follows; what comes back to it after
/// the loop back counts as that.
pub(super) fn held(program: &Program, loss: &str) -> Held {
    let (mut live, mut kept, mut most) = (0_u64, 0_u64, Held::default());
    let (mut began, mut over) = (false, false);
    for instr in program.before_second().chain(&program.step) {
        match *instr {
            Instr::Alloc { buffer } => {
                let buffer = program.buffer(buffer);
                live += buffer.bytes.0;
                if buffer.name == KEPT {
                    kept += buffer.bytes.0;
                    most.kept = Bytes(kept).max(most.kept);
                }
                let here = program.scope(buffer.scope) == loss;
                began |= here;
                over |= began && !here;
                let most = if here && !over { &mut most.loss } else { &mut most.blocks };
                *most = Bytes(live).max(*most);
            }
            Instr::Free { buffer } => {
                let buffer = program.buffer(buffer);
                live -= buffer.bytes.0;
                kept -= if buffer.name == KEPT { buffer.bytes.0 } else { 0 };
            }
            _ => {}
        }
    }
    most
}
