//! The hooks that `FullyShardedDataParallel` puts around a module's forward and backward, in order.

use super::{PRE_UNSHARD, UNSHARD};
use crate::plan::torch::fsdp::{BackwardPrefetch, Reshard};
use crate::program::{Dispatch, Instr};
use crate::runtime::eager::COMPUTE;
use crate::runtime::fsdp::group::Training;
use crate::runtime::fsdp::hooks::Run;
use crate::runtime::optimizer::Owned;

impl Run<'_> {
    /// Before the model's forward (`_root_pre_forward`).
    pub(in crate::runtime::fsdp) fn flat_root_pre_forward(&mut self) {
        if !std::mem::replace(&mut self.flat.initialised, true) {
            self.flat_initialise();
        }
        let ahead = self.config.forward_prefetch > 0;
        for handle in self.flat.handles.iter_mut().filter(|_| ahead) {
            handle.needs_forward = true;
            handle.prefetched = false;
        }
        if std::mem::take(&mut self.flat.new_step) && !self.flat.free_events.is_empty() {
            // A step's list stands for every step, so it cannot name events of the one before; that one's last is here.
            let event = self.eager.program.record(UNSHARD);
            self.flat.free_events.iter_mut().for_each(|earlier| *earlier = event);
        }
        self.eager.program.wait_stream(UNSHARD, COMPUTE);
        self.eager.program.wait_stream(PRE_UNSHARD, COMPUTE);
        if let Some(root) = self.units.root {
            self.flat_pre_forward(root);
        }
    }

    /// Before a wrapped module's forward (`_pre_forward`).
    pub(in crate::runtime::fsdp) fn flat_pre_forward(&mut self, at: usize) {
        if self.groups[at].training == Training::Forward {
            return;
        }
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("pre_forward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.groups[at].training = Training::Forward;
        // Each unit's first use counts, but that the first unit's place, zero, is taken for none: its last use does.
        let order = &self.flat.pre_forward_order;
        if self.flat.first_pass && (order.first() == Some(&at) || !order.contains(&at)) {
            self.flat.pre_forward_order.push(at);
        }
        if !self.flat.handles[at].prefetched {
            self.flat.handles[at].early_views = false;
            self.flat_unshard(at);
        }
        self.flat.handles[at].needs_forward = false;
        self.eager.program.wait_stream(COMPUTE, UNSHARD);
        self.flat_prefetch_forward(at);
        self.hook("pre_forward.post", at);
        self.eager.program.enter(before);
    }

    fn flat_prefetch_forward(&mut self, at: usize) {
        let order = &self.flat.pre_forward_order;
        let next = order.iter().rposition(|&unit| unit == at).and_then(|place| order.get(place + 1).copied());
        let Some(next) = next.filter(|_| self.config.forward_prefetch > 0) else { return };
        let handle = &self.flat.handles[next];
        if handle.needs_forward && !handle.prefetched {
            self.flat_unshard(next);
            let handle = &mut self.flat.handles[next];
            (handle.prefetched, handle.early_views) = (true, true);
        }
    }

    /// After a wrapped module's forward (`_post_forward`).
    pub(in crate::runtime::fsdp) fn flat_post_forward(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("post_forward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.flat.handles[at].post_forward_index = Some(self.flat.post_forward_order.len());
        self.flat.post_forward_order.push(at);
        let free = self.units.root != Some(at)
            && self.groups[at].reshard == Reshard::Always
            && self.flat.handles[at].is_sharded();
        self.flat_reshard(at, free, COMPUTE);
        self.flat.handles[at].needs_backward = true;
        self.groups[at].training = Training::Idle;
        self.hook("post_forward.post", at);
        self.eager.program.enter(before);
    }

    /// When the gradient of a wrapped module's output arrives (`_pre_backward_hook`).
    pub(in crate::runtime::fsdp) fn flat_pre_backward(&mut self, at: usize) {
        let scope = self.groups[at].scope;
        let before = self.eager.program.enter(scope);
        self.hook("pre_backward.pre", at);
        self.eager.program.host(Dispatch::FsdpHook, 1);
        self.groups[at].training = Training::PreBackward;
        if std::mem::take(&mut self.flat.handles[at].needs_backward) {
            if !self.flat.handles[at].prefetched {
                self.flat_unshard(at);
            }
            self.eager.program.wait_stream(COMPUTE, UNSHARD);
        }
        if self.flat.settings.backward_prefetch == BackwardPrefetch::Pre {
            self.flat_prefetch_backward(at);
        }
        self.hook("pre_backward.post", at);
        self.eager.program.enter(before);
    }

    /// Gathers the unit whose forward ended before this one's.
    pub(super) fn flat_prefetch_backward(&mut self, at: usize) {
        let Some(index) = self.flat.handles[at].post_forward_index.filter(|&index| index > 0) else { return };
        let target = self.flat.post_forward_order[index - 1];
        let handle = &self.flat.handles[target];
        if handle.needs_backward && !handle.prefetched {
            self.flat_unshard(target);
            self.flat.handles[target].prefetched = true;
        }
    }

    /// When a wrapped module's backward is done. Autograd concatenates a unit's gradients right away, unless its views
    /// were made before the forward of the unit before it, in which case that unit's backward comes first: nodes run in
    /// reverse order of creation.
    pub(in crate::runtime::fsdp) fn flat_backward_done(&mut self, at: usize) {
        self.flat_late_gradients();
        if self.flat.handles[at].early_views {
            self.flat.late = Some(at);
        } else {
            self.flat_post_backward(at);
        }
    }

    fn flat_late_gradients(&mut self) {
        if let Some(late) = self.flat.late.take() {
            self.flat_post_backward(late);
        }
    }

    /// Ends a backward (`_post_backward_final_callback`).
    pub(in crate::runtime::fsdp) fn flat_final_callback(&mut self) {
        self.flat_late_gradients();
        for at in [self.units.embedding, self.units.root].into_iter().flatten() {
            self.flat_post_backward(at);
        }
        // The engine ends by syncing the streams of leaves.
        self.eager.program.wait_stream(COMPUTE, UNSHARD);
        if self.reduce_gradients {
            self.eager.program.wait_stream(COMPUTE, super::POST_BACKWARD);
            if self.communicators.replicate.is_some() && self.config.shard > 1 {
                self.eager.program.wait_stream(COMPUTE, super::ALL_REDUCE);
            }
            if self.config.cpu_offload {
                let event = self.eager.program.record(COMPUTE);
                self.eager.program.push(Instr::HostWait { event });
            }
        }
        self.flat.first_pass = false;
        self.flat.post_forward_order.clear();
        for (handle, group) in self.flat.handles.iter_mut().zip(&mut self.groups) {
            (handle.needs_backward, handle.prefetched, handle.post_forward_index) = (false, false, None);
            group.training = Training::Idle;
        }
        if self.config.cpu_offload && self.reduce_gradients {
            self.flat_free_gradients();
        }
    }

    /// Lets go of the gradients. With original parameters only the next forward does so; nothing is taken in between.
    pub(in crate::runtime::fsdp) fn flat_zero_gradients(&mut self) {
        self.flat.new_step = true;
        self.flat_free_gradients();
    }

    fn flat_free_gradients(&mut self) {
        for at in self.callback_order() {
            let handle = &mut self.flat.handles[at];
            for gradient in handle.sharded_gradient.take().into_iter().chain(handle.gradient.take().map(|(it, _)| it)) {
                self.eager.program.free(gradient);
            }
        }
    }

    /// The tensors that live on the rank and that the optimizer sees, in its order: flat parameters, or the stretches of original
    /// ones that fall into them.
    pub(in crate::runtime::fsdp) fn flat_owned(&self) -> Vec<Owned> {
        let order = self.callback_order();
        if !self.flat.settings.use_orig_params {
            return order.into_iter().map(|at| Owned::flat(self.flat.handles[at].shard)).collect();
        }
        let mut views: Vec<(usize, Owned)> = vec![];
        for at in order {
            let params = &self.groups[at].params;
            views.extend(self.flat.handles[at].views().filter_map(|(index, elements)| {
                let param = params.iter().find(|param| param.index == index)?;
                Some((index, Owned::stretch(param.shape, param.role, elements)))
            }));
        }
        views.sort_unstable_by_key(|&(index, _)| index);
        views.into_iter().map(|(_, owned)| owned).collect()
    }

    /// Shards of the flat parameters \[elements\] in the order `Module.to` moves them: children first.
    pub(in crate::runtime::fsdp) fn flat_shards(&self) -> Vec<u64> {
        let mut order = self.callback_order();
        order.rotate_left(usize::from(self.units.root.is_some()));
        order.into_iter().map(|at| self.flat.handles[at].shard).collect()
    }
}
