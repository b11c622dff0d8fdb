//! Reducing a group's gradients: `post_backward` (`_fsdp_param_group.py`) and `foreach_reduce` (`_fsdp_collectives.py`).

use super::group::{Made, Place, ShardedParam, Training};
use super::{ALL_REDUCE, REDUCE_SCATTER, hooks::Run};
use crate::program::{
    BufferId, Category, Collective, Comm, DType, Dispatch, EventId, Instr, MemoryKind, StreamId, Work,
};
use crate::runtime::eager::{COMPUTE, Storage};
use crate::units::Bytes;

/// Bytes of the index arrays that `chunk_cat` sends to the device: a word per 2 KiB block of a destination chunk, and six
/// words per tensor (`aten/src/ATen/native/cuda/TensorShape.cu`, `_chunk_cat_out_cuda`), and two more where all gradients
/// have one type (found with PyTorch 2.15: a kernel for each type leaves them out).
fn chunk_cat_metadata(shards: impl Iterator<Item = u64>, element: u64, mixed: bool) -> u64 {
    let (tensors, blocks) =
        shards.fold((0, 0), |(tensors, blocks), shard| (tensors + 1, blocks + (shard * element).div_ceil(2048)));
    8 * (6 * tensors + if mixed { 0 } else { 2 }) + 8 * blocks
}

/// One sum in place.
fn add(bytes: Bytes) -> Work {
    Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(2 * bytes.0), written: bytes }
}

