//! The model of Megatron-LM's arguments: a shipped model of the same make, with the sizes that the arguments state.

use toml::Value;

use super::sizes::Sizes;
use super::{mixture, own};
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::Settings;
use crate::import::why::{Found, Why};

/// Makes of dense models: what the arguments say, and a shipped model that is made so.
const LLAMA: &str = "llama-3-8b";
const QWEN2: &str = "qwen2.5-7b";
const QWEN3: &str = "qwen3-8b";
const NEMOTRON: &str = "nemotron-4-15b";
const GPT: &str = "gpt-megatron-175b";

/// Writes `[model]`.
pub fn model(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let needed = |key: &str| settings.needed(key, &format!("add --{} N", key.replace('_', "-")));
    let hybrid = settings.word("hybrid_layer_pattern")?.or(settings.word("hybrid_override_pattern")?);
    let layers = match (settings.count("num_layers")?, &hybrid) {
        (Some(found), _) => found,
        (None, Some(pattern)) => Found {
            value: pattern.value.split('/').next().unwrap_or("").chars().filter(|letter| *letter != '|').count() as i64,
            why: pattern.why.clone().so("a letter for each layer"),
            stated: true,
        },
        (None, None) => needed("num_layers")?,
    };
    let (width, heads) = (needed("hidden_size")?, needed("num_attention_heads")?);
    let ffn = settings.count("ffn_hidden_size")?;
    let groups = settings.count("num_query_groups")?;
    let grouped = settings.is_set("group_query_attention")?;
    let groups = groups.filter(|_| grouped);
    let channels = settings.count("kv_channels")?;
    let positions = settings.count("max_position_embeddings")?;
    let vocabulary = vocabulary(settings)?;
    let experts = settings.count("num_experts")?.filter(|found| found.value > 1);
    let latent = settings.is_set("multi_latent_attention")?;
    if let Some(found) = settings.word("experimental_attention_variant")? {
        let what = format!("another attention than softmax over keys, {},", found.value);
        return Err(settings.unsupported("experimental_attention_variant", what, "import a model without it"));
    }
    let mut make = make(settings)?;
    make.own |= !latent && own::windowed(settings)?;
    let tied = settings.flag("untie_embeddings_and_output_weights")?;
    out.put_found(
        "megatron.make_vocab_size_divisible_by",
        settings.count("make_vocab_size_divisible_by")?.filter(|f| f.stated),
    );
    let ahead = settings.integer("mtp_num_layers")?.filter(|found| found.value != 0);
    out.put_found("megatron.mtp_num_layers", ahead);
    let ffn = match ffn {
        Some(found) => found,
        None => feed_forward(settings, &width)?,
    };
    let untied = tied.as_ref().is_some_and(|found| found.value);
    let apart = channels.as_ref().is_some_and(|found| found.value.checked_mul(heads.value) != Some(width.value));
    if experts.is_some() || latent || make.own || apart || hybrid.is_some() {
        let qk_norm = settings.is_set("qk_layernorm")?;
        let own = make.own || hybrid.is_some() || make.name != LLAMA && make.name != QWEN3;
        let routed = (experts.is_some() || latent) && hybrid.is_none();
        let sizes = Sizes { layers, width, heads, groups, channels, ffn, experts, latent, qk_norm, untied, own };
        if latent && make.own {
            for (name, value, at) in &make.differ {
                out.without(
                    name,
                    value,
                    at,
                    "latent attention is read with RMSNorm, a gate, rotation and no biases: little",
                );
            }
        }
        if routed {
            mixture::model(out, settings, sizes)?;
        } else {
            own::model(out, settings, sizes)?;
        }
        return words(out, vocabulary);
    }
    out.put("model.name", make.name, make.why);
    out.put("model.layers", layers.value, layers.why);
    out.put("model.hidden", width.value, width.why.clone());
    out.put("model.heads", heads.value, heads.why.clone());
    match groups {
        Some(found) => out.put("model.kv_heads", found.value, found.why),
        None => out.put("model.kv_heads", heads.value, Why::code("no --group-query-attention: as many as heads")),
    }
    out.put("model.ffn", ffn.value, ffn.why);
    if let (Some(found), true) = (positions, make.name == GPT) {
        out.put("model.positions", found.value, found.why);
    }
    if let Some(found) = tied {
        out.put("model.tied_head", !found.value, found.why);
    }
    match vocabulary {
        Some(found) => out.put("model.vocab", found.value, found.why),
        None => {
            let name = out.get("model.name").and_then(Value::as_str).unwrap_or_default().to_owned();
            out.note(format!(
                "The arguments do not say how many words there are: {name}'s. Add --vocab-size N to set it."
            ));
        }
    }
    Ok(())
}

