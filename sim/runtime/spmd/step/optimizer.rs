//! AdamW on this chip's shards, in place, after the gradients' norm.

use super::{Collective, FULL, Step};
use crate::program::MemoryKind;

impl Step<'_> {
    pub(super) fn update(&mut self) {
        self.tape.scope = self.scopes.optimizer;
        let (sharded, whole) = self.parameters();
        let numbers = sharded + whole;
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
        // Parameter, both moments and the gradient are read; all but the gradient are written.
        let moments = self.job.moments();
        let work = Self::memory(MemoryKind::Foreach, (2 * FULL + moments) * numbers, (FULL + moments) * numbers);
        self.tape.kernel("adamw", work, &gradients, &[]);
    }
}
