//! One block's forward and backward: eager, compiled, or compiled inside a checkpoint.
//!
//! A policy of activation checkpointing is either part of what is compiled (torchtitan: checkpoint, then compile) or stands
//! around it (torchtune: compile, then `CheckpointWrapper`). Around it, forward runs as compiled, what it saved goes when
//! it has ended, and backward runs all of it once more; nothing stops early, since a compiled forward saves at its end.

use super::Training;
use super::plan::mode;
use crate::program::{Category, Pass};
use crate::runtime::compiled::CompiledFrame;
use crate::runtime::eager::offload::Sent;
use crate::runtime::eager::{Frame, Mode, ParamMap, Storage};

/// What a block's forward leaves for its backward.
pub(super) enum BlockFrame {
    /// Of eager operators.
    Eager(Box<Frame>),
    /// Of a compiled block.
    Compiled(CompiledFrame),
    /// Of a compiled block inside a checkpoint: its input.
    Again(Input),
}

/// A checkpoint's input.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// On the device.
    Here(Storage),
    /// In the host's memory.
    Sent(Sent),
}

impl Training<'_> {
    fn map(&self, layer: usize) -> ParamMap {
        ParamMap::from(self.layout.blocks[layer])
    }

    /// Whether a checkpoint stands around the compiled block.
    fn wrapped(&self, layer: usize) -> bool {
        self.job.checkpoint_compiled && mode(&self.job.checkpoint, layer) != Mode::Train
    }

    /// Forward of a block on `hidden`, whose reference stays the caller's.
    pub(super) fn forward_block(&mut self, layer: usize, hidden: Storage) -> (BlockFrame, Storage) {
        let map = self.map(layer);
        let wrapped = self.wrapped(layer);
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let eager = &mut self.run.eager;
        let Some(at) = self.graphs.compiled_block[layer] else {
            let (frame, output) = eager.forward(graph, hidden, map, mode(&self.job.checkpoint, layer));
            return (BlockFrame::Eager(Box::new(frame)), output);
        };
        let compiled = &self.graphs.compiled[at];
        if !wrapped {
            let (frame, output) = eager.forward_compiled(graph, compiled, hidden, map);
            return (BlockFrame::Compiled(frame), output);
        }
        let input = match eager.settings.offload {
            None => Input::Here(eager.retain(hidden)),
            Some(offload) => Input::Sent(eager.send(hidden, offload)),
        };
        let (frame, output) = eager.forward_compiled(graph, compiled, hidden, map);
        eager.forget_compiled(frame);
        (BlockFrame::Again(input), output)
    }

    /// Backward of a block from the gradient of its output, which it takes over: the gradient of its input.
    pub(super) fn backward_block(&mut self, layer: usize, frame: &mut BlockFrame, gradient: Storage) -> Storage {
        let map = self.map(layer);
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let eager = &mut self.run.eager;
        let compiled = self.graphs.compiled_block[layer].map(|at| &self.graphs.compiled[at]);
        match (frame, compiled) {
            (BlockFrame::Compiled(frame), Some(compiled)) => eager.backward_compiled(graph, compiled, frame, gradient),
            (BlockFrame::Again(input), Some(compiled)) => {
                let input = match (*input, eager.settings.offload) {
                    (Input::Sent(sent), Some(offload)) => eager.bring_back(sent, offload),
                    (Input::Here(input), _) => input,
                    (Input::Sent(_), None) => unreachable!("an input is sent only with offloading"),
                };
                let (pass, category) = (eager.program.set_pass(Pass::Recompute), eager.category);
                eager.category = Category::Recompute;
                let (mut frame, output) = eager.forward_compiled(graph, compiled, input, map);
                eager.release(output);
                eager.program.set_pass(pass);
                eager.category = category;
                let gradient = eager.backward_compiled(graph, compiled, &mut frame, gradient);
                eager.release(input);
                gradient
            }
            (BlockFrame::Eager(frame), _) if self.job.reentrant && frame.is_checkpointed() => {
                eager.backward_reentrant(graph, frame, gradient).expect("a block's output depends on its input")
            }
            (BlockFrame::Eager(frame), _) => {
                eager.backward(graph, frame, gradient).expect("a block's output depends on its input")
            }
            (_, None) => unreachable!("a compiled frame comes from a compiled block"),
        }
    }
}
