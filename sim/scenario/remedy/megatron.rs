//! What a user of Megatron-Core would try first.

use super::Change;
use crate::runtime::megatron::{Core, Job, Recompute};

/// Changes to a job of Megatron-Core.
pub(super) fn changes(job: &Job) -> Vec<Change<Job>> {
    let mut list: Vec<Change<Job>> = vec![];
    if job.block.recompute == Recompute::None && job.block.core != Core::Flash {
        let core = Box::new(|job: &mut Job| job.block.recompute = Recompute::Core);
        list.push(("megatron.recompute = \"core_attn\"".to_owned(), core));
    }
    if !matches!(job.block.recompute, Recompute::Uniform { .. }) {
        let full = Box::new(|job: &mut Job| job.block.recompute = Recompute::Uniform { layers: 1 });
        list.push(("megatron.recompute = { uniform = 1 }".to_owned(), full));
    }
    if !job.optimizer.distributed && job.mesh.dp * job.mesh.cp > 1 {
        let distributed = Box::new(|job: &mut Job| job.optimizer.distributed = true);
        list.push(("megatron.distributed_optimizer = true".to_owned(), distributed));
    }
    let split = Job { sequence_parallel: true, ..job.clone() };
    if !job.sequence_parallel && job.mesh.tp > 1 && split.splits(job.seq) {
        let split = Box::new(|job: &mut Job| job.sequence_parallel = true);
        list.push(("tensor_parallel.sequence = true".to_owned(), split));
    }
    list.extend(smaller(job));
    list
}

/// Smaller micro-batches.
pub(super) fn smaller(job: &Job) -> Vec<Change<Job>> {
    let mut smaller = vec![job.batch / 2, 1];
    smaller.dedup();
    let smaller = smaller.into_iter().filter(|&batch| batch >= 1 && batch < job.batch);
    let change = |batch| -> Box<dyn Fn(&mut Job)> { Box::new(move |job: &mut Job| job.batch = batch) };
    smaller.map(|batch| (format!("batch.micro = {batch}"), change(batch))).collect()
}

/// The job on shorter sequences, if its ranks can still split them.
pub(super) fn shorter(job: &Job, seq: u64) -> Option<Job> {
    job.splits(seq).then(|| Job { seq, ..job.clone() })
}
