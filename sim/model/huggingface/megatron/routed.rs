//! Experts as Megatron-LM's arguments describe them: which layers have them, and how tokens are sent to them.

use serde_json::Value;

use super::pattern;
use crate::model::experts::{Experts, Router, Score};
use crate::model::huggingface::ModelError;
use crate::model::huggingface::experts::chosen;
use crate::model::huggingface::keys::Keys;
use crate::model::huggingface::limits::{EXPERTS, FFN};

/// Which layers have experts.
pub(super) struct Sparse {
    /// Layers without, at the beginning.
    pub first: u64,
    /// Every how many layers, from there on, one has some.
    pub every: u64,
}

/// Experts, if there are some, of a model of so many layers and a dense feed-forward so wide.
pub(super) fn read(keys: &Keys<'_>, (layers, ffn): (u64, u64)) -> Result<(Option<Experts>, Sparse), ModelError> {
    let sparse = sparse(keys, layers)?;
    let Some(count) = keys.size_if(&["num_experts"], EXPERTS)? else {
        return Ok((None, Sparse { first: 0, every: 1 }));
    };
    let width = keys.size_or("moe_ffn_hidden_size", FFN, ffn, ffn)?;
    let top_k = keys.size_or("moe_router_topk", EXPERTS, 2, 2)?;
    let experts = chosen(keys, (count, top_k), width)?;
    let shared = keys.size_if(&["moe_shared_expert_intermediate_size"], FFN)?.unwrap_or(0);
    let latent = keys.size_if(&["moe_latent_size"], FFN)?;
    Ok((Some(Experts { shared, latent, router: router(keys, count)?, ..experts }), sparse))
}

fn router(keys: &Keys<'_>, count: u64) -> Result<Router, ModelError> {
    let balancing = keys.word("moe_router_load_balancing_type")?.unwrap_or("aux_loss");
    if !["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"].contains(&balancing) {
        let expected = "one of \"aux_loss\", \"seq_aux_loss\", \"global_aux_loss\", \"sinkhorn\", \"none\"";
        return Err(keys.wrong("moe_router_load_balancing_type", &Value::from(balancing), expected));
    }
    let early = keys.flag("moe_router_pre_softmax", false)?;
    let (score, normalises) = match keys.word("moe_router_score_function")?.unwrap_or("softmax") {
        _ if balancing == "sinkhorn" => (Score::Sinkhorn, false),
        "softmax" => (Score::Softmax, !early),
        "sigmoid" => (Score::Sigmoid, true),
        other => {
            return Err(keys.wrong("moe_router_score_function", &Value::from(other), "\"softmax\" or \"sigmoid\""));
        }
    };
    let groups = keys.size_if(&["moe_router_num_groups"], EXPERTS)?;
    let kept = keys.size_if(&["moe_router_group_topk"], EXPERTS)?;
    if let Some((groups, kept)) = groups.zip(kept)
        && (!count.is_multiple_of(groups) || kept > groups)
    {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{kept} of {groups} groups"),
            right: format!("{count} experts"),
            rule: "groups divide the second, and no more are chosen than there are",
            remedy: "check \"moe_router_num_groups\", \"moe_router_group_topk\" and \"num_experts\"",
        });
    }
    Ok(Router {
        score,
        normalises,
        scales: keys.number("moe_router_topk_scaling_factor")?.is_some_and(|factor| factor != 1.0),
        bias: false,
        correction: keys.flag("moe_router_enable_expert_bias", false)?,
        groups: groups.zip(kept).filter(|(groups, _)| *groups > 1),
    })
}

/// Reads `moe_layer_freq`: a number, a list, or the text of one.
fn sparse(keys: &Keys<'_>, layers: u64) -> Result<Sparse, ModelError> {
    const KEY: &str = "moe_layer_freq";
    let Some(value) = keys.peek(KEY) else { return Ok(Sparse { first: 0, every: 1 }) };
    keys.ask(KEY);
    let wrong = |expected: String| keys.wrong(KEY, value, expected);
    let any = "a whole number, or one 0 or 1 for each layer such as ([0]*3+[1]*11): layers without experts come first";
    if let Some(every) = value.as_u64() {
        return if every > 0 { Ok(Sparse { first: 0, every }) } else { Err(wrong(any.to_owned())) };
    }
    let flags = match value {
        Value::String(text) => pattern::list(text),
        Value::Array(values) => values.iter().map(Value::as_i64).collect(),
        _ => None,
    };
    let flags = flags.ok_or_else(|| wrong(any.to_owned()))?;
    if flags.len() as u64 != layers {
        return Err(wrong(format!("one 0 or 1 for each of {layers} layers, not {}", flags.len())));
    }
    pattern::dense_first(&flags).map(|(first, every)| Sparse { first, every }).ok_or_else(|| wrong(any.to_owned()))
}
