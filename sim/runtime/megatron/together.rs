//! A step's forward and backward, block beside block (`core/pipeline_parallel/combined_1f1b.py`, 0.16.1).
//!
//! In the steady state what a forward has made is sent from the stream of experts' exchanges, as soon as its last block is
//! there; what a backward has made from the default stream.

use super::chunk::combined::{self, Ahead, Back};
use super::state::{Key, Rank};
use crate::program::{Pass, ScopeId};
use crate::runtime::eager::{COMPUTE, Eager, Later};
use crate::schedule::{Action, Kind};

/// Makes weight gradients that have been left.
fn run_later(eager: &mut Eager, scope: Option<ScopeId>, left: Vec<Later>) {
    let Some(scope) = scope.filter(|_| !left.is_empty()) else { return };
    let before = (eager.program.enter(scope), eager.program.set_pass(Pass::Backward));
    eager.run_later(left);
    eager.program.enter(before.0);
    eager.program.set_pass(before.1);
}

impl Rank<'_> {
    /// Computes a forward and a backward, or the one there is.
    pub(super) fn together(&mut self, portion: &[Action]) {
        let of = |kind: Kind| -> Option<Key> {
            portion.iter().find(|action| action.kind == kind).map(|action| (action.stage, action.microbatch))
        };
        let (forward, backward) = (of(Kind::Forward), of(Kind::Backward));
        let Some(exchanges) = self.exchanges else { return };
        self.wait_for_last();
        let mut held = None;
        let mut ahead = forward.map(|key| {
            let begun = self.begin_forward(key);
            self.eager.program.enter(begun.before);
            held = begun.tensor.map(|input| self.eager.retain(input));
            (begun.tensor, self.chunk_of(key.0))
        });
        let mut back = backward.map(|key| {
            let (open, begun) = self.begin_backward(key);
            self.eager.program.enter(begun.before);
            (open, begun.tensor, self.chunk_of(key.0))
        });
        let (eager, chunks, scopes) = (&mut self.eager, &self.chunks, &self.scopes);
        let mut of_back = [None; 2];
        let mut ahead =
            ahead.take().map(|(input, chunk)| Ahead::begin(&chunks[chunk], eager, input, (scopes[chunk], exchanges)));
        let mut back = back.take().map(|(open, gradient, chunk)| {
            of_back = [open.output, open.input];
            Back::begin(&chunks[chunk], eager, (open.frame, gradient), (scopes[chunk], exchanges))
        });
        combined::run(eager, ahead.as_mut(), back.as_mut());
        let done = ahead.as_ref().map(Ahead::done);
        let left = back.as_mut().map(Back::take_later).unwrap_or_default();
        let scope = backward.map(|key| self.scopes[key.0 as usize / self.schedule.ranks()]);
        if forward.is_none() {
            run_later(eager, scope, left);
        } else {
            self.left = (scope, left);
        }
        let result = ahead.map(|ahead| ahead.end(eager));
        let made = back.map(|back| back.end(eager));
        if let Some(chunk) = forward.or(backward).map(|key| key.0 as usize / self.schedule.ranks()) {
            combined::leave(eager, &chunks[chunk], scopes[chunk]);
        }
        if let (Some(key), Some(result)) = (forward, result) {
            self.end_forward(key, result, held);
        }
        if let (Some(key), Some(made)) = (backward, made) {
            self.end_backward(key, of_back, made);
        }
        self.after = done;
        if backward.is_none() || forward.is_none() {
            self.wait_for_last();
        }
        self.counts_of(backward.is_none());
    }

    /// The weight gradients that the last backward has left behind its messages; what comes next waits for the last
    /// forward.
    pub(super) fn wait_for_last(&mut self) {
        let (scope, left) = std::mem::take(&mut self.left);
        run_later(&mut self.eager, scope, left);
        if let Some(event) = self.after.take() {
            self.eager.program.wait(COMPUTE, event);
        }
    }
}
