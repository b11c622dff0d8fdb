//! A stretch of a graph's operators as one CUDA graph forward and one backward (`transformer_engine/pytorch/graph.py`, 2.9).
//!
//! A captured stretch reads static buffers, into which each replay copies what it is given, forward and backward. All that it
//! takes while it is captured comes from the graphs' pool; a replay takes nothing. Hooks of parameters are no part of it: a
//! replay's forward is preceded by those of all parameters it reads, its backward followed by those of all gradients it makes.

use std::ops::Range;

use super::framework::Arrived;
use super::storage::Gradient;
use super::{Eager, Frame, ParamMap, Storage};
use crate::model::graph::{Graph, ValueId};
use crate::program::{Category, DType, Dispatch, Graphs, MemoryKind};

/// Values that a stretch reads and does not make.
fn inputs(graph: &Graph, frame: &Frame, range: &Range<usize>) -> Vec<ValueId> {
    let ops = &graph.ops[range.clone()];
    let made = |value: &ValueId| ops.iter().any(|op| op.outputs.contains(value));
    let mut read: Vec<ValueId> = ops.iter().flat_map(|op| &op.inputs).copied().filter(|value| !made(value)).collect();
    read.sort_unstable();
    read.dedup();
    read.retain(|&value| frame.slots[value].is_some());
    read
}

/// Whether an operator makes a value: if not, it is the graph's caller's.
fn is_made(graph: &Graph, value: ValueId) -> bool {
    graph.ops.iter().any(|op| op.outputs.contains(&value))
}

/// Values that what follows a stretch reads of it, or through it.
fn outputs(graph: &Graph, range: &Range<usize>) -> Vec<ValueId> {
    let known = |value: &ValueId| graph.ops[range.end..].iter().all(|op| !op.outputs.contains(value));
    let read = graph.ops[range.end..].iter().flat_map(|op| &op.inputs).copied();
    let mut read: Vec<ValueId> =
        read.chain([graph.output]).filter(|value| known(value) && is_made(graph, *value)).collect();
    read.sort_unstable();
    read.dedup();
    read
}

impl Eager {
    /// A graph that was a whole step ends: what was held until then goes.
    pub fn end_of_capture(&mut self) {
        let left = self.cuda_graphs().map(|graphs| std::mem::take(&mut graphs.left));
        left.into_iter().flatten().for_each(|storage| self.release(storage));
    }

    /// Writes a graph; the gradients that it makes.
    fn graph(&mut self, graphs: Graphs, write: impl FnOnce(&mut Eager)) -> Vec<Arrived> {
        let state = self.cuda_graphs().expect("blocks are captured under Megatron alone");
        let captured = graphs == Graphs::Captured;
        let own = if captured { state.workspaces } else { [true; 2] };
        state.arrived = Some(vec![]);
        let workspaces = std::mem::replace(&mut self.workspaces, own);
        let before = self.program.graphs(graphs);
        write(self);
        self.program.graphs(before);
        let own = std::mem::replace(&mut self.workspaces, workspaces);
        let Some(state) = self.cuda_graphs() else { return vec![] };
        if captured {
            state.workspaces = own;
        }
        state.arrived.take().unwrap_or_default()
    }

