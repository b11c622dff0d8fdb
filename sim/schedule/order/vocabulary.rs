//! Schedules that spread the vocabulary over the pipeline's ranks (Yeung et al. 2024, arXiv 2411.05288;
//! sail-sg/VocabularyParallelism@6191c3bf, `vocab_parallel_schedule.py`, `interlaced_schedule.py`).
//!
//! Every rank has 1/p of the words of the embedding and of the head, and runs its part for every micro-batch. What ranks
//! exchange for that holds a micro-batch back between its last forward and its first backward, for which more of them are
//! in flight than the p of 1F1B: p + 2 where statistics and gradients of the head are reduced one after the other
//! (`--disable-backward-fusion`, the paper's algorithm 1), p + 1 where they are reduced together (algorithm 2), 3p/2
//! where everyone waits for every exchange (nnScaler's interlaced pipeline).
//!
//! The lists hold what the stages' blocks compute. The parts of the embedding and of the head, and what is exchanged, are
//! added by [`lower`](fn@super::super::lower).

pub use super::super::batching::VocabularySplit;

use super::super::lower::vocabulary;
use super::super::{Action, Batching, Placement, ScheduleError, Shape};
use super::entry::{Entry, Generate, one_stage};

/// Algorithm 1.
pub const VOCAB_1: Entry = entry(
    "Vocab1",
    "1F1B with the vocabulary spread over ranks, two reductions of the head that overlap with the layers",
    |_| Batching::Vocabulary(VocabularySplit::TwoBarriers),
    |shape| check(VOCAB_1.name, shape, shape.ranks + 2),
    |shape, rank, out| blocks(VocabularySplit::TwoBarriers, shape, rank, out),
);

/// Algorithm 2.
pub const VOCAB_2: Entry = entry(
    "Vocab2",
    "1F1B with the vocabulary spread over ranks, one reduction of the head that overlaps with the layers",
    |_| Batching::Vocabulary(VocabularySplit::OneBarrier),
    |shape| check(VOCAB_2.name, shape, shape.ranks + 1),
    |shape, rank, out| blocks(VocabularySplit::OneBarrier, shape, rank, out),
);

/// nnScaler's, as the fork has it.
pub const INTERLACED: Entry = entry(
    "Interlaced",
    "the vocabulary spread over ranks that wait for every exchange of the head",
    |_| Batching::Vocabulary(VocabularySplit::Interlaced),
    |shape| {
        check(INTERLACED.name, shape, shape.ranks * 3 / 2 + 1)?;
        if shape.ranks.is_multiple_of(2) { Ok(()) } else { Err(ScheduleError::OddRanks { found: shape.ranks }) }
    },
    |shape, rank, out| blocks(VocabularySplit::Interlaced, shape, rank, out),
);

const fn entry(
    name: &'static str,
    about: &'static str,
    batching: fn(Shape) -> Batching,
    check: fn(Shape) -> Result<(), ScheduleError>,
    write: fn(Shape, u32, &mut Vec<Action>),
) -> Entry {
    Entry { name, about, placement: Placement::Loop, batching, check, generate: Generate::Rank(write) }
}

/// One stage on each of several ranks, and more micro-batches than the first rank has in flight.
fn check(schedule: &'static str, shape: Shape, least: u32) -> Result<(), ScheduleError> {
    one_stage(schedule, shape)?;
    if shape.ranks == 1 {
        let what = "the number of pipeline ranks that a vocabulary is spread over";
        return Err(ScheduleError::Few { what, found: 1, least: 2 });
    }
    if shape.microbatches >= least {
        return Ok(());
    }
    Err(ScheduleError::FewMicrobatches {
        schedule,
        least,
        why: "one more than it has in flight, or as many",
        found: shape.microbatches,
        remedy: "take smaller micro-batches, or Megatron1F1B, which has the vocabulary on the first and the last rank",
    })
}

/// What a rank's blocks compute.
fn blocks(split: VocabularySplit, shape: Shape, rank: u32, out: &mut Vec<Action>) {
    let mut all = vec![];
    vocabulary::write(split, shape, rank, &mut all);
    out.extend(all.into_iter().filter(|action| action.kind.computes()));
}
