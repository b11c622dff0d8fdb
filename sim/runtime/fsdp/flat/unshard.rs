//! Gathering and freeing a flat parameter: `_unshard`, `_reshard` and the rate limiter (`_runtime_utils.py`).

use super::{IN_FLIGHT, PRE_UNSHARD, UNSHARD};
use crate::program::{BufferId, Category, Collective, Comm, Dispatch, Instr, MemoryKind, StreamId, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::fsdp::hooks::Run;
use crate::units::Bytes;

impl Run<'_> {
    /// Makes and frees every storage once, as the first forward does (`init_flat_param_attributes`): the default
    /// stream's pool keeps the memory.
    pub(super) fn flat_initialise(&mut self) {
        let precision = self.config.mixed_precision;
        let (storage, compute) = (precision.storage.bytes(), precision.compute().bytes());
        for at in self.callback_order() {
            let handle = &self.flat.handles[at];
            let (shard, padded, sharded) = (handle.shard, handle.padded(), handle.is_sharded());
            let mut sizes = vec![];
            sizes.extend(precision.casts().then_some((shard * compute, "_mp_shard")));
            sizes.extend(sharded.then_some((padded * compute, "_full_param_padded")));
            sizes.extend((precision.casts() && sharded).then_some((padded * storage, "_full_prec_full_param_padded")));
            for (bytes, name) in sizes {
                self.eager.program.transient(Bytes(bytes), COMPUTE, Category::UnshardedParameter, name);
            }
        }
    }

    /// Casts and gathers a unit, and points its views at the result (`_unshard`).
    pub(super) fn flat_unshard(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        let handle = &self.flat.handles[at];
        let (sharded, gather) = (handle.is_sharded(), handle.is_sharded() && handle.unsharded.is_none());
        let (padded, views) = (handle.padded(), handle.pieces.len() as u32);
        let shard = self.flat_pre_unshard(at, gather);
        if self.flat.settings.limit_all_gathers
            && self.flat.free_events.len() >= IN_FLIGHT
            && let Some(event) = self.flat.free_events.pop_front()
        {
            self.eager.program.push(Instr::HostWait { event });
        }
        let compute = self.config.mixed_precision.compute();
        let program = &mut self.eager.program;
        if gather {
            let bytes = Bytes(padded * compute.bytes());
            let whole = program.alloc(bytes, UNSHARD, Category::UnshardedParameter, "_full_param_padded");
            let group = self.communicators.shard;
            program.collective(UNSHARD, Comm { kind: Collective::AllGather, group, bytes, dtype: compute });
            self.flat.handles[at].unsharded = Some(whole);
        }
        program.host(Dispatch::FsdpParam, views);
        match shard {
            Some(shard) if sharded => program.free(shard),
            shard => self.flat.handles[at].low_precision = shard.or(self.flat.handles[at].low_precision),
        }
        program.enter(before);
    }

    /// Brings the shard to the device in the type it is gathered in (`pre_unshard`); none if it is there already.
    fn flat_pre_unshard(&mut self, at: usize, gather: bool) -> Option<BufferId> {
        let precision = self.config.mixed_precision;
        let offload = self.config.cpu_offload;
        let handle = &self.flat.handles[at];
        // A unit that is still gathered needs nothing, but the check is left out with offloading.
        let idle = handle.is_sharded() && !gather && !offload;
        if idle || handle.low_precision.is_some() || !(precision.casts() || offload) {
            return None;
        }
        let shard = handle.shard;
        let (stored, cast) = (Bytes(shard * precision.storage.bytes()), Bytes(shard * precision.compute().bytes()));
        let program = &mut self.eager.program;
        let low = precision.casts().then(|| program.alloc(cast, PRE_UNSHARD, Category::AllGatherInput, "_mp_shard"));
        let copied = offload.then(|| {
            let copied = program.alloc(stored, PRE_UNSHARD, Category::AllGatherInput, "aten._to_copy");
            let work = Work::HostCopy { bytes: stored, to_host: false };
            program.launch(PRE_UNSHARD, "Memcpy HtoD", work, Dispatch::EagerForward);
            copied
        });
        if low.is_some() {
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: stored, written: cast };
            program.launch(PRE_UNSHARD, "aten.copy_", work, Dispatch::EagerForward);
            if let Some(copied) = copied {
                program.free(copied);
            }
        }
        program.wait_stream(UNSHARD, PRE_UNSHARD);
        low.or(copied)
    }

    /// Points the views back at the shard, and frees the gathered storage if asked to (`_reshard`), on the stream
    /// the hook runs on.
    pub(super) fn flat_reshard(&mut self, at: usize, free: bool, stream: StreamId) {
        let handle = &mut self.flat.handles[at];
        let program = &mut self.eager.program;
        if self.flat.settings.use_orig_params {
            program.host(Dispatch::FsdpParam, handle.pieces.len() as u32);
        }
        if free {
            if let Some(whole) = handle.unsharded.take() {
                program.free(whole);
            }
            if self.flat.settings.limit_all_gathers {
                self.flat.free_events.push_back(program.record(stream));
            }
        }
        if let Some(low) = handle.low_precision.take() {
            program.free(low);
        }
        handle.prefetched = false;
    }
}
