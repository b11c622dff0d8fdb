//! Experts distributed over ranks, as torchtitan does it around the model's own operators: communicators, the norm of all
//! gradients, and the biases that balance the load (`distributed/utils.py`, `components/optimizer.py` at 6b960233).

use super::training::Training;
use crate::model::experts::Implementation;
use crate::program::{Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::optimizer::{self, Owned};
use crate::units::Bytes;

/// Kernels that move one block's biases: mean, difference, sign, product, mean, difference, sum, zeros.
const BIAS_KERNELS: u32 = 8;

impl Training<'_> {
    /// Clips all gradients to one norm. The norm of DTensors is summed over one mesh axis after the other, that of experts
    /// over theirs.
    pub(super) fn clip(&mut self, params: &[Owned], element: u64) {
        // A stage may have no experts.
        let over = self.run.groups.iter().find_map(|group| group.over);
        let neighbours = self.run.eager.framework.torch().and_then(|torch| torch.experts.as_ref());
        let neighbours = neighbours.map(|axis| axis.group);
        let experts = over.map(|(ranks, own)| ((ranks > 1).then_some(own), neighbours));
        let experts = experts.into_iter().flat_map(|(own, neighbours)| own.into_iter().chain(neighbours));
        let sharded = (self.job.fsdp.shard > 1).then_some(self.run.communicators.shard);
        let tensor = self.run.eager.framework.tensor().map(|tensor| tensor.group);
        // The norm of a rank's stages is squared, and summed over those of all.
        let pipeline = self.pipeline_group;
        let axes: Vec<GroupId> = experts.chain(sharded).chain(tensor).chain(pipeline).collect();
        optimizer::clip(&mut self.run.eager.program, params, element, |program| {
            for group in axes {
                let comm = Comm { kind: Collective::AllReduce, group, bytes: Bytes(4), dtype: DType::Fp32 };
                program.collective(COMPUTE, comm);
            }
        });
    }

    /// Moves the biases of all routers by how many tokens each expert got on all ranks, before the optimizer's step.
    pub(super) fn balance_experts(&mut self) {
        let (job, world) = (self.job, self.run.communicators.world);
        let Some(experts) = job.model.experts() else { return };
        if !matches!(job.style.experts, Implementation::Torchtitan { .. }) {
            return;
        }
        let own = self.parts.iter().flat_map(|part| part.blocks.clone());
        let blocks = own.filter(|&layer| job.model.layers.at(layer as u64).experts().is_some()).count() as u32;
        if blocks == 0 {
            return;
        }
        let bytes = Bytes(4 * experts.count * u64::from(blocks));
        let program = &mut self.run.eager.program;
        let counts = program.alloc(bytes, COMPUTE, Category::OptimizerTemporary, "aten.vstack");
        let work = Work::Memory { kind: MemoryKind::Copy, read: bytes, written: bytes };
        program.launch(COMPUTE, "aten.vstack", work, Dispatch::EagerForward);
        if job.data_ranks() > 1 {
            let comm = Comm { kind: Collective::AllReduce, group: world, bytes, dtype: DType::Fp32 };
            program.collective(COMPUTE, comm);
        }
        let one = Bytes(4 * experts.count);
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: one, written: one };
        for _ in 0..blocks * BIAS_KERNELS {
            program.launch(COMPUTE, "aten.sign", work, Dispatch::EagerForward);
        }
        program.free(counts);
    }
}
