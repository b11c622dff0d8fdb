//! What a checkpoint holds, and what saving and loading it takes.
//!
//! It holds what is kept of every parameter once, whatever copies ranks have, as PyTorch's and Megatron's distributed checkpoints do.
//! Storage takes all of it at the rate that the whole job gets. Before that each rank copies what it keeps to its host's memory, all of
//! them at once; with `asynchronous` training goes on from there.

use super::job::Save;
use crate::program::{BufferId, Category, Instr, Program, Rename};
use crate::scenario::{Interruptions, Prediction, Scenario};
use crate::units::Bytes;

/// A checkpoint of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    /// All of it.
    pub bytes: Bytes,
    /// What the rank that keeps most copies to its host's memory.
    pub of_rank: Bytes,
    /// What saving takes.
    pub save: Save,
    /// What loading takes \[s\].
    pub load: f64,
}

impl Checkpoint {
    /// The checkpoint of a scenario's job.
    pub fn of(scenario: &Scenario, answer: &Prediction, asked: &Interruptions) -> Checkpoint {
        let job = &scenario.job;
        let bytes = Bytes(job.model().params().total.saturating_mul(job.kept().bytes()));
        let even = bytes.0.div_ceil(job.ranks().max(1));
        let most = answer.programs().into_iter().map(|program| kept(program).0).max().unwrap_or(0);
        // What lies in host memory or on disks is no smaller for that.
        let of_rank = Bytes(most.max(even));
        let copy = of_rank.0 as f64 / scenario.topology.chip.host_bandwidth.0;
        let write = bytes.0 as f64 / asked.storage;
        let save = match asked.asynchronous {
            true => Save { blocked: copy, written_after: write },
            // Writing begins with what is copied first, and is the slower of the two.
            false => Save { blocked: copy.max(write), written_after: 0.0 },
        };
        Checkpoint { bytes, of_rank, save, load: bytes.0 as f64 / asked.load }
    }
}

/// What a rank keeps on its device of parameters and optimizer state when the second step begins.
pub fn kept(program: &Program) -> Bytes {
    let mut live: Vec<Option<Category>> = vec![None; program.buffers.len()];
    for instr in program.before_second() {
        match *instr {
            Instr::Alloc { buffer } => live[buffer.0 as usize] = Some(program.buffer(buffer).category),
            Instr::Free { buffer } => live[buffer.0 as usize] = None,
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                live[to.0 as usize] = live[from.0 as usize].take();
            }
            Instr::Recategorize { buffer, category } => {
                if let Some(known) = &mut live[buffer.0 as usize] {
                    *known = category;
                }
            }
            _ => {}
        }
    }
    let saved = |category: Category| matches!(category, Category::Parameter | Category::OptimizerState);
    let held = live.into_iter().zip(0_u32..).filter(|(category, _)| category.is_some_and(saved));
    held.map(|(_, id)| program.buffer(BufferId(id)).bytes).sum()
}
