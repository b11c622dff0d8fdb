//! The backward of a chunk's micro-batch.

use super::frame::{BlocksFrame, Checkpoint};
use super::{Chunk, ChunkFrame, HEAD, mtp};
use crate::plan::megatron::Implementation;
use crate::program::{Category, DType, Pass};
use crate::runtime::eager::main_gradients::Moment;
use crate::runtime::eager::{Eager, Frame, Mode, Shared, Storage};

/// Whether the gradient that the next block is given is a view.
fn view(eager: &mut Eager, gradient: Option<Storage>) {
    eager.framework.megatron_mut().into_iter().for_each(|megatron| megatron.viewed = gradient);
}

/// Whether the next backward is of a second run, which enters fp8 anew under delayed scaling.
fn enters_fp8_anew(eager: &mut Eager, anew: bool) {
    let fp8 = eager.framework.megatron_mut().map(|megatron| &mut megatron.fp8);
    fp8.into_iter().for_each(|fp8| fp8.second_run = anew && fp8.maxima.is_some());
}

impl Chunk {
    /// Backward of one micro-batch from the gradient of its output, which it takes over; none where the output is the
    /// loss. Returns the gradient of the input; none on the first stage, unless that was given the words' rows.
    pub fn backward(&self, eager: &mut Eager, mut frame: ChunkFrame, gradient: Option<Storage>) -> Option<Storage> {
        let before = eager.program.set_pass(Pass::Backward);
        let (gradient, seeds) = self.begin_backward(eager, frame.head.take(), gradient);
        let mut gradient = Some(gradient);
        // Maxima are reduced after the first module in fp8 that autograd saw in forward, which blocks that run again are not. A
        // second run leaves fp8 as it is for a first module, which the final norm then is, too (`autocast`, `get_autocast_state`).
        let first = frame.blocks.iter().position(|done| matches!(done, BlocksFrame::Saved(..)));
        let again = frame.blocks.iter().any(|done| matches!(done, BlocksFrame::Recompute(..)));
        if again && self.head.is_some() {
            eager.reduce_maxima();
        }
        for (at, done) in frame.blocks.into_iter().enumerate().rev() {
            gradient = match (done, gradient) {
                (BlocksFrame::Saved(layer, running), Some(gradient)) => {
                    self.backward_block(eager, layer, *running, gradient)
                }
                (BlocksFrame::Recompute(held), Some(gradient)) => self.backward_recomputed(eager, held, gradient),
                (_, None) => None,
            };
            if first == Some(at) && !self.reduces_early(at) {
                eager.reduce_maxima();
            }
        }
        let result = self.end_backward(eager, frame.embedding, gradient, seeds);
        eager.program.set_pass(before);
        result
    }

    /// Parameters that a micro-batch uses several times.
    fn shared(&self) -> Vec<Shared> {
        let (Some(head), Some(words)) = (&self.head, self.words) else { return vec![] };
        let [of_words, of_head] = mtp::uses(&self.job, self.embedding.is_some());
        let weight = head.params.iter().position(|param| param.name == HEAD).map(|local| self.first[1] + local);
        let all = [(words, of_words), (weight.unwrap_or(words), of_head)].into_iter().filter(|&(_, uses)| uses > 1);
        // Of the head's own weight nothing is added to the main gradients but by its matmuls.
        let all = all.map(|(param, uses)| Shared { param, uses, zeroed: param == words });
        let again = mtp::repeated(&self.job, head).into_iter().flatten().map(|local| Shared {
            param: self.first[1] + local,
            uses: self.job.model.mtp_layers as u32,
            zeroed: false,
        });
        all.chain(again).collect()
    }

    /// The gradient of the last block's result; and what goes at the end.
    fn begin_backward(
        &self,
        eager: &mut Eager,
        head: Option<Frame>,
        gradient: Option<Storage>,
    ) -> (Storage, Vec<Storage>) {
        let (mut gradient, seeds) = self.seeded(eager, gradient);
        if let (Some(graph), Some(mut running)) = (&self.head, head) {
            eager.start_backward(graph, &mut running, gradient);
            eager.backward_ops(graph, &mut running, 0..graph.ops.len());
            gradient = self.head_gradient(eager, &mut running);
        }
        (gradient, seeds)
    }

