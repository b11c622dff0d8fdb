//! The rank's part of the head, and what ranks exchange for it.

use crate::program::{Category, Collective, DType, Dispatch, MemoryKind, Pass, Work};
use crate::runtime::eager::vocabulary_parallel::{Cast, HeadResults};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::runtime::megatron::data::read_back;
use crate::runtime::megatron::groups::{PIPELINE, REDUCTIONS, VOCABULARY};
use crate::runtime::megatron::state::Rank;
use crate::schedule::order::vocabulary::VocabularySplit;
use crate::units::Bytes;

/// Kernels of a few numbers that take a micro-batch's loss and its gradient (`loss_func`, and its backward).
const LOSS: [&str; 9] =
    ["aten.mul", "aten.sum", "aten.sum", "aten.cat", "aten.clone", "aten.clone", "aten.div_", "aten.div_", "aten.mul"];
const LOSS_BACKWARD: [&str; 5] = ["aten.mul", "aten.div", "aten.div", "aten.select_backward", "aten.mul"];

impl Rank<'_> {
    /// The last stage's result goes to all, and with it the gradient of the loss of the micro-batch before: in fp32, but
    /// for the interlaced pipeline, which waits.
    pub(super) fn share_result(&mut self, micro_batch: u32) {
        let shared = self.shared();
        let (part, interlaced) = (shared.part, shared.interlaced());
        let (result, loss) = (micro_batch < shared.micro_batches, micro_batch > 0);
        if interlaced {
            let tensor = match shared.results.front().copied() {
                Some(result) => self.eager.retain(result),
                None => self.eager.storage(part.hidden(), "aten.empty"),
            };
            let end = self.meet(Collective::Broadcast, (part.hidden(), part.dtype), (COMPUTE, PIPELINE[0]));
            self.eager.program.wait(COMPUTE, end);
            self.shared().shared = Some((tensor, end));
            return;
        }
        let rows = u64::from(result) * part.width + u64::from(loss);
        let bytes = part.tokens * rows * DType::Fp32.bytes();
        let elements = part.tokens * part.width;
        let tensor = if !self.is_last() {
            self.eager.storage(bytes, "aten.empty")
        } else if result {
            let from = self.shared().results[0];
            let from = self.eager.retain(from);
            let wide = self.eager.cast(from, elements, Cast { from: part.dtype, to: DType::Fp32 });
            if loss { self.copied(wide, bytes, "aten.cat") } else { wide }
        } else {
            // The gradient alone, as it is.
            let gradient = self.shared().loss.expect("a loss is taken before its gradient is shared");
            self.eager.retain(gradient)
        };
        let end = self.meet(Collective::Broadcast, (bytes, DType::Fp32), (COMPUTE, VOCABULARY));
        self.shared().shared = Some((tensor, end));
    }

    /// A copy of other size in the place of a block.
    fn copied(&mut self, storage: Storage, bytes: u64, name: &'static str) -> Storage {
        let copy = self.eager.storage(bytes, name);
        self.eager.pointwise(name, MemoryKind::Copy, bytes, bytes, Dispatch::EagerForward);
        self.eager.release(storage);
        copy
    }

    /// The last result as the head's part takes it; none after the last micro-batch.
    fn input_of_head(&mut self, micro_batch: u32) -> Option<Storage> {
        let shared = self.shared();
        let (part, interlaced) = (shared.part, shared.interlaced());
        let (result, loss) = (micro_batch < shared.micro_batches, micro_batch > 0);
        let own = shared.results.pop_front();
        let (tensor, end) = shared.shared.take().expect("a result is shared before it is used");
        if interlaced {
            if let Some(own) = own {
                self.eager.release(own);
            }
            return Some(tensor);
        }
        let mut input = own;
        if own.is_none() && !self.is_last() {
            self.eager.program.wait(COMPUTE, end);
            if result {
                let elements = part.tokens * part.width;
                let copy = self.eager.clone_of(elements * DType::Fp32.bytes());
                input = Some(self.eager.cast(copy, elements, Cast { from: DType::Fp32, to: part.dtype }));
            }
        }
        // The gradient is a view of what was sent, and keeps it until the next is received.
        let kept = Some(tensor).filter(|_| loss && !self.is_last());
        if kept.is_none() {
            self.eager.release(tensor);
        }
        if let Some(before) = std::mem::replace(&mut self.shared().named, kept) {
            self.eager.release(before);
        }
        if loss {
            self.wait_for_reductions();
        }
        input
    }

    fn wait_for_reductions(&mut self) {
        if let Some(end) = self.shared().reduced_at {
            self.eager.program.wait(COMPUTE, end);
        }
    }

    /// Backward of the micro-batch before, and forward of this one; in the interlaced pipeline both of this one.
    pub(super) fn head(&mut self, micro_batch: u32) {
        let group = self.groups.pipeline;
        let input = self.input_of_head(micro_batch);
        let shared = self.shared();
        let (part, meet, table) = (shared.part, shared.meet(group), shared.tables[0]);
        let mut gradient = None;
        if let Some(frame) = shared.head.take() {
            self.eager.program.set_pass(Pass::Backward);
            gradient = Some(self.eager.part_of_head_backward(part, frame, meet, table));
            self.eager.program.set_pass(Pass::Forward);
        }
        let mut made = HeadResults::default();
        if let Some(input) = input {
            let (frame, results) = self.eager.part_of_head(part, input, meet);
            made = results;
            self.shared().head = Some(frame);
        }
        match self.shared().split {
            // What stands in the gradient's place goes with the input.
            VocabularySplit::OneBarrier => gradient.into_iter().for_each(|gradient| self.eager.release(gradient)),
            VocabularySplit::TwoBarriers => made.gradients.extend(gradient),
            VocabularySplit::Interlaced => {
                self.kernels_of_loss(&LOSS, Dispatch::EagerForward);
                if self.job.checks_for_nan {
                    read_back(&mut self.eager.program, "aten.isnan");
                }
                self.kernels_of_loss(&LOSS_BACKWARD, Dispatch::EagerBackward);
                let frame = self.shared().head.take().expect("a head goes forward before it goes back");
                self.eager.program.set_pass(Pass::Backward);
                made.gradients.push(self.eager.part_of_head_backward(part, frame, meet, table));
                self.eager.program.set_pass(Pass::Forward);
            }
        }
        let before = std::mem::replace(&mut self.shared().made, made);
        self.let_go_of(before);
        if !self.is_last() || self.shared().interlaced() {
            self.forget(micro_batch);
        }
    }

    fn let_go_of(&mut self, results: HeadResults) {
        for storage in results.statistics.into_iter().chain(results.gradients) {
            self.eager.release(storage);
        }
    }

    /// Nobody reads the micro-batch's tokens again.
    fn forget(&mut self, micro_batch: u32) {
        let batch = self.shared().batches.remove(&micro_batch);
        for storage in batch.into_iter().flat_map(|batch| batch.all()) {
            self.eager.release(storage);
        }
    }

    fn kernels_of_loss(&mut self, names: &[&'static str], dispatch: Dispatch) {
        let numbers = self.shared().part.numbers();
        for &name in names {
            self.eager.pointwise(name, MemoryKind::Elementwise, numbers, numbers, dispatch);
        }
    }

    /// Reduces what the head's part has made, on a stream of its own: the maxima, by which the targets' logits and then the
    /// sums are corrected, and the input's gradient, which in algorithm 2 is that of this micro-batch and corrected too.
    pub(super) fn reduce_head(&mut self, micro_batch: u32) {
        let shared = self.shared();
        let (part, together) = (shared.part, shared.split == VocabularySplit::OneBarrier);
        let (statistics, gradient) = (micro_batch < shared.micro_batches, together || micro_batch > 0);
        let numbers = part.numbers();
        let beside = (REDUCTIONS, VOCABULARY);
        self.eager.program.wait_stream(REDUCTIONS, COMPUTE);
        if statistics {
            let corrections: [&[&'static str]; 3] =
                [&["aten.clone"], &["aten.sub_", "aten.add_", "aten.masked_fill_"], &["aten.exp_", "aten.mul_"]];
            for names in corrections {
                names.iter().for_each(|name| self.beside(name, numbers, numbers));
                self.meet(Collective::AllReduce, (numbers, DType::Fp32), beside);
                self.eager.program.wait_stream(REDUCTIONS, VOCABULARY);
            }
        }
        if gradient {
            let hidden = part.hidden();
            if together {
                ["aten.clone", "aten.div_"].iter().for_each(|name| self.beside(name, numbers, numbers));
                self.beside("aten.mul_", hidden + numbers, hidden);
                self.beside("aten.sub_", 2 * hidden, hidden);
            }
            self.meet(Collective::AllReduce, (hidden, part.dtype), beside);
            self.eager.program.wait_stream(REDUCTIONS, VOCABULARY);
        }
        let end = self.eager.program.record(REDUCTIONS);
        let made = self.shared().made.clone();
        // Of the gradients the targets' share is in the other's place now.
        let gradients: Vec<Storage> = made.gradients.first().map(|&one| self.eager.retain(one)).into_iter().collect();
        let statistics = made.statistics.iter().map(|&one| self.eager.retain(one)).collect();
        let shared = self.shared();
        shared.reduced_at = Some(end);
        let before = std::mem::replace(&mut shared.reduced, HeadResults { statistics, gradients });
        self.let_go_of(before);
    }

    /// A kernel on the reductions' stream.
    fn beside(&mut self, name: &'static str, read: u64, written: u64) {
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(written) };
        self.eager.program.launch(REDUCTIONS, name, work, Dispatch::EagerForward);
    }

    /// The loss of a micro-batch from the reduced statistics, and its gradient for each token; the host reads it back.
    pub(super) fn loss(&mut self, micro_batch: u32) {
        self.wait_for_reductions();
        let numbers = self.shared().part.numbers();
        self.kernels_of_loss(&["aten.log", "aten.sub", "aten.clone"], Dispatch::EagerForward);
        self.kernels_of_loss(&LOSS, Dispatch::EagerForward);
        if self.job.checks_for_nan {
            read_back(&mut self.eager.program, "aten.isnan");
        }
        self.kernels_of_loss(&LOSS_BACKWARD, Dispatch::EagerBackward);
        let gradient = self.eager.storage_as(numbers, Category::BackwardTemporary, "aten.mul");
        if let Some(before) = self.shared().loss.replace(gradient) {
            self.eager.release(before);
        }
        self.forget(micro_batch);
    }

    /// The gradient of the last stage's result, on the last rank, times the loss's where it does not hold that yet.
    pub(in super::super) fn gradient_of_head(&mut self) -> Option<Storage> {
        let split = self.vocabulary.as_ref()?.split;
        let part = self.shared().part;
        let results = if split == VocabularySplit::Interlaced { &self.shared().made } else { &self.shared().reduced };
        let gradient = *results.gradients.first().expect("the head's gradient is made before it goes back");
        self.eager.program.set_pass(Pass::Backward);
        if split == VocabularySplit::OneBarrier {
            let hidden = part.hidden();
            let read = hidden + part.numbers();
            self.eager.pointwise("aten.mul_", MemoryKind::Elementwise, read, hidden, Dispatch::EagerBackward);
        }
        let gradient = self.eager.retain(gradient);
        Some(self.eager.cast(gradient, part.tokens * part.width, Cast { from: part.dtype, to: DType::Fp32 }))
    }

    /// At the end of a step nothing of it is left.
    pub(in super::super) fn close_vocabulary(&mut self) {
        if self.vocabulary.is_none() {
            return;
        }
        let shared = self.shared();
        let results = [std::mem::take(&mut shared.made), std::mem::take(&mut shared.reduced)];
        let single = [shared.named.take(), shared.loss.take()];
        shared.reduced_at = None;
        results.into_iter().for_each(|results| self.let_go_of(results));
        for storage in single.into_iter().flatten() {
            self.eager.release(storage);
        }
    }
}
