//! The table `[model]` as understood: a shipped model or a config, and what the run changes in it.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;

use super::assumption::Assumption;
use super::error::ScenarioError;
use super::paths::relative;
use super::reader::Reader;
use super::written;
use crate::model::huggingface::ModelError;
use crate::model::huggingface::inline::{self, Base, Inline};
use crate::model::routing::Load;
use crate::model::{FeedForward, Mixer, ModelConfig, Position, huggingface};
use crate::near;
use crate::units::Finite;

/// The steepest power law of tokens over experts.
const STEEPEST: f64 = 10.0;

/// A model that ships with the program, or the names that come near.
fn shipped(reader: &Reader<'_>, name: &Spanned<String>) -> Result<Result<ModelConfig, ModelError>, ScenarioError> {
    let asked = name.get_ref();
    if huggingface::shipped(asked).is_some() {
        return Ok(huggingface::shipped::named(asked));
    }
    let problem = format!("no model is named {asked:?}");
    let near: Vec<String> = near::sorted(asked, huggingface::shipped::names())
        .into_iter()
        .take(3)
        .map(|known| format!("{known:?}"))
        .collect();
    let remedy = format!(
        "the nearest are {}; all are in scenarios/models/, and huggingface = \"path/config.json\" reads your own",
        near.join(", ")
    );
    Err(reader.unknown(name, problem, remedy))
}

/// Keys of a `config.json` that say what keys of a scenario say, too.
const TWICE: [(&str, &[&str]); 8] = [
    ("layers", &["num_hidden_layers", "n_layer", "n_layers"]),
    ("hidden", &["hidden_size", "n_embd", "d_model"]),
    ("heads", &["num_attention_heads", "n_head", "n_heads"]),
    ("kv_heads", &["num_key_value_heads"]),
    ("ffn", &["intermediate_size", "n_inner", "ffn_dim"]),
    ("vocab", &["vocab_size"]),
    ("tied_head", &["tie_word_embeddings"]),
    ("positions", &["max_position_embeddings", "n_positions"]),
];

/// Refuses a size that the config of a scenario and a key of its own both say.
fn said_once(reader: &Reader<'_>, config: &BTreeMap<String, Spanned<toml::Value>>) -> Result<(), ScenarioError> {
    let own = reader.table.get("model").and_then(toml::Value::as_table);
    for (key, theirs) in TWICE {
        let written = theirs.iter().find_map(|name| Some((name, config.get(*name)?)));
        if let (Some((name, at)), Some(_)) = (written, own.and_then(|own| own.get(key))) {
            let problem = format!("model.config.{name} and model.{key} say the same of the model");
            return Err(reader.plan(at, problem, format!("remove model.{key}, or model.config.{name}")));
        }
    }
    Ok(())
}

/// The model that a scenario names, or whose config it writes.
fn loaded(reader: &Reader<'_>, written: &Spanned<written::Model>) -> Result<ModelConfig, ScenarioError> {
    let at = written.get_ref();
    if let (Some(_), Some(_)) = (&at.name, &at.huggingface) {
        let problem = "a model is named or read from a Hugging Face config, exactly one of the two";
        return Err(reader.plan(written, problem, "remove model.name, or remove model.huggingface"));
    }
    let failed = |problem, place| ScenarioError::Model { problem: Box::new(problem), place };
    let path = at.huggingface.as_ref().map(|path| relative(reader.file, path.get_ref()));
    if let Some(config) = at.config.as_ref().filter(|config| !config.is_empty()) {
        said_once(reader, config)?;
        let base = match (&at.name, &path) {
            (Some(name), _) => {
                let _ = shipped(reader, name)?;
                Base::Shipped(name.get_ref())
            }
            (None, Some(path)) => Base::File(Path::new(path)),
            (None, None) => Base::None,
        };
        let (mut keys, mut lines, mut first) = (serde_json::Map::new(), BTreeMap::new(), usize::MAX..usize::MAX);
        for (key, value) in config {
            if value.span().start < first.start {
                first = value.span();
            }
            lines.insert(key.clone(), reader.place(value).line);
            keys.insert(key.clone(), inline::json(value.get_ref()));
        }
        let written = Inline { file: reader.file, keys, lines };
        let place = || reader.place(&Spanned::new(first.clone(), ()));
        return inline::read(&written, base).map_err(|problem| failed(problem, place()));
    }
    match (&at.name, &at.huggingface, path) {
        (Some(name), ..) => shipped(reader, name)?.map_err(|problem| failed(problem, reader.place(name))),
        (None, Some(named), Some(path)) => {
            huggingface::load(Path::new(&path)).map_err(|problem| failed(problem, reader.place(named)))
        }
        _ => {
            let problem = "a model is named or read from a Hugging Face config, exactly one of the two";
            let remedy = "write model.name = \"llama-3.1-8b\", model.huggingface with the path of a config.json, or the \
                          config's keys below [model.config]";
            Err(reader.plan(written, problem, remedy))
        }
    }
}

