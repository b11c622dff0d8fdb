//! Halves of a stage's backward: what the stage before waits for, and gradients of parameters later. `fully_shard`'s hooks run
//! in the first; none of a module's tensors is met in the second.

use super::blocks::BlockFrame;
use super::passes::Frames;
use super::training::Training;
use crate::program::Pass;
use crate::runtime::eager::{Frame, LoopVariables, Storage};

/// An eager block's frame: others are refused where backwards come in halves.
fn eager(frame: &mut BlockFrame) -> &mut Frame {
    match frame {
        BlockFrame::Eager(frame) => frame,
        _ => unreachable!("a compiled block has no backward in halves"),
    }
}

impl Training<'_> {
    /// Whether backwards make gradients of inputs alone from now on.
    fn inputs_only(&mut self, only: bool) {
        self.run.eager.framework.torch_mut().into_iter().for_each(|torch| torch.inputs_only = only);
    }

    /// The gradient of the part's input alone; otherwise like [`Training::backward`].
    pub(super) fn backward_input(&mut self, frames: &mut Frames, gradient: Option<Storage>) -> Option<Storage> {
        self.inputs_only(true);
        let made = self.backward(frames, gradient, false);
        self.inputs_only(false);
        // Results are detached from their graph, which goes down to the first node that a parameter meets.
        match (&mut frames.head, frames.blocks.last_mut(), self.parts[self.at].blocks.clone().next_back()) {
            (Some(head), ..) => self.run.eager.forget_unmet(&self.graphs.head.graph, head),
            (None, Some(block), Some(layer)) => {
                let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
                self.run.eager.forget_unmet(graph, eager(block));
            }
            _ => {}
        }
        made
    }

    /// Gradients of the part's parameters, of what that has left.
    pub(super) fn backward_weights(&mut self, mut frames: Frames) {
        self.run.eager.program.set_pass(Pass::Backward);
        let (before, mut variables) = (self.run.eager.program.enter(self.scopes.root), LoopVariables::default());
        let layers = self.parts[self.at].blocks.clone();
        let top = layers.end - usize::from(frames.head.is_none());
        for (layer, frame) in layers.zip(&mut frames.blocks) {
            self.run.eager.program.enter(self.scopes.blocks[layer]);
            let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
            self.run.eager.backward_weights(graph, eager(frame), layer == top, &mut variables);
        }
        if let Some(head) = &mut frames.head {
            self.run.eager.program.enter(self.scopes.head);
            self.run.eager.backward_weights(&self.graphs.head.graph, head, true, &mut variables);
        }
        let blocks = frames.blocks.iter_mut().rev().map(eager);
        self.run.eager.end_weights(frames.head.iter_mut().chain(blocks), variables);
        self.run.eager.program.enter(before);
    }
}
