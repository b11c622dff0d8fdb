//! Data-parallel axes give way when another axis of the mesh grows, so that the mesh still tiles the machine.
//!
//! An axis that the file leaves open takes what the others leave. Of two that are written, the axis that shards (`dp_shard`, `fsdp`)
//! changes, and the replicas stay as long as they divide the rest: a chip's share of parameters then stays the same. Where nothing is
//! sharded, the replicas change.

use crate::scenario::{Draft, Runtime, Scenario};

/// The axes of a mesh, by what they do.
struct Axes {
    /// Split the model or a sequence.
    model: &'static [&'static str],
    /// Shards states over data-parallel ranks.
    shard: &'static str,
    /// Replicates the shards, where there is such an axis.
    replicate: Option<&'static str>,
}

fn axes(runtime: Runtime) -> Axes {
    let split = ["mesh.tp", "mesh.cp", "mesh.pp"].as_slice();
    match runtime.written() {
        "xla" | "torch_xla" => Axes {
            model: &["mesh.tensor", "mesh.context", "mesh.pipeline", "mesh.expert", "mesh.fsdp_transpose"],
            shard: "mesh.fsdp",
            replicate: Some("mesh.data"),
        },
        "ddp" => Axes { model: split, shard: "mesh.dp_replicate", replicate: None },
        "fsdp2" | "fsdp1" | "single_device" => {
            Axes { model: split, shard: "mesh.dp_shard", replicate: Some("mesh.dp_replicate") }
        }
        _ => Axes { model: split, shard: "mesh.dp", replicate: None },
    }
}

/// The size of an axis; one that the file does not write has one rank.
pub(super) fn size(draft: &Draft, axis: &str) -> u64 {
    written(draft, axis).unwrap_or(1)
}

fn written(draft: &Draft, axis: &str) -> Option<u64> {
    u64::try_from(draft.get(axis)?.as_integer()?).ok().filter(|&size| size > 0)
}

/// Chips that data-parallel ranks share: those that the other axes leave, if those tile the machine.
pub(super) fn rest(draft: &Draft, scenario: &Scenario) -> Option<u64> {
    let chips = u64::from(scenario.topology.ranks() / scenario.topology.slices());
    let model = axes(scenario.runtime).model.iter().try_fold(1_u64, |all, axis| all.checked_mul(size(draft, axis)))?;
    chips.is_multiple_of(model).then(|| chips / model)
}

/// Makes the data-parallel axes of a changed draft fit, and says which of them it wrote.
pub(super) fn fit(draft: &mut Draft, before: &Draft, scenario: &Scenario) -> Vec<String> {
    let Axes { shard, replicate, .. } = axes(scenario.runtime);
    // A mesh that does not tile the machine is refused when it is read.
    let (Some(old), Some(new)) = (rest(before, scenario), rest(draft, scenario)) else { return vec![] };
    let (shards, replicas) = (written(draft, shard), replicate.and_then(|axis| written(draft, axis)));
    let (shards, replicas) = match (shards, replicas) {
        (None, None) => (None, None),
        (None, Some(replicas)) => (None, Some(common(replicas, new))),
        (Some(1), None) if old > 1 => (Some(1), None),
        (Some(1), Some(_)) if old > 1 => (Some(1), Some(new)),
        (Some(shards), replicas) => {
            let kept = common(replicas.unwrap_or(old / shards.max(1)).max(1), new);
            (Some(new / kept), replicas.map(|_| kept))
        }
    };
    let mut said = vec![];
    for (axis, now) in [(Some(shard), shards), (replicate, replicas)] {
        let (Some(axis), Some(now)) = (axis, now) else { continue };
        if written(draft, axis) != Some(now) {
            draft.set(axis, i64::try_from(now).unwrap_or(i64::MAX));
            said.push(format!("{axis} = {now}"));
        }
    }
    said
}

/// The greatest common divisor.
pub(super) fn common(mut left: u64, mut right: u64) -> u64 {
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}