impl Run<'_> {
    /// Runs after the group's backward: takes its gradients, frees its parameters, reduces.
    pub fn post_backward(&mut self, at: usize) {
        if self.is_flat() {
            return self.flat_backward_done(at);
        }
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("post_backward.pre", at);
        self.post_backward_inner(at, true);
        self.hook("post_backward.post", at);
        self.eager.program.enter(before);
    }

    /// Runs after the backward of a part of a group's modules, which stays gathered; the default stream waits for the
    /// reduction (`is_partial_group_backward`).
    pub fn part_backward(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.post_backward_inner(at, false);
        if let Some(event) = self.groups[at].post_reduce {
            self.eager.program.wait(COMPUTE, event);
        }
        self.eager.program.enter(before);
    }

    /// Lets go of a group's parameters after that.
    pub fn reshard_part(&mut self, at: usize) {
        self.reshard(at);
        self.groups[at].training = Training::Idle;
    }

    fn post_backward_inner(&mut self, at: usize, reshards: bool) {
        self.groups[at].training = Training::PostBackward;
        self.eager.program.host(Dispatch::FsdpHook, 1);
        let reshards = reshards && !self.keeps_gathered;
        if !self.reduce_gradients {
            if reshards {
                self.reshard(at);
            }
            return;
        }
        let mut gradients = vec![];
        for param in self.groups[at].params.clone() {
            if let Some((mut storage, dtype)) = self.eager.take_leaf(param.index) {
                match param.gradient {
                    Made::Own => {}
                    Made::Partial => storage = self.eager.all_reduce(storage, dtype, Category::UnshardedGradient),
                    Made::Whole(parts) => storage = self.eager.part(storage, parts),
                }
                gradients.push((param, storage, dtype));
            }
        }
        if reshards {
            self.reshard(at);
        }
        // The first of two groups reduces beside the second.
        let waits = self.groups[at].place != Place::First;
        while waits && self.context.reduce_scatter_states.len() >= self.config.reduce_scatter_buffers {
            let (input, event) = self.context.reduce_scatter_states.remove(0);
            self.eager.program.wait(COMPUTE, event);
            self.eager.program.free(input);
        }
        if gradients.is_empty() {
            return;
        }
        if let Some(event) = self.groups[at].post_reduce.take() {
            self.eager.program.wait(COMPUTE, event);
        }
        if let Some((buffer, event)) = self.groups[at].all_reduce.take() {
            self.eager.program.wait(COMPUTE, event);
            self.eager.program.free(buffer);
        }
        self.chunk(&mut gradients);
        let (ranks, _) = self.sharded_over(at);
        let dtype = self.config.mixed_precision.reduce_dtype();
        let element = dtype.bytes();
        let reduced: Vec<ShardedParam> = gradients.iter().map(|&(param, ..)| param).collect();
        let shard: u64 = reduced.iter().map(|param| param.padded_shard(ranks)).sum();
        let total = Bytes(shard * u64::from(ranks) * element);
        let read: u64 = gradients.iter().map(|(param, _, dtype)| param.elements() * dtype.bytes()).sum();
        let program = &mut self.eager.program;
        program.host(Dispatch::FsdpParam, gradients.len() as u32);
        let input = program.alloc(total, COMPUTE, Category::ReduceScatterInput, "reduce_scatter_input");
        let mixed = gradients.iter().any(|&(.., dtype)| dtype != gradients[0].2);
        let shards = gradients.iter().map(|(param, ..)| param.padded_shard(ranks));
        let metadata = chunk_cat_metadata(shards, element, mixed);
        program.transient(Bytes(metadata), COMPUTE, Category::Workspace, "fsdp.chunk_cat");
        let work = Work::Memory { kind: MemoryKind::ChunkCat, read: Bytes(read), written: total };
        program.launch(COMPUTE, "fsdp.chunk_cat", work, Dispatch::EagerBackward);
        for &(_, storage, _) in gradients.iter().rev() {
            self.eager.release(storage);
        }
        self.reduce_scatter(at, input, (&reduced, shard), dtype);
    }

    /// Copies gradients that are reduced on their second dimension into the order of ranks. Python's loop over them keeps the
    /// one before for as long as CPython reuses a tuple of `enumerate(zip(…))`: of each two neighbours in the list both go when
    /// the second has been copied.
    fn chunk(&mut self, gradients: &mut [(ShardedParam, Storage, DType)]) {
        for pair in gradients.chunks_mut(2) {
            let mut gone = vec![];
            for (_, storage, _) in pair.iter_mut().filter(|(param, ..)| param.second) {
                let copy = self.eager.cut(*storage);
                gone.push(std::mem::replace(storage, copy));
            }
            for earlier in gone {
                self.eager.release(earlier);
            }
        }
    }

    fn reduce_scatter(&mut self, at: usize, input: BufferId, (reduced, shard): (&[ShardedParam], u64), dtype: DType) {
        let (ranks, group) = self.sharded_over(at);
        let shard_bytes = Bytes(shard * dtype.bytes());
        let total = Bytes(shard_bytes.0 * u64::from(ranks));
        let (scatters, reduces) = (self.own(REDUCE_SCATTER), self.own(ALL_REDUCE));
        let program = &mut self.eager.program;
        program.wait_stream(scatters, COMPUTE);
        let mut output = program.alloc(shard_bytes, scatters, Category::ShardedGradient, "reduce_scatter_output");
        if ranks > 1 {
            let comm = Comm { kind: Collective::ReduceScatter, group, bytes: total, dtype };
            program.collective(scatters, comm);
        } else {
            let work = Work::Memory { kind: MemoryKind::Copy, read: shard_bytes, written: shard_bytes };
            program.launch(scatters, "aten.copy_", work, Dispatch::EagerBackward);
        }
        let reduce_scatter_event = program.record(scatters);
        let mut stream = scatters;
        let mut all_reduce_input = None;
        let mut partial = None;
        if let Some(replicate) = self.communicators.replicate {
            partial = self.groups[at].partial.take();
            if !self.all_reduces {
                return self.add_partial(at, (input, reduce_scatter_event), (partial, output, shard_bytes));
            }
            if partial.is_some() {
                program.launch(scatters, "aten.add_", add(shard_bytes), Dispatch::EagerBackward);
            }
            program.wait_stream(reduces, scatters);
            stream = reduces;
            let comm = Comm { kind: Collective::AllReduce, group: replicate, bytes: shard_bytes, dtype };
            program.collective(reduces, comm);
            all_reduce_input = Some((output, program.record(reduces)));
        }
        let storage = self.config.mixed_precision.storage;
        if storage != dtype {
            let bytes = Bytes(shard * storage.bytes());
            let cast = program.alloc(bytes, stream, Category::ShardedGradient, "aten._to_copy");
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: shard_bytes, written: bytes };
            program.launch(stream, "aten._to_copy", work, Dispatch::EagerBackward);
            if all_reduce_input.is_none() {
                program.free(output);
            } else if let Some((buffer, event)) = all_reduce_input {
                // Held across layers so that the next reduce-scatter cannot reuse the block too early.
                self.groups[at].all_reduce = Some((buffer, event));
            }
            output = cast;
        }
        let held = if storage == dtype { all_reduce_input.map(|(_, event)| event) } else { None };
        self.store_sharded_gradient((at, reduced), output, stream, shard * storage.bytes(), held);
        if let Some(partial) = partial {
            self.eager.program.free(partial);
        }
        let event = self.eager.program.record(stream);
        self.groups[at].post_reduce = Some(event);
        self.context.last_post_reduce[usize::from(stream == reduces)] = Some(event);
        self.context.reduce_scatter_states.push((input, reduce_scatter_event));
    }

    /// Adds what a reduce-scatter made to the sum of those before it, which a later backward all-reduces.
    fn add_partial(
        &mut self,
        at: usize,
        in_flight: (BufferId, EventId),
        (partial, output, bytes): (Option<BufferId>, BufferId, Bytes),
    ) {
        let scatters = self.own(REDUCE_SCATTER);
        let program = &mut self.eager.program;
        if partial.is_some() {
            program.launch(scatters, "aten.add_", add(bytes), Dispatch::EagerBackward);
            program.free(output);
        }
        let event = program.record(scatters);
        let group = &mut self.groups[at];
        group.partial = Some(partial.unwrap_or(output));
        group.post_reduce = Some(event);
        self.context.last_post_reduce[0] = Some(event);
        self.context.reduce_scatter_states.push(in_flight);
    }

    /// The reduced shard becomes the parameters' gradient, is added to the one there is, or goes to the host. Where an
    /// all-reduce still reads it (`held`), the group holds it until its next reduction.
    fn store_sharded_gradient(
        &mut self,
        (at, reduced): (usize, &[ShardedParam]),
        output: BufferId,
        stream: StreamId,
        bytes: u64,
        held: Option<EventId>,
    ) {
        let (ranks, _) = self.sharded_over(at);
        let group = &mut self.groups[at];
        let program = &mut self.eager.program;
        let count = reduced.len() as u32;
        program.host(Dispatch::FsdpParam, count);
        if self.config.cpu_offload {
            let work = Work::HostCopy { bytes: Bytes(bytes), to_host: true };
            program.launch(stream, "Memcpy DtoH", work, Dispatch::EagerBackward);
            program.free(output);
            group.offloaded_gradient = true;
            return;
        }
        let first = reduced.first().map_or(0, |param| param.index);
        match group.sharded_gradients.iter().find(|&&(known, _)| known == first) {
            None => group.sharded_gradients.push((first, output)),
            Some(_) => {
                let whole: u64 = reduced.iter().map(|param| param.padded_shard(ranks)).sum();
                for param in reduced {
                    let part = bytes * param.padded_shard(ranks) / whole;
                    let work =
                        Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(2 * part), written: Bytes(part) };
                    program.launch(stream, "aten.add_", work, Dispatch::EagerBackward);
                }
                match held {
                    Some(event) => group.all_reduce = Some((output, event)),
                    None => program.free(output),
                }
            }
        }
    }

    /// Ends a backward (`_root_post_backward_final_callback`).
    pub fn final_callback(&mut self, last: bool) {
        if self.is_flat() {
            return self.flat_final_callback();
        }
        for at in self.callback_order() {
            if self.groups[at].training != Training::PostBackward {
                self.post_backward(at);
            }
            self.groups[at].training = Training::Idle;
        }
        if last { self.end_iteration() } else { self.release_gathered() }
    }

    /// Reduces what backwards have accumulated (`finalize_backward(async_op=True)`).
    pub fn finalize_backward(&mut self) {
        self.reduce_gradients = true;
        for at in self.module_order().into_iter().rev() {
            self.post_backward(at);
            self.groups[at].training = Training::Idle;
        }
    }

    /// Waits for all reductions (`_end_backward_iteration`).
    pub fn end_iteration(&mut self) {
        for event in self.context.last_post_reduce.into_iter().flatten() {
            self.eager.program.wait(COMPUTE, event);
        }
        self.context.last_post_reduce = [None; 2];
        for at in self.callback_order() {
            self.finalize(at);
        }
        self.release_gathered();
        self.context.post_forward_order.clear();
        let states: Vec<(BufferId, EventId)> = self.context.reduce_scatter_states.drain(..).collect();
        for (input, event) in states {
            self.eager.program.wait(COMPUTE, event);
            self.eager.program.free(input);
        }
    }

    /// Lets go of the last gather's output (`release_all_gather_state_on_current_stream`).
    fn release_gathered(&mut self) {
        if let Some((output, event)) = self.context.all_gather_state.take() {
            self.eager.program.wait(COMPUTE, event);
            if let Some(output) = output {
                self.eager.program.free(output);
            }
        }
    }

    fn finalize(&mut self, at: usize) {
        let group = &mut self.groups[at];
        let reduced = group.post_reduce.take();
        if let Some(event) = reduced.filter(|_| group.offloaded_gradient) {
            // `grad_offload_event.synchronize()`: the optimizer on the host needs the gradient.
            self.eager.program.push(Instr::HostWait { event });
        }
        group.post_forward_indices.clear();
        let all_reduce = group.all_reduce.take();
        if let Some((buffer, _)) = all_reduce {
            self.eager.program.free(buffer);
        }
        if let Some(result) = self.groups[at].all_gather.take() {
            self.eager.program.wait(COMPUTE, result.event);
            if let Some(output) = result.output {
                self.eager.program.free(output);
            }
        }
    }
}
