//! A forward and the backward of another micro-batch, block beside block, so that each hides the other's exchanges between
//! ranks of experts (`core/models/common/model_chunk_schedule_plan.py`, `core/models/gpt/fine_grained_callables.py`, 0.16.1).
//!
//! ```text
//! exchanges  combine back │ dispatch          │ dispatch back │ combine
//! compute    attention    │ experts back      │ experts       │ attention back
//! ```
//!
//! A block is cut in four: attention, norm, router and rows in their order; the way to the experts; these; the way back,
//! with the sum over experts and the residual. The second and the fourth run on a stream of their own. Each of the two
//! micro-batches goes on where its part before has ended; the host issues parts in the order above. A dense block has no
//! exchanges, and is cut before its feed-forward. With `delay_wgrad_compute` the experts' weight gradients follow the dispatch
//! forward, and attention's its backward.
//!
//! A module that predicts a token further ahead (`mtp.rs`) is one more block: before its attention stands what makes one hidden
//! state of two, and behind its residual a fifth part, its norm, on the default stream. The final norm is a part of the last
//! block's way back. Megatron-Bridge 25.09 has a stage of such a module alone (v0.1.0rc4, `run_script.py`, on Megatron-Core 0.14).
//! There exchanges are in the same order; shared experts are in the third part instead of the first, and the final norm is the
//! module's stage's.

mod parts;

use parts::Node;

use super::{BlocksFrame, Chunk, ChunkFrame, MASK};
use crate::program::{Category, EventId, Pass, ScopeId, StreamId};
use crate::runtime::eager::framework::WeightGradients;
use crate::runtime::eager::{COMPUTE, Eager, Frame, Later, Mode, ParamMap, Storage};
use crate::runtime::megatron::batch::Batch;

/// One of the two micro-batches: where its last part ended, and on which streams its parts run.
#[derive(Clone, Copy, Debug)]
struct Way {
    scope: ScopeId,
    exchanges: StreamId,
    event: EventId,
}

impl Way {
    fn new(eager: &mut Eager, scope: ScopeId, exchanges: StreamId) -> Way {
        Way { scope, exchanges, event: eager.program.record(COMPUTE) }
    }

    /// Runs a part on its stream, behind the part before.
    fn run(&mut self, eager: &mut Eager, node: Node, part: impl FnOnce(&mut Eager)) {
        eager.stream = if matches!(node, Node::Dispatch | Node::Combine) { self.exchanges } else { COMPUTE };
        let before = eager.program.enter(self.scope);
        eager.program.wait(eager.stream, self.event);
        part(eager);
        self.event = eager.program.record(eager.stream);
        eager.program.enter(before);
        eager.stream = COMPUTE;
    }
}

/// A chunk's forward, part by part.
pub(in crate::runtime::megatron) struct Ahead<'c> {
    chunk: &'c Chunk,
    batch: Batch,
    way: Way,
    hidden: Storage,
    frame: ChunkFrame,
    /// How many blocks have ended, the module among them.
    done: u64,
    /// The block that runs, and what stands behind the last one, once it has begun.
    running: Option<Frame>,
    head: Option<Frame>,
}

