//! Generated pages and schemas of `docs/`, for the tests that hold them against their structs.

use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The JSON Schema of a file that is read as `T`.
pub fn schema<T: JsonSchema>(title: &str, description: &str) -> Value {
    let generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["title"] = title.into();
    schema["description"] = description.into();
    without_escapes(&mut schema);
    schema
}

/// Comments escape the brackets of units for rustdoc, which an editor would show.
fn without_escapes(schema: &mut Value) {
    match schema {
        Value::String(text) => *text = text.replace("\\[", "[").replace("\\]", "]"),
        Value::Array(items) => items.iter_mut().for_each(without_escapes),
        Value::Object(keys) => keys.values_mut().for_each(without_escapes),
        _ => {}
    }
}

/// Fails where a page says something else than it should, unless `UPDATE` is set: then the page is written.
#[track_caller]
pub fn fresh(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, text).expect("docs can be written");
    }
    let shown = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(shown == text, "{path} says something else than the structs: UPDATE=1 cargo test --lib");
}
