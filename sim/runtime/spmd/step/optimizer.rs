//! Parameters, and the optimizer's step on this chip's shards, in place, after the gradients' norm.

use super::state::{FULL, Step};
use crate::model::Position;
use crate::program::{Collective, MemoryKind};
use crate::runtime::optimizer::param::{Owned, Role, Shape, elements};

impl Step<'_> {
    /// Parameters, and what this chip has of each: a part of weights and tables, and all of norms. Those of a layer that is run
    /// several times lie together.
    pub(super) fn parameters(&self) -> Vec<Owned> {
        let (model, shards) = (&self.job.model, u64::from(self.job.mesh.shards()));
        let tensor = u64::from(self.job.mesh.tensor);
        let mut params = vec![];
        let norms = |numbers: u64| Owned::whole(Shape::vector(numbers), Role::Vector);
        params.extend(model.final_norm.map(|_| norms(model.width)));
        for (layer, &variant) in self.variant_of.iter().enumerate() {
            let (times, block) = (self.times(layer), &self.variants[variant].block);
            params.extend(block.weights.iter().map(|weight| {
                let shape = Shape { matrices: times * weight.copies, rows: weight.inputs, cols: weight.outputs };
                let role = if weight.experts { Role::Expert } else { Role::Matrix };
                Owned::stretch(shape, role, times * self.own(weight))
            }));
            params.push(norms(times * block.norms));
        }
        let positions = match model.position {
            Position::Learned { positions } => Some(positions),
            _ => None,
        };
        let tables = [Some(model.vocab), (!model.tied_head).then_some(model.vocab), positions];
        params.extend(tables.into_iter().flatten().map(|rows| {
            let own = (rows * model.width / tensor).div_ceil(shards);
            Owned::stretch(Shape::matrix(rows, model.width), Role::Table, own)
        }));
        params
    }

    pub(super) fn update(&mut self) {
        self.tape.scope = self.scopes.optimizer;
        let params = self.parameters();
        let numbers = elements(&params);
        let gradients = std::mem::take(&mut self.tables);
        if self.job.clip {
            self.tape.kernel(
                "global_norm",
                Self::memory(MemoryKind::Foreach, self.full() * numbers, 0),
                &gradients,
                &[],
            );
            if self.job.mesh.shards() > 1 {
                let comm = self.comm(Collective::AllReduce, self.groups.fsdp, FULL);
                let after = self.tape.now();
                let at = self.tape.exchange(comm, (&[], &[]), after);
                self.tape.join(at);
            }
        }
        let moved = self.job.optimizer().compiled(&params, self.full()).expect("scenarios name no other under XLA");
        let work = Self::memory(MemoryKind::Foreach, moved.read, moved.written);
        self.tape.kernel(moved.kernel, work, &gradients, &[]);
    }
}
