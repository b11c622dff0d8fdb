//! A model whose `config.json` is written inside another file: whole, or as changes of a config that the file names.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::keys::{Keys, Places};
use super::{ModelError, shipped, understood};
use crate::model::ModelConfig;

/// The config that written keys change.
#[derive(Clone, Copy, Debug)]
pub enum Base<'b> {
    /// None: the keys are the whole config.
    None,
    /// A shipped model.
    Shipped(&'b str),
    /// A file.
    File(&'b Path),
}

/// Keys of a config that are written inside another file.
#[derive(Debug)]
pub struct Inline<'i> {
    /// The file that they are written in.
    pub file: &'i str,
    /// The keys.
    pub keys: Map<String, Value>,
    /// Their lines, from 1.
    pub lines: BTreeMap<String, usize>,
}

/// The model of `inline`, as changes of `base`.
pub fn read(inline: &Inline<'_>, base: Base<'_>) -> Result<ModelConfig, ModelError> {
    let (mut map, of) = match base {
        Base::None => (Map::new(), None),
        Base::Shipped(name) => {
            let text = shipped(name).ok_or_else(|| shipped::unknown(name))?;
            (object(text, name)?, Some(name.to_owned()))
        }
        Base::File(path) => {
            let file = path.display().to_string();
            let unreadable =
                |error: std::io::Error| ModelError::Unreadable { file: file.clone(), reason: error.to_string() };
            let text = crate::files::text(path).map_err(unreadable)?;
            (object(&text, &file)?, Some(file))
        }
    };
    let kind = |map: &Map<String, Value>| map.get("model_type").and_then(Value::as_str).map(str::to_owned);
    let (before, written) = (kind(&map), kind(&inline.keys));
    map.extend(inline.keys.iter().map(|(key, value)| (key.clone(), value.clone())));
    let keys = Keys::new(&map, Places::Lines(&inline.lines), inline.file);
    if let (Some(before), Some(written), Some(of)) = (before, written, &of)
        && before != written
    {
        let value = Value::from(written);
        let why = format!("{of} is a {before}, whose keys are other ones");
        return Err(keys.unsupported(
            "model_type",
            &value,
            &why,
            "remove the model's name, or model.config.model_type",
        ));
    }
    let mut model = understood(&keys, inline.file)?;
    let sizes = format!("{} × {}", model.layers.count(), model.width);
    model.name = match &of {
        Some(of) => format!("{of}, {sizes}"),
        None => keys.word("_name_or_path")?.map_or_else(|| format!("{} {sizes}", model.model_type), str::to_owned),
    };
    model.source = match (keys.word("_source")?, of) {
        (Some(source), Some(_)) => format!("{source}; changed in {}", inline.file),
        _ => inline.file.to_owned(),
    };
    Ok(model)
}

/// The object that a config is.
fn object(text: &str, file: &str) -> Result<Map<String, Value>, ModelError> {
    match super::json(text, file)? {
        Value::Object(map) => Ok(map),
        other => Err(ModelError::NotAnObject { file: file.to_owned(), found: super::keys::kind(&other) }),
    }
}

/// A value of TOML as JSON has it. TOML has no null: `"null"` stands for it.
pub fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) if text == "null" => Value::Null,
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => Value::from(*number),
        toml::Value::Boolean(flag) => Value::from(*flag),
        toml::Value::Datetime(time) => Value::from(time.to_string()),
        toml::Value::Array(list) => list.iter().map(json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.iter().map(|(key, value)| (key.clone(), json(value))).collect())
        }
    }
}
