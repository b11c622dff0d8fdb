//! Changes that are tried, and the causes that each is about. The fastest of a cause's is shown.

use toml::Value;

use super::cause::Cause;
use crate::runtime::Plan;
use crate::runtime::spmd::{Attention, XlaPlan};
use crate::scenario::advice::faster_changes;
use crate::scenario::{Change, Scenario};

/// A cause that a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// All but what its words rule out: more work a chip, other layouts.
    Work,
    /// What is multiplied besides the model's own.
    Beyond,
    /// What is recomputed.
    Recompute,
    /// All exchanges.
    Exchanges,
    /// Exchanges over a mesh axis.
    Axis(&'static str),
    /// The host.
    Host,
    /// Kernels that memory bounds, and the optimizer's.
    Memory,
    /// Attention.
    Attention,
    /// Work that several chips do.
    Repeated,
    /// A pipeline's bubble.
    Bubble,
}

impl About {
    /// Whether a cause is meant.
    pub(super) fn is(self, cause: &Cause) -> bool {
        match (self, cause) {
            (About::Work, Cause::Peak | Cause::Beyond | Cause::Repeated | Cause::Recompute) => false,
            (About::Work, _) => true,
            (About::Axis(axis), Cause::Exchange { group, .. }) => group.contains(axis),
            (About::Recompute, Cause::Recompute)
            | (About::Exchanges, Cause::Exchange { .. })
            | (About::Beyond, Cause::Beyond)
            | (About::Host, Cause::Host)
            | (About::Memory, Cause::Memory | Cause::Optimizer)
            | (About::Attention, Cause::Attention | Cause::Memory)
            | (About::Repeated, Cause::Repeated)
            | (About::Bubble, Cause::Bubble) => true,
            _ => false,
        }
    }
}

/// Changes to try.
pub(super) fn all(scenario: &Scenario) -> Vec<(Vec<About>, Change)> {
    let mut list: Vec<(Vec<About>, Change)> =
        faster_changes(scenario).into_iter().map(|change| (about(&change), change)).collect();
    if let Plan::Xla(plan) = &scenario.job {
        list.extend(xla(scenario, plan));
    }
    list
}

/// What the changes are about that `windtunnel run` tries, by the keys that they set.
fn about(change: &Change) -> Vec<About> {
    let has = |words: &[&str]| change.keys().any(|(key, _)| words.iter().any(|word| key.contains(word)));
    let cases: [(&[&str], &[About]); 7] = [
        (&["remat", "recompute", "activation_checkpointing", "gradient_checkpointing"], &[About::Recompute]),
        (&["virtual_stages"], &[About::Bubble]),
        (&["compile.", "loss.", "optimizer."], &[About::Memory, About::Host]),
        (&["reshard_after_forward", "dp_", "zero.stage", "overlap"], &[About::Exchanges]),
        (&["mesh.tp", "mesh.pp", "tensor_parallel"], &[About::Exchanges, About::Bubble]),
        (&["expandable_segments", "sync_every_micro_batch"], &[About::Host]),
        (&["torch_xla.attention"], &[About::Attention, About::Repeated, About::Beyond]),
    ];
    let known = cases.into_iter().find(|(words, _)| has(words));
    known.map_or(vec![About::Work], |(_, about)| about.to_vec())
}

/// Of a compiled step: other axes, attention's kernel, flags, reads of the device's numbers.
fn xla(scenario: &Scenario, plan: &XlaPlan) -> Vec<(Vec<About>, Change)> {
    let mesh = plan.mesh;
    let mut list = vec![];
    let size = |chips: u32| i64::from(chips);
    if mesh.tensor > 1 && mesh.across.slices() == 1 {
        for less in [1, mesh.tensor / 2] {
            let fsdp = size(mesh.fsdp * (mesh.tensor / less));
            let change = Change::set("mesh.tensor", size(less)).and(Change::set("mesh.fsdp", fsdp));
            list.push((
                vec![About::Axis("tensor"), About::Axis("fsdp")],
                of_the_same_batch(scenario, plan, change, less),
            ));
        }
    }
    if mesh.data > 1 {
        let change = Change::set("mesh.data", 1).and(Change::set("mesh.fsdp", size(mesh.fsdp * mesh.data)));
        list.push((vec![About::Axis("data"), About::Memory], change));
    }
    if mesh.experts_only && plan.torch.is_none() {
        let whole = Change::remove("mesh.logical_axis_rules").and(Change::set("mesh.expert", 1));
        let change = whole.and(Change::set("mesh.fsdp", size(mesh.fsdp * mesh.expert)));
        list.push((vec![About::Repeated, About::Axis("expert")], change));
    }
    if plan.capacity_factor.is_some() && mesh.expert == 1 && plan.torch.is_none() {
        list.push((vec![About::Beyond, About::Memory, About::Axis("tensor")], Change::remove("xla.capacity_factor")));
    }
    if plan.host_syncs > 0 {
        list.push((vec![About::Host], Change::set("xla.host_syncs_per_step", 0)));
    }
    // PyTorch/XLA's other kernels are among the changes that `windtunnel run` tries.
    if plan.attention == Attention::DotProduct && plan.torch.is_none() {
        list.push((vec![About::Attention], Change::set("xla.attention", "flash")));
    }
    if plan.gpu().is_none() && plan.compiler_flags.is_empty() {
        let flags = ["DENSE_VMEM_LIMIT_FLAG", "CF_FOR_ALL_GATHER", "DATA_PARALLEL_OVERLAP", "CF_FOR_ALL_REDUCE"];
        let flags = Value::Array(flags.iter().map(|&flag| Value::from(flag)).collect());
        list.push((vec![About::Exchanges], Change::set("xla.flags", flags)));
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
