//! A chunk's blocks of which a stretch is a CUDA graph.

use std::ops::Range;

use super::{Chunk, MASK};
use crate::model::Position;
use crate::model::graph::{Graph, ValueId};
use crate::program::{Dispatch, MemoryKind};
use crate::runtime::eager::{Eager, Frame, Storage};
use crate::runtime::megatron::Loader;
use crate::runtime::megatron::graphs::{angle_bytes, counts_behind, mask_bytes, stretch};

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
        stretch(&self.job, graph).map(|range| (graph, range))
    }

    /// Whether angles of rotary embeddings are among what captured blocks are given.
    pub(in crate::runtime::megatron) fn static_angles(&self) -> u64 {
        let starts = self.layers().filter_map(|layer| self.captured(layer)).any(|(_, range)| range.start == 0);
        let rotates = matches!(self.job.model.position, Position::Rope { .. }) && self.job.model.latent.is_none();
        if starts && rotates { angle_bytes(self.dims.s, self.dims.r) } else { 0 }
    }

    /// The static buffers that a block's stretch reads, apart from the angles: the hidden state, and for attention a mask.
    pub(in crate::runtime::megatron) fn static_inputs(&self, layer: u64) -> Vec<(ValueId, u64)> {
        let Some((graph, range)) = self.captured(layer) else { return vec![] };
        match range.start {
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
        let angles: Vec<u64> = if range.start == 0 { vec![self.static_angles()] } else { vec![] };
        let mut besides: Vec<u64> = angles.into_iter().filter(|&bytes| bytes > 0).collect();
        eager.forward_ops(graph, frame, 0..range.start);
        eager.counts_later = true;
        // A graph that reads a mask is given one of zeros where there is none (`_te_cuda_graph_replay`).
        let zeros = (range.start == 0 && !self.reading().has_mask()).then(|| {
            let bytes = mask_bytes(&self.job);
            let zeros = eager.storage(bytes, "aten.zeros");
            eager.pointwise("aten.zeros", MemoryKind::Elementwise, 0, bytes, Dispatch::EagerForward);
            besides.push(bytes);
            zeros
        });
        eager.replay_forward(graph, frame, range.clone(), &besides);
        zeros.into_iter().for_each(|zeros| eager.release(zeros));
        eager.counts_later = false;
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
    ) -> Storage {
        let graph = self.blocks.graph(layer);
        eager.start_backward(graph, frame, gradient);
        match self.captured(layer) {
            None => eager.backward_ops(graph, frame, 0..graph.ops.len()),
            Some((_, range)) => {
                eager.backward_ops(graph, frame, range.end..graph.ops.len());
                eager.replay_backward(graph, frame, range.clone());
                eager.backward_ops(graph, frame, 0..range.start);
            }
        }
        eager.finish_backward(frame).expect("a block's input has a gradient")
    }
}
