//! The JSON Schema of a scenario, made from the table of its keys (`sim/scenario/keys`).

use serde_json::{Map, Value, json};
use windtunnel::hardware;
use windtunnel::model::huggingface::shipped;
use windtunnel::scenario::Runtime;
use windtunnel::scenario::keys::{Choice, Key, Kind, Preset, TABLES};

use crate::keys::rows;

/// Keys without which no file is read.
const REQUIRED: [(&str, &[&str]); 3] =
    [("", &["runtime", "topology", "model", "mesh", "batch"]), ("topology", &["name"]), ("batch", &["sequence"])];

/// The value that every framework takes, as JSON, where they agree and it is one.
fn default(defaults: &[Preset]) -> Option<Value> {
    let first = defaults.first()?.value;
    let one = defaults.iter().all(|default| default.value == first) && first != "by size" && !first.contains(" or ");
    let table: toml::Table = format!("v = {first}").parse().ok().filter(|_| one)?;
    serde_json::to_value(&table["v"]).ok()
}

/// What an editor shows of a key.
fn description(key: &Key, defaults: &[Preset]) -> String {
    let mut text = key.help.to_owned();
    if key.read_by.len() < Runtime::ALL.len() {
        text += &format!("\n\nRead by {}.", key.read_by.join(", "));
    }
    for preset in defaults {
        let (value, source) = (preset.value, preset.source());
        text += &format!("\n\nDefault of {}: {value} ({source}).", preset.frameworks.join(", "));
    }
    text
}

/// What stands for a value in a table of keys: a number, a share, a list.
fn stand_in(what: &str) -> Value {
    match what {
        "N" => json!({"type": "integer"}),
        "X" => json!({"type": "number"}),
        "[…]" => json!({"type": "array"}),
        "{…}" => json!({"type": "object"}),
        other => panic!("{other} stands for no value"),
    }
}

/// `{ rank = 3, pace = 0.9 }`.
fn a_slow_rank() -> Value {
    let properties = json!({"rank": {"type": "integer"}, "pace": {"type": "number"}});
    json!({"type": "object", "properties": properties, "required": ["rank", "pace"], "additionalProperties": false})
}

/// A value that is told in words: `true, false, or a number of ranks`.
fn told(words: &str) -> Value {
    let choice = |words: &str| match words.trim().trim_start_matches("or ").trim() {
        "true" => json!({"const": true}),
        "false" => json!({"const": false}),
        "a number of ranks" | "a number of steps" | "a number of nodes" => json!({"type": "integer"}),
        "a time" => json!({"type": "string", "examples": ["30 min"]}),
        "a number" => json!({"type": "number"}),
        "a list of times" => json!({"type": "array", "items": {"type": "string"}}),
        "a list of numbers" => json!({"type": "array", "items": {"type": "number"}}),
        "a table of p10 and p50 and p90" => json!({"type": "object", "required": ["p10", "p50", "p90"]}),
        "a table with keys of a Hugging Face config.json" => json!({"type": "object"}),
        "a rank with its pace" => a_slow_rank(),
        "a list of ranks with their paces" => json!({"type": "array", "items": a_slow_rank()}),
        word => match word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) {
            Some(word) => json!({"const": word}),
            None => panic!("{word:?} is no value that a schema can tell"),
        },
    };
    json!({"anyOf": words.split(',').map(choice).collect::<Vec<_>>()})
}

/// Some names, which an editor offers, or any other text.
fn names<'n>(names: impl IntoIterator<Item = &'n str>) -> Value {
    json!({"anyOf": [{"enum": names.into_iter().collect::<Vec<_>>()}, {"type": "string"}]})
}