    /// A copy into a static buffer.
    fn copy_in(&mut self, bytes: u64, dispatch: Dispatch) {
        self.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, dispatch);
    }

    /// Forward of a stretch that has been captured; `besides`: bytes of static buffers that are no values of the graph.
    pub fn replay_forward(&mut self, graph: &Graph, frame: &mut Frame, range: Range<usize>, besides: &[u64]) {
        for op in &graph.ops[range.clone()] {
            self.about_to_read(op, frame);
        }
        let read: Vec<(ValueId, Storage)> =
            inputs(graph, frame, &range).into_iter().filter_map(|value| Some((value, frame.slots[value]?))).collect();
        let dispatch = self.settings.forward;
        let copied: Vec<u64> = read.iter().map(|&(_, storage)| self.bytes(storage)).chain(besides.to_vec()).collect();
        copied.into_iter().for_each(|bytes| self.copy_in(bytes, dispatch));
        self.program.host(Dispatch::GraphForward, 1);
        self.graph(Graphs::Replayed, |eager| {
            let mut lent = vec![];
            for (value, storage) in read {
                let copy = eager.storage(eager.bytes(storage), "static input");
                frame.slots[value] = Some(copy);
                if is_made(graph, value) {
                    eager.release(storage);
                } else {
                    lent.push((value, storage, copy));
                }
            }
            eager.forward_ops(graph, frame, range);
            for (value, storage, copy) in lent {
                frame.slots[value] = Some(storage);
                eager.release(copy);
            }
        });
    }

    /// Backward of a stretch that has been captured.
    pub fn replay_backward(&mut self, graph: &Graph, frame: &mut Frame, range: Range<usize>) {
        let given: Vec<(ValueId, Storage)> = frame
            .gradients
            .iter()
            .enumerate()
            .filter_map(|(value, gradient)| Some((value, (*gradient)?.storage)))
            .collect();
        let dispatch = self.settings.backward;
        for &(_, storage) in &given {
            self.copy_in(self.bytes(storage), dispatch);
        }
        self.program.host(Dispatch::GraphBackward, 1);
        let arrived = self.graph(Graphs::Replayed, |eager| {
            for (value, storage) in given {
                let copy = eager.temporary(eager.bytes(storage), "static gradient");
                frame.gradients[value] = Some(copy.into());
                eager.release(storage);
            }
            eager.backward_ops(graph, frame, range);
        });
        for (param, gradient) in arrived {
            match gradient {
                Some((gradient, dtype)) => self.add_to_main(param, gradient, dtype),
                None => self.gradient_arrived(param),
            }
        }
    }

    /// Captures the forward of a stretch that reads the static buffers `given`. They stay the caller's. Returns the frame and
    /// what the stretch leaves, of which the frame has a reference.
    pub fn capture_forward(
        &mut self,
        graph: &Graph,
        params: ParamMap,
        range: Range<usize>,
        given: &[(ValueId, Storage)],
    ) -> Frame {
        let mut frame = Frame::empty(graph, given[0].1, params);
        frame.saved_end = vec![0; range.start];
        for &(value, storage) in given {
            let own = is_made(graph, value);
            frame.slots[value] = Some(if own { self.retain(storage) } else { storage });
        }
        let left = outputs(graph, &range);
        self.graph(Graphs::Captured, |eager| {
            eager.forward_ops(graph, &mut frame, range);
            // The captured function has returned, and with it go its variables.
            for value in 0..frame.slots.len() {
                let Some(storage) = frame.slots[value].take_if(|_| !left.contains(&value)) else { continue };
                if is_made(graph, value) {
                    eager.release(storage);
                }
            }
        });
        frame
    }

    /// Results of a captured stretch, each with one reference more.
    pub fn captured_results(&mut self, frame: &Frame) -> Vec<Storage> {
        frame.slots.iter().flatten().map(|&storage| self.retain(storage)).collect()
    }

    /// Values that get gradients from what follows a stretch, and the gradients' bytes.
    pub fn captured_gradients(graph: &Graph, range: &Range<usize>) -> Vec<(ValueId, u64)> {
        let number = |value: &ValueId| matches!(graph.values[*value].dtype, DType::Bf16 | DType::Fp16 | DType::Fp32);
        outputs(graph, range).into_iter().filter(number).map(|value| (value, graph.values[value].bytes())).collect()
    }

    /// Captures the backward of a stretch from static gradients `given`, which stay the caller's. Returns the gradients that it
    /// leaves, of what it reads and of parameters.
    pub fn capture_backward(
        &mut self,
        graph: &Graph,
        mut frame: Frame,
        range: Range<usize>,
        given: &[(ValueId, Storage)],
    ) -> Vec<Storage> {
        for &(value, storage) in given {
            frame.gradients[value] = Some(Gradient::from(self.retain(storage)));
        }
        let arrived = self.graph(Graphs::Captured, |eager| eager.backward_ops(graph, &mut frame, range));
        let results: Vec<Storage> = frame.slots.iter_mut().filter_map(Option::take).collect();
        results.into_iter().for_each(|storage| self.release(storage));
        let made = frame.gradients.iter_mut().filter_map(Option::take).map(|gradient| gradient.storage);
        let left = self.cuda_graphs().map(|graphs| std::mem::take(&mut graphs.left));
        made.chain(left.into_iter().flatten())
            .chain(arrived.into_iter().filter_map(|(_, gradient)| Some(gradient?.0)))
            .collect()
    }

    /// Takes a static buffer, for good.
    pub fn static_buffer(&mut self, bytes: u64) -> Storage {
        self.storage_as(bytes, Category::Buffer, "static buffer of CUDA graphs")
    }
}
