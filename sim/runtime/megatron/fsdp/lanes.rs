//! The streams and communicators that Megatron-FSDP gathers and reduces on.

use crate::plan::megatron::{Fsdp, MegatronPlan};
use crate::program::{Builder, GroupId, StreamId};
use crate::runtime::megatron::groups::{DATA, sharded};

/// Streams that blocks are taken on, and communicators with theirs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    pub(super) gather: StreamId,
    pub(super) reduce: StreamId,
    pub(super) gathered_over: (GroupId, StreamId),
    pub(super) reduced_over: (GroupId, StreamId),
}

impl Lanes {
    pub(super) fn new(program: &mut Builder, (job, fsdp): (&MegatronPlan, Fsdp), data: GroupId) -> Lanes {
        let [gather, reduce, apart] = sharded(job);
        let reduced_over = (data, DATA);
        let gathered_over =
            if fsdp.gather_group { (program.add_group(job.split.mesh.data()), apart) } else { reduced_over };
        Lanes { gather, reduce, gathered_over, reduced_over }
    }
}
