//! MaxText's models: what the file of a named one says (`tables/maxtext-models.toml`), and base.yml's own decoder, whose sizes are keys.
//!
//! A model's file lies over base.yml and the user's own file, and under the command line. One that is shipped here is named; another is
//! written as the config that its keys make ([`super::blocks`]).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{Block, By};
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::settings::{Raw, Settings, shown};
use crate::import::table::Default;
use crate::import::why::{Found, Why};
use crate::tables;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    /// Keys of models' files that are left aside.
    #[cfg_attr(not(test), expect(dead_code, reason = "what a test holds the files against"))]
    aside: Vec<String>,
    shipped: BTreeMap<String, String>,
    models: BTreeMap<String, BTreeMap<String, Value>>,
}

static MODELS: LazyLock<Models> =
    LazyLock::new(|| tables::read(include_str!("../tables/maxtext-models.toml")).expect("a test reads every model"));

/// Keys of a decoder's shape: one that is otherwise than base.yml has it, and that no kind of decoder asks for, makes another model.
const SHAPE: [&str; 50] = [
    "mlp_activations",
    "num_experts",
    "num_experts_per_tok",
    "base_moe_mlp_dim",
    "shared_experts",
    "first_num_dense_layers",
    "first_num_hash_layers",
    "interleave_moe_layer_step",
    "inhomogeneous_layer_cycle_interval",
    "routed_bias",
    "n_routing_groups",
    "topk_routing_group",
    "moe_expert_input_dim",
    "attention_type",
    "attention_bias",
    "attention_sink",
    "attention_output_dim",
    "sliding_window_size",
    "chunk_attn_window_size",
    "compress_ratios",
    "global_head_dim",
    "global_num_kv_heads",
    "share_kv_projections",
    "num_kv_shared_layers",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "o_groups",
    "o_lora_rank",
    "use_indexer",
    "use_qk_norm",
    "use_post_attn_norm",
    "use_post_ffw_norm",
    "mlp_bias",
    "mlp_activations_limit",
    "use_double_wide_mlp",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "mhc_expansion_rate",
    "engram_layers",
    "mtp_num_layers",
    "partial_rotary_factor",
    "trainable_position_size",
    "gdn_num_key_heads",
    "gdn_num_value_heads",
    "gdn_key_head_dim",
    "gdn_value_head_dim",
    "gdn_conv_kernel_dim",
];

/// Keys of a model's shape that are no text decoder's.
const ENCODERS: [&str; 2] = ["use_multimodal", "use_audio"];

/// Sizes of which base.yml's own decoder needs one.
const OWN: [&str; 7] = [
    "base_emb_dim",
    "base_num_query_heads",
    "base_num_kv_heads",
    "base_mlp_dim",
    "base_num_decoder_layers",
    "head_dim",
    "vocab_size",
];

/// Powers of two by which sizes grow with `global_parameter_scale`. Source: MaxText 0.2.5, `configs/types.py`,
/// `get_individual_scales`.
struct Scales {
    width: u32,
    heads: u32,
    layers: u32,
}

impl Scales {
    fn of(scale: i64) -> Option<Scales> {
        let scale = u64::try_from(scale).ok().filter(|scale| scale.is_power_of_two())?;
        let (whole, rest) = (scale.ilog2() / 3, scale.ilog2() % 3);
        Some(Scales { width: whole + u32::from(rest > 1), heads: whole + u32::from(rest > 0), layers: whole })
    }

    /// How many times as large a size is.
    fn factor(&self, by: By) -> i64 {
        let power = match by {
            By::Width => self.width,
            By::Heads => self.heads,
            By::Layers => self.layers,
            By::Pairs => self.layers + 1,
            By::Nothing | By::None => 0,
        };
        1i64.checked_shl(power).unwrap_or(i64::MAX)
    }
}

/// What the file of a named model says, and keys of the user's own file that it lies over: those are taken out of what was read.
pub(super) fn file_of(raw: &mut Vec<Raw>, is_command: bool) -> (BTreeMap<String, Default>, Vec<String>) {
    let name = raw.iter().rfind(|raw| raw.key == "model_name").and_then(|raw| raw.value.as_str().map(str::to_owned));
    let Some((name, keys)) = name.and_then(|name| MODELS.models.get_key_value(&name)) else {
        return (BTreeMap::new(), vec![]);
    };
    let at = format!("maxtext/configs/models/{name}.yml");
    let of = |(key, value): (&String, &Value)| (key.clone(), Default { value: value.clone(), at: at.clone() });
    let mut under = vec![];
    raw.retain(|raw| {
        let lies_under = raw.line.is_some() && !is_command && keys.contains_key(&raw.key);
        if lies_under && keys.get(&raw.key) != Some(&raw.value) {
            under.push(raw.key.clone());
        }
        !lies_under
    });
    (keys.iter().map(of).collect(), under)
}