/// What a key takes.
fn takes(path: &str, kind: Kind) -> Value {
    match path {
        "runtime" => return json!({"enum": Runtime::ALL.map(Runtime::written)}),
        "topology.name" => return names(hardware::registry().iter().map(|listed| listed.name)),
        "model.name" => return names(shipped::names()),
        _ => {}
    }
    match kind {
        Kind::Count(None) => json!({"type": "integer"}),
        Kind::Count(Some((least, i64::MAX))) => json!({"type": "integer", "minimum": least}),
        Kind::Count(Some((least, most))) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Number => json!({"type": "number"}),
        Kind::Text => json!({"type": "string"}),
        Kind::Quantity(example) => json!({"type": "string", "examples": [example]}),
        Kind::Choice(choices) => {
            let words: Vec<&str> = choices
                .iter()
                .filter_map(|choice| match choice {
                    Choice::Word(word) => Some(*word),
                    Choice::With(..) => None,
                })
                .collect();
            let with = choices.iter().filter_map(|choice| match choice {
                Choice::Word(_) => None,
                Choice::With(word, what) => Some(json!({
                    "type": "object", "properties": {*word: stand_in(what)}, "required": [word], "additionalProperties": false,
                })),
            });
            let with: Vec<Value> = with.collect();
            match with.is_empty() {
                true => json!({"enum": words}),
                false => {
                    let words = (!words.is_empty()).then(|| json!({"enum": words}));
                    json!({"anyOf": words.into_iter().chain(with).collect::<Vec<_>>()})
                }
            }
        }
        Kind::List([]) => json!({"type": "array"}),
        Kind::List(words) => json!({"type": "array", "items": {"enum": words}}),
        Kind::Other(words) => told(words),
    }
}

/// The schema of the table at a path, made where there is none.
fn table<'s>(root: &'s mut Value, path: &str) -> &'s mut Map<String, Value> {
    let mut at = root;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let properties = at["properties"].as_object_mut().unwrap();
        at = properties.entry(name).or_insert_with(|| json!({"properties": {}}));
    }
    at.as_object_mut().unwrap()
}

/// Puts a schema where a key stands.
fn put(root: &mut Value, path: &str, schema: Value) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    table(root, parent)["properties"].as_object_mut().unwrap().insert(name.to_owned(), schema);
}

/// What a file of one framework may not have: every key that it does not read, and every table that it reads nothing of.
fn refused(framework: &str) -> Value {
    let mut refused = json!({"properties": {}});
    for (_, key) in rows().filter(|(of, key)| of.is_read_by(framework) && !key.is_read_by(framework)) {
        put(&mut refused, key.path, false.into());
    }
    for of in TABLES.iter().filter(|of| !of.is_read_by(framework)) {
        put(&mut refused, of.name, false.into());
    }
    refused
}

/// The schema.
pub fn schema() -> Value {
    let mut root = json!({"properties": {}});
    for (_, key) in rows() {
        let path = key.path;
        let mut schema = takes(path, key.kind);
        schema["description"] = description(key, key.defaults).into();
        if let Some(value) = default(key.defaults) {
            schema["default"] = value;
        }
        put(&mut root, path, schema);
    }
    let mut tables: Vec<String> = TABLES.iter().map(|of| of.name.to_owned()).collect();
    let inner = rows().filter_map(|(_, key)| key.path.rsplit_once('.').map(|(parent, _)| parent.to_owned()));
    tables.extend(inner);
    for path in tables {
        let help = TABLES.iter().find(|of| of.name == path && !path.is_empty()).map(|of| of.help);
        let schema = table(&mut root, &path);
        schema.insert("type".to_owned(), "object".into());
        schema.insert("additionalProperties".to_owned(), false.into());
        if let Some(help) = help {
            schema.insert("description".to_owned(), help.into());
        }
        if let Some((_, required)) = REQUIRED.iter().find(|(of, _)| *of == path) {
            schema.insert("required".to_owned(), json!(required));
        }
    }
    let rules = Runtime::ALL.map(|runtime| {
        let framework = runtime.written();
        json!({
            "if": {"properties": {"runtime": {"const": framework}}, "required": ["runtime"]},
            "then": refused(framework),
        })
    });
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Windtunnel scenario".into();
    root["description"] = "Which model is trained on which machine, and how. Generated from sim/scenario/keys by \
                           UPDATE=1 cargo test schemas."
        .into();
    root["allOf"] = json!(rules);
    root
}
