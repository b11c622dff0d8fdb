//! A rank's part of the embedding.

use crate::program::{Category, Collective, Dispatch};
use crate::runtime::eager::COMPUTE;
use crate::runtime::megatron::groups::VOCABULARY;
use crate::runtime::megatron::state::Rank;

impl Rank<'_> {
    /// Reads a micro-batch, and looks its words up.
    pub(super) fn look_up(&mut self, micro_batch: u32) {
        self.eager.program.host(Dispatch::StepOverhead, 1);
        let batch = self.chunks[0].batch(&mut self.eager);
        let part = self.shared().part;
        let (frame, found) = self.eager.part_of_words(part);
        let found = self.through_fp32(found);
        // Python takes another copy, and the first is deallocated.
        let copy = self.eager.clone_of(part.hidden());
        self.eager.release(found);
        let shared = self.shared();
        shared.batches.insert(micro_batch, batch);
        shared.words.push_back(frame);
        shared.looked_up = Some(copy);
    }

    pub(super) fn sum_words(&mut self) {
        let part = self.shared().part;
        let words = self.shared().looked_up.take().expect("words are looked up before they are summed");
        self.tick();
        let end = self.meet(Collective::AllReduce, (part.hidden(), part.dtype), (COMPUTE, VOCABULARY));
        let first = self.rank == 0;
        if !first {
            self.eager.release(words);
        }
        self.shared().sums.push_back((end, first.then_some(words)));
    }

    /// On the first rank the sum is the next input of the blocks.
    pub(super) fn wait_for_words(&mut self) {
        let (end, words) = self.shared().sums.pop_front().expect("a sum is started before it is waited for");
        self.eager.program.wait(COMPUTE, end);
        if let Some(words) = words {
            self.shared().sums_waited(words);
        }
    }

    pub(super) fn share_gradient(&mut self) {
        let part = self.shared().part;
        let first = self.rank == 0;
        let gradient = match self.shared().gradients.pop_front() {
            Some(gradient) if first => gradient,
            _ => self.eager.storage_as(part.hidden(), Category::BackwardTemporary, "aten.empty"),
        };
        self.tick();
        let end = self.meet(Collective::Broadcast, (part.hidden(), part.dtype), (COMPUTE, VOCABULARY));
        self.shared().shared_gradient = Some((gradient, end));
    }

    pub(super) fn look_up_backward(&mut self) {
        let (gradient, end) = self.shared().shared_gradient.take().expect("a gradient is shared before it is used");
        self.eager.program.wait(COMPUTE, end);
        let gradient = self.through_fp32(gradient);
        let shared = self.shared();
        let (part, table) = (shared.part, shared.tables[1]);
        let frame = shared.words.pop_front().expect("words go forward before they go back");
        self.eager.part_of_words_backward(part, frame, gradient, table);
    }
}