/// The model of a scenario, with what the run changes in it.
pub(super) fn model(reader: &mut Reader<'_>, written: &Spanned<written::Model>) -> Result<ModelConfig, ScenarioError> {
    let at = written.get_ref();
    let mut model = loaded(reader, written)?;
    if let Some(layers) = &at.layers {
        model.layers.resize(reader.count(&written::Model::layers, layers)?);
    }
    sizes(reader, written, &mut model)?;
    if let Some(tied) = at.tied_head {
        model.tied_head = tied;
    }
    if let Some(at) = &at.positions {
        let rows = reader.count(&written::Model::positions, at)?;
        match &mut model.position {
            Position::Learned { positions } => *positions = rows,
            _ => {
                let problem = format!("{} has no table of learned positions", model.name);
                return Err(reader.plan(at, problem, "remove model.positions"));
            }
        }
    }
    if let Some(load) = expert_load(reader, at.expert_load.as_ref(), &model)? {
        model.layers.edit(|layer| {
            if let FeedForward::Experts(experts) = &mut layer.feed_forward {
                experts.load = load.clone();
            }
        });
    }
    let notes = model.notes.iter().map(|note| Assumption::Note(format!("model: {note}")));
    reader.assumptions.extend(notes);
    Ok(model)
}

/// How tokens spread over experts, where the model has some.
fn expert_load(
    reader: &mut Reader<'_>,
    written: Option<&Spanned<written::ExpertLoad>>,
    model: &ModelConfig,
) -> Result<Option<Load>, ScenarioError> {
    let name = &model.name;
    let (at, experts) = match (written, model.experts()) {
        (None, None) => return Ok(None),
        (Some(at), None) => {
            let problem = format!("model.expert_load says how tokens spread over experts, and {name} has none");
            return Err(reader.plan(at, problem, "remove the key, or take a model with experts"));
        }
        (None, Some(_)) => {
            return Ok(Some(reader.assume("model.expert_load", Load::Balanced, "balanced")));
        }
        (Some(at), Some(experts)) => (at, experts),
    };
    let load = match at.get_ref() {
        written::ExpertLoad::Balanced => Load::Balanced,
        &written::ExpertLoad::PowerLaw(exponent) if (0.0..=STEEPEST).contains(&exponent) => {
            let load = Load::PowerLaw { exponent: Finite::nearest(exponent) };
            if load.overfull(experts.count, experts.top_k).is_some() {
                reader.note(format!(
                    "model.expert_load.power_law = {exponent} asks for more of an expert than a copy of every token, \
                     which it takes; the others share what is left"
                ));
            }
            load
        }
        written::ExpertLoad::PowerLaw(exponent) => {
            let problem = format!("model.expert_load.power_law = {exponent} is out of range");
            return Err(reader.plan(at, problem, format!("write a number from 0 (balanced) to {STEEPEST}")));
        }
        written::ExpertLoad::Measured(counts) => {
            let read: Option<Vec<u64>> = counts.iter().map(|&count| u64::try_from(count).ok()).collect();
            match read.filter(|counts| counts.len() as u64 == experts.count && counts.iter().any(|&count| count > 0)) {
                Some(counts) => {
                    let load = Load::Measured(counts);
                    if let Some(share) = load.overfull(experts.count, experts.top_k) {
                        let problem = format!(
                            "model.expert_load.measured sends {:.1} % of all copies to one expert, and each token goes to {} \
                             different experts of {name}: none gets more than {:.1} %",
                            100.0 * share,
                            experts.top_k,
                            100.0 / experts.top_k as f64
                        );
                        let remedy = "write how many tokens each expert was sent, each token counted once for each of \
                                      its experts";
                        return Err(reader.plan(at, problem, remedy));
                    }
                    load
                }
                None => {
                    let problem = format!(
                        "{} counts are no histogram over the {} experts of {name}",
                        counts.len(),
                        experts.count
                    );
                    let remedy = "write one count for each expert, 0 or more, not all of them 0";
                    return Err(reader.plan(at, problem, remedy));
                }
            }
        }
    };
    Ok(Some(load))
}

