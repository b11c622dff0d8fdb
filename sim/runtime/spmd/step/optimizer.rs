//! The optimizer's step on this chip's shards, in place, after the gradients' norm.

use super::state::{FULL, Step};
use crate::program::{Collective, MemoryKind};
use crate::runtime::optimizer::param::elements;

impl Step<'_> {
    pub(super) fn update(&mut self) {
        self.tape.scope = self.scopes.optimizer;
        let params = self.parameters();
        let numbers = elements(&params);
        let gradients = std::mem::take(&mut self.tables);
        if self.job.clip {
            self.tape.kernel("global_norm", Self::memory(MemoryKind::Foreach, FULL * numbers, 0), &gradients, &[]);
            if self.job.mesh.shards() > 1 {
                let comm = self.comm(Collective::AllReduce, self.groups.fsdp, FULL);
                let after = self.tape.now();
                let at = self.tape.exchange(comm, (&[], &[]), after);
                self.tape.join(at);
            }
        }
        let moved = self.job.optimizer().compiled(&params, FULL).expect("scenarios name no other under XLA");
        let work = Self::memory(MemoryKind::Foreach, moved.read, moved.written);
        self.tape.kernel(moved.kernel, work, &gradients, &[]);
    }
}
