//! Writes a rank's list where the vocabulary is spread over ranks.

use super::super::batching::VocabularySplit;
use super::super::{Action, Kind, Shape};

/// A rank's list under construction: actions of one kind come in the order of micro-batches.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<Action>,
    pub(super) split: VocabularySplit,
    pub(super) shape: Shape,
    pub(super) rank: u32,
    counts: [u32; Kind::ALL.len()],
}

impl Writer<'_> {
    /// Nothing yet.
    pub(super) fn new(split: VocabularySplit, shape: Shape, rank: u32, out: &mut Vec<Action>) -> Writer<'_> {
        Writer { out, split, shape, rank, counts: [0; Kind::ALL.len()] }
    }

    pub(super) fn first(&self) -> bool {
        self.rank == 0
    }

    pub(super) fn last(&self) -> bool {
        self.rank + 1 == self.shape.ranks
    }

    /// How many of a kind there are.
    pub(super) fn done(&self, kind: Kind) -> u32 {
        self.counts[kind as usize]
    }

    /// Whether some of a kind are left, of one for each micro-batch.
    pub(super) fn left(&self, kind: Kind) -> bool {
        self.done(kind) < self.shape.microbatches
    }

    /// The next of a kind.
    pub(super) fn add(&mut self, kind: Kind) {
        let count = &mut self.counts[kind as usize];
        self.out.push(Action::new(self.rank as u16, kind, *count));
        *count += 1;
    }

    /// One of a kind for a micro-batch.
    pub(super) fn add_as(&mut self, kind: Kind, microbatch: u32) {
        self.out.push(Action::new(self.rank as u16, kind, microbatch));
    }

    /// Sends and receives of one call, where there is a neighbour.
    pub(super) fn call<const N: usize>(&mut self, kinds: [Kind; N]) {
        let from = self.out.len();
        for kind in kinds {
            let forward = matches!(kind, Kind::SendForward | Kind::RecvBackward);
            if !(if forward { self.last() } else { self.first() }) {
                self.add(kind);
            } else if kind == Kind::RecvForward && self.split != VocabularySplit::Interlaced {
                // What the first rank's blocks take is the sum of the embedding's parts.
                self.add(Kind::WaitSumEmbed);
            }
        }
        let moved = self.out.len();
        self.out[from..moved.saturating_sub(1).max(from)].iter_mut().for_each(|action| action.joined = true);
    }

    /// The embedding's part, and the sum of all parts.
    pub(super) fn embed(&mut self) {
        self.add(Kind::Embed);
        self.add(Kind::SumEmbed);
    }
}
