//! What a rank captures in CUDA graphs (`core/transformer/cuda_graphs.py`, `TECudaGraphHelper`, 0.16.1;
//! `transformer_engine/pytorch/graph.py`, 2.9).
//!
//! With `cuda_graph_impl = "transformer_engine"` a stretch of each block is a graph forward and one backward, for each
//! micro-batch of a pipeline's step, or for one where there is no pipeline. Graphs are captured in the order of the schedule and
//! share a pool: a block that one has let go of the next takes. What a graph reads lies in static buffers of the default pool:
//! forward as many for each block as it has micro-batches between their forward and backward, backward one for all.
//! `"local"` with `full_iteration` captures all of a step's forwards and backwards as one graph (`core/full_cuda_graph.py`).

use std::collections::{BTreeMap, VecDeque};

use super::groups::static_copies;
use super::state::Rank;
use crate::model::graph::ValueId;
use crate::plan::megatron::{CudaGraphs, Loader};
use crate::program::{Category, Dispatch, Graphs, MemoryKind, Pass, Work};
use crate::runtime::eager::{COMPUTE, Eager, Frame, ParamMap, Storage};
use crate::schedule::{Action, Kind, Lists};
use crate::units::Bytes;

/// A stretch of a block between the capture of its forward and of its backward.
struct Open {
    layer: u64,
    frame: Frame,
    inputs: Vec<(ValueId, Storage)>,
}

/// What a capture holds.
#[derive(Default)]
struct Held {
    /// Static inputs that no micro-batch needs any more, by the bytes of all that one block reads.
    idle: BTreeMap<Vec<u64>, VecDeque<Vec<Storage>>>,
    /// Static gradients of results, by their bytes.
    gradients: BTreeMap<Vec<u64>, Vec<Storage>>,
    /// What the last forward left, which a variable names until the next.
    named: Vec<Storage>,
    /// Gradients that the last backward of a chunk's first block left: sent to another rank until the next has been made.
    sent: Vec<Storage>,
}

impl Held {
    /// Static buffers for what a stretch reads.
    fn inputs(&mut self, eager: &mut Eager, read: &[(ValueId, u64)]) -> Vec<(ValueId, Storage)> {
        let bytes: Vec<u64> = read.iter().map(|&(_, bytes)| bytes).collect();
        let known = self.idle.entry(bytes.clone()).or_default().pop_front();
        let buffers = known.unwrap_or_else(|| bytes.iter().map(|&bytes| eager.static_buffer(bytes)).collect());
        read.iter().map(|&(value, _)| value).zip(buffers).collect()
    }

    /// They are needed no more.
    fn give_back(&mut self, eager: &Eager, inputs: Vec<(ValueId, Storage)>) {
        let buffers: Vec<Storage> = inputs.into_iter().map(|(_, storage)| storage).collect();
        let bytes = buffers.iter().map(|&storage| eager.bytes(storage)).collect();
        self.idle.entry(bytes).or_default().push_back(buffers);
    }
}

