//! Importers' tables against what scripts read off the frameworks' own sources (`tests/frameworks/defaults`).
//!
//! A default that differs fails. A default that the sources do not have says so in place of its line. A key of the sources that a table
//! does not know is listed here.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::Table;
use crate::tables;

/// A table, what the sources say, and how a key of theirs is called in the table; none where it is no key of a configuration.
struct Pair {
    table: &'static str,
    sources: &'static str,
    section: &'static str,
    name: fn(&str) -> Option<String>,
    /// Keys that the table does not know, and why it need not.
    unknown: &'static [&'static str],
}

macro_rules! table {
    ($name:literal) => {
        include_str!(concat!("tables/", $name, ".toml"))
    };
}

macro_rules! sources {
    ($name:literal) => {
        include_str!(concat!("../../tests/frameworks/defaults/", $name, ".json"))
    };
}

fn same(key: &str) -> Option<String> {
    Some(key.to_owned())
}

/// Keys of the recipe that is read.
fn recipe(key: &str) -> Option<String> {
    key.strip_prefix("full_finetune_distributed:").map(str::to_owned)
}

/// Arguments of `accelerate launch` that its files have below a section.
fn launch(key: &str) -> Option<String> {
    const OWN: [&str; 4] = ["mixed_precision", "num_processes", "num_machines", "gradient_accumulation_steps"];
    let below = [("fsdp_", "fsdp_config."), ("parallelism_config_", "parallelism_config.")];
    let below = below.iter().find_map(|(start, section)| Some(format!("{section}{}", key.strip_prefix(start)?)));
    below.or_else(|| OWN.contains(&key).then(|| key.to_owned()))
}

/// axolotl's own keys; those of FSDP have accelerate's defaults.
fn own(key: &str) -> Option<String> {
    (!key.starts_with("fsdp_config")).then(|| key.to_owned())
}

const PAIRS: [Pair; 10] = [
    Pair {
        table: table!("torchtitan"),
        sources: sources!("torchtitan-0.2.2"),
        section: "keys",
        name: same,
        unknown: &[],
    },
    Pair {
        table: table!("torchtitan-0.3"),
        sources: sources!("torchtitan-0.3.0"),
        section: "keys",
        name: same,
        // Classes, whose own keys are below them.
        unknown: &[
            "loss",
            "model_spec",
            "optimizer.param_groups",
            "optimizer.param_groups[].optimizer_kwargs",
            "optimizer.param_groups[].optimizer_name",
            "optimizer.param_groups[].pattern",
            "tokenizer",
        ],
    },
    Pair { table: table!("megatron"), sources: sources!("megatron-0.16.1"), section: "keys", name: same, unknown: &[] },
    Pair {
        table: table!("deepspeed"),
        sources: sources!("deepspeed-0.19.8"),
        section: "keys",
        name: same,
        // Sections, whose own keys are below them.
        unknown: &["checkpoint", "compile", "data_types", "hybrid_engine", "pipeline"],
    },
    Pair {
        table: table!("nanotron"),
        sources: sources!("nanotron-2411b022"),
        section: "keys",
        name: same,
        // Sections, whose own keys are below them.
        unknown: &["optimizer", "tokenizer", "tokens"],
    },
    Pair { table: table!("maxtext"), sources: sources!("maxtext-0.2.5"), section: "keys", name: same, unknown: &[] },
    Pair {
        table: table!("accelerate"),
        sources: sources!("accelerate-1.15.0"),
        section: "launch",
        name: launch,
        unknown: &[],
    },
    Pair { table: table!("axolotl"), sources: sources!("axolotl-0.19.0"), section: "keys", name: own, unknown: &[] },
    Pair {
        table: table!("axolotl"),
        sources: sources!("accelerate-1.15.0"),
        section: "launch",
        name: fsdp,
        unknown: &[],
    },
    Pair {
        table: table!("torchtune"),
        sources: sources!("torchtune-0.6.1"),
        section: "keys",
        name: recipe,
        // Sections, whose own keys are below them.
        unknown: &["dataset", "loss", "metric_logger", "model", "optimizer", "tensor_parallel_plan", "tokenizer"],
    },
];

