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
    Axis { key: "xla.num_vocab_tiling", values: tiling },
];

/// Chips that heads and an MLP's width are split over.
fn tensor(at: &At<'_>) -> Vec<Option<Value>> {
    let heads = at.heads();
    counts(
        powers(at.site.ranks.min(16))
            .filter(|&ranks| at.site.ranks.is_multiple_of(ranks) && heads.is_multiple_of(ranks)),
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

/// Each chip that reads sequences of its own is given its share of all, at once or in halves: gradients of the parts add up.
fn micro(at: &At<'_>) -> Vec<Option<Value>> {
    let readers = at.count("mesh.data") * at.count("mesh.fsdp");
    let all = at.request.sequences;
    if !all.is_multiple_of(readers) {
        return vec![];
    }
    let share = all / readers;
    // A chip computes no fewer tokens at a time than a context-parallel rank.
    let most = all * at.request.sequence / at.site.ranks / FEWEST;
    counts(powers(most.clamp(1, share)).filter(|&parts| share.is_multiple_of(parts)).map(|parts| share / parts))
}

/// Bytes of logits in bf16 from which on plans that compute them in parts are tried: an eighth of the memory of v6e. Fewer are no reason why a plan
/// does not fit.
const MANY_LOGITS: u64 = 1 << 32;

/// Parts that logits are computed in.
fn tiling(at: &At<'_>) -> Vec<Option<Value>> {
    let tokens = at.count("batch.micro") * at.request.sequence / at.count("mesh.context");
    let logits = 2 * tokens * at.request.model.vocab / at.count("mesh.tensor");
    if logits >= MANY_LOGITS { vec![None, some(4)] } else { vec![None] }
}
