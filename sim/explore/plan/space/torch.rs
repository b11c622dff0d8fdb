//! PyTorch's FSDP2.

use toml::Value;

use super::axis::{At, Axis, ON, context, counts, micro, powers, some, tensor};

/// The key of tensor-parallel ranks.
const TP: &str = "mesh.tp";
/// Of context-parallel ranks.
const CP: &str = "mesh.cp";

pub(super) const AXES: &[Axis] = &[
    Axis { key: TP, values: tensor },
    Axis { key: CP, values: context },
    Axis { key: "mesh.dp_replicate", values: replicate },
    Axis { key: "mesh.dp_shard", values: shard },
    Axis { key: "batch.micro", values: |at| micro(at, &[TP, CP]) },
    Axis { key: "activation_checkpointing.policy", values: |_| vec![some("none"), some("selective_op"), some("full")] },
    Axis { key: "fsdp.reshard_after_forward", values: |_| vec![some(true), some(false)] },
    Axis { key: "compile.blocks", values: ON },
    // Over tensor-parallel ranks the compiled loss is not simulated.
    Axis { key: "compile.loss", values: |at| vec![some(at.count(TP) == 1)] },
    Axis { key: "optimizer.implementation", values: |_| vec![some("fused")] },
];

/// Ranks that parameters are replicated over: powers of two that leave a whole node to shard over.
fn replicate(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(left) = at.left(&[TP, CP]) else { return vec![] };
    let least = (at.site.per_node / (at.count(TP) * at.count(CP))).max(1);
    counts(powers(left / least).filter(|&ranks| left.is_multiple_of(ranks)))
}

/// All other ranks shard.
fn shard(at: &At<'_>) -> Vec<Option<Value>> {
    at.left(&[TP, CP, "mesh.dp_replicate"]).map_or(vec![], |ranks| counts([ranks]))
}
