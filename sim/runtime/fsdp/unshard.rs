//! Gathering a group's parameters: `unshard`, `wait_for_unshard`, `reshard` (`_fsdp_param_group.py`).

use super::group::{AllGatherResult, Narrow, ShardedParam, State, Training};
use super::{ALL_GATHER, COPY_IN, float8, hooks::Run};
use crate::plan::torch::fsdp::Reshard;
use crate::program::{Category, Collective, Comm, Dispatch, MemoryKind, Work};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// Bytes of the index arrays that `split_with_sizes_copy` sends to the device: one word per 16 KiB block, at most about
/// 4,096 blocks, and three per tensor (`aten/src/ATen/native/cuda/TensorShape.cu`). Always below 64 KiB.
fn copy_out_metadata(tensors: u64, shard_bytes: u64) -> u64 {
    8 * (3 * tensors + 1) + 8 * (shard_bytes / (16 << 10)).clamp(1, 4096)
}

impl Run<'_> {
    /// Starts the all-gather of a group, unless it is under way or not needed.
    pub(super) fn unshard(&mut self, at: usize) {
        let group = &self.groups[at];
        if group.all_gather.is_some() || group.state == State::Unsharded {
            return;
        }
        if !self.config.unshard_in_backward && group.training == Training::PreBackward {
            return;
        }
        if let Some(event) = self.groups[at].reshard_event.take() {
            self.wait_all_gather_streams(event);
        }
        let (ranks, comm) = self.gather_group(at);
        if ranks == 1 {
            let event = self.eager.program.record(COMPUTE);
            self.groups[at].all_gather = Some(AllGatherResult { output: None, event });
            return;
        }
        // Implicit prefetching uses streams of its own in forward and before backward.
        let training = self.groups[at].training;
        let own = matches!(training, Training::Forward | Training::PreBackward);
        let (copy_in, gather) = match (own, self.asynchronous) {
            (true, _) => (self.own(COPY_IN), self.own(ALL_GATHER)),
            // The buffers are the default stream's, and the collective runs on its communicator's, which all roots share.
            (false, true) => (COMPUTE, ALL_GATHER),
            (false, false) => (COMPUTE, COMPUTE),
        };
        let precision = self.config.mixed_precision;
        let compute = precision.compute().bytes();
        let group = &self.groups[at];
        let count = group.params.len() as u32;
        let post_forward = group.state == State::ShardedPostForward;
        let wide: u64 =
            group.params.iter().filter(|param| param.narrow == Narrow::No).map(|param| param.padded_shard(ranks)).sum();
        let narrow = |param: &&ShardedParam| param.narrow != Narrow::No && !post_forward;
        let narrow: Vec<ShardedParam> = group.params.iter().filter(narrow).copied().collect();
        let (total, dtype) = (group.gathered_bytes(ranks, &precision), group.gathered_dtype(&precision));
        let stored = if post_forward { compute } else { precision.storage.bytes() };
        let casts = precision.param.is_some() && precision.casts();
        let offloaded = self.config.cpu_offload && !post_forward;
        let sizes: Vec<u64> = group.params.iter().map(|param| param.padded_shard(ranks)).collect();
        let program = &mut self.eager.program;
        program.host(Dispatch::FsdpParam, count);
        let mut inputs = vec![];
        if offloaded {
            // Each shard is copied to the device on its own, then cast.
            for &elements in &sizes {
                let bytes = Bytes(elements * stored);
                let copied = program.alloc(bytes, copy_in, Category::AllGatherInput, "aten._to_copy");
                program.launch(
                    copy_in,
                    "Memcpy HtoD",
                    Work::HostCopy { bytes, to_host: false },
                    Dispatch::EagerForward,
                );
                if casts {
                    let cast_bytes = Bytes(elements * compute);
                    let cast = program.alloc(cast_bytes, copy_in, Category::AllGatherInput, "aten._to_copy");
                    let work = Work::Memory { kind: MemoryKind::Elementwise, read: bytes, written: cast_bytes };
                    program.launch(copy_in, "aten._to_copy", work, Dispatch::EagerForward);
                    program.free(copied);
                    inputs.push(cast);
                } else {
                    inputs.push(copied);
                }
            }
        } else {
            for param in &narrow {
                let scales = (param.narrow == Narrow::Unscaled).then_some(comm);
                inputs.push(float8::cast(program, copy_in, (param.padded_shard(ranks), stored), scales));
            }
            if casts && wide > 0 {
                let bytes = Bytes(wide * compute);
                inputs.push(program.alloc(bytes, copy_in, Category::AllGatherInput, "all_gather_input"));
                let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(wide * stored), written: bytes };
                program.launch(copy_in, "aten._foreach_copy_", work, Dispatch::EagerForward);
            }
        }
        let (total, packed) = (Bytes(total), Bytes(total / u64::from(ranks)));
        let output = program.alloc(total, copy_in, Category::AllGatherOutput, "all_gather_output");
        let work = Work::Memory { kind: MemoryKind::Foreach, read: packed, written: packed };
        program.launch(copy_in, "fsdp.all_gather_copy_in", work, Dispatch::EagerForward);
        if gather != copy_in {
            program.wait_stream(gather, copy_in);
        }
        let comm = Comm { kind: Collective::AllGather, group: comm, bytes: total, dtype };
        program.collective(gather, comm);
        for input in inputs.into_iter().rev() {
            program.free(input);
        }
        let event = program.record(gather);
        self.groups[at].all_gather = Some(AllGatherResult { output: Some(output), event });
    }

    /// Gathers a group's parameters while no module runs (`unshard()`): on the default stream, and nothing of the gather is held.
    pub fn unshard_now(&mut self, at: usize) {
        let before = self.eager.program.enter(self.groups[at].scope);
        self.unshard(at);
        self.wait_for_unshard(at);
        self.eager.program.enter(before);
    }

    /// Starts the gathers of all groups of the root at work (`unshard(async_op=True)` on each of its modules).
    pub fn unshard_all(&mut self) {
        self.asynchronous = true;
        for at in self.module_order() {
            self.unshard(at);
        }
        self.asynchronous = false;
    }

    /// Waits for them.
    pub fn wait_for_all(&mut self) {
        for at in self.module_order() {
            self.wait_for_unshard(at);
        }
    }

    /// Lets go of the parameters of all groups of the root at work.
    pub fn reshard_all(&mut self) {
        for at in self.module_order() {
            self.reshard(at);
        }
    }

    /// Waits for the gather and copies it out into parameters.
    pub(super) fn wait_for_unshard(&mut self, at: usize) {
        let Some(result) = self.groups[at].all_gather else { return };
        let forward = self.groups[at].training == Training::Forward;
        if forward {
            self.release_all_gather_state();
        }
        let (ranks, _) = self.gather_group(at);
        let precision = self.config.mixed_precision;
        let compute = precision.compute().bytes();
        let size = |param: &ShardedParam| param.padded_shard(ranks) * u64::from(ranks) * param.gathered(&precision);
        let sizes: Vec<u64> = self.groups[at].params.iter().map(size).collect();
        let program = &mut self.eager.program;
        let mut unsharded = Vec::with_capacity(sizes.len());
        if ranks == 1 {
            // The parameter is cast, then copied into its own storage; Python lets go of the cast one step later.
            let mut last = None;
            for &bytes in &sizes {
                let cast = precision.casts().then(|| {
                    let cast = program.alloc(Bytes(bytes), COMPUTE, Category::AllGatherInput, "aten._to_copy");
                    let read = Bytes(bytes / compute * precision.storage.bytes());
                    let work = Work::Memory { kind: MemoryKind::Elementwise, read, written: Bytes(bytes) };
                    program.launch(COMPUTE, "aten._to_copy", work, Dispatch::EagerForward);
                    cast
                });
                if let Some(earlier) = last {
                    program.free(earlier);
                }
                last = cast;
                unsharded.push(program.alloc(Bytes(bytes), COMPUTE, Category::UnshardedParameter, "unsharded_param"));
                let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(bytes), written: Bytes(bytes) };
                program.launch(COMPUTE, "aten.copy_", work, Dispatch::EagerForward);
            }
            if let Some(earlier) = last {
                program.free(earlier);
            }
        } else {
            program.wait(COMPUTE, result.event);
            let mut apart = vec![];
            for (&bytes, param) in sizes.iter().zip(&self.groups[at].params) {
                unsharded.push(program.alloc(Bytes(bytes), COMPUTE, Category::UnshardedParameter, "unsharded_param"));
                if param.second {
                    let copy = program.alloc(Bytes(bytes), COMPUTE, Category::UnshardedParameter, "aten.empty_like");
                    apart.push((copy, Bytes(bytes)));
                }
            }
            let total: u64 = sizes.iter().sum();
            let metadata = copy_out_metadata(sizes.len() as u64, total / u64::from(ranks));
            program.transient(Bytes(metadata), COMPUTE, Category::Workspace, "fsdp.split_with_sizes_copy");
            let work = Work::Memory { kind: MemoryKind::Foreach, read: Bytes(total), written: Bytes(total) };
            program.launch(COMPUTE, "fsdp.split_with_sizes_copy", work, Dispatch::EagerForward);
            for &(_, bytes) in &apart {
                let work = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
                program.launch(COMPUTE, "aten.cat", work, Dispatch::EagerForward);
            }
            for (copy, _) in apart.into_iter().rev() {
                program.free(copy);
            }
        }
        program.host(Dispatch::FsdpParam, sizes.len() as u32);
        for buffer in self.groups[at].post_forward.drain(..) {
            program.free(buffer);
        }
        let event = program.record(COMPUTE);
        let group = &mut self.groups[at];
        group.unsharded = unsharded;
        group.state = State::Unsharded;
        group.all_gather = None;
        if forward && ranks > 1 {
            // Freed after the next group's copy-in, so that this copy-out overlaps the next gather.
            self.context.all_gather_state = Some((result.output, event));
        } else {
            self.wait_all_gather_streams(event);
            if let Some(output) = result.output {
                self.eager.program.free(output);
            }
        }
    }

    /// Frees the full parameters after forward as the policy says, or after backward always.
    pub(super) fn reshard(&mut self, at: usize) {
        if self.groups[at].training == Training::Forward {
            match self.groups[at].reshard {
                Reshard::Never => return,
                Reshard::To(ranks) if ranks != self.sharded_over(at).0 => {
                    return self.keep_post_forward_shard(at, ranks);
                }
                _ => {}
            }
        }
        if self.groups[at].state == State::Sharded {
            return;
        }
        let group = &mut self.groups[at];
        self.eager.program.host(Dispatch::FsdpParam, group.params.len() as u32);
        for buffer in group.unsharded.drain(..).chain(group.post_forward.drain(..)) {
            self.eager.program.free(buffer);
        }
        group.state = State::Sharded;
    }

    /// Keeps `1/ranks` of each parameter and frees the rest.
    fn keep_post_forward_shard(&mut self, at: usize, ranks: u32) {
        let precision = self.config.mixed_precision;
        let group = &mut self.groups[at];
        let program = &mut self.eager.program;
        for (param, whole) in group.params.iter().zip(group.unsharded.drain(..)) {
            let bytes = Bytes(param.padded_shard(ranks) * param.gathered(&precision));
            let kept = program.alloc(bytes, COMPUTE, Category::PostForwardShard, "post_forward_shard");
            let work = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
            program.launch(COMPUTE, "aten.clone", work, Dispatch::EagerForward);
            program.free(whole);
            group.post_forward.push(kept);
        }
        group.state = State::ShardedPostForward;
        group.reshard_event = Some(program.record(COMPUTE));
    }

    /// Orders both all-gather streams behind an event.
    fn wait_all_gather_streams(&mut self, event: crate::program::EventId) {
        for stream in [COPY_IN, ALL_GATHER] {
            let own = self.own(stream);
            self.eager.program.wait(own, event);
        }
    }

    /// Lets go of the all-gather output kept from the group before.
    pub(super) fn release_all_gather_state(&mut self) {
        if let Some((output, event)) = self.context.all_gather_state.take() {
            self.wait_all_gather_streams(event);
            if let Some(output) = output {
                self.eager.program.free(output);
            }
        }
    }
}
