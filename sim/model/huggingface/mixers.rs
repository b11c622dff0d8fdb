//! What architectures with layers of several kinds have in common: sizes that go together, and lists of layers by words.

use serde_json::Value;

use super::ModelError;
use super::decoder::Decoder;
use super::keys::Keys;
use super::limits::WIDTH;
use crate::model::{FeedForward, GatedDelta, Layer, Mamba2, Mixer};

/// Keys of mixers that cost a training step nothing: initial values, limits of dt, types of caches.
const HARMLESS: [&str; 20] = [
    "expand",
    "mamba_expand",
    "time_step_rank",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_limit",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "hidden_act",
    "mamba_hidden_act",
    "mamba_ssm_cache_dtype",
    "use_mamba_kernels",
    "num_logits_to_keep",
    "rms_norm",
    "norm_before_gate",
    "layer_norm_epsilon",
    "norm_eps",
    "ssm_cache_dtype",
    "mamba_ssm_dtype",
];

/// Refuses a mixer, or experts, whose parts together are wider than any model is.
pub(super) fn believed(keys: &Keys<'_>, sizes: &[(&str, u64, u64)]) -> Result<(), ModelError> {
    for &(what, count, each) in sizes {
        let size = count.saturating_mul(each);
        if size > WIDTH.most {
            return Err(ModelError::Misfit {
                file: keys.file(),
                left: format!("{what}, {size} wide together,"),
                right: format!("the largest width believed, {},", WIDTH.most),
                rule: "the first must not exceed the second",
                remedy: "check how many there are, and how wide each is",
            });
        }
    }
    Ok(())
}

/// Asks for what costs nothing.
pub(super) fn harmless(keys: &Keys<'_>) {
    HARMLESS.iter().for_each(|key| keys.ask(key));
}

/// A mixer whose sizes go together, in a model so wide. `expand`, where it is written, must say the same as heads do.
pub(super) fn mamba(keys: &Keys<'_>, width: u64, sizes: Mamba2) -> Result<Mamba2, ModelError> {
    if !sizes.heads.is_multiple_of(sizes.groups) {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{} heads of the mixer", sizes.heads),
            right: format!("{} groups", sizes.groups),
            rule: "the first must be a multiple of the second",
            remedy: "check the mixer's heads and groups",
        });
    }
    believed(keys, &[("heads of the mixer", sizes.heads, sizes.head_dim), ("groups", sizes.groups, sizes.state)])?;
    for key in ["expand", "mamba_expand"] {
        if let Some(expand) = keys.number(key)?
            && expand * width as f64 != sizes.inner() as f64
            && !keys.given("mamba_head_dim")
        {
            let expected =
                format!("{}, which is what heads of the mixer take of the width", sizes.inner() as f64 / width as f64);
            return Err(keys.wrong(key, &Value::from(expand), expected));
        }
    }
    Ok(sizes)
}

/// A gated DeltaNet whose sizes go together; `remedy` names the keys that say how many heads there are.
pub(super) fn gated_delta(keys: &Keys<'_>, sizes: GatedDelta, remedy: &'static str) -> Result<GatedDelta, ModelError> {
    let (key, value) = ((sizes.key_heads, sizes.key_dim), (sizes.value_heads, sizes.value_dim));
    believed(keys, &[("key heads", key.0, key.1), ("value heads", value.0, value.1)])?;
    if !sizes.value_heads.is_multiple_of(sizes.key_heads) {
        return Err(ModelError::Misfit {
            file: keys.file(),
            left: format!("{} value heads", sizes.value_heads),
            right: format!("{} key heads", sizes.key_heads),
            rule: "the first must be a multiple of the second",
            remedy,
        });
    }
    Ok(sizes)
}

/// What `layer_types` says of each layer, by the words that an architecture knows; none if it is absent.
pub(super) fn listed<T: Copy>(keys: &Keys<'_>, layers: u64, known: &[(&str, T)]) -> Result<Option<Vec<T>>, ModelError> {
    let Some(types) = keys.words("layer_types")? else { return Ok(None) };
    let wrong = |expected: String| Err(keys.wrong("layer_types", &Value::Array(vec![]), expected));
    if types.len() as u64 != layers {
        return wrong(format!("{layers} entries, one for each layer, not {}", types.len()));
    }
    let mut list = vec![];
    for name in types {
        match known.iter().find(|(word, _)| *word == name) {
            Some(&(_, of)) => list.push(of),
            None => {
                let words: Vec<String> = known.iter().map(|(word, _)| format!("{word:?}")).collect();
                return wrong(format!("{} for each layer, not {name:?}", words.join(" or ")));
            }
        }
    }
    Ok(Some(list))
}

/// A decoder whose layers are those of a pattern, one part each: `M` the given mixer, `*` attention, `-` a feed-forward, `E` experts.
pub(super) fn of_letters(
    keys: &Keys<'_>,
    (key, pattern): (&'static str, &str),
    ahead: Option<(&'static str, &str)>,
    (decoder, mixer): (Decoder, Mixer),
) -> Result<Decoder, ModelError> {
    let both = decoder.layer(0);
    let with_experts = decoder.experts.is_some();
    let dense = Decoder { experts: None, list: None, notes: vec![], ..decoder };
    let (attention, dense_ffn) = (both.mixer, dense.layer(0).feed_forward);
    let one = |(key, pattern): (&'static str, &str), letter: char| {
        let (mixer, feed_forward) = match letter {
            'M' => (mixer, FeedForward::None),
            '*' => (attention, FeedForward::None),
            '-' => (Mixer::None, dense_ffn.clone()),
            'E' if with_experts => (Mixer::None, both.feed_forward.clone()),
            other => {
                let expected = format!("letters M, *, - and, of a model with experts, E, not {other:?}");
                return Err(keys.wrong(key, &Value::from(pattern), expected));
            }
        };
        Ok(Layer { mixer, feed_forward, norms: both.norms })
    };
    let layers = |of: (&'static str, &str)| of.1.chars().map(|letter| one(of, letter)).collect::<Result<Vec<_>, _>>();
    let list = layers((key, pattern))?;
    let mtp_block = ahead.map_or_else(|| Ok(vec![]), layers)?;
    if !list.iter().any(|layer| layer.mixer != Mixer::None) {
        return Err(keys.wrong(key, &Value::from(pattern), "a layer that mixes tokens: M or *"));
    }
    Ok(Decoder { list: Some(list), mtp_block, ..dense })
}
