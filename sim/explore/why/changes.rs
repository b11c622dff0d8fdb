//! Changes that are tried.

use toml::Value;

use crate::runtime::Plan;
use crate::runtime::spmd::{Attention, XlaPlan};
use crate::scenario::advice::faster_changes;
use crate::scenario::{Change, Scenario};

/// Changes to try.
pub(super) fn all(scenario: &Scenario) -> Vec<Change> {
    let mut list = faster_changes(scenario);
    if let Plan::Xla(plan) = &scenario.job {
        list.extend(xla(scenario, plan));
    }
    list
}

/// Of a compiled step: other axes, attention's kernel, flags, reads of the device's numbers.
fn xla(scenario: &Scenario, plan: &XlaPlan) -> Vec<Change> {
    let mesh = plan.mesh;
    let mut list = vec![];
    let size = |chips: u32| i64::from(chips);
    if mesh.tensor > 1 && mesh.across.slices() == 1 {
        for less in [1, mesh.tensor / 2] {
            let fsdp = size(mesh.fsdp * (mesh.tensor / less));
            let change = Change::set("mesh.tensor", size(less)).and(Change::set("mesh.fsdp", fsdp));
            list.push(of_the_same_batch(scenario, plan, change, less));
        }
    }
    if mesh.data > 1 {
        let change = Change::set("mesh.data", 1).and(Change::set("mesh.fsdp", size(mesh.fsdp * mesh.data)));
        list.push(change);
    }
    if mesh.experts_only && plan.torch.is_none() {
        let whole = Change::remove("mesh.logical_axis_rules").and(Change::set("mesh.expert", 1));
        let change = whole.and(Change::set("mesh.fsdp", size(mesh.fsdp * mesh.expert)));
        list.push(change);
    }
    if plan.capacity_factor.is_some() && mesh.expert == 1 && plan.torch.is_none() {
        list.push(Change::remove("xla.capacity_factor"));
    }
    if plan.host_syncs > 0 {
        list.push(Change::set("xla.host_syncs_per_step", 0));
    }
    // PyTorch/XLA's other kernels are among the changes that `windtunnel run` tries.
    if plan.attention == Attention::DotProduct && plan.torch.is_none() {
        list.push(Change::set("xla.attention", "flash"));
    }
    if plan.gpu().is_none() && plan.compiler_flags.is_empty() {
        let flags = ["DENSE_VMEM_LIMIT_FLAG", "CF_FOR_ALL_GATHER", "DATA_PARALLEL_OVERLAP", "CF_FOR_ALL_REDUCE"];
        let flags = Value::Array(flags.iter().map(|&flag| Value::from(flag)).collect());
        list.push(Change::set("xla.flags", flags));
    }
    list
}

/// With fewer chips to a sequence, as many sequences in all: fewer on each.
fn of_the_same_batch(scenario: &Scenario, plan: &XlaPlan, change: Change, tensor: u32) -> Change {
    let fewer = plan.batch * u64::from(tensor) / u64::from(plan.mesh.tensor);
    let stated = ["batch.global", "batch.global_tokens", "batch.per_device_batch_size"];
    if fewer == 0 || stated.iter().any(|key| scenario.draft.get(key).is_some()) {
        return change;
    }
    change.and(Change::set("batch.micro", i64::try_from(fewer).unwrap_or(i64::MAX)))
}