    /// The gradient of a chunk's result: what it is given, or where that is the loss, one; and what goes at the end.
    pub(super) fn seeded(&self, eager: &mut Eager, gradient: Option<Storage>) -> (Storage, Vec<Storage>) {
        eager.leaves.shared = self.shared();
        view(eager, None);
        eager.reached(Moment::Backward);
        let mut seeds = vec![];
        let gradient = gradient.unwrap_or_else(|| {
            // The loss times the loss scale, and its gradient.
            let scaled = eager.storage_as(4, Category::BackwardTemporary, "aten.mul");
            let seed = eager.seed_gradient(DType::Fp32);
            seeds = vec![seed, scaled];
            eager.retain(seed)
        });
        (gradient, seeds)
    }

    /// The gradient that what stands behind the last block hands on.
    pub(super) fn head_gradient(&self, eager: &mut Eager, running: &mut Frame) -> Storage {
        let gradient = eager.finish_backward(running).expect("a hidden state has a gradient");
        // Transformer Engine's norm hands on a view.
        let engine = self.job.block.implementation == Implementation::TransformerEngine;
        view(eager, Some(gradient).filter(|_| engine));
        gradient
    }

    /// The gradient of the chunk's input, from that of its first block's, where that has one.
    pub(super) fn end_backward(
        &self,
        eager: &mut Eager,
        embedding: Option<Frame>,
        gradient: Option<Storage>,
        seeds: Vec<Storage>,
    ) -> Option<Storage> {
        let result = match (&self.embedding, embedding) {
            // Of a frozen embedding's result: a leaf that was told to ask for a gradient.
            (Some(graph), _) if !graph.needs(graph.output) => {
                gradient.into_iter().for_each(|gradient| eager.release(gradient));
                None
            }
            (Some(graph), Some(mut running)) => {
                gradient.and_then(|gradient| eager.backward(graph, &mut running, gradient))
            }
            _ => gradient,
        };
        eager.reached(Moment::Returned);
        seeds.into_iter().for_each(|seed| eager.release(seed));
        result
    }

    /// Runs blocks again, and their backward (`CheckpointFunction.backward`).
    pub(super) fn backward_recomputed(
        &self,
        eager: &mut Eager,
        held: Checkpoint,
        gradient: Storage,
    ) -> Option<Storage> {
        let before = (eager.program.set_pass(Pass::Recompute), eager.category);
        eager.category = Category::Recompute;
        let mut frames = vec![];
        let mut x = eager.retain(held.input);
        for layer in held.first..held.first + held.layers {
            let (frame, out) = self.forward_block(eager, (x, held.mask), layer, Mode::Train);
            eager.release(x);
            frames.push((layer, frame));
            x = out;
        }
        eager.reduce_maxima();
        eager.program.set_pass(before.0);
        eager.category = before.1;
        let mut running = Some(eager.retain(gradient));
        let ends = |&(layer, _): &(u64, _)| Eager::ends_turns(self.blocks.graph(layer));
        let last = frames.iter().position(ends).unwrap_or(frames.len());
        for (at, (layer, frame)) in frames.into_iter().enumerate().rev() {
            enters_fp8_anew(eager, at <= last);
            running = running.and_then(|running| self.backward_block(eager, layer, frame, running));
        }
        enters_fp8_anew(eager, false);
        for storage in [x, gradient, held.input, held.mask] {
            eager.release(storage);
        }
        running
    }

    /// Backward of one block.
    pub(super) fn backward_block(
        &self,
        eager: &mut Eager,
        layer: u64,
        mut frame: Frame,
        gradient: Storage,
    ) -> Option<Storage> {
        eager.reached(Moment::BlockBackward(layer));
        if self.around.hooks_views {
            view(eager, Some(gradient));
        }
        let gradient = self.block_backward(eager, &mut frame, layer, gradient);
        eager.reached(Moment::BlockReturned(layer));
        gradient
    }
}