impl<'c> Ahead<'c> {
    /// Up to the first block.
    pub(in crate::runtime::megatron) fn begin(
        chunk: &'c Chunk,
        eager: &mut Eager,
        input: Option<Storage>,
        (scope, exchanges): (ScopeId, StreamId),
    ) -> Ahead<'c> {
        let before = eager.program.enter(scope);
        set(eager, Pass::Forward);
        let batch = chunk.batch(eager);
        let mut frame = ChunkFrame::default();
        let hidden = chunk.embed(eager, input, batch, &mut frame);
        let way = Way::new(eager, scope, exchanges);
        eager.program.enter(before);
        Ahead { chunk, batch, way, hidden, frame, done: 0, running: None, head: None }
    }

    fn run(&mut self, eager: &mut Eager, node: Node) {
        set(eager, Pass::Forward);
        let (at, chunk) = (self.done, self.chunk);
        let (layer, module) = chunk.layer(at);
        let range = layer.part(node);
        if module && self.head.is_none() {
            self.head = chunk.begin_head(eager, self.hidden, self.batch);
        } else if !module && self.running.is_none() && node == Node::Attention {
            let map = ParamMap::from(chunk.blocks.first(at));
            let mut running = eager.frame(layer.graph, self.hidden, map, Mode::Train);
            eager.give(&mut running, MASK, Some(self.batch.mask));
            self.running = Some(running);
        }
        let running = if module { &mut self.head } else { &mut self.running };
        if let Some(running) = running.as_mut().filter(|_| !range.is_empty()) {
            self.way.run(eager, node, |eager| {
                if node == Node::Dispatch && layer.waits() {
                    eager.wait_for_counts();
                }
                eager.forward_ops(layer.graph, running, range);
            });
        }
        if let Some(mut running) = self.running.take_if(|_| node == Node::Combine) {
            eager.give(&mut running, MASK, None);
            let out = eager.finish_forward(layer.graph, &mut running);
            eager.release(self.hidden);
            self.hidden = out;
            self.frame.blocks.push(BlocksFrame::Saved(at, Box::new(running)));
            if at + 1 == chunk.blocks.len() {
                self.final_norm(eager);
            }
        }
        self.done += u64::from(node == Node::Norm);
    }

    /// The final norm, where the last block is there.
    fn final_norm(&mut self, eager: &mut Eager) {
        self.head = self.chunk.begin_head(eager, self.hidden, self.batch);
        if let Some((graph, running)) = self.chunk.head.as_ref().zip(self.head.as_mut()) {
            let [end, _] = self.chunk.cuts();
            self.way.run(eager, Node::Combine, |eager| eager.forward_ops(graph, running, 0..end));
        }
    }

    /// When the last part has ended.
    pub(in crate::runtime::megatron) fn done(&self) -> EventId {
        self.way.event
    }

    /// What follows the last block. Where that is the head, it waits for the block.
    pub(in crate::runtime::megatron) fn end(mut self, eager: &mut Eager) -> (ChunkFrame, Storage) {
        set(eager, Pass::Forward);
        let before = eager.program.enter(self.way.scope);
        if self.chunk.last {
            eager.program.wait(COMPUTE, self.way.event);
        }
        let [_, from] = self.chunk.cuts();
        let out = match self.head.take() {
            Some(head) => self.chunk.end_head(eager, (Some(head), from), (self.hidden, self.batch), &mut self.frame),
            None => self.chunk.end(eager, self.hidden, self.batch, &mut self.frame),
        };
        eager.program.enter(before);
        (self.frame, out)
    }
}

/// A chunk's backward, part by part.
pub(in crate::runtime::megatron) struct Back<'c> {
    chunk: &'c Chunk,
    way: Way,
    gradient: Option<Storage>,
    seeds: Vec<Storage>,
    frame: ChunkFrame,
    /// How many blocks are left, the module among them.
    left: u64,
    /// The block that runs, and what stands behind the last one, until it has ended.
    running: Option<Box<Frame>>,
    head: Option<Frame>,
    /// Whether weight gradients are made later, and those yet to be made.
    delays: bool,
    later: Vec<Later>,
}