/// Writes `[model]`: the one that `model_name` names, or base.yml's own by its sizes. `under`: keys of the user's file that the named
/// model's lies over.
pub(super) fn model(out: &mut Imported, settings: &Settings<'_>, under: &[String]) -> Result<(), ImportError> {
    let name = settings.word("model_name")?.filter(|found| found.value != "default");
    let scale = settings.count("global_parameter_scale")?;
    let scales = scale.map_or(Some(Scales { width: 0, heads: 0, layers: 0 }), |found| Scales::of(found.value));
    let scales = scales.ok_or_else(|| {
        settings.wrong("global_parameter_scale", "a power of two", "1, or sizes such as base_emb_dim=4096")
    })?;
    match name {
        Some(name) => named(out, settings, &scales, name)?,
        None => own(out, settings, &scales)?,
    }
    for key in under {
        out.note(format!(
            "{key} of the file changes nothing: MaxText lays the model's own file over it. Set it on the command line, with \
             override_model_config=True."
        ));
    }
    Ok(())
}

/// A model of a name.
fn named(out: &mut Imported, settings: &Settings<'_>, scales: &Scales, name: Found<String>) -> Result<(), ImportError> {
    if !MODELS.models.contains_key(&name.value) {
        let all: Vec<&str> = MODELS.models.keys().map(String::as_str).collect();
        let near = crate::near::did_you_mean(&name.value, all.iter().copied());
        let remedy = format!("set it to a model of maxtext/configs/models, such as llama3.1-8b{near}");
        return Err(settings.unsupported("model_name", format!("MaxText's model {:?}", name.value), &remedy));
    }
    let config = config(settings, scales)?;
    let beside: Vec<&str> = OWN.into_iter().chain(SHAPE).filter(|key| settings.states(key)).collect();
    let grown = settings.integer("global_parameter_scale")?.is_some_and(|found| found.value > 1);
    let shipped = MODELS.shipped.get(&name.value).filter(|_| !grown);
    match shipped {
        Some(shipped) => out.put("model.name", shipped.as_str(), name.why.clone()),
        None => {
            let why = name.why.clone().so(&format!("a decoder of {}", config.block));
            out.put("model.config.model_type", config.model_type, why);
        }
    }
    for made in config.keys.into_iter().filter(|made| shipped.is_none() || made.stated) {
        out.put(&format!("model.config.{}", made.key), made.value, made.why);
    }
    if !beside.is_empty() && !settings.is_set("override_model_config")? {
        out.note(format!(
            "MaxText refuses {} beside model_name where the model has another, unless override_model_config=True.",
            beside.join(", ")
        ));
    }
    out.unmodelled.extend(settings.left_of_recipe());
    out.put("description", format!("{}, MaxText", name.value), name.why);
    Ok(())
}

/// base.yml's own decoder.
fn own(out: &mut Imported, settings: &Settings<'_>, scales: &Scales) -> Result<(), ImportError> {
    if !settings.states("global_parameter_scale") && !OWN.iter().any(|key| settings.states(key)) {
        let remedy = "add model_name=llama3.1-8b, or sizes such as base_emb_dim=4096 of a model of your own";
        return Err(settings.missing("model_name", "the name of a model", remedy));
    }
    let config = config(settings, scales)?;
    let why = Why::code(format!("decoder_block {}, which is of that kind", config.block));
    out.put("model.config.model_type", config.model_type, why);
    for made in config.keys {
        out.put(&format!("model.config.{}", made.key), made.value, made.why);
    }
    out.put("description", "base.yml's own decoder, MaxText", Why::code("no model is named"));
    Ok(())
}

/// A decoder's config.
struct Config {
    block: String,
    model_type: &'static str,
    keys: Vec<super::blocks::Made>,
}

