//! A pipeline rank's messages: what is sent and received between computations, who waits for it, and what lets go of it.

use super::groups::TENSOR;
use super::p2p::End;
use super::state::{Rank, Received, Sent};
use super::vocabulary::Vocabulary;
use crate::plan::megatron::Engine;
use crate::program::{Category, Collective, Comm, EventId};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::{Action, Kind};

impl Rank<'_> {
    /// Sends and receives of one call.
    pub(super) fn exchange(&mut self, portion: &[Action]) {
        let ends: Vec<End> =
            portion.iter().filter(|action| action.kind.is_message()).map(|&one| self.end(one)).collect();
        if ends.is_empty() {
            return;
        }
        if self.job.engine == Engine::DeepSpeed {
            return ends.into_iter().for_each(|end| self.pass(end));
        }
        let bytes = self.p2p.message().0;
        let mut storages = vec![];
        for end in &ends {
            let key = (end.action.stage, end.action.microbatch);
            storages.push(match end.action.kind {
                Kind::RecvForward => self.eager.storage_as(bytes, Category::Activation, "recv_prev"),
                Kind::RecvBackward => self.eager.storage_as(bytes, Category::BackwardTemporary, "recv_next"),
                Kind::SendForward => self.outputs.remove(&key).expect("what is sent has been computed"),
                _ => self.input_gradients.remove(&key).expect("what is sent has been computed"),
            });
        }
        let later = |vocabulary: &Vocabulary| vocabulary.waits_later(portion);
        let beside = !self.p2p.is_batched() && (self.halves || self.counts.beside())
            || self.vocabulary.as_ref().is_some_and(later);
        let from = self.eager.stream;
        let events = self.p2p.issue(&mut self.eager.program, &ends, from);
        if !beside {
            // All of them are waited for, by the host too where they are batched.
            for &event in events.iter().take(if self.p2p.is_batched() { 1 } else { events.len() }) {
                self.eager.program.wait(COMPUTE, event);
            }
            // The fork that spreads the vocabulary has switched the host's waiting off.
            if self.p2p.is_batched() && self.vocabulary.is_none() {
                self.eager.program.wait_for_host(COMPUTE);
            }
        }
        for ((end, mut storage), event) in ends.into_iter().zip(storages).zip(events) {
            if self.p2p.gathers() && end.receives() {
                let category = match end.action.kind {
                    Kind::RecvForward => Category::Activation,
                    _ => Category::BackwardTemporary,
                };
                storage = self.gather_parts(storage, category);
            }
            self.issued(end.action, storage, beside.then_some(event));
        }
    }

    /// What tensor-parallel ranks have received a part of each (`gather_split_1d_tensor`). Before February 2022 that went through a
    /// list, with a copy of the whole and another to its parts: 0.1 ms for 50 MB, neglected.
    fn gather_parts(&mut self, part: Storage, category: Category) -> Storage {
        let bytes = self.p2p.bytes();
        let whole = self.eager.storage_as(bytes.0, category, "gather_split_1d_tensor");
        let (program, group) = (&mut self.eager.program, self.groups.tensor);
        program.wait_stream(TENSOR, COMPUTE);
        program.collective(TENSOR, Comm { kind: Collective::AllGather, group, bytes, dtype: self.job.split.dtype });
        program.wait_stream(COMPUTE, TENSOR);
        self.eager.release(part);
        whole
    }

    /// What becomes of a message that has been issued, and waited for unless there is an event.
    fn issued(&mut self, action: Action, storage: Storage, event: Option<EventId>) {
        let key = (action.stage, action.microbatch);
        match action.kind {
            Kind::RecvForward => {
                self.inputs.insert(key, Received { storage, event });
            }
            Kind::RecvBackward => {
                let named = self.eager.retain(storage);
                self.name(0, named);
                self.gradients.insert(key, Received { storage, event });
            }
            Kind::SendForward => {
                let left = self.eager.storage_as(self.job.split.dtype.bytes(), Category::Activation, "output");
                if let Some(open) = self.open.get_mut(&key) {
                    open.output = Some(left);
                }
                self.sent(0, storage, event);
            }
            _ => self.sent(1, storage, event),
        }
    }

    /// A send beside the computation is waited for when the next one of its direction has been issued; where backwards
    /// come in halves, at the end, and lets go of what it sends at once (`record_stream` is neglected).
    fn sent(&mut self, direction: usize, storage: Storage, event: Option<EventId>) {
        if self.halves {
            self.unwaited.extend(event);
            return self.eager.release(storage);
        }
        let next = event.map(|event| Sent { storage, event });
        let before = std::mem::replace(&mut self.sent[direction], next);
        if let Some(before) = before {
            self.eager.program.wait(self.eager.stream, before.event);
            self.eager.release(before.storage);
        }
        if next.is_none() {
            self.eager.release(storage);
        }
    }

    /// At the end nothing is under way any more, and variables are gone.
    pub(super) fn drain(&mut self) {
        for event in std::mem::take(&mut self.unwaited) {
            self.eager.program.wait(COMPUTE, event);
        }
        for direction in 0..2 {
            if let Some(sent) = self.sent[direction].take() {
                self.eager.program.wait(COMPUTE, sent.event);
                self.eager.release(sent.storage);
            }
            if let Some(named) = self.named[direction].take() {
                self.eager.release(named);
            }
        }
        let loss = self.loss.take().into_iter().flatten();
        for storage in loss.chain(std::mem::take(&mut self.reports)) {
            self.eager.release(storage);
        }
    }
}