/// Other sizes than the named model's: one of its family, such as GPT-3's many.
fn sizes(reader: &Reader<'_>, written: &Spanned<written::Model>, model: &mut ModelConfig) -> Result<(), ScenarioError> {
    let at = written.get_ref();
    if let Some(words) = &at.vocab {
        model.vocab = reader.count(&written::Model::vocab, words)?;
    }
    let resized = at.hidden.as_ref().or(at.heads.as_ref()).or(at.kv_heads.as_ref()).or(at.ffn.as_ref());
    let Some(first) = resized else { return Ok(()) };
    let (Some(mut attention), Some(mut dense), None) =
        (model.attention().copied(), model.dense().copied(), model.experts())
    else {
        let problem = format!("{} has experts or latent attention, whose sizes do not follow", model.name);
        return Err(reader.plan(first, problem, "name a dense model, or write a config and huggingface = its path"));
    };
    let many_keys = attention.heads == attention.kv_heads;
    let (width, heads) = (model.width, attention.heads);
    if let Some(hidden) = &at.hidden {
        model.width = reader.count(&written::Model::hidden, hidden)?;
        let grown = u128::from(dense.width) * u128::from(model.width) / u128::from(width);
        dense.width = u64::try_from(grown).unwrap_or(u64::MAX);
    }
    if let Some(count) = &at.heads {
        attention.heads = reader.count(&written::Model::heads, count)?;
    }
    match &at.kv_heads {
        Some(count) => attention.kv_heads = reader.count(&written::Model::kv_heads, count)?,
        None if many_keys => attention.kv_heads = attention.heads,
        None => {}
    }
    if let Some(ffn) = &at.ffn {
        dense.width = reader.count(&written::Model::ffn, ffn)?;
    }
    if !attention.heads.is_multiple_of(attention.kv_heads) {
        let problem = format!("{} query heads do not share {} key-value heads", attention.heads, attention.kv_heads);
        return Err(reader.plan(first, problem, "write model.kv_heads, a divisor of model.heads"));
    }
    if (model.width, attention.heads) != (width, heads) {
        if !model.width.is_multiple_of(attention.heads) {
            let problem = format!("a width of {} does not divide into {} heads", model.width, attention.heads);
            return Err(reader.plan(first, problem, "write model.heads, a divisor of model.hidden"));
        }
        let dims = model.width / attention.heads;
        if let Position::Rope { dims: rotated } = &mut model.position {
            *rotated = *rotated * dims / attention.head_dim;
        }
        attention.head_dim = dims;
    }
    model.layers.edit(|layer| {
        layer.mixer = Mixer::Attention(attention).with_window(layer.window());
        layer.feed_forward = FeedForward::Dense(dense);
    });
    model.name = format!("{}, {} × {}", model.name, model.layers.count(), model.width);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::model::routing::Load;
    use crate::scenario::Scenario;
    use crate::units::Finite;

    fn parse(model: &str) -> Result<Scenario, String> {
        let text = format!(
            "runtime = \"fsdp2\"\n[topology]\nname = \"a100-sxm-80gb\"\nnodes = 1\n[model]\n{model}\n[mesh]\n[batch]\nsequence = 1024\n"
        );
        Scenario::parse("sizes.toml", &text).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_make_another_model_of_the_family() {
        for (sizes, shipped) in [
            ("layers = 48\nhidden = 6144\nheads = 64", "gpt-megatron-22b"),
            ("layers = 30\nhidden = 3072\nheads = 32", "gpt-megatron-3.6b"),
        ] {
            let resized = parse(&format!("name = \"gpt-megatron-175b\"\n{sizes}")).expect("sizes that fit");
            let named = parse(&format!("name = \"{shipped}\"")).expect("sizes that fit");
            let (mut resized, named) = (resized.job.model().clone(), named.job.model().clone());
            resized.name.clone_from(&named.name);
            resized.source.clone_from(&named.source);
            assert_eq!(resized, named, "{sizes}");
        }
    }

    #[test]
    fn a_config_in_the_scenario_makes_the_model_that_its_file_makes() {
        for name in ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gpt2-xl"] {
            let text = crate::model::huggingface::shipped(name).expect("it is shipped");
            let config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).expect("it is JSON");
            let written = |value: &serde_json::Value| match value {
                serde_json::Value::Null => "\"null\"".to_owned(),
                value => toml::Value::try_from(value).expect("TOML has it").to_string(),
            };
            let lines: Vec<String> = config.iter().map(|(key, value)| format!("{key} = {}", written(value))).collect();
            let inline = parse(&format!("[model.config]\n{}", lines.join("\n"))).expect("it is read");
            let named = parse(&format!("name = \"{name}\"")).expect("it is read");
            let (mut inline, named) = (inline.job.model().clone(), named.job.model().clone());
            (inline.name, inline.source) = (named.name.clone(), named.source.clone());
            assert_eq!(inline, named, "{name}");
        }
    }

    #[test]
    fn a_config_changes_the_named_model_and_errors_name_its_line() {
        let changes = "name = \"deepseek-v3\"\nconfig.num_hidden_layers = 4\nconfig.n_routed_experts = 64";
        let model = parse(changes).expect("it is read").job.model().clone();
        assert_eq!((model.layers.count(), model.experts().map(|experts| experts.count)), (4, Some(64)));
        assert_eq!(model.name, "deepseek-v3, 4 × 7168");
        for (config, words) in [
            ("name = \"deepseek-v3\"\nconfig.model_type = \"llama\"", "sizes.toml:7: \"model_type\" is \"llama\""),
            ("name = \"llama-3.1-8b\"\nconfig.hidden_size = -1", "sizes.toml:7: \"hidden_size\" is -1"),
            ("config.model_type = \"llama\"\nconfig.vocab_size = 1", "is missing: expected"),
            ("config.hidden_size = 4096", "\"model_type\" is missing"),
            ("name = \"llama-3.1-8b\"\nconfig.hidden_sizes = 1", "hidden_sizes"),
            (
                "name = \"llama-3.1-8b\"\nlayers = 4\nconfig.num_hidden_layers = 8",
                "model.config.num_hidden_layers and model.layers say the same of the model",
            ),
            ("huggingface = \"nowhere.json\"\nconfig.hidden_size = 64", "cannot read nowhere.json"),
            ("config.hidden_size = 1979-05-27", "model_type"),
        ] {
            let error = parse(config).expect_err(config);
            assert!(error.contains(words) && error.contains("sizes.toml:"), "{config}: {error}");
        }
    }

    #[test]
    fn tokens_spread_over_experts_as_the_file_says() {
        let load = |key: &str| {
            let parsed = parse(&format!("name = \"mixtral-8x7b\"\n{key}"))?;
            Ok::<Load, String>(parsed.job.model().experts().expect("Mixtral has experts").load.clone())
        };
        assert_eq!(load("").expect("a default"), Load::Balanced);
        assert_eq!(load("expert_load = \"balanced\"").expect("as the default"), Load::Balanced);
        assert_eq!(
            load("expert_load.power_law = 1.5").expect("a law"),
            Load::PowerLaw { exponent: Finite::nearest(1.5) }
        );
        let counts = load("expert_load.measured = [4, 4, 4, 4, 2, 2, 2, 0]").expect("a histogram");
        assert_eq!(counts, Load::Measured(vec![4, 4, 4, 4, 2, 2, 2, 0]));
        for (key, words) in [
            ("expert_load.measured = [1, 2]", "2 counts are no histogram over the 8 experts of mixtral-8x7b"),
            ("expert_load.measured = [0, 0, 0, 0, 0, 0, 0, 0]", "not all of them 0"),
            ("expert_load.power_law = -1.0", "out of range"),
        ] {
            let error = load(key).expect_err("refused");
            assert!(error.contains(words), "{key}: {error}");
        }
        let error = parse("name = \"llama-3.1-8b\"\nexpert_load = \"balanced\"").expect_err("refused");
        assert!(error.contains("llama-3.1-8b has none"), "{error}");
    }

    #[test]
    fn sizes_that_do_not_fit_together_are_refused() {
        for (sizes, words) in [
            ("heads = 100", "does not divide into 100 heads"),
            ("kv_heads = 7", "do not share 7 key-value heads"),
            ("hidden = 0", "out of range"),
            ("vocab = 0", "out of range"),
        ] {
            let error = parse(&format!("name = \"gpt-megatron-175b\"\n{sizes}")).expect_err("refused");
            assert!(error.contains(words), "{sizes}: {error}");
        }
        let error = parse("name = \"mixtral-8x7b\"\nhidden = 2048").expect_err("refused");
        assert!(error.contains("has experts"), "{error}");
    }
}
