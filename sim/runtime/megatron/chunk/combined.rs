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

use std::ops::Range;

use super::{BlocksFrame, Chunk, ChunkFrame, MASK};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::{MegatronOp, RoutedOp};
use crate::program::{Category, EventId, Pass, ScopeId, StreamId};
use crate::runtime::eager::{COMPUTE, Eager, Frame, Later, Mode, ParamMap, Storage, crosses};
use crate::runtime::megatron::batch::Batch;

/// A part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Attention,
    Dispatch,
    Experts,
    Combine,
}

/// Which operators of a block are in a part.
fn part(graph: &Graph, node: Node) -> Range<usize> {
    let crosses = |op: &Op| matches!(op.kind, OpKind::Megatron(MegatronOp::Routed(kind)) if crosses(kind));
    let sums = |op: &Op| matches!(op.kind, OpKind::Megatron(MegatronOp::BiasDropoutAdd { .. }));
    let end = graph.ops.len();
    let [dispatch, experts, combine] = match (graph.ops.iter().position(crosses), graph.ops.iter().rposition(crosses)) {
        // Rows go to the experts, with their weights or before them; rows come back.
        (Some(first), Some(last)) => {
            [first, first + graph.ops[first..].iter().take_while(|op| crosses(op)).count(), last]
        }
        _ => {
            let cut = graph.ops.iter().position(sums).map_or(end, |at| at + 1);
            [cut, cut, end]
        }
    };
    match node {
        Node::Attention => 0..dispatch,
        Node::Dispatch => dispatch..experts,
        Node::Experts => experts..combine,
        Node::Combine => combine..end,
    }
}

/// Whether the host waits for counts of rows before they go to the experts.
fn waits(graph: &Graph) -> bool {
    let waits = |kind| matches!(kind, OpKind::Megatron(MegatronOp::Routed(RoutedOp::Permute { waits: true, .. })));
    graph.ops.iter().any(|op| waits(op.kind))
}

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
    running: Option<Frame>,
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
        Ahead { chunk, batch, way, hidden, frame, running: None }
    }

    fn run(&mut self, eager: &mut Eager, node: Node) {
        set(eager, Pass::Forward);
        let (layer, blocks) = (self.frame.blocks.len() as u64, &self.chunk.blocks);
        let graph = blocks.graph(layer);
        let range = part(graph, node);
        let running = self.running.get_or_insert_with(|| {
            let map = ParamMap::from(blocks.first(layer));
            let mut running = eager.frame(graph, self.hidden, map, Mode::Train);
            eager.give(&mut running, MASK, Some(self.batch.mask));
            running
        });
        if !range.is_empty() {
            self.way.run(eager, node, |eager| {
                if node == Node::Dispatch && waits(graph) {
                    eager.wait_for_counts();
                }
                eager.forward_ops(graph, running, range);
            });
        }
        if node == Node::Combine {
            let mut running = self.running.take().expect("a block that ends has begun");
            eager.give(&mut running, MASK, None);
            let out = eager.finish_forward(graph, &mut running);
            eager.release(self.hidden);
            self.hidden = out;
            self.frame.blocks.push(BlocksFrame::Saved(layer, Box::new(running)));
        }
    }

    /// When the last part has ended.
    pub(in crate::runtime::megatron) fn done(&self) -> EventId {
        self.way.event
    }

    /// What follows the last block. Where that is a head, it waits for the block.
    pub(in crate::runtime::megatron) fn end(mut self, eager: &mut Eager) -> (ChunkFrame, Storage) {
        set(eager, Pass::Forward);
        let before = eager.program.enter(self.way.scope);
        if self.chunk.head.is_some() {
            eager.program.wait(COMPUTE, self.way.event);
        }
        let out = self.chunk.end(eager, self.hidden, self.batch, &mut self.frame);
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
    running: Option<(u64, Box<Frame>)>,
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
        let (gradient, seeds) = chunk.begin_backward(eager, frame.head.take(), gradient);
        let way = Way::new(eager, scope, exchanges);
        eager.program.enter(before);
        let delays = chunk.job.mixture.is_some_and(|run| run.delay_wgrad);
        Back { chunk, way, gradient: Some(gradient), seeds, frame, running: None, delays, later: vec![] }
    }

    fn run(&mut self, eager: &mut Eager, node: Node) {
        set(eager, Pass::Backward);
        if node == Node::Combine {
            let Some(BlocksFrame::Saved(layer, running)) = self.frame.blocks.pop() else {
                unreachable!("blocks that are run again are refused")
            };
            self.running = Some((layer, running));
        }
        let (layer, running) = self.running.as_mut().expect("the way back comes first");
        let graph = self.chunk.blocks.graph(*layer);
        let range = part(graph, node);
        if let Some(gradient) = self.gradient.take() {
            eager.start_backward(graph, running, gradient);
        }
        if !range.is_empty() {
            eager.later = self.delays.then(Vec::new);
            self.way.run(eager, node, |eager| eager.backward_ops(graph, running, range));
            self.later = eager.later.take().unwrap_or_default();
        }
        if node == Node::Attention {
            // Of attention the first linear's comes first.
            self.later.reverse();
            self.gradient = eager.finish_backward(running);
            self.running = None;
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
        eager.program.wait(COMPUTE, self.way.event);
        let gradient = self.gradient.take().expect("a block's input has a gradient");
        let result = self.chunk.end_backward(eager, self.frame.embedding.take(), gradient, self.seeds);
        eager.program.enter(before);
        result
    }
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
    let ahead_blocks = ahead.as_ref().map_or(0, |ahead| ahead.chunk.blocks.len());
    let back_blocks = back.as_ref().map_or(0, |back| back.chunk.blocks.len());
    eager.counts_later = true;
    for block in 0..ahead_blocks.max(back_blocks) {
        for (forward, node) in [
            (false, Node::Combine),
            (true, Node::Attention),
            (false, Node::Experts),
            (true, Node::Dispatch),
            (false, Node::Dispatch),
            (true, Node::Experts),
            (true, Node::Combine),
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
    eager.counts_later = false;
}