impl<'c> Back<'c> {
    /// Back to the last block, from the gradient of its result; none where that is the loss.
    pub(in crate::runtime::megatron) fn begin(
        chunk: &'c Chunk,
        eager: &mut Eager,
        (mut frame, gradient): (ChunkFrame, Option<Storage>),
        (scope, exchanges): (ScopeId, StreamId),
    ) -> Back<'c> {
        let before = eager.program.enter(scope);
        set(eager, Pass::Backward);
        let (gradient, seeds) = chunk.seeded(eager, gradient);
        let (mut gradient, mut head) = (Some(gradient), frame.head.take());
        if let Some((graph, running)) = chunk.head.as_ref().zip(head.as_mut()) {
            gradient.take().into_iter().for_each(|gradient| eager.start_backward(graph, running, gradient));
            let [_, end] = chunk.cuts();
            eager.backward_ops(graph, running, end..graph.ops.len());
        }
        let way = Way::new(eager, scope, exchanges);
        eager.program.enter(before);
        let delays = chunk.job.mixture.is_some_and(|run| run.delay_wgrad);
        let left = chunk.layer_count();
        Back { chunk, way, gradient, seeds, frame, left, running: None, head, delays, later: vec![] }
    }

    /// Back through the final norm, as far as the last block.
    fn final_norm(&mut self, eager: &mut Eager) {
        let Some((graph, mut running)) = self.chunk.head.as_ref().zip(self.head.take()) else { return };
        let [end, _] = self.chunk.cuts();
        if end > 0 {
            // A stage without blocks has it with the head.
            let node = if self.chunk.blocks.is_empty() { Node::Norm } else { Node::Combine };
            self.way.run(eager, node, |eager| eager.backward_ops(graph, &mut running, 0..end));
        }
        self.gradient = Some(self.chunk.head_gradient(eager, &mut running));
    }

    fn run(&mut self, eager: &mut Eager, node: Node) {
        set(eager, Pass::Backward);
        let chunk = self.chunk;
        let (layer, module) = chunk.layer(self.left - 1);
        let (graph, range) = (layer.graph, layer.part(node));
        if node == Node::Combine && !module {
            self.final_norm(eager);
            let Some(BlocksFrame::Saved(_, running)) = self.frame.blocks.pop() else {
                unreachable!("blocks that are run again are refused")
            };
            let running = self.running.insert(running);
            self.gradient.take().into_iter().for_each(|gradient| eager.start_backward(graph, running, gradient));
        }
        let running = if module { self.head.as_mut() } else { self.running.as_deref_mut() };
        if let Some(running) = running.filter(|_| !range.is_empty()) {
            let weights = if self.delays { WeightGradients::Delayed(vec![]) } else { WeightGradients::AtOnce };
            make_weights(eager, weights);
            self.way.run(eager, node, |eager| eager.backward_ops(graph, running, range));
            self.later = make_weights(eager, WeightGradients::AtOnce).take_delayed();
        }
        if node == Node::Attention {
            // Of attention the first linear's comes first; a module's own, which makes one of two, last.
            self.later.reverse();
            if let Some(mut running) = self.running.take() {
                self.gradient = eager.finish_backward(&mut running);
            } else if !self.later.is_empty() {
                self.later.rotate_left(1);
            }
            self.left -= 1;
            if self.left == 0 {
                let before = eager.program.enter(self.way.scope);
                self.chunk.reduce_maxima(eager);
                eager.program.enter(before);
            }
        }
    }

    /// Makes the weight gradients that the last part has left, which nothing waits for.
    fn run_later(&mut self, eager: &mut Eager) {
        set(eager, Pass::Backward);
        let before = eager.program.enter(self.way.scope);
        eager.run_later(std::mem::take(&mut self.later));
        eager.program.enter(before);
    }

    /// Those of the chunk's first attention, which are made behind the messages.
    pub(in crate::runtime::megatron) fn take_later(&mut self) -> Vec<Later> {
        std::mem::take(&mut self.later)
    }

    /// What lies before the first block; its input's gradient, if that has one.
    pub(in crate::runtime::megatron) fn end(mut self, eager: &mut Eager) -> Option<Storage> {
        set(eager, Pass::Backward);
        let before = eager.program.enter(self.way.scope);
        // On a stage without blocks nothing has asked for it yet.
        self.final_norm(eager);
        eager.program.wait(COMPUTE, self.way.event);
        let gradient = self.gradient.take().expect("a block's input has a gradient");
        let result = self.chunk.end_backward(eager, self.frame.embedding.take(), Some(gradient), self.seeds);
        eager.program.enter(before);
        result
    }
}

/// Leaves the fp8 context that is around both under delayed scaling (`combined_1f1b.py`): forward's maxima are reduced behind
/// all of it, and where there was no forward once more.
pub(in crate::runtime::megatron) fn leave(eager: &mut Eager, chunk: &Chunk, scope: ScopeId) {
    let before = (eager.program.enter(scope), eager.program.set_pass(Pass::Forward));
    chunk.reduce_maxima(eager);
    eager.program.enter(before.0);
    eager.program.set_pass(before.1);
}

/// Says when weight gradients are made from now on. Returns what has been left so far.
fn make_weights(eager: &mut Eager, when: WeightGradients) -> WeightGradients {
    let megatron = eager.framework.megatron_mut();
    megatron.map(|megatron| std::mem::replace(&mut megatron.weights, when)).unwrap_or_default()
}

fn set(eager: &mut Eager, pass: Pass) {
    eager.program.set_pass(pass);
    eager.category = Category::Activation;
}

/// Runs the blocks of both, or of the one there is.
pub(in crate::runtime::megatron) fn run(
    eager: &mut Eager,
    mut ahead: Option<&mut Ahead<'_>>,
    mut back: Option<&mut Back<'_>>,
) {
    let ahead_blocks = ahead.as_ref().map_or(0, |ahead| ahead.chunk.layer_count());
    let back_blocks = back.as_ref().map_or(0, |back| back.chunk.layer_count());
    eager.with_counts_later(|eager| {
        for block in 0..ahead_blocks.max(back_blocks) {
            for (forward, node) in [
                (false, Node::Norm),
                (false, Node::Combine),
                (true, Node::Attention),
                (false, Node::Experts),
                (true, Node::Dispatch),
                (false, Node::Dispatch),
                (true, Node::Experts),
                (true, Node::Combine),
                (true, Node::Norm),
                (false, Node::Attention),
            ] {
                match (forward, &mut ahead, &mut back) {
                    (true, Some(ahead), _) if block < ahead_blocks => ahead.run(eager, node),
                    (false, _, Some(back)) if block < back_blocks => {
                        if node == Node::Dispatch {
                            back.run_later(eager);
                        }
                        back.run(eager, node);
                        if node == Node::Attention && block + 1 < back_blocks {
                            back.run_later(eager);
                        }
                    }
                    _ => {}
                }
            }
        }
    });
}
