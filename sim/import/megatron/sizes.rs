//! Sizes of a model of Megatron-LM's arguments, and how keys of its config are written.

use toml::Value;

use crate::import::imported::Imported;
use crate::import::why::{Found, Why};

/// Sizes that all models have.
pub struct Sizes {
    pub layers: Found<i64>,
    pub width: Found<i64>,
    pub heads: Found<i64>,
    pub groups: Option<Found<i64>>,
    pub channels: Option<Found<i64>>,
    pub ffn: Found<i64>,
    pub experts: Option<Found<i64>>,
    pub latent: bool,
    pub qk_norm: bool,
    /// Whether the head has a matrix of its own.
    pub untied: bool,
    /// Whether norm, activation, positions and biases are not all those of Llama's kin.
    pub own: bool,
}

/// Writes a key of the config.
pub fn put(out: &mut Imported, key: &str, value: impl Into<Value>, why: Why) {
    out.put(&format!("model.config.{key}"), value, why);
}

/// Writes a key of the config, if there is a value.
pub fn put_found<T: Into<Value>>(out: &mut Imported, key: &str, found: Option<Found<T>>) {
    if let Some(found) = found {
        put(out, key, found.value, found.why);
    }
}
