//! XLA on TPU.

use toml::Value;

use super::axis::{At, Axis, FEWEST, counts, powers, some};
use crate::runtime::spmd::Policy;

pub(super) const AXES: &[Axis] = &[
    Axis { key: "mesh.tensor", values: tensor },
    Axis { key: "mesh.context", values: context },
    Axis { key: "mesh.data", values: data },
    Axis { key: "mesh.fsdp", values: fsdp },
    Axis { key: "batch.micro", values: micro },
    Axis { key: "xla.remat_policy", values: |_| Policy::NAMED.into_iter().map(|(name, _)| some(name)).collect() },
];

/// Chips that heads and an MLP's width are split over.
fn tensor(at: &At<'_>) -> Vec<Option<Value>> {
    let heads = at.heads();
    counts(
        powers(at.site.chips.min(16))
            .filter(|&chips| at.site.chips.is_multiple_of(chips) && heads.is_multiple_of(chips)),
    )
}

/// Chips that share a sequence.
fn context(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(left) = at.left(&["mesh.tensor"]) else { return vec![] };
    let sequence = at.request.sequence;
    let fits = |chips: &u64| {
        left.is_multiple_of(*chips) && sequence.is_multiple_of(*chips) && (*chips == 1 || sequence / chips >= FEWEST)
    };
    counts(powers(16).filter(fits))
}

/// Replicas in a slice.
fn data(at: &At<'_>) -> Vec<Option<Value>> {
    let Some(left) = at.left(&["mesh.tensor", "mesh.context"]) else { return vec![] };
    counts(powers(left).filter(|&chips| left.is_multiple_of(chips)))
}

/// All other chips shard weights.
fn fsdp(at: &At<'_>) -> Vec<Option<Value>> {
    at.left(&["mesh.tensor", "mesh.context", "mesh.data"]).map_or(vec![], |chips| counts([chips]))
}

/// A step is one batch: each chip that reads sequences of its own is given its share of all.
fn micro(at: &At<'_>) -> Vec<Option<Value>> {
    let readers = at.count("mesh.data") * at.count("mesh.fsdp");
    let all = at.request.sequences;
    if all.is_multiple_of(readers) { counts([all / readers]) } else { vec![] }
}
