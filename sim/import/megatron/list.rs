//! Lists of TOML.

use toml::Value;

/// Words as a list of TOML.
pub fn strings(words: &[String]) -> Value {
    Value::Array(words.iter().map(|word| Value::String(word.clone())).collect())
}
