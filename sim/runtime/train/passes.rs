//! Forward and backward of one root of the model, all of it or a stage of a pipeline, with `fully_shard`'s hooks around its
//! modules.

use super::blocks::BlockFrame;
use super::part::Part;
use super::training::Training;
use crate::model::transformers::class_of;
use crate::plan::torch::KeepLogits;
use crate::program::{Category, Pass};
use crate::runtime::eager::{Frame, Mode, ParamMap, Storage};

/// The operator of an embedding's graph that looks positions up, where it has one: after tokens and row numbers.
const POSITIONS: usize = 2;

/// What a forward leaves for its backward.
pub(super) struct Frames {
    embedding: Option<Frame>,
    pub blocks: Vec<BlockFrame>,
    pub head: Option<Frame>,
    /// The loss, once it has been computed.
    pub loss: Option<Storage>,
    /// Logits that the loop names until backward is over.
    pub logits: Vec<Storage>,
}

impl Training<'_> {
    /// Forward of the part at work on `input`, whose reference stays the caller's; the output, unless the part has the
    /// head.
    pub(super) fn forward(&mut self, input: Option<Storage>) -> (Frames, Option<Storage>) {
        self.run.eager.program.set_pass(Pass::Forward);
        self.run.eager.category = Category::Activation;
        if let Some(autocast) = self.job.autocast {
            self.run.eager.autocast_begins(autocast.cache);
        }
        let refers = self.refers();
        if !refers {
            self.data_parallel_forward_begins();
        }
        self.run.root_pre_forward();
        let Part { blocks: layers, head: has_head, .. } = self.parts[self.at].clone();
        let (mut embedding, mut hidden) = match input {
            Some(input) => (None, self.run.eager.retain(input)),
            None => {
                let (frame, hidden) = self.embed();
                (Some(frame), hidden)
            }
        };
        self.body_begins(embedding.as_mut().map(|frame| (frame, hidden)));
        let mut blocks = Vec::with_capacity(layers.len());
        for layer in layers {
            self.block_forward_begins(layer);
            let before = self.run.eager.program.enter(self.scopes.blocks[layer]);
            self.cast_begins(layer);
            let (mut frame, output) = self.forward_block(layer, hidden);
            self.run.eager.program.enter(before);
            self.block_forward_ended(layer);
            if refers {
                self.cast_ended(layer);
            }
            self.name_results(&mut frame);
            self.run.eager.release(hidden);
            hidden = output;
            blocks.push(frame);
        }
        let mut head = has_head.then(|| self.forward_head(hidden));
        if !refers && self.data_parallel_forward_ended() {
            self.copy_logits(head.as_mut());
        }
        if !(self.job.loss_inside && has_head) {
            self.run.root_post_forward();
        }
        (Frames { embedding, blocks, head, loss: None, logits: vec![] }, (!has_head).then_some(hidden))
    }

    /// Copies of the logits take their place (`_DDPSink`).
    fn copy_logits(&mut self, head: Option<&mut Frame>) {
        let Some(head) = head else { return };
        for &value in &self.graphs.head.logits.0 {
            self.run.eager.clone_value(&self.graphs.head.graph, head, value);
        }
    }

    fn embed(&mut self) -> (Frame, Storage) {
        let tokens = self.run.eager.borrowed();
        let units = self.run.units.clone();
        if let Some(group) = units.embedding {
            let prefetch = self.prefetched_by_embedding();
            self.run.pre_forward(group, &prefetch);
        }
        let before = self.run.eager.program.enter(self.scopes.embedding);
        let first = ParamMap::from(self.layout.embedding);
        let graph = &self.graphs.embedding;
        let mut embedding = self.run.eager.frame(graph, tokens, first, Mode::Train);
        // Where the tables are units of their own, the first operator is the one's, the third the other's.
        let own = if self.job.fsdp.wrap.apart { 1 } else { graph.ops.len() };
        self.run.eager.forward_ops(graph, &mut embedding, 0..own);
        self.run.eager.program.enter(before);
        if let Some(group) = units.embedding {
            self.run.post_forward(group);
        }
        self.run.eager.program.enter(self.scopes.embedding);
        let mut at = own;
        if let Some(group) = units.positions {
            self.run.eager.forward_ops(graph, &mut embedding, own..POSITIONS);
            self.run.pre_forward(group, &[]);
            self.run.eager.forward_ops(graph, &mut embedding, POSITIONS..POSITIONS + 1);
            self.run.post_forward(group);
            at = POSITIONS + 1;
        }
        self.run.eager.forward_ops(graph, &mut embedding, at..graph.ops.len());
        let hidden = self.run.eager.finish_forward(graph, &mut embedding);
        if self.job.trained.as_ref().is_some_and(|trained| trained.inputs && !trained.embedding) {
            // A leaf that asks for a gradient: the node that takes it holds the leaf.
            self.leaf = Some(self.run.eager.retain(hidden));
        }
        self.run.eager.program.enter(before);
        (embedding, hidden)
    }

    /// Whether final norm and head are in the same unit, if only the root's.
    fn norm_with_head(&self) -> bool {
        let wrap = &self.job.fsdp.wrap;
        !wrap.apart && wrap.head_has_norm
    }

    /// Final norm and head, which take `hidden` over; not the loss.
    fn forward_head(&mut self, hidden: Storage) -> Frame {
        let units = self.run.units.clone();
        let together = self.norm_with_head();
        if let Some(group) = if together { units.head } else { units.norm } {
            self.run.pre_forward(group, &[]);
        }
        let before = self.run.eager.program.enter(self.scopes.head);
        let (graph, norm, loss_from) = (&self.graphs.head.graph, self.graphs.head.norm, self.graphs.head.loss_from);
        let mut head = self.run.eager.frame(graph, hidden, self.layout.head, Mode::Train);
        self.run.eager.forward_ops(graph, &mut head, 0..norm);
        if let Some(group) = units.norm {
            self.run.post_forward(group);
        }
        if let Some(group) = units.head.filter(|_| norm > 0 || !together) {
            // Where norm and head are one group its hook runs before each of them.
            self.run.pre_forward(group, &[]);
        }
        // Transformers' `forward` gives the norm's result the hidden state's name, and then returns to apply the head.
        let ends = class_of(&self.job.model, self.job.style).is_some();
        if ends {
            self.run.eager.release(hidden);
            self.body_returns();
        }
        let graph = &self.graphs.head.graph;
        self.run.eager.category = Category::Logits;
        self.run.eager.forward_ops(graph, &mut head, norm..loss_from);
        self.run.eager.program.enter(before);
        if let Some(group) = units.head {
            self.run.post_forward(group);
        }
        if !ends {
            self.run.eager.release(hidden);
        }
        head
    }

    /// The loss of what a forward has made.
    pub(super) fn loss(&mut self, frames: &mut Frames, micro_batch: u32) {
        let Some(mut head) = frames.head.take() else { return };
        let before = self.run.eager.program.enter(self.scopes.head);
        self.run.eager.category = Category::Logits;
        let graph = &self.graphs.head.graph;
        let (logits, handed) = (&self.graphs.head.logits.0, self.graphs.head.logits.1);
        self.run.eager.forward_ops(graph, &mut head, self.graphs.head.loss_from..handed);
        if self.keeps_logits() {
            let now = logits.iter().map(|&value| self.run.eager.hold(&head, value)).collect();
            let before = std::mem::replace(&mut self.kept, now);
            if before.is_empty() {
                // The first micro-batch: what the step before left.
                for &buffer in &self.kept_across {
                    self.run.eager.program.free(buffer);
                }
            }
            for storage in before {
                self.run.eager.release(storage);
            }
        }
        if self.job.keep_logits == KeepLogits::Backward {
            frames.logits = logits.iter().map(|&value| self.run.eager.hold(&head, value)).collect();
        }
        if self.job.reference.is_some() {
            self.loss_over_pairs(&mut head, handed, micro_batch);
        } else {
            self.forward_loss(&mut head, handed);
        }
        let graph = &self.graphs.head.graph;
        frames.loss = Some(self.run.eager.finish_forward(graph, &mut head));
        frames.head = Some(head);
        if self.job.loss_inside {
            self.run.root_post_forward();
        }
        self.run.eager.autocast_ends();
        self.run.eager.program.enter(before);
    }

    /// One more reference to the logits of a forward, before its loss: a stage's result, which it holds until backward.
    pub(super) fn hold_logits(&mut self, frames: &Frames) -> Vec<Storage> {
        let Some(head) = &frames.head else { return vec![] };
        self.graphs.head.logits.0.iter().map(|&value| self.run.eager.hold(head, value)).collect()
    }

    /// Backward of the part at work, from the loss, or from the gradient of its output, which it takes over: the gradient of
    /// its input, if it got one. `last`: whether reductions are waited for.
    pub(super) fn backward(&mut self, frames: &mut Frames, gradient: Option<Storage>, last: bool) -> Option<Storage> {
        self.run.eager.program.set_pass(Pass::Backward);
        let units = self.run.units.clone();
        let before = self.run.eager.program.enter(self.scopes.head);
        let (mut root, mut ones) = (units.root, None);
        let mut hidden = match (&mut frames.head, gradient) {
            (Some(head), _) => {
                root = None;
                let (hidden, seed) = self.backward_head(head);
                ones = Some(seed);
                hidden
            }
            (None, Some(gradient)) => Some(gradient),
            (None, None) => unreachable!("a part without a head is given a gradient"),
        };
        let layers = self.parts[self.at].blocks.clone();
        for (layer, frame) in layers.zip(&mut frames.blocks).rev() {
            let Some(gradient) = hidden else { break };
            let inside = self.hooks_inside(layer);
            if !inside {
                self.block_backward_begins(layer);
            }
            if let Some(root) = root.take() {
                self.run.pre_backward(root, &[]);
            }
            self.run.eager.program.enter(self.scopes.blocks[layer]);
            hidden = self.backward_block(layer, frame, gradient);
            self.cast_ended(layer);
            // No hook stands behind the backward of a block whose input needs no gradient: the last callback ends it.
            if !inside && hidden.is_some() {
                self.block_backward_ended(layer);
            }
        }
        self.body_ended();
        let made = match (&mut frames.embedding, hidden) {
            (Some(frame), Some(gradient)) => {
                self.backward_embedding(frame, gradient, root);
                None
            }
            (_, hidden) => hidden,
        };
        if let Some(leaf) = self.leaf.take() {
            self.run.eager.release(leaf);
        }
        self.run.eager.program.enter(before);
        self.run.final_callback(last);
        self.data_parallel_backward_ended();
        if let Some(ones) = ones {
            self.run.eager.release(ones);
        }
        made
    }

    /// Backward of loss, head and final norm: the gradient of the hidden state, and the loss's own, which somebody holds.
    fn backward_head(&mut self, head: &mut Frame) -> (Option<Storage>, Storage) {
        let units = self.run.units.clone();
        let (graph, loss_from) = (&self.graphs.head.graph, self.graphs.head.loss_from);
        let ones = self.run.eager.seed_gradient(graph.values[graph.output].dtype);
        let seed = self.run.eager.retain(ones);
        self.run.eager.start_backward(graph, head, seed);
        let mut root = units.root;
        let stored = self.run.eager.leaves.dtype;
        if self.job.loss_inside {
            // The loss is an output of the root, whose hook runs when its gradient comes.
            if let Some(root) = root.take() {
                let prefetch = self.prefetched_by_head();
                self.run.pre_backward(root, &prefetch);
            }
        } else {
            // Gradients of the head's weight that arrive before the root's hook are stored in the type they are reduced in.
            self.run.eager.leaves.dtype = Some(self.job.fsdp.mixed_precision.reduce_dtype());
        }
        self.run.eager.backward_ops(graph, head, loss_from..graph.ops.len());
        self.run.eager.leaves.dtype = stored;
        for group in [units.head, root].into_iter().flatten() {
            let prefetch = self.prefetched_by_head();
            self.run.pre_backward(group, &prefetch);
        }
        let norm = if self.norm_with_head() { 0 } else { self.graphs.head.norm };
        self.run.eager.backward_ops(graph, head, norm..loss_from);
        // A head that is the embedding's table gets its other gradient at the end.
        let mut done = units.head.filter(|_| units.head != units.embedding);
        if norm > 0 {
            if let Some(head) = std::mem::replace(&mut done, units.norm) {
                self.run.post_backward(head);
            }
            if let Some(group) = units.norm {
                self.run.pre_backward(group, &[]);
            }
            self.run.eager.backward_ops(graph, head, 0..norm);
        }
        let hidden = self.run.eager.finish_backward(head);
        if let Some(group) = done.filter(|_| hidden.is_some()) {
            self.run.post_backward(group);
        }
        (hidden, ones)
    }

    /// Backward of the embedding; `root` has yet to hear of its output's gradient, where no block or head came after it.
    fn backward_embedding(&mut self, frame: &mut Frame, hidden: Storage, root: Option<usize>) {
        let units = self.run.units.clone();
        let graph = &self.graphs.embedding;
        let mut left = graph.ops.len();
        self.run.eager.start_backward(graph, frame, hidden);
        if let Some(group) = units.positions {
            self.run.eager.program.enter(self.scopes.embedding);
            self.run.eager.backward_ops(graph, frame, POSITIONS + 1..left);
            self.run.pre_backward(group, &[]);
            self.run.eager.backward_ops(graph, frame, POSITIONS..POSITIONS + 1);
            self.run.post_backward(group);
            left = POSITIONS;
        }
        // The hook of a table that is used twice runs once, where its first gradient came.
        for group in units.embedding.filter(|_| units.head != units.embedding).into_iter().chain(root) {
            self.run.pre_backward(group, &[]);
        }
        self.run.eager.program.enter(self.scopes.embedding);
        self.run.eager.backward_ops(graph, frame, 0..left);
        self.run.eager.finish_backward(frame);
    }
}
