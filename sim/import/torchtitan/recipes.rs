//! torchtitan since 0.3, which has no configuration files: a command line that names a recipe and changes it, or a recipe's keys as JSON.
//!
//! Source: torchtitan 0.3.0, `torchtitan/models/*/config_registry.py` (`tables/torchtitan-0.3-recipes.json`), `config/configs.py`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::common::{batch, compiled, mesh, optimizer, pipeline, precision, sharding};
use super::flavors;
use crate::import::error::ImportError;
use crate::import::imported::Imported;
use crate::import::importer::Request;
use crate::import::machine::{self, Kind};
use crate::import::settings::{Raw, Settings};
use crate::import::syntax::{json, overrides, shell};
use crate::import::table::{Default, Table};
use crate::import::why::Why;
use crate::near::did_you_mean;
use crate::scenario::release_defaults;
use crate::tables;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| tables::read(include_str!("../tables/torchtitan-0.3.toml")).expect("a test reads every table"));

/// Keys of every recipe that differ from the defaults, by `module:recipe`.
static RECIPES: LazyLock<BTreeMap<String, BTreeMap<String, Value>>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../tables/torchtitan-0.3-recipes.json")).expect("a test reads every recipe")
});

/// The release.
const RELEASE: &str = "torchtitan 0.3.0";

/// Whether a text is a command line of 0.3, or a recipe's keys as JSON.
pub fn is_one(text: &str) -> bool {
    is_dump(text) || text.contains("--module") && text.contains("--config") && !text.contains("--num-layers")
}

fn is_dump(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"model_spec") && text.contains("\"training")
}

/// Reads one.
pub fn read(request: &Request<'_>) -> Result<Imported, ImportError> {
    let mut raw = match is_dump(request.text) {
        true => json::read(request.file, request.text)?,
        false => command(request)?,
    };
    raw.extend(overrides::read(request.overrides));
    let word =
        |key: &str| raw.iter().rev().find(|raw| raw.key == key).and_then(|raw| raw.value.as_str()).map(str::to_owned);
    let (module, name) = (word("module"), word("config"));
    let mut recipe = BTreeMap::new();
    if let (Some(module), Some(name)) = (&module, &name) {
        let title = format!("{module}:{name}");
        let known = RECIPES.get(&title).ok_or_else(|| unknown(request, &title))?;
        let at = known.get("at").and_then(Value::as_str).unwrap_or_default();
        let at = format!("{at} ({name})");
        let value = |value: &Value| Default { value: value.clone(), at: at.clone() };
        recipe = known.iter().map(|(key, of)| (key.clone(), value(of))).collect();
    }
    let settings = Settings::new(request.file, &TABLE, raw, request.version).over(recipe);
    let mut out = Imported::of(&settings);
    out.put("runtime", "fsdp2", Why::code("torchtitan shards with fully_shard (FSDP2)"));
    machine::put(&mut out, request, "torchtitan", Kind::Gpus)?;
    for (key, value, source) in release_defaults(RELEASE, "fsdp2") {
        out.put(&key, value, Why::code(source));
    }
    model(&mut out, &settings, module.as_deref(), name.as_deref())?;
    mesh(&mut out, &settings)?;
    let sequence = settings.flag("parallelism.enable_sequence_parallel")?;
    if out.degree("mesh.tp") > 1 {
        out.put_found("tensor_parallel.sequence", sequence);
    }
    pipeline(&mut out, &settings)?;
    batch(&mut out, &settings)?;
    precision(&mut out, &settings)?;
    sharding(&mut out, &settings)?;
    compiled(&mut out, &settings)?;
    recompute(&mut out, &settings)?;
    optimizer(&mut out, &settings)?;
    others(&mut out, &settings)?;
    Ok(out.finish(&settings))
}

fn unknown(request: &Request<'_>, title: &str) -> ImportError {
    let near = did_you_mean(title, RECIPES.keys().map(String::as_str));
    ImportError::Unsupported {
        place: request.file.to_owned(),
        what: format!("the recipe {title} of torchtitan, which 0.3.0 does not have{near},"),
        remedy: "name a recipe of 0.3.0, or import its keys as JSON (tests/frameworks/resolve_torchtitan_recipes.py writes them)".to_owned(),
    }
}

/// The words of the command that names a recipe.
fn command(request: &Request<'_>) -> Result<Vec<Raw>, ImportError> {
    let script = shell::read(request.file, request.text)?;
    let names = |words: &&Vec<shell::Word>| words.iter().any(|word| word.text.starts_with("--module"));
    let words = script.commands.iter().find(names).map(Vec::as_slice).unwrap_or_default();
    let line = words.first().map(|word| word.line);
    if let Some(word) = words.iter().find(|word| word.open) {
        return Err(ImportError::Syntax {
            place: format!("{}:{}", request.file, word.line),
            problem: format!("only the shell knows what {:?} is", word.text),
            remedy: "write its value".to_owned(),
        });
    }
    let start = words.iter().position(|word| word.text.starts_with("--module")).unwrap_or(0);
    let texts: Vec<String> = words.iter().skip(start).map(|word| word.text.clone()).collect();
    Ok(overrides::read(&texts).into_iter().map(|raw| Raw { line, ..raw }).collect())
}

