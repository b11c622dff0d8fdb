//! Messages between stages, and what Python's variables keep of them.
//!
//! Sends and receives of one batch are an operation on the pipeline's communicator, those that are alone on the pair's own
//! (`_batch_p2p`; `ProcessGroupNCCL::pointToPoint`). The host waits for none; the default stream does where the code says so.
//! A tensor lives as long as a name does: what was sent, until its send is waited for; in the loops of GPipe and 1F1B also the
//! operations of the last call, which each variable names until it is given others.

use super::messages::{Received, Sent, Variable, sends};
use super::rank::Rank;
use crate::program::{Category, EventId, Transfer};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::schedule::{Action, Batching, Kind};

impl Rank<'_> {
    /// GPipe waits for what it sent when all forwards, or backwards, are done; 1F1B when it has computed once more.
    fn is_gpipe(&self) -> bool {
        self.schedule.batching == Batching::Separate
    }

    fn is_1f1b(&self) -> bool {
        self.schedule.batching == Batching::Paired
    }

    /// A variable gets another value, or none.
    fn name(&mut self, variable: Variable, value: Option<Storage>) {
        let before = match value {
            Some(storage) => self.names.variables.insert(variable, storage),
            None => self.names.variables.remove(&variable),
        };
        if let Some(before) = before {
            self.training.run.eager.release(before);
        }
    }

    /// Sends and receives of one call.
    pub(super) fn exchange(&mut self, portion: &[Action]) {
        if self.is_gpipe() && portion.iter().any(|action| action.kind == Kind::RecvBackward) {
            self.wait_for_forward_sends();
        }
        let mut storages = vec![];
        for action in portion {
            let key = (action.stage, action.microbatch);
            let (bytes, eager) = (self.messages.bytes.0, &mut self.training.run.eager);
            storages.push(match action.kind {
                Kind::RecvForward => eager.storage_as(bytes, Category::Activation, "recv activation"),
                Kind::RecvBackward => eager.storage_as(bytes, Category::BackwardTemporary, "recv gradient"),
                Kind::SendForward => self.outputs.remove(&key).expect("what is sent has been computed"),
                _ => self.input_gradients.remove(&key).expect("what is sent has been computed"),
            });
        }
        let mixed = portion.iter().any(sends) && !portion.iter().all(sends);
        let stream = match portion {
            [only] => self.messages.streams[1 + self.messages.neighbour(only)],
            _ => self.messages.streams[0],
        };
        let transfers: Vec<Transfer> = portion.iter().map(|action| self.messages.transfer(action)).collect();
        let program = &mut self.training.run.eager.program;
        program.wait_stream(stream, COMPUTE);
        program.exchange(stream, &transfers);
        let event = program.record(stream);
        for (action, storage) in portion.iter().zip(storages) {
            let key = (action.stage, action.microbatch);
            if sends(action) {
                let forward = action.kind == Kind::SendForward;
                let named = !forward && !self.walks_list();
                if named {
                    // The variable that got it after its backward holds it.
                    self.training.run.eager.release(storage);
                }
                self.names.sent.push(Sent { key, forward, storage: (!named).then_some(storage), event });
            } else {
                self.received(action, storage, event, mixed);
            }
        }
        if mixed {
            // Both are waited for at once.
            self.wait_for_sends();
        }
    }

    fn received(&mut self, action: &Action, storage: Storage, event: EventId, mixed: bool) {
        let key = (action.stage, action.microbatch);
        let received = Received { storage, event: Some(event) };
        let forward = action.kind == Kind::RecvForward;
        if forward {
            self.inputs.insert(key, received);
        } else {
            self.gradients.insert(key, received);
        }
        let variable = match (self.is_gpipe(), self.is_1f1b(), forward) {
            (true, _, false) => Variable::Operations,
            (_, true, true) => Variable::ForwardReceives,
            // Cleared at once where it came with a send.
            (_, true, false) if !mixed => Variable::BackwardReceives,
            _ => return,
        };
        let named = self.training.run.eager.retain(storage);
        self.name(variable, Some(named));
    }

    /// A forward has ended: 1F1B waits for the send of the one before.
    pub(super) fn forward_ended(&mut self) {
        if self.is_1f1b() {
            self.wait_for_forward_sends();
        }
    }

    /// A backward begins.
    pub(super) fn backward_begins(&mut self, stage: usize) {
        if !self.is_gpipe() {
            return;
        }
        self.wait_for_forward_sends();
        if stage + 1 == self.schedule.stages {
            // There is nothing to receive.
            self.name(Variable::Operations, None);
        }
    }

    /// A backward has ended, and the variable that names what is to be sent names it.
    pub(super) fn backward_ended(&mut self) {
        let variable = match (self.is_gpipe(), self.is_1f1b()) {
            (true, _) => Variable::Operations,
            (_, true) => {
                // The send before.
                self.wait_for_sends();
                Variable::BackwardSends
            }
            _ => return,
        };
        let made = self.input_gradients.values().next_back().copied();
        let named = made.map(|made| self.training.run.eager.retain(made));
        self.name(variable, named);
    }

    fn wait_for_forward_sends(&mut self) {
        while let Some(at) = self.names.sent.iter().position(|sent| sent.forward) {
            self.wait_for_send(at);
        }
    }

    /// The default stream waits for a send, and what it sent is no longer named by it.
    fn wait_for_send(&mut self, at: usize) {
        let Sent { storage, event, .. } = self.names.sent.remove(at);
        self.training.run.eager.program.wait(COMPUTE, event);
        if let Some(storage) = storage {
            self.training.run.eager.release(storage);
        }
    }

    /// An action of the list that waits for one send.
    pub(super) fn wait_for(&mut self, action: Action) {
        let (key, forward) = ((action.stage, action.microbatch), action.kind == Kind::WaitSendForward);
        let found = self.names.sent.iter().position(|sent| (sent.key, sent.forward) == (key, forward));
        self.wait_for_send(found.expect("a list waits for what it has sent"));
    }

    /// At the end nothing is under way any more.
    pub(super) fn wait_for_sends(&mut self) {
        while !self.names.sent.is_empty() {
            self.wait_for_send(0);
        }
    }

    /// The loop has returned, and its variables are gone.
    pub(super) fn forget_names(&mut self) {
        for (_, storage) in std::mem::take(&mut self.names.variables) {
            self.training.run.eager.release(storage);
        }
    }
}
