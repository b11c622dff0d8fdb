//! What a config may say that cannot be described: refused where it changes the model, noted where it only differs.

use super::ModelError;
use super::decoder::Decoder;
use super::ignored::on;
use super::keys::{Keys, shown};

/// Keys that count experts.
const EXPERTS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "n_experts", "num_moe_experts"];

/// Keys that are refused when true, above zero, or an object; why; and what to try.
const REFUSED: &[(&str, &str, &str)] = &[
    ("is_encoder_decoder", "encoder-decoder models are not supported", "take a decoder-only model"),
    ("add_cross_attention", "cross-attention is not supported", "take a decoder-only model"),
    ("use_bidirectional_attention", "attention that sees the future is not supported", "take a causal model"),
    ("vision_config", "models with images are not supported", TEXT_PART),
    ("audio_config", "models with sound are not supported", TEXT_PART),
    ("text_config", "models of several parts are not supported", TEXT_PART),
];

const TEXT_PART: &str = "put the object under \"text_config\" into a file of its own, if it has one";

/// Keys that a class may read and that change a model: noted when set and not asked for.
const WATCHED: &[&str] = &[
    "sliding_window",
    "layer_types",
    "attention_bias",
    "mlp_bias",
    "use_qkv_bias",
    "use_qk_norm",
    "qk_layernorm",
    "head_dim",
    "partial_rotary_factor",
    "rotary_pct",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "alibi",
    "parallel_attn",
    "use_parallel_residual",
    "num_key_value_heads",
    "clip_qkv",
    "logit_scale",
];

/// Keys that only architectures with experts read, refused elsewhere as [`REFUSED`] is.
const SPARSE: (&str, &str, &str) =
    ("kv_lora_rank", "this architecture is read without latent attention", "take a model without it, or deepseek_v3");

/// Refuses tokens predicted further ahead, where the architecture does not read them.
pub(super) fn ahead(keys: &Keys<'_>, model: &Decoder) -> Result<(), ModelError> {
    const KEY: &str = "num_nextn_predict_layers";
    match keys.peek(KEY).filter(|value| on(value) && model.mtp_layers == 0) {
        None => Ok(()),
        Some(value) => {
            let why = "this architecture is read without multi-token prediction";
            Err(keys.unsupported(KEY, value, why, "set it to 0 to leave it out"))
        }
    }
}

/// Refuses models that are not causal decoders; and, unless the architecture is `sparse`, those with experts.
pub(super) fn check(keys: &Keys<'_>, sparse: bool) -> Result<(), ModelError> {
    for &key in EXPERTS.iter().filter(|_| !sparse) {
        if let Some(value) = keys.peek(key)
            && value.as_f64().is_none_or(|experts| experts > 1.0)
        {
            let what = format!("{key:?} is {}", shown(value));
            return Err(ModelError::MixtureOfExperts { place: keys.place(key), what });
        }
    }
    for &(key, why, remedy) in REFUSED.iter().chain((!sparse).then_some(&SPARSE)) {
        if let Some(value) = keys.peek(key).filter(|value| on(value)) {
            return Err(keys.unsupported(key, value, why, remedy));
        }
    }
    super::ignored::refuse(keys)
}

/// Refuses keys that nobody reads and nobody knows.
pub(super) fn left(keys: &Keys<'_>, class: &str) -> Result<(), ModelError> {
    let named = ["model_type", "num_nextn_predict_layers", SPARSE.0];
    let refused = REFUSED.iter().map(|(key, ..)| *key);
    let noted: Vec<&str> = WATCHED.iter().chain(EXPERTS).copied().chain(named).chain(refused).collect();
    super::ignored::unknown(keys, class, &noted)
}

/// The error for a `model_type` without a reader.
pub(super) fn unknown(keys: &Keys<'_>, model_type: &str, known: String) -> ModelError {
    let (place, what) = (keys.place("model_type"), format!("\"model_type\" is {:?}", cut(model_type)));
    let moe = ["moe", "dbrx", "grok", "deepseek"];
    if moe.iter().any(|part| model_type.contains(part)) {
        return ModelError::MixtureOfExperts { place, what };
    }
    let why = "no reader for this architecture".to_string();
    ModelError::Unsupported { place, what, why, remedy: format!("the architectures that can be read are {known}") }
}

/// The first characters of a string, for an error.
fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

/// What the config says that the model, read as `class`, leaves out.
pub(super) fn notes(keys: &Keys<'_>, class: &str) -> Vec<String> {
    let mut notes = Vec::new();
    for &key in WATCHED {
        if let Some(value) = keys.peek(key).filter(|value| on(value) && !keys.was_asked(key)) {
            notes.push(format!("{key:?} is {}, which {class} does not read: ignored", shown(value)));
        }
    }
    notes
}
