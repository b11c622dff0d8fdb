//! What a model's initialisation takes for a while before the first step, and leaves in the allocator's cache.
//!
//! torchtitan fills parameters that `fully_shard` has sharded with `trunc_normal_` (`torch/nn/init.py`, PyTorch 2.15): it compares
//! a shard with both bounds and asks whether any element is outside, for which `DTensor` gathers the whole mask. A fused
//! projection is drawn in three parts that every rank has whole, and then joined (`torchtitan/models/common/config_utils.py:106`,
//! 0.3.0). Each block makes its rotary table once more (`rope.py:114`). Elements that do fall outside, and are drawn again, are not
//! simulated: they take a few blocks of a shard's size.

use super::training::Training;
use crate::plan::torch::Initialisation;
use crate::program::{BufferId, Builder, Category};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

const NAME: &str = "initialisation";

fn take(program: &mut Builder, bytes: u64) -> BufferId {
    program.alloc(Bytes(bytes), COMPUTE, Category::Workspace, NAME)
}

/// `trunc_normal_` of a shard of so many elements, of a parameter of so many.
fn truncated(program: &mut Builder, shard: u64, whole: u64) {
    let [below, above, outside] = [(); 3].map(|()| take(program, shard));
    program.free(below);
    program.free(above);
    if whole > shard {
        let gathered = take(program, whole);
        program.free(gathered);
    }
    program.free(outside);
}

/// The rotary table, of so many bytes: angles and as many ones, of which the table is made.
fn table(program: &mut Builder, bytes: Bytes, before: BufferId) {
    let [angles, ones] = [(); 2].map(|()| take(program, bytes.0 / 2));
    program.alloc(bytes, COMPUTE, Category::Buffer, "freqs_cis");
    program.free(ones);
    program.free(angles);
    program.free(before);
}

impl Training<'_> {
    /// Initialises the rank's parameters. `tables` are the rotary tables of blocks that have one of their own, each so many bytes.
    pub(super) fn initialise(&mut self, tables: &[(usize, BufferId)], bytes: Bytes) {
        if self.job.initialisation == Initialisation::InPlace || self.job.fsdp.cpu_offload {
            return;
        }
        for part in self.parts.clone() {
            for layer in part.blocks {
                if let Some(&(_, before)) = tables.iter().find(|&&(of, _)| of == layer) {
                    table(&mut self.run.eager.program, bytes, before);
                }
                self.initialise_block(layer);
            }
            if part.head && !self.job.model.tied_head {
                self.initialise_head();
            }
        }
    }

    fn initialise_block(&mut self, layer: usize) {
        let job = self.job;
        let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
        let first = self.layout.blocks[layer];
        let program = &mut self.run.eager.program;
        for (at, param) in graph.params.iter().enumerate() {
            if !graph.read_by(at).is_some_and(|op| op.kind.is_linear()) || param.cols == 1 {
                continue;
            }
            let shard = self.layout.params[first + at].padded_shard(job.fsdp.shard);
            if !job.style.fused_qkv || param.name != "attention.wqkv.weight" {
                truncated(program, shard, param.elements() * job.tensor.ranks);
                continue;
            }
            let d = graph.dims;
            let parts = [d.n, d.k, d.k].map(|heads| heads * job.tensor.ranks * d.h * param.cols);
            let drawn = parts.map(|elements| take(program, 4 * elements));
            parts.into_iter().for_each(|elements| truncated(program, elements, elements));
            let joined = take(program, 4 * parts.iter().sum::<u64>());
            let own = take(program, 4 * shard);
            program.free(own);
            drawn.into_iter().for_each(|part| program.free(part));
            program.free(joined);
        }
    }

    fn initialise_head(&mut self) {
        let Some(param) = self.graphs.head.graph.params.last() else { return };
        let shard = self.layout.params[self.layout.head.first + self.graphs.head.graph.params.len() - 1];
        let whole = param.elements() * self.job.tensor.ranks;
        truncated(&mut self.run.eager.program, shard.padded_shard(self.job.fsdp.shard), whole);
    }
}