/// Of accelerate's arguments those of FSDP.
fn fsdp(key: &str) -> Option<String> {
    key.strip_prefix("fsdp_").map(|name| format!("fsdp_config.{name}"))
}

/// A default as a table of TOML has it: nothing, an empty word and an empty list are one.
fn plain(value: &Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::Null,
        Value::Array(list) if list.is_empty() => Value::Null,
        // accelerate's flags are words.
        Value::String(text) if text == "true" || text == "false" => Value::Bool(text == "true"),
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        other => other.clone(),
    }
}

#[test]
fn tables_have_the_defaults_of_the_frameworks_own_sources() {
    let (mut compared, mut wrong) = (0, vec![]);
    for pair in PAIRS {
        let table: Table = tables::read(pair.table).expect("it is a table");
        let all: Value = serde_json::from_str(pair.sources).expect("it is JSON");
        let keys = all[pair.section].as_object().expect("it has keys");
        let theirs: BTreeMap<String, &Value> =
            keys.iter().filter_map(|(key, entry)| Some(((pair.name)(key)?, entry))).collect();
        let source = all["source"].as_str().unwrap_or_default();
        for (key, default) in &table.defaults {
            let Some(entry) = theirs.get(key) else {
                // Another name of it, or a line of another file.
                let written = default.at.contains(".py:") || default.at.contains(".yml:");
                let elsewhere = table.renamed.values().any(|name| name == key) || default.at.starts_with("accelerate/");
                if written && !elsewhere && !key.ends_with(".class") && pair.section != "launch" {
                    wrong.push(format!("{source}: {key} has a line, and the sources have no such key"));
                }
                continue;
            };
            let own = default.at.starts_with("accelerate/") == source.contains("accelerate");
            if entry.get("computed").is_some() || !own || default.at.starts_with("no default") {
                continue;
            }
            compared += 1;
            let none = Value::Null;
            let said = entry.get("default").unwrap_or(&none);
            if plain(&default.value) != plain(said) || entry["at"] != default.at.as_str() {
                wrong.push(format!("{source}: {key} is {} at {}, and {entry} there", default.value, default.at));
            }
        }
        let unread = table.unread.iter().flat_map(|of| &of.keys);
        for (key, off, entry) in unread.filter_map(|(key, off)| Some((key, off, theirs.get(key)?))) {
            let none = Value::Null;
            let said = entry.get("default").unwrap_or(&none);
            let is_none = said.is_null() && off == "None";
            if entry.get("computed").is_none() && !is_none && plain(off) != plain(said) {
                wrong.push(format!("{source}: {key} = {off} changes nothing here, and {said} is the default there"));
            }
        }
        let known = |key: &str| {
            table.defaults.contains_key(key)
                || table.not_modelled(key).is_some()
                || table.negated.contains_key(key)
                || table.name(key) != key
                || table.is_idle(key)
        };
        let unknown: Vec<&str> = theirs.keys().map(String::as_str).filter(|key| !known(key)).collect();
        if unknown != pair.unknown {
            wrong.push(format!("{source}: the table does not know {unknown:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 250, "{compared} defaults were compared");
}

#[test]
fn older_defaults_of_torchtitan_are_those_of_its_older_sources() {
    let table: Table = tables::read(table!("torchtitan")).expect("it is a table");
    let all: Value = serde_json::from_str(sources!("torchtitan-0.1.0")).expect("it is JSON");
    let keys = all["keys"].as_object().expect("it has keys");
    let mut compared = 0;
    for (key, default) in &table.older["0.1.0"] {
        // A key's name of that release.
        let Some((_, entry)) = keys.iter().find(|(theirs, _)| table.name(theirs) == key.as_str()) else { continue };
        assert_eq!(plain(&default.value), plain(entry.get("default").unwrap_or(&Value::Null)), "{key}");
        assert_eq!(entry["at"], default.at.as_str(), "{key}");
        compared += 1;
    }
    assert!(compared > 20, "{compared} defaults were compared");
}
