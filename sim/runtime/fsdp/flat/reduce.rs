//! A flat parameter's gradient: concatenated by autograd, then cast, padded, divided and reduced (`_post_backward_hook`).

use super::{ALL_REDUCE, POST_BACKWARD, UNSHARD};
use crate::plan::torch::fsdp::{BackwardPrefetch, Reshard};
use crate::program::{BufferId, Category, Collective, Comm, DType, Dispatch, MemoryKind, StreamId, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::fsdp::hooks::Run;
use crate::units::Bytes;

/// Powers of two that a gradient is divided by before and after its reduction, near `√ranks` each, so that half-precision
/// sums neither overflow nor vanish (`_get_gradient_predivide_factor`); exact, the second may be no power of two.
fn divisors(ranks: u32) -> (u32, f64) {
    let mut factor = 1;
    while ranks.is_multiple_of(factor) && ranks / factor > factor {
        factor *= 2;
    }
    (factor, f64::from(ranks) / f64::from(factor))
}

impl Run<'_> {
    /// Runs when a unit's last gradient is there: `AccumulateGrad` of the flat parameter, then the hook.
    pub(super) fn flat_post_backward(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("post_backward.pre", at);
        if let Some(added) = self.flat_concatenate(at) {
            self.flat_after_gradient(at, added.is_none());
            // Autograd holds a gradient that was added to an earlier one until the hook returns.
            if let Some(added) = added {
                self.eager.program.free(added);
            }
        }
        self.hook("post_backward.post", at);
        self.eager.program.enter(before);
    }

    /// Backward of the split into views: one gradient of all, in which padding is zero. None if there is none; else the
    /// block of one that was added to an earlier gradient, if it was.
    fn flat_concatenate(&mut self, at: usize) -> Option<Option<BufferId>> {
        let mut gradients = vec![];
        for piece in self.flat.handles[at].pieces.clone() {
            gradients.push((piece, piece.param.and_then(|param| self.eager.take_leaf(param))));
        }
        let dtype = gradients.iter().find_map(|(_, leaf)| leaf.map(|(_, dtype)| dtype))?;
        let dispatch = self.eager.settings.backward;
        let program = &mut self.eager.program;
        program.wait_stream(UNSHARD, COMPUTE);
        let mut zeros = vec![];
        for (piece, _) in gradients.iter().filter(|(_, leaf)| leaf.is_none()) {
            let bytes = Bytes(piece.elements * dtype.bytes());
            zeros.push(program.alloc(bytes, UNSHARD, Category::BackwardTemporary, "aten.zeros"));
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written: bytes };
            program.launch(UNSHARD, "aten.zeros", work, dispatch);
        }
        let handle = &mut self.flat.handles[at];
        let bytes = Bytes(handle.numel * dtype.bytes());
        let flat = program.alloc(bytes, UNSHARD, Category::UnshardedGradient, "aten.cat");
        let work = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
        program.launch(UNSHARD, "aten.cat", work, dispatch);
        for zero in zeros {
            program.free(zero);
        }
        let earlier = handle.gradient;
        if let Some((_, stored)) = earlier {
            let (total, more) = (handle.numel * stored.bytes(), bytes.0);
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(total + more), written: Bytes(total) };
            program.launch(UNSHARD, "aten.add_", work, dispatch);
        }
        for (storage, _) in gradients.into_iter().filter_map(|(_, leaf)| leaf) {
            self.eager.release(storage);
        }
        if earlier.is_none() {
            self.flat.handles[at].gradient = Some((flat, dtype));
        }
        Some(earlier.map(|_| flat))
    }

    /// The hook: frees the parameters, then reduces the gradient or leaves it to be added to (`no_sync`).
    fn flat_after_gradient(&mut self, at: usize, first: bool) {
        self.eager.program.host(Dispatch::FsdpHook, 1);
        let sharded = self.flat.handles[at].is_sharded();
        let free = sharded && (self.reduce_gradients || self.groups[at].reshard == Reshard::Always);
        self.flat_reshard(at, free, UNSHARD);
        if self.flat.settings.backward_prefetch == BackwardPrefetch::Post {
            self.flat_prefetch_backward(at);
        }
        if !self.reduce_gradients {
            if first && self.flat.settings.use_orig_params {
                self.flat_expose_gradients(at);
            }
            return;
        }
        self.eager.program.wait_stream(POST_BACKWARD, UNSHARD);
        if sharded { self.flat_reduce_scatter(at) } else { self.flat_all_reduce(at) }
    }

    /// Gives original parameters views of the unsharded gradient: since shape or type differ from the parameter's, a
    /// stand-in is made and its data replaced (`_use_unsharded_grad_views`).
    fn flat_expose_gradients(&mut self, at: usize) {
        let precision = self.config.mixed_precision;
        let handle = &self.flat.handles[at];
        let program = &mut self.eager.program;
        program.host(Dispatch::FsdpParam, handle.pieces.len() as u32);
        for (_, elements) in handle.views().filter(|_| handle.is_sharded() || precision.casts()) {
            let bytes = Bytes(elements * precision.storage.bytes());
            program.transient(bytes, UNSHARD, Category::BackwardTemporary, "aten.empty_like");
        }
    }

    /// A type conversion or copy on a stream of the reduction.
    fn flat_convert(
        &mut self,
        stream: StreamId,
        (elements, from): (u64, DType),
        (made, to): (u64, DType),
        (category, name): (Category, &'static str),
    ) -> BufferId {
        let program = &mut self.eager.program;
        let (read, written) = (Bytes(elements * from.bytes()), Bytes(made * to.bytes()));
        let buffer = program.alloc(written, stream, category, name);
        let kind = if from == to { MemoryKind::Copy } else { MemoryKind::Elementwise };
        program.launch(stream, name, Work::Memory { kind, read, written }, Dispatch::EagerForward);
        buffer
    }

    fn flat_divide(&mut self, stream: StreamId, bytes: Bytes, divides: bool) {
        if divides {
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: bytes, written: bytes };
            self.eager.program.launch(stream, "aten.div_", work, Dispatch::EagerForward);
        }
    }

    fn flat_reduce_scatter(&mut self, at: usize) {
        let handle = &mut self.flat.handles[at];
        let (numel, shard, padded, ranks) = (handle.numel, handle.shard, handle.padded(), handle.ranks);
        let Some((computed, from)) = handle.gradient.take() else { return };
        let precision = self.config.mixed_precision;
        let dtype = precision.reduce_dtype();
        let input = Category::ReduceScatterInput;
        let cast = (from != dtype)
            .then(|| self.flat_convert(POST_BACKWARD, (numel, from), (numel, dtype), (input, "aten._to_copy")));
        let always = self.flat.settings.always_pads;
        let pad = (padded != numel || always).then(|| {
            self.flat_convert(POST_BACKWARD, (numel, dtype), (padded, dtype), (input, "aten.constant_pad_nd"))
        });
        let (bytes, whole) = (Bytes(shard * dtype.bytes()), Bytes(padded * dtype.bytes()));
        let category = Category::ShardedGradient;
        let mut reduced = self.eager.program.alloc(bytes, POST_BACKWARD, category, "aten.empty_like");
        if always {
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written: bytes };
            self.eager.program.launch(POST_BACKWARD, "aten.zeros_like", work, Dispatch::EagerForward);
        }
        let (before, after) = divisors(ranks * self.config.replicate);
        self.flat_divide(POST_BACKWARD, whole, before > 1);
        let comm = Comm { kind: Collective::ReduceScatter, group: self.communicators.shard, bytes: whole, dtype };
        self.eager.program.collective(POST_BACKWARD, comm);
        let mut stream = POST_BACKWARD;
        if let Some(group) = self.communicators.replicate {
            stream = ALL_REDUCE;
            self.eager.program.wait_stream(ALL_REDUCE, POST_BACKWARD);
            self.eager.program.collective(ALL_REDUCE, Comm { kind: Collective::AllReduce, group, bytes, dtype });
        }
        self.flat_divide(stream, bytes, after > 1.0);
        let storage = precision.storage;
        if storage != dtype {
            let wide = self.flat_convert(stream, (shard, dtype), (shard, storage), (category, "aten._to_copy"));
            self.eager.program.free(std::mem::replace(&mut reduced, wide));
        }
        let stored = Bytes(shard * storage.bytes());
        let kept = self.flat.handles[at].sharded_gradient;
        let program = &mut self.eager.program;
        if kept.is_some() {
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(2 * stored.0), written: stored };
            program.launch(stream, "aten.add_", work, Dispatch::EagerForward);
        } else {
            self.flat.handles[at].sharded_gradient = Some(reduced);
        }
        if self.config.cpu_offload {
            let work = Work::HostCopy { bytes: stored, to_host: true };
            program.launch(stream, "Memcpy DtoH", work, Dispatch::EagerForward);
        }
        for gone in cast.into_iter().chain(pad).chain(kept.map(|_| reduced)).chain([computed]) {
            program.free(gone);
        }
    }

    /// Without sharding the flat gradient is reduced where it lies, and stays.
    fn flat_all_reduce(&mut self, at: usize) {
        let numel = self.flat.handles[at].numel;
        let Some((mut gradient, mut from)) = self.flat.handles[at].gradient.take() else { return };
        let precision = self.config.mixed_precision;
        let mut gone = vec![];
        let dtype = precision.reduce_dtype();
        let bytes = Bytes(numel * dtype.bytes());
        let (before, after) = divisors(self.config.replicate);
        for (step, to) in [dtype, precision.storage].into_iter().enumerate() {
            if from != to {
                let cast = (Category::ShardedGradient, "aten._to_copy");
                gone.push(gradient);
                gradient = self.flat_convert(POST_BACKWARD, (numel, from), (numel, to), cast);
                from = to;
            }
            if step == 0 {
                self.flat_divide(POST_BACKWARD, bytes, before > 1);
                if let Some(group) = self.communicators.replicate {
                    let comm = Comm { kind: Collective::AllReduce, group, bytes, dtype };
                    self.eager.program.collective(POST_BACKWARD, comm);
                }
                self.flat_divide(POST_BACKWARD, bytes, after > 1.0);
            }
        }
        // The last one made goes first: the one autograd made is held until the hook returns.
        for buffer in gone.into_iter().rev() {
            self.eager.program.free(buffer);
        }
        self.flat.handles[at].gradient = Some((gradient, from));
    }
}
