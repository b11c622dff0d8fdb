//! What architectures with experts have in common: how many, how many of them a token meets, how wide.

use serde_json::Value;

use super::ModelError;
use super::keys::Keys;
use super::limits::{EXPERTS, FFN, Limit, PATTERN};
use crate::model::experts::{Experts, Router, Score};
use crate::model::routing::Load;
use crate::model::{Activation, Gating};

/// Experts gated by SiLU, softmax over all of them, nothing shared. A reader overrides what differs; gating is the
/// decoder's ([`Decoder::model`](super::decoder::Decoder::model)).
pub(super) fn routed(
    keys: &Keys<'_>,
    count: &[&'static str],
    top_k: &[&'static str],
    width: u64,
) -> Result<Experts, ModelError> {
    let (count, top_k) = (keys.size(count, EXPERTS)?, keys.size(top_k, EXPERTS)?);
    chosen(keys, (count, top_k), width)
}

/// The same where both numbers are known.
pub(super) fn chosen(keys: &Keys<'_>, (count, top_k): (u64, u64), width: u64) -> Result<Experts, ModelError> {
    if top_k > count {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{top_k} experts for each token"),
            right: format!("{count} experts"),
            rule: "the first must not exceed the second",
            remedy: "check how many experts a token is sent to",
        });
    }
    let router = Router {
        score: Score::Softmax,
        normalises: false,
        scales: false,
        bias: false,
        correction: false,
        groups: None,
    };
    Ok(Experts {
        count,
        top_k,
        width,
        latent: None,
        shared: 0,
        shared_gate: false,
        gating: Gating::Gated(Activation::Silu),
        router,
        bias: false,
        clamped: false,
        auxiliary_loss: false,
        load: Load::Balanced,
    })
}

/// The width of one expert, where it has a key of its own.
pub(super) fn width(keys: &Keys<'_>) -> Result<u64, ModelError> {
    keys.size(&["moe_intermediate_size"], FFN)
}

/// A number of blocks that may be zero; absent: `class_default`.
pub(super) fn zero_or(keys: &Keys<'_>, key: &str, class_default: u64) -> Result<u64, ModelError> {
    zero_to(keys, key, PATTERN, class_default)
}

/// A count that may be zero, and no more than a limit; absent: `class_default`.
pub(super) fn zero_to(keys: &Keys<'_>, key: &str, limit: Limit, class_default: u64) -> Result<u64, ModelError> {
    match keys.peek(key).and_then(Value::as_u64) {
        Some(0) => {
            keys.ask(key);
            Ok(0)
        }
        _ => keys.size_or(key, limit, class_default, 0),
    }
}

/// `mlp_only_layers`: the blocks without experts, which must be the first ones.
pub(super) fn dense_first(keys: &Keys<'_>) -> Result<u64, ModelError> {
    let listed = keys.numbers("mlp_only_layers")?.unwrap_or_default();
    match (0..).zip(&listed).find(|(at, layer)| at != *layer) {
        None => Ok(listed.len() as u64),
        Some(_) => Err(keys.wrong(
            "mlp_only_layers",
            &Value::Array(vec![]),
            "the first blocks in order, [0, 1, …], or none: dense blocks in other places are not described",
        )),
    }
}
