//! One block's forward and backward: eager, compiled, or compiled inside a checkpoint.
//!
//! A policy of activation checkpointing is either part of what is compiled (torchtitan: checkpoint, then compile) or stands
//! around it (torchtune: compile, then `CheckpointWrapper`). Around it, forward runs as compiled, what it saved goes when
//! it has ended, and backward runs all of it once more; nothing stops early, since a compiled forward saves at its end.

use std::ops::Range;

use super::plan::mode;
use super::training::Training;
use crate::model::graph::Graph;
use crate::program::{Category, Pass};
use crate::runtime::compiled::CompiledFrame;
use crate::runtime::eager::offload::Sent;
use crate::runtime::eager::{Frame, Mode, ParamMap, Storage};
use crate::runtime::fsdp::hooks::Run;

/// What a block's forward leaves for its backward.
pub(super) enum BlockFrame {
    /// Of eager operators.
    Eager(Box<Frame>),
    /// Of a compiled block.
    Compiled(CompiledFrame),
    /// Of a compiled block inside a checkpoint: its input.
    Recompute(Input),
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
    /// Forward of a block some of whose modules are units of their own.
    fn forward_modules(&mut self, layer: usize, hidden: Storage) -> (BlockFrame, Storage) {
        let map = self.map(layer);
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let mut frame = self.run.eager.frame(graph, hidden, map, mode(&self.job.checkpoint, layer));
        let mut at = 0;
        for (operators, group) in self.run.units.modules[layer].clone() {
            self.run.eager.forward_ops(graph, &mut frame, at..operators.start);
            let arguments = hold_arguments(&mut self.run, graph, &operators, &frame);
            self.run.pre_forward(group, &[]);
            self.run.eager.forward_ops(graph, &mut frame, operators.clone());
            self.run.post_forward(group);
            arguments.into_iter().for_each(|argument| self.run.eager.release(argument));
            at = operators.end;
        }
        self.run.eager.forward_ops(graph, &mut frame, at..graph.ops.len());
        let output = self.run.eager.finish_forward(graph, &mut frame);
        (BlockFrame::Eager(Box::new(frame)), output)
    }

    /// Its backward.
    fn backward_modules(&mut self, layer: usize, frame: &mut Frame, gradient: Storage) -> Option<Storage> {
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        self.run.eager.start_backward(graph, frame, gradient);
        let mut end = graph.ops.len();
        let mut checkpointed = frame.is_checkpointed();
        for (operators, group) in self.run.units.modules[layer].clone().into_iter().rev() {
            self.run.eager.backward_ops(graph, frame, operators.end..end);
            self.run.pre_backward(group, &[]);
            if std::mem::take(&mut checkpointed) {
                recompute_modules(&mut self.run, graph, layer, frame);
            }
            self.run.eager.backward_ops(graph, frame, operators.clone());
            self.run.post_backward(group);
            end = operators.start;
        }
        self.run.eager.backward_ops(graph, frame, 0..end);
        self.run.eager.finish_backward(frame)
    }

    /// Whether `fully_shard`'s hooks around a block run inside its checkpoint, and its backward's inside the checkpoint's own.
    pub(super) fn hooks_inside(&self, layer: usize) -> bool {
        self.job.reentrant && self.job.around_hooks && mode(&self.job.checkpoint, layer) != Mode::Train
    }

    /// Backward of a block inside a reentrant checkpoint.
    fn backward_again(&mut self, layer: usize, frame: &mut Frame, gradient: Storage) -> Option<Storage> {
        let inside = self.hooks_inside(layer);
        let groups = if inside { self.that_begin(layer) } else { vec![] };
        let gathered: Vec<usize> = groups.into_iter().filter(|&group| self.run.pre_forward_again(group)).collect();
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let mut again = self.run.eager.forward_reentrant(graph, frame);
        for group in gathered {
            self.run.post_forward_again(group);
        }
        if inside {
            self.block_backward_begins(layer);
        }
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let made = self.run.eager.backward_reentrant(graph, &mut again, gradient);
        if inside {
            self.block_backward_ended(layer);
        }
        self.run.eager.end_reentrant(again);
        made
    }

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
            if !self.run.units.modules[layer].is_empty() {
                return self.forward_modules(layer, hidden);
            }
            // Of a block in which nothing is trained a checkpoint holds nothing.
            let mode = if graph.needs(graph.output) { mode(&self.job.checkpoint, layer) } else { Mode::Train };
            let (frame, output) = eager.forward(graph, hidden, map, mode);
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
        (BlockFrame::Recompute(input), output)
    }

    /// Backward of a block from the gradient of its output, which it takes over: the gradient of its input, where that needs one.
    pub(super) fn backward_block(
        &mut self,
        layer: usize,
        frame: &mut BlockFrame,
        gradient: Storage,
    ) -> Option<Storage> {
        let map = self.map(layer);
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let eager = &mut self.run.eager;
        let compiled = self.graphs.compiled_block[layer].map(|at| &self.graphs.compiled[at]);
        match (frame, compiled) {
            (BlockFrame::Compiled(frame), Some(compiled)) => {
                Some(eager.backward_compiled(graph, compiled, frame, gradient))
            }
            (BlockFrame::Recompute(input), Some(compiled)) => {
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
                Some(gradient)
            }
            (BlockFrame::Eager(frame), _) if self.job.reentrant && frame.is_checkpointed() => {
                self.backward_again(layer, frame, gradient)
            }
            (BlockFrame::Eager(frame), _) if !self.run.units.modules[layer].is_empty() => {
                self.backward_modules(layer, frame, gradient)
            }
            (BlockFrame::Eager(frame), _) => eager.backward(graph, frame, gradient),
            (_, None) => unreachable!("a compiled frame comes from a compiled block"),
        }
    }
}

/// What a module is called with lives until the call returns, behind its hooks: values that it is the last to read.
fn hold_arguments(run: &mut Run<'_>, graph: &Graph, operators: &Range<usize>, frame: &Frame) -> Vec<Storage> {
    let inside = &graph.ops[operators.clone()];
    let dropped = inside.iter().flat_map(|op| &op.drops);
    let arguments = dropped.filter(|value| !inside.iter().any(|op| op.outputs.contains(value)));
    arguments.map(|&value| run.eager.hold(frame, value)).collect()
}

/// Runs a checkpointed block again. Modules whose backward has not begun are gathered for it, and stay so.
fn recompute_modules(run: &mut Run<'_>, graph: &Graph, layer: usize, frame: &mut Frame) {
    let mut again = run.eager.begin_recompute(graph, frame);
    let mut at = 0;
    for (operators, group) in run.units.modules[layer].clone() {
        run.eager.recompute_ops(graph, frame, &mut again, at..operators.start);
        let arguments = hold_arguments(run, graph, &operators, frame);
        let gathered = run.pre_forward_again(group);
        run.eager.recompute_ops(graph, frame, &mut again, operators.clone());
        if gathered {
            run.post_forward_again(group);
        }
        arguments.into_iter().for_each(|argument| run.eager.release(argument));
        at = operators.end;
    }
    run.eager.recompute_ops(graph, frame, &mut again, at..graph.ops.len());
    run.eager.end_recompute(frame, again);
}
