//! What a rank captures in CUDA graphs (`core/transformer/cuda_graphs.py`, `TECudaGraphHelper`, 0.16.1;
//! `transformer_engine/pytorch/graph.py`, 2.9).
//!
//! With `cuda_graph_impl = "transformer_engine"` a stretch of each block is a graph forward and one backward, for each
//! micro-batch of a pipeline's step, or for one where there is no pipeline. Graphs are captured in the order of the schedule and
//! share a pool: a block that one has let go of the next takes. What a graph reads lies in static buffers of the default pool:
//! forward as many for each block as it has micro-batches between their forward and backward, backward one for all.
//! `"local"` with `full_iteration` captures all of a step's forwards and backwards as one graph (`core/full_cuda_graph.py`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::Job;
use super::batch::Loader;
use super::groups::static_copies;
use super::step::Rank;
use crate::model::graph::{Graph, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::program::{Category, DType, Dispatch, Graphs, MemoryKind, Pass, Work};
use crate::runtime::eager::{COMPUTE, Eager, Frame, ParamMap, Storage};
use crate::schedule::{Action, Kind, Lists};
use crate::units::Bytes;

/// What is captured (`--cuda-graph-impl`, `--cuda-graph-scope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaGraphs {
    /// Nothing.
    #[default]
    None,
    /// A stretch of each block, by Transformer Engine.
    Layers(Scope),
    /// All forwards and backwards of a step (`local` with `full_iteration`).
    Iteration,
}

/// Parts of a block that are captured; none of them: all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// `attn`: attention and its residual.
    pub attention: bool,
    /// `mlp`: the feed-forward of a block without experts.
    pub feed_forward: bool,
    /// `moe`: the mixture of experts.
    pub mixture: bool,
    /// `moe_router`: of it the norm, experts that every token passes, and the router.
    pub router: bool,
    /// `moe_preprocess`: and what the dispatcher does before rows are exchanged.
    pub preprocess: bool,
}

impl Scope {
    fn is_whole(self) -> bool {
        self == Scope::default()
    }
}

/// Operators of a mixture behind the router that a dispatcher runs before ranks exchange anything (`dispatch_preprocess`).
fn prepared(graph: &Graph, from: usize) -> usize {
    let before = |kind: OpKind| {
        let orders = |kind| matches!(kind, RoutedOp::Select { .. } | RoutedOp::Permute { .. });
        matches!(kind, OpKind::View) || matches!(kind, OpKind::Megatron(MegatronOp::Routed(kind)) if orders(kind))
    };
    from + graph.ops[from..].iter().take_while(|op| before(op.kind)).count()
}

/// The operators of a block that are one CUDA graph, if any are.
pub(super) fn stretch(job: &Job, graph: &Graph) -> Option<Range<usize>> {
    let CudaGraphs::Layers(scope) = job.graphs else { return None };
    let (whole, end) = (scope.is_whole(), graph.ops.len());
    let at = |wanted: &dyn Fn(MegatronOp) -> bool| {
        graph.ops.iter().position(|op| matches!(op.kind, OpKind::Megatron(kind) if wanted(kind)))
    };
    let attended = at(&|kind| matches!(kind, MegatronOp::BiasDropoutAdd { .. }))? + 1;
    let router = at(&|kind| matches!(kind, MegatronOp::Routed(RoutedOp::Route { .. }))).map(|at| at + 1);
    let start = if whole || scope.attention { 0 } else { attended };
    let end = match router {
        _ if whole => end,
        None if scope.feed_forward => end,
        Some(_) if scope.mixture => end,
        Some(router) if scope.preprocess => prepared(graph, router),
        Some(router) if scope.router => router,
        _ => attended,
    };
    (start < end).then_some(start..end)
}

/// Whether the host waits for counts of rows that a stretch has made, behind it.
pub(super) fn counts_behind(graph: &Graph, range: &Range<usize>) -> bool {
    let waits = |kind| matches!(kind, OpKind::Megatron(MegatronOp::Routed(RoutedOp::Permute { waits: true, .. })));
    graph.ops[range.clone()].iter().any(|op| waits(op.kind))
}

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
        let all = vec![each.collect::<Vec<_>>(); self.job.micro_batches as usize];
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
        if self.job.mesh.pp == 1 {
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

/// Bytes of a mask of a micro-batch's sequences, a byte for each pair of tokens (`get_layer_static_inputs`).
pub(super) fn mask_bytes(job: &Job) -> u64 {
    job.batch * (job.seq / u64::from(job.mesh.cp)) * job.seq
}

/// Bytes of rotary angles for `tokens` of `dims` dimensions.
pub(super) fn angle_bytes(tokens: u64, dims: u64) -> u64 {
    tokens * dims * DType::Fp32.bytes()
}
