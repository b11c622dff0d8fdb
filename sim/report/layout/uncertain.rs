//! What makes a step time uncertain, as the report lists it.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

/// Something that makes the step time uncertain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Uncertain {
    /// Its share of the interval's variance, 0 to 1.
    pub share: f64,
    /// What it is.
    pub what: &'static str,
}
