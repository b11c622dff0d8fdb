//! Communicators and streams of a run, FSDP's and those beside them.

use super::pipeline::stages;
use crate::model::head::Loss;
use crate::model::preference::LogProbs;
use crate::plan::eager::Offload;
use crate::plan::torch::TorchPlan;
use crate::program::{Builder, Group, GroupId, StreamId};
use crate::runtime::compiled::Rotation;
use crate::runtime::ddp;
use crate::runtime::eager::framework::TensorAxis;
use crate::runtime::eager::{COMPUTE, Ring, TensorGroup};
use crate::runtime::fsdp::{Communicators, OF_EACH_ROOT, STREAMS, Version};

/// Process groups; that of all ranks is one of its own only where the mesh has two axes and somebody uses it.
pub(super) fn communicators(program: &mut Builder, job: &TorchPlan) -> Communicators {
    let reads_back = job.training_loop.host_syncs > 0 || job.loss == Loss::Preference(LogProbs::Trl);
    let fsdp = &job.fsdp;
    // Tensor-parallel ranks are neighbours: the mesh's last axis.
    let inner = job.tensor.ranks as u32;
    let mut add = |name: &str, size, stride| program.add_group(Group::new(name, size, stride * inner));
    let shard = add("dp_shard", fsdp.shard, 1);
    let replicate = (fsdp.replicate > 1).then(|| add("dp_replicate", fsdp.replicate, fsdp.shard));
    let ranks = fsdp.wrap.post_forward().first().copied();
    let post_forward: Option<GroupId> = ranks.map(|ranks| add("dp_shard (after forward)", ranks, 1));
    let two = fsdp.replicate > 1 && fsdp.shard > 1;
    let world = match replicate {
        Some(_) if two && reads_back => add("world", fsdp.shard * fsdp.replicate, 1),
        Some(replicate) if !two => replicate,
        _ => shard,
    };
    Communicators { world, shard, replicate, post_forward }
}

/// Names of a job's streams.
pub(super) fn streams(job: &TorchPlan) -> Vec<&'static str> {
    let mut streams = match (&job.ddp, job.eager.offload) {
        (Some(settings), _) => ddp::streams(settings).to_vec(),
        (None, Some(Offload::OwnStream(_))) => STREAMS.to_vec(),
        (None, _) => job.fsdp.streams().to_vec(),
    };
    if job.has_reference() && job.fsdp.version == Version::Two {
        streams.extend(&STREAMS[1..=OF_EACH_ROOT]);
    }
    if let Some(pipeline) = &job.pipeline {
        streams.extend((1..pipeline.virtual_stages).flat_map(|_| &STREAMS[1..=OF_EACH_ROOT]));
        streams.extend(stages::STREAMS);
    }
    streams.extend((job.style.experts.ranks() > 1).then_some("expert-parallel"));
    streams.extend((job.context > 1).then_some("context-parallel"));
    streams.extend(job.tensor.splits().then_some("tensor-parallel"));
    streams
}

/// The ranks that share a sequence, inside those that FSDP shards over, and the stream of what they exchange: before the
/// tensor-parallel ranks' stream.
pub(super) fn context_ring(program: &mut Builder, job: &TorchPlan, streams: usize) -> Option<Rotation> {
    let stream = StreamId((streams - 1 - usize::from(job.tensor.splits())) as u8);
    let group = || Group::new("cp", job.context, job.tensor.ranks as u32);
    (job.context > 1).then(|| {
        let (group, ranks) = (program.add_group(group()), job.context);
        Rotation { ring: Ring { group, ranks, messages: [stream; 2], second: COMPUTE }, how: job.rotate }
    })
}

/// The communicator of tensor-parallel ranks and its stream, the last of the run's, where the model is split.
pub(super) fn tensor_axis(program: &mut Builder, job: &TorchPlan, streams: usize) -> Option<TensorAxis> {
    let size = job.tensor.ranks as u32;
    job.tensor.splits().then(|| TensorAxis {
        group: TensorGroup {
            group: program.add_group(Group::new("tp", size, 1)),
            ranks: job.tensor.ranks,
            stream: StreamId(streams as u8 - 1),
        },
        norms: job.tensor.sequence.then(|| job.fsdp.mixed_precision.reduce_dtype()),
    })
}

/// The communicators of experts that are distributed over neighbours.
#[derive(Clone, Copy)]
pub(super) struct ExpertGroups {
    /// The ranks that have the same experts and shard them: how many, and their communicator.
    pub(super) sharing: (u32, GroupId),
    /// The neighbours that experts are distributed over.
    pub(super) neighbours: GroupId,
    /// The stream of what neighbours exchange, the first behind FSDP's.
    pub(super) stream: StreamId,
}

/// The communicators of experts, where they are distributed over neighbours.
pub(super) fn expert_groups(program: &mut Builder, job: &TorchPlan, streams: usize) -> Option<ExpertGroups> {
    let ranks = u32::try_from(job.style.experts.ranks()).unwrap_or(u32::MAX);
    if ranks < 2 || job.model.experts().is_none() {
        return None;
    }
    let shard = job.fsdp.shard / ranks;
    let own = program.add_group(Group::new("efsdp", shard, ranks));
    let neighbours = program.add_group(Group::new("ep", ranks, 1));
    let later = usize::from(job.context > 1) + usize::from(job.tensor.splits());
    Some(ExpertGroups { sharing: (shard, own), neighbours, stream: StreamId((streams - 1 - later) as u8) })
}