/// The feed-forward's width where no argument says it.
fn feed_forward(settings: &Settings<'_>, width: &Found<i64>) -> Result<Found<i64>, ImportError> {
    let (value, how) = if settings.is_set("swiglu")? {
        let value = width.value.saturating_mul(4).saturating_mul(2) / 3 / 64 * 64;
        (value, "arguments.py: int(4 · hidden · 2/3 / 64) · 64 under --swiglu")
    } else {
        (width.value.saturating_mul(4), "arguments.py: 4 · hidden")
    };
    Ok(Found { value, why: Why::code(how), stated: false })
}

/// Writes how many words a model of a config has.
fn words(out: &mut Imported, vocabulary: Option<Found<i64>>) -> Result<(), ImportError> {
    const KEY: &str = "model.config.vocab_size";
    if let Some(found) = vocabulary {
        out.put(KEY, found.value, found.why);
        return Ok(());
    }
    let (name, words) = mixture::words_alike(out).unwrap_or((LLAMA, 128_256));
    out.put(KEY, i64::try_from(words).unwrap_or(i64::MAX), Why::code(format!("the arguments do not say: {name}'s")));
    out.note(format!("The arguments do not say how many words there are: {name}'s. Add --vocab-size N to set it."));
    Ok(())
}

/// The shipped dense model that comes nearest to what the arguments say.
struct Make {
    name: &'static str,
    why: Why,
    /// Whether it differs from them.
    own: bool,
    /// Where it does: the argument, its value, and where that is written.
    differ: Vec<(&'static str, String, String)>,
}

fn make(settings: &Settings<'_>) -> Result<Make, ImportError> {
    let norms = [("LayerNorm", false), ("RMSNorm", true)];
    let rms = settings.choice("normalization", &norms)?.is_some_and(|found| found.value);
    let gated = settings.is_set("swiglu")?;
    let squared = settings.is_set("squared_relu")?;
    let bias = settings.flag("add_bias_linear")?.is_none_or(|found| found.value);
    let qkv_bias = settings.is_set("add_qkv_bias")?;
    let qk_norm = settings.is_set("qk_layernorm")?;
    let position = settings.word("position_embedding_type")?;
    let rotary = settings.is_set("use_rotary_position_embeddings")?
        || position.as_ref().is_some_and(|found| found.value == "rope");
    let _ = settings.flag("add_position_embedding")?;
    let make = match (rms && gated && rotary && !bias, squared) {
        (true, _) if qk_norm => QWEN3,
        (true, _) if qkv_bias => QWEN2,
        (true, _) => LLAMA,
        (false, true) => NEMOTRON,
        (false, false) if gated => LLAMA,
        (false, false) => GPT,
    };
    let is = match make {
        GPT => (false, false, false, true),
        NEMOTRON => (false, false, true, false),
        _ => (true, true, true, false),
    };
    let said = (rms, gated, rotary, bias);
    let names = ["normalization", "swiglu", "position_embedding_type", "add_bias_linear"];
    let differ = [is.0 != said.0, is.1 != said.1, is.2 != said.2, is.3 != said.3];
    let differ: Vec<_> = names
        .into_iter()
        .zip(differ)
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| {
            let value = settings.value(name).map_or_else(|| "not set".to_owned(), |found| found.value.to_string());
            (name, value, settings.comment(name))
        })
        .collect();
    let why = Why::code("a shipped model of the same make: norm, activation, positions and biases");
    Ok(Make { name: make, why, own: !differ.is_empty(), differ })
}

/// Words of the vocabulary, as the arguments or the tokenizer say.
fn vocabulary(settings: &Settings<'_>) -> Result<Option<Found<i64>>, ImportError> {
    if let Some(found) = settings.count("padded_vocab_size")? {
        return Ok(Some(found));
    }
    let stated = settings.count("vocab_size")?;
    let kind = settings.word("tokenizer_type")?;
    let model = settings.word("tokenizer_model")?;
    if stated.is_some() {
        return Ok(stated);
    }
    if let Some(found) = kind.as_ref().filter(|found| found.value == "GPT2BPETokenizer") {
        return Ok(Some(Found { value: 50257, why: found.why.clone().so("GPT-2's words"), stated: true }));
    }
    // The program's own default, which needs the file of its words (`pretrain_gpt.py`, args_defaults).
    if let (None, Some(file)) = (&kind, settings.word("vocab_file")?) {
        let how = "the words of GPT-2's tokenizer, which pretrain_gpt.py takes where none is named";
        return Ok(Some(Found { value: 50257, why: file.why.so(how), stated: false }));
    }
    const TOKENIZERS: [(&str, i64); 7] = [
        ("llama-3", 128_256),
        ("llama3", 128_256),
        ("llama-2", 32_000),
        ("llama2", 32_000),
        ("mixtral", 32_000),
        ("mistral", 32_000),
        ("256k", 256_000),
    ];
    let named = model.and_then(|found| {
        let name = found.value.to_lowercase();
        let (_, words) = TOKENIZERS.iter().find(|(part, _)| name.contains(part))?;
        Some(Found { value: *words, why: found.why.so("the words of that tokenizer"), stated: true })
    });
    Ok(named)
}