impl Rank<'_> {
    /// Captures what the step will replay.
    pub(super) fn capture(&mut self, lists: &Lists) {
        match self.job.graphs {
            CudaGraphs::None => {}
            CudaGraphs::Layers(_) => self.capture_blocks(lists),
            CudaGraphs::Iteration => {
                for (bytes, name) in self.static_batches().collect::<Vec<_>>() {
                    self.eager.program.alloc(Bytes(bytes), COMPUTE, Category::Buffer, name);
                }
            }
        }
    }

    /// Where one graph is the whole step: the static buffers of all micro-batches (`StaticBufferLoader`).
    fn static_batches(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let each = self.stages.iter().zip(&self.chunks).flat_map(|(_, chunk)| chunk.batch_sizes());
        let all = vec![each.collect::<Vec<_>>(); self.job.split.micro_batches as usize];
        all.into_iter().flatten()
    }

    /// Begins the graph that is the whole step, if one is, behind the copies of all micro-batches into its static buffers.
    pub(super) fn begin_iteration(&mut self) {
        if self.job.graphs != CudaGraphs::Iteration {
            return;
        }
        for (bytes, name) in self.static_batches().filter(|(bytes, _)| *bytes > 0).collect::<Vec<_>>() {
            if let Some(stream) = static_copies(self.job).filter(|_| self.job.loader != Loader::There) {
                // They wait for nothing of the step before.
                let copy = Work::HostCopy { bytes: Bytes(bytes), to_host: false };
                self.eager.program.launch(stream, "aten.copy_", copy, Dispatch::EagerForward);
                self.eager.program.wait_stream(COMPUTE, stream);
                continue;
            }
            let read = self.eager.storage(bytes, name);
            self.eager.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, Dispatch::EagerForward);
            self.eager.release(read);
        }
        self.eager.program.graphs(Graphs::Both);
    }

    /// Ends it.
    pub(super) fn end_iteration(&mut self) {
        if self.job.graphs == CudaGraphs::Iteration {
            self.eager.end_of_capture();
            self.eager.program.graphs(Graphs::Apart);
        }
    }

    fn capture_blocks(&mut self, lists: &Lists) {
        let computes = |action: &&Action| matches!(action.kind, Kind::Forward | Kind::Backward);
        let mut order: Vec<Action> = lists.rank(self.rank as usize).iter().filter(computes).copied().collect();
        if self.job.split.mesh.pp == 1 {
            // One micro-batch stands for all.
            order.retain(|action| action.microbatch == 0);
        }
        let rotary = self.chunks.iter().map(|chunk| chunk.static_angles()).max().unwrap_or(0);
        if rotary > 0 {
            self.eager.static_buffer(rotary);
        }
        let mut held = Held::default();
        let mut open: Vec<VecDeque<Vec<Open>>> = self.chunks.iter().map(|_| VecDeque::new()).collect();
        for action in order {
            let chunk = self.chunk_of(action.stage);
            let before = self.eager.program.enter(self.scopes[chunk]);
            if action.kind == Kind::Forward {
                let blocks = self.capture_forward(chunk, &mut held);
                open[chunk].push_back(blocks);
            } else {
                let blocks = open[chunk].pop_front().expect("a backward follows its forward");
                self.capture_backward(chunk, blocks, &mut held);
            }
            self.eager.program.enter(before);
        }
        held.named.into_iter().for_each(|storage| self.eager.release(storage));
    }

    fn capture_forward(&mut self, chunk: usize, held: &mut Held) -> Vec<Open> {
        let (chunk, eager) = (&self.chunks[chunk], &mut self.eager);
        eager.category = Category::Activation;
        eager.program.set_pass(Pass::Forward);
        let mut blocks = vec![];
        for layer in chunk.layers() {
            let Some((graph, range)) = chunk.captured(layer) else { continue };
            let inputs = held.inputs(eager, &chunk.static_inputs(layer));
            let params = ParamMap::from(chunk.first_param(layer));
            let frame = eager.capture_forward(graph, params, range, &inputs);
            let named = eager.captured_results(&frame);
            for storage in std::mem::replace(&mut held.named, named) {
                eager.release(storage);
            }
            blocks.push(Open { layer, frame, inputs });
        }
        blocks
    }

    fn capture_backward(&mut self, chunk: usize, blocks: Vec<Open>, held: &mut Held) {
        let (chunk, eager) = (&self.chunks[chunk], &mut self.eager);
        eager.program.set_pass(Pass::Backward);
        let mut last: Vec<Storage> = vec![];
        for Open { layer, frame, inputs } in blocks.into_iter().rev() {
            let Some((graph, range)) = chunk.captured(layer) else { continue };
            let wanted = Eager::captured_gradients(graph, &range);
            let bytes: Vec<u64> = wanted.iter().map(|&(_, bytes)| bytes).collect();
            let make = || bytes.iter().map(|&bytes| eager.static_buffer(bytes)).collect();
            let gradients = held.gradients.entry(bytes.clone()).or_insert_with(make);
            let given: Vec<(ValueId, Storage)> =
                wanted.iter().map(|&(value, _)| value).zip(gradients.iter().copied()).collect();
            let made = eager.capture_backward(graph, frame, range, &given);
            for storage in std::mem::replace(&mut last, made) {
                eager.release(storage);
            }
            held.give_back(eager, inputs);
        }
        for storage in std::mem::replace(&mut held.sent, last) {
            eager.release(storage);
        }
    }
}
