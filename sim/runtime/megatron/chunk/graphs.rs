//! A chunk's blocks of which a stretch is a CUDA graph.

use std::ops::Range;

use super::{Chunk, MASK};
use crate::model::Position;
use crate::model::graph::{Graph, Op, OpKind, ValueId};
use crate::model::megatron::{MegatronOp, Reduces, RoutedOp};
use crate::plan::megatron::{CudaGraphs, Loader, Scope, Split};
use crate::program::{DType, Dispatch, MemoryKind};
use crate::runtime::eager::{Eager, Frame, Storage};

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
fn stretch(graphs: CudaGraphs, graph: &Graph) -> Option<Range<usize>> {
    let CudaGraphs::Layers(scope) = graphs else { return None };
    let (whole, end) = (scope.is_whole(), graph.ops.len());
    let at = |wanted: &dyn Fn(MegatronOp) -> bool| {
        graph.ops.iter().position(|op| matches!(op.kind, OpKind::Megatron(kind) if wanted(kind)))
    };
    if at(&|kind| matches!(kind, MegatronOp::Mamba(_))).is_some() {
        return (whole || scope.mamba).then_some(0..end);
    }
    let attended = if attends(graph) { at(&|kind| matches!(kind, MegatronOp::BiasDropoutAdd { .. }))? + 1 } else { 0 };
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

/// Whether an operator has scales of fp8 numbers.
fn scales(op: &Op) -> bool {
    matches!(op.kind, OpKind::Megatron(kind) if kind.reduces() != Reduces::Never)
}

/// Whether a block has attention.
fn attends(graph: &Graph) -> bool {
    let core = |kind| matches!(kind, OpKind::Megatron(MegatronOp::FlashCore { .. } | MegatronOp::Core { .. }));
    graph.ops.iter().any(|op| core(op.kind))
}

/// Whether the host waits for counts of rows that a stretch has made, behind it.
fn counts_behind(graph: &Graph, range: &Range<usize>) -> bool {
    let waits = |kind| matches!(kind, OpKind::Megatron(MegatronOp::Routed(RoutedOp::Permute { waits: true, .. })));
    graph.ops[range.clone()].iter().any(|op| waits(op.kind))
}

/// Bytes of a mask of a micro-batch's sequences, a byte for each pair of tokens (`get_layer_static_inputs`).
fn mask_bytes(job: &Split) -> u64 {
    job.batch * (job.seq / u64::from(job.mesh.cp)) * job.seq
}

/// Bytes of rotary angles for `tokens` of `dims` dimensions.
fn angle_bytes(tokens: u64, dims: u64) -> u64 {
    tokens * dims * DType::Fp32.bytes()
}

impl Chunk {
    /// Its blocks.
    pub(in crate::runtime::megatron) fn layers(&self) -> Range<u64> {
        0..self.blocks.len()
    }

    /// The number of a block's first parameter.
    pub(in crate::runtime::megatron) fn first_param(&self, layer: u64) -> usize {
        self.blocks.first(layer)
    }

    /// What of a block is captured, if anything.
    pub(in crate::runtime::megatron) fn captured(&self, layer: u64) -> Option<(&Graph, Range<usize>)> {
        let graph = self.blocks.graph(layer);
        stretch(self.around.graphs, graph).map(|range| (graph, range))
    }

    /// Whether angles of rotary embeddings are among what captured blocks are given.
    pub(in crate::runtime::megatron) fn static_angles(&self) -> u64 {
        let starts = self.layers().filter_map(|layer| self.captured(layer)).any(|(_, range)| range.start == 0);
        let rotates = matches!(self.job.model.position, Position::Rope { .. }) && self.job.model.latent().is_none();
        if starts && rotates { angle_bytes(self.dims.s, self.dims.r) } else { 0 }
    }

    /// The static buffers that a block's stretch reads, apart from the angles: the hidden state, and for attention a mask.
    pub(in crate::runtime::megatron) fn static_inputs(&self, layer: u64) -> Vec<(ValueId, u64)> {
        let Some((graph, range)) = self.captured(layer) else { return vec![] };
        match range.start {
            0 if !attends(graph) => vec![(0, graph.values[0].bytes())],
            0 => vec![(0, graph.values[0].bytes()), (MASK, mask_bytes(&self.job))],
            at => graph.ops[at - 1].outputs[..1].iter().map(|&value| (value, graph.values[value].bytes())).collect(),
        }
    }

    /// The data loader's parts of a micro-batch.
    pub(in crate::runtime::megatron) fn batch_sizes(&self) -> [(u64, &'static str); 5] {
        let reading = self.reading();
        if reading.loader == Loader::There { reading.own() } else { reading.whole() }
    }

    /// Forward of a block's operators, some of them as a graph.
    pub(super) fn forward_ops(&self, eager: &mut Eager, frame: &mut Frame, layer: u64) {
        let graph = self.blocks.graph(layer);
        let Some((_, range)) = self.captured(layer) else {
            return eager.forward_ops(graph, frame, 0..graph.ops.len());
        };
        let angles: Vec<u64> = if range.start == 0 && attends(graph) { vec![self.static_angles()] } else { vec![] };
        let mut besides: Vec<u64> = angles.into_iter().filter(|&bytes| bytes > 0).collect();
        eager.forward_ops(graph, frame, 0..range.start);
        // A graph that reads a mask is given one of zeros where there is none (`_te_cuda_graph_replay`).
        let zeros = (range.start == 0 && attends(graph) && !self.reading().has_mask()).then(|| {
            let bytes = mask_bytes(&self.job);
            let zeros = eager.storage(bytes, "aten.zeros");
            eager.pointwise("aten.zeros", MemoryKind::Elementwise, 0, bytes, Dispatch::EagerForward);
            besides.push(bytes);
            zeros
        });
        eager.with_counts_later(|eager| eager.replay_forward(graph, frame, range.clone(), &besides));
        zeros.into_iter().for_each(|zeros| eager.release(zeros));
        if counts_behind(graph, &range) {
            eager.wait_for_counts();
        }
        eager.forward_ops(graph, frame, range.end..graph.ops.len());
    }

    /// The backward of a block, some of it as a graph.
    pub(super) fn block_backward(
        &self,
        eager: &mut Eager,
        frame: &mut Frame,
        layer: u64,
        gradient: Storage,
    ) -> Option<Storage> {
        let graph = self.blocks.graph(layer);
        eager.start_backward(graph, frame, gradient);
        match self.captured(layer) {
            None if layer == 0 && self.reduces_early(0) => {
                let first = graph.ops.iter().position(|op| graph.is_node(op) && scales(op)).unwrap_or(0);
                eager.backward_ops(graph, frame, first..graph.ops.len());
                eager.reduce_maxima();
                eager.backward_ops(graph, frame, 0..first);
            }
            None => eager.backward_ops(graph, frame, 0..graph.ops.len()),
            Some((_, range)) => {
                eager.backward_ops(graph, frame, range.end..graph.ops.len());
                eager.replay_backward(graph, frame, range.clone());
                eager.backward_ops(graph, frame, 0..range.start);
            }
        }
        eager.finish_backward(frame)
    }

    /// Whether maxima of fp8 numbers are reduced inside a block's backward: behind its first linear that is a node of autograd's
    /// graph, where earlier ones are none.
    pub(super) fn reduces_early(&self, at: usize) -> bool {
        at == 0 && !self.blocks.is_empty() && !self.blocks.graph(0).needs(0)
    }
}
