//! Around the loop over blocks in transformers' `forward`: what it makes for all of them, and what it names until it returns.

use super::blocks::BlockFrame;
use super::models::Body;
use super::training::Training;
use crate::model::transformers::{Blocks, body};
use crate::plan::torch::Checkpoint;
use crate::runtime::eager::{Frame, Storage};
use crate::runtime::fsdp::Version;

impl Training<'_> {
    /// Between embedding and blocks.
    pub(super) fn body_begins(&mut self, embedded: Option<(&mut Frame, Storage)>) {
        let job = self.job;
        let (Some((frame, hidden)), compute) = (embedded, job.fsdp.mixed_precision.compute()) else { return };
        let blocks = Blocks {
            checkpointed: job.checkpoint != Checkpoint::None,
            compiled: job.compile,
            casts: job.fsdp.version != Version::Unsharded && !self.refers_by_root_alone(),
        };
        let Some(made) = body(&job.model, (job.batch, job.seq), compute, job.style, blocks) else { return };
        let eager = &mut self.run.eager;
        let mut named = eager.locals(frame);
        if named.is_empty() {
            named.push(eager.retain(hidden));
        }
        named.extend(made.named.iter().map(|&bytes| eager.body_tensor(bytes)));
        let shared = made.shared.iter().map(|&bytes| eager.body_tensor(bytes)).collect();
        self.body = Body { named, shared, casts: made.cast, ..Body::default() };
    }

    /// Before a block's forward: its arguments in its own type.
    pub(super) fn cast_begins(&mut self, layer: usize) {
        for at in 0..self.body.casts.len() {
            let made = self.run.eager.body_tensor(self.body.casts[at]);
            self.body.cast.push((layer, made));
        }
    }

    /// After a block's backward.
    pub(super) fn cast_ended(&mut self, layer: usize) {
        let (gone, stay) = std::mem::take(&mut self.body.cast).into_iter().partition(|&(of, _)| of == layer);
        self.body.cast = stay;
        let gone: Vec<(usize, Storage)> = gone;
        for (_, storage) in gone {
            self.run.eager.release(storage);
        }
    }

    /// After a block's forward: what it returned beside its result takes the name of what the one before did.
    pub(super) fn name_results(&mut self, frame: &mut BlockFrame) {
        let BlockFrame::Eager(frame) = frame else { return };
        let results = self.run.eager.locals(frame);
        for storage in std::mem::replace(&mut self.body.results, results) {
            self.run.eager.release(storage);
        }
    }

    /// When `forward` of the model without its head returns.
    pub(super) fn body_returns(&mut self) {
        let named = std::mem::take(&mut self.body.named);
        for storage in std::mem::take(&mut self.body.results).into_iter().chain(named) {
            self.run.eager.release(storage);
        }
    }

    /// After the first block's backward.
    pub(super) fn body_ended(&mut self) {
        for storage in std::mem::take(&mut self.body.shared) {
            self.run.eager.release(storage);
        }
    }
}