fn model(
    out: &mut Imported,
    settings: &Settings<'_>,
    module: Option<&str>,
    recipe: Option<&str>,
) -> Result<(), ImportError> {
    let flavor = settings.word("flavor")?.or(settings.word("model_spec.flavor")?);
    let spec = settings.word("model_spec.name")?;
    let name = module.map(str::to_owned).or(spec.map(|found| found.value));
    let (Some(name), Some(flavor)) = (name, flavor) else {
        let remedy = "write --module llama3 --config llama3_8b";
        return Err(settings.missing("module", "a model of torchtitan and its recipe", remedy));
    };
    let plain = flavor.value.strip_suffix("_non_fused_qkv");
    let base = plain.unwrap_or(&flavor.value);
    if !flavors::named(out, &name, base, &flavor.why) {
        let what = format!("the flavor {:?} of torchtitan's {name}", flavor.value);
        return Err(settings.unsupported(
            "flavor",
            what,
            "name another recipe, or write a scenario with model.huggingface",
        ));
    }
    let title = recipe.map_or_else(|| format!("{name} {}", flavor.value), str::to_owned);
    out.put("description", format!("{title}, {RELEASE}"), Why::code("the recipe's name"));
    if name == "gpt_oss" || name == "qwen3" {
        let at = format!("{RELEASE}: torchtitan/models/common/rope.py, CosSinRoPE");
        out.put("framework.rope", "rotate_half", Why::code(at));
    }
    if name == "deepseek_v3" || plain.is_some() {
        out.remove("framework.fused_qkv");
    }
    if recipe.is_some_and(|name| name.contains("varlen")) || name == "gpt_oss" {
        out.put("attention.backend", "flash2", Why::code(format!("{RELEASE}: VarlenAttention")));
    }
    let changes = "attention ends at documents: it takes less time than over whole sequences";
    out.without("attention_mask", "documents", &flavor.why.to_string(), changes);
    Ok(())
}

fn recompute(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    let key = "activation_checkpointing.policy";
    let class = settings.word("activation_checkpoint.class")?;
    // A recipe that recomputes nothing says null.
    let nothing = settings.says_null("activation_checkpoint");
    let Some(class) = class.filter(|_| !nothing) else {
        out.put(key, "none", Why::code("activation_checkpoint is None"));
        out.remove("activation_checkpointing.early_stop");
        return Ok(());
    };
    match class.value.as_str() {
        "SelectiveAC.Config" => out.put(key, "selective_op", class.why),
        "FullAC.Config" => out.put(key, "full", class.why),
        other => {
            let what = format!("recompute by {other}");
            return Err(settings.unsupported(
                "activation_checkpoint.class",
                what,
                "name a recipe with FullAC or SelectiveAC",
            ));
        }
    }
    Ok(())
}

fn others(out: &mut Imported, settings: &Settings<'_>) -> Result<(), ImportError> {
    if let Some(found) = settings.flag("training.disable_cuda_graphs")? {
        out.put("framework.cuda_graphs", !found.value, found.why);
    }
    let chunks = settings.count("loss.num_chunks")?;
    if let Some(found) = settings.word("loss.class")? {
        match found.value.as_str() {
            "ChunkedLossWrapper.Config" if out.degree("mesh.tp") > 1 => {
                let changes = "a loss by parts over words that are split is not simulated, and the loss is predicted whole: \
                               more memory of logits than it takes";
                let parts = chunks.map_or_else(|| "parts".to_owned(), |found| found.value.to_string());
                out.without("loss.num_chunks", &parts, &found.why.to_string(), changes);
                whole(out, found.why);
            }
            "ChunkedLossWrapper.Config" => out.put_found("loss.chunks", chunks),
            "CrossEntropyLoss.Config" => whole(out, found.why),
            other => {
                let what = format!("the loss {other}");
                return Err(settings.unsupported("loss.class", what, "name a recipe with another loss"));
            }
        }
    }
    if let Some(found) = settings.word("optimizer.param_groups.1.optimizer_name")? {
        let changes = "parameters in several groups: the optimizer steps them group by group";
        out.without("optimizer.param_groups", &found.value, &found.why.to_string(), changes);
    }
    Ok(())
}

/// A loss of all logits at once.
fn whole(out: &mut Imported, why: Why) {
    for key in ["loss.chunks", "loss.unshards_head"] {
        out.remove(key);
    }
    out.put("loss.kind", "fp32", why);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_those_of_the_package() {
        let text = include_str!("../../../tests/frameworks/defaults/torchtitan-0.3.0-registry.json");
        let theirs: Value = serde_json::from_str(text).expect("it is JSON");
        let ours = serde_json::to_value(&*RECIPES).expect("it is JSON");
        assert_eq!(ours, theirs["keys"]);
    }
}