/// The config that the keys of a decoder make.
fn config(settings: &Settings<'_>, scales: &Scales) -> Result<Config, ImportError> {
    let block = settings.word("decoder_block")?.map_or_else(|| "llama2".to_owned(), |found| found.value);
    for key in ENCODERS {
        if settings.is_set(key)? {
            let what = "a model that reads more than text";
            return Err(settings.unsupported(key, what, &format!("add {key}=false override_model_config=true")));
        }
    }
    // A decoder of Llama's kind has experts where it is told how many.
    let several = settings.integer("num_experts")?.is_some_and(|found| found.value > 1);
    let kind = if several && ["llama2", "mistral"].contains(&block.as_str()) { "mixtral" } else { &block };
    let Some(of) = Block::named(kind) else {
        let what = format!("a decoder of MaxText's kind {block:?}");
        let remedy = format!("name a model whose decoder_block is one of {}", Block::known());
        return Err(settings.unsupported("decoder_block", what, &remedy));
    };
    let keys = of.config(settings, |by| scales.factor(by))?;
    for key in SHAPE.into_iter().filter(|key| !settings.was_asked(key)) {
        if let Some(found) = settings.other_than_default(key) {
            let what = format!("{key} = {} in a decoder of {block}", shown(&found));
            return Err(settings.unsupported(key, what, "leave it out, or name a model whose decoder has it"));
        }
    }
    Ok(Config { block, model_type: of.model_type, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_with_the_global_scale_as_maxtexts_own_function_has_them() {
        // get_individual_scales(2), (4), (8) and (32) of MaxText 0.2.5.
        for (scale, powers) in [(1, [0, 0, 0]), (2, [0, 1, 0]), (4, [1, 1, 0]), (8, [1, 1, 1]), (32, [2, 2, 1])] {
            let scales = Scales::of(scale).expect("a power of two");
            assert_eq!([scales.width, scales.heads, scales.layers], powers, "{scale}");
        }
        assert!(Scales::of(3).is_none() && Scales::of(0).is_none());
    }

    const SOURCES: &str = include_str!("../../../tests/frameworks/defaults/maxtext-0.2.5.json");
    const PARAMETERS: &str = include_str!("../../../tests/frameworks/parameters/maxtext-0.2.5.json");

    fn imported(name: &str, words: &[&str]) -> Result<Imported, ImportError> {
        let text =
            format!("base_config: base.yml\nmodel_name: {name}\nper_device_batch_size: 1\nmax_target_length: 2048\n");
        let overrides: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let machine = crate::import::Machine {
            on: Some("tpu-v6e".to_owned()),
            slice: Some("16x16".to_owned()),
            ..crate::import::Machine::default()
        };
        let request = crate::import::Request {
            file: "a.yml",
            text: &text,
            overrides: &overrides,
            machine,
            ..crate::import::Request::default()
        };
        crate::import::import(crate::import::find("maxtext").expect("there is one"), &request)
    }

    #[test]
    fn what_is_said_of_every_model_is_what_its_file_says() {
        let all: Value = serde_json::from_str(SOURCES).expect("it is JSON");
        let theirs = all["models"].as_object().expect("models");
        let aside = |key: &str| {
            let is = |pattern: &String| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
                (Some(end), _) => key.ends_with(end),
                (_, Some(start)) => key.starts_with(start),
                _ => key == pattern,
            };
            MODELS.aside.iter().any(is)
        };
        assert_eq!(MODELS.models.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (name, file) in theirs {
            let file = file.as_object().expect("keys");
            let own = &MODELS.models[name];
            for (key, value) in file.iter().filter(|(key, _)| !aside(key)) {
                assert_eq!(own.get(key), Some(value), "{name}: {key}");
            }
            assert!(own.keys().all(|key| file.contains_key(key)), "{name}");
        }
    }

    /// The referee is the train state that MaxText itself traces.
    #[test]
    fn models_have_as_many_parameters_as_maxtexts_own_train_state() {
        let all: Value = serde_json::from_str(PARAMETERS).expect("it is JSON");
        let (mut named, mut beside, mut wrong) = (0, 0, vec![]);
        for (line, theirs) in all["parameters"].as_object().expect("models") {
            let Some(theirs) = theirs.as_u64() else { continue };
            let (name, words) = line.split_once(' ').unwrap_or((line, ""));
            let words: Vec<&str> = words.split_whitespace().chain(["override_model_config=true"]).collect();
            let imported = match imported(name, &words) {
                Ok(imported) => imported,
                Err(error) if words.len() > 1 => panic!("{line}: {error}"),
                Err(_) => continue,
            };
            let model = imported.model().unwrap_or_else(|| panic!("{line}: {:?}", imported.entries));
            // Biases of a router that no gradient reaches are no parameters there.
            let untrained =
                model.experts().filter(|experts| experts.router.correction).map_or(0, |experts| experts.count);
            let ours = model.params().total - model.expert_blocks() * untrained;
            *(if words.len() > 1 { &mut beside } else { &mut named }) += 1;
            if ours != theirs {
                wrong.push(format!("{line}: {ours}, {theirs} there"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(named >= 60 && beside >= 10, "{named} are read, {beside} with sizes beside them");
    }

    /// Each would make another model than the one that is read.
    #[test]
    fn a_size_that_no_decoder_of_its_kind_has_is_refused() {
        for (name, word) in [
            ("llama3.1-8b", "num_experts=1 shared_experts=1"),
            ("llama3.1-8b", "mtp_num_layers=1"),
            ("qwen3-30b-a3b", "moe_expert_input_dim=768"),
            ("qwen3-8b", "attention_output_dim=1024"),
            ("deepseek3-671b", "use_indexer=true"),
            ("mixtral-8x7b", "base_moe_mlp_dim=1024"),
            ("llama3.1-8b", "use_multimodal=true"),
        ] {
            let words: Vec<&str> = word.split(' ').chain(["override_model_config=true"]).collect();
            let error = imported(name, &words).expect_err(word).to_string();
            let key = word.rsplit(' ').next().and_then(|word| word.split('=').next()).expect("a key");
            assert!(error.contains(key), "{error}");
        }
        imported("qwen3-30b-a3b", &["base_moe_mlp_dim=768"]).expect("it is what the model's file says");
    }
}
