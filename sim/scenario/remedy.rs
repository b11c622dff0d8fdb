//! What would make a plan fit that does not: single changes, each flown through the allocator, not guessed.

use super::predict::device_memory;
use super::understood::Scenario;
use crate::runtime::fsdp::Reshard;
use crate::runtime::optimizer::Optimizer;
use crate::runtime::train::{self, Checkpoint, Job};
use crate::units::Bytes;

/// A single change that would make the plan fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The change, as a line of the scenario.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total: Bytes,
}

/// One change to a job, with the line that says so.
type Change = (String, bool, Box<dyn Fn(&mut Job)>);

fn changes(scenario: &Scenario) -> Vec<Change> {
    let job = &scenario.job;
    let mut list: Vec<Change> = vec![];
    // A policy for all blocks takes effect only where no block has one of its own.
    let all_blocks = if scenario.overrides { ", fsdp.override = []" } else { "" };
    if !scenario.expandable_segments {
        list.push(("memory.expandable_segments = true".to_owned(), true, Box::new(|_| {})));
    }
    if job.checkpoint == Checkpoint::None {
        let selective = Box::new(|job: &mut Job| job.checkpoint = Checkpoint::SelectiveOp);
        list.push(("activation_checkpointing.policy = \"selective_op\"".to_owned(), false, selective));
    }
    if job.checkpoint != Checkpoint::Full {
        let full = Box::new(|job: &mut Job| job.checkpoint = Checkpoint::Full);
        list.push(("activation_checkpointing.policy = \"full\"".to_owned(), false, full));
    }
    if job.fsdp.wrap.blocks.iter().flatten().any(|&policy| policy != Reshard::Always) {
        let reshard = Box::new(|job: &mut Job| {
            if let Some(policy) = &mut job.fsdp.wrap.embedding {
                *policy = Reshard::Always;
            }
            for policy in job.fsdp.wrap.blocks.iter_mut().flatten() {
                *policy = Reshard::Always;
            }
        });
        list.push((format!("fsdp.reshard_after_forward = true{all_blocks}"), false, reshard));
    }
    if job.fsdp.wrap.blocks.iter().any(Option::is_none) {
        let wrap = Box::new(|job: &mut Job| job.fsdp.wrap.blocks.fill(Some(Reshard::Always)));
        let change = format!("fsdp.wrap = \"block\", fsdp.reshard_after_forward = true{all_blocks}");
        list.push((change, false, wrap));
    }
    if matches!(job.optimizer, Optimizer::AdamwForeach { .. }) {
        let fused = Box::new(|job: &mut Job| job.optimizer = Optimizer::AdamwFused);
        list.push(("optimizer.implementation = \"fused\"".to_owned(), false, fused));
    }
    if job.fsdp.replicate > 1 {
        let (shard, replicate) = (job.fsdp.shard, job.fsdp.replicate);
        let all = Box::new(move |job: &mut Job| {
            job.fsdp.shard = shard * replicate;
            job.fsdp.replicate = 1;
        });
        list.push((format!("mesh.dp_shard = {}, mesh.dp_replicate = 1", shard * replicate), false, all));
    }
    let mut smaller = vec![job.batch / 2, 1];
    smaller.dedup();
    for batch in smaller.into_iter().filter(|&batch| batch >= 1 && batch < job.batch) {
        let change = Box::new(move |job: &mut Job| job.batch = batch);
        list.push((format!("batch.micro = {batch}"), false, change));
    }
    if !job.fsdp.cpu_offload {
        let offload = Box::new(|job: &mut Job| job.fsdp.cpu_offload = true);
        list.push(("fsdp.cpu_offload = true".to_owned(), false, offload));
    }
    list
}

/// The single changes, out of those a user would try first, that make the plan fit; and, failing a smaller batch, the
/// longest sequence that does.
pub(super) fn find(scenario: &Scenario) -> Vec<Remedy> {
    let total = |job: Job, expandable: bool| {
        let program = train::compile(&job);
        let changed = scenario.with(job, expandable);
        let memory = device_memory(&changed, &program, false);
        memory.fits.then(|| memory.device_total())
    };
    let mut remedies = vec![];
    for (change, expandable, apply) in changes(scenario) {
        let mut job = scenario.job.clone();
        apply(&mut job);
        if let Some(device_total) = total(job, expandable || scenario.expandable_segments) {
            remedies.push(Remedy { change, device_total });
        }
    }
    // A shorter sequence, in halves: enough to say where to look; `ceiling` finds the exact one.
    let mut seq = scenario.job.seq / 2;
    while seq >= 256 {
        let job = Job { seq, max_positions: seq, ..scenario.job.clone() };
        if let Some(device_total) = total(job, scenario.expandable_segments) {
            remedies.push(Remedy { change: format!("batch.sequence = {seq}"), device_total });
            break;
        }
        seq /= 2;
    }
    remedies
}
