//! `docs/schema/report-1.json` and `docs/json.md` are generated from the structs of the report.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{FORMAT, Report};
use crate::files::page_tests::fresh;
use crate::scenario::predict::Settings;
use crate::scenario::{Scenario, predict};

fn schema() -> Value {
    let generator = SchemaSettings::draft07().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<Report>();
    let mut schema = schema.to_value();
    schema["title"] = format!("Windtunnel report, format {FORMAT}").into();
    schema
}

/// A key's type in words.
fn kind(key: &Value) -> String {
    let of = |name: &str| {
        match name {
            "boolean" => "true or false",
            "string" => "text",
            other => other,
        }
        .to_owned()
    };
    if let Some(choices) = key["enum"].as_array() {
        return choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(one) = key.get("const") {
        return format!("`{one}`");
    }
    if let Some(choices) = key["anyOf"].as_array() {
        return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if section(key).is_some() {
        return if key["type"] == "array" { "list of objects" } else { "object" }.to_owned();
    }
    match &key["type"] {
        Value::Array(types) => {
            let one = |name: &Value| {
                let mut alone = key.clone();
                alone["type"] = name.clone();
                kind(&alone)
            };
            types.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        Value::String(name) if name == "array" => match (kind(&key["items"]), key["minItems"].as_u64()) {
            (items, Some(count)) => format!("{count} × {items}"),
            (items, None) => format!("list of {items}"),
        },
        Value::String(name) if name == "object" => format!("{} by name", kind(&key["additionalProperties"])),
        Value::String(name) => of(name),
        _ => "object".to_owned(),
    }
}

/// The definition that a key refers to: its own, one of its list, one of its choices.
fn section(key: &Value) -> Option<&str> {
    let choices = || key["anyOf"].as_array().into_iter().chain(key["allOf"].as_array()).flatten();
    let places = [key, &key["items"]].into_iter().chain(choices());
    places.filter_map(|place| place["$ref"].as_str()).find_map(|path| path.strip_prefix("#/definitions/"))
}

/// A section of the page, and those of the keys in it.
fn write(page: &mut String, schema: &Value, (path, of): (&str, &Value), done: &mut BTreeSet<String>) {
    let text = of["description"].as_str().unwrap_or_default();
    let title = if path.is_empty() { "The report".to_owned() } else { format!("`{path}`") };
    let _ = write!(page, "\n## {title}\n\n{}\n\n| key | type | |\n|---|---|---|\n", text.replace('\n', " "));
    let required: Vec<&str> = of["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let keys = of["properties"].as_object().expect("a section has keys");
    for (name, key) in keys {
        let text = key["description"].as_str().expect("a key is described").replace('\n', " ");
        let kind = if required.contains(&name.as_str()) { kind(key) } else { format!("{}, or absent", kind(key)) };
        let _ = writeln!(page, "| `{name}` | {kind} | {text} |");
    }
    for (name, key) in keys {
        let Some(found) = section(key) else { continue };
        if !done.insert(found.to_owned()) {
            continue;
        }
        let list = if key["type"] == "array" { "[]" } else { "" };
        let path = if path.is_empty() { format!("{name}{list}") } else { format!("{path}.{name}{list}") };
        write(page, schema, (&path, &schema["definitions"][found]), done);
    }
}

fn page(schema: &Value) -> String {
    let mut page = format!(
        "# The JSON report\n\nWhat `windtunnel run --json` writes, and `Prediction::report` returns. Generated from `sim/report/layout.rs` \
         by `UPDATE=1 cargo test --lib report`; [schema/report-{FORMAT}.json](schema/report-{FORMAT}.json) is the same as a JSON \
         Schema.\n\nThe layout has a version, `format`, which is {FORMAT}. It rises when a key changes its meaning or goes. New keys do \
         not raise it: a reader should pass over keys that it does not know.\n"
    );
    write(&mut page, schema, ("", schema), &mut BTreeSet::new());
    page
}

#[test]
fn the_schema_and_its_page_are_generated_from_the_structs() {
    let schema = schema();
    fresh(&format!("docs/schema/report-{FORMAT}.json"), &format!("{schema:#}\n"));
    fresh("docs/json.md", &page(&schema));
}

#[test]
fn serde_writes_the_keys_in_the_order_of_the_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/two-narrow-blocks-4xv6e.toml");
    let scenario = Scenario::load(&path).expect("it is shipped");
    let report = predict(&scenario, Settings::default()).expect("it can be simulated").report(&scenario);
    assert_eq!(serde_json::to_string_pretty(&report).expect("it is JSON"), format!("{:#}", report.json()));
}
