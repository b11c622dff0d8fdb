//! Ceilings side by side, as a program reads them.

use serde_json::{Value, json};

use super::Ceilings;
use crate::explore::ceiling::json::{point, value};
use crate::explore::fixed::Fixed;
use crate::scenario::Scenario;

/// Version of the layout below; raised when a key changes its meaning, or goes.
const FORMAT: u32 = 1;

/// The table as JSON.
pub fn report(scenario: &Scenario, answer: &Ceilings) -> Value {
    json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "scenario": scenario.file,
        "description": scenario.description,
        "along": answer.along,
        "fixed": Fixed::of(scenario).json(),
        "common_tokens": answer.common,
        "variants": answer.rows.iter().map(|row| json!({
            "name": row.name,
            "note": row.note,
            "refused": row.ceiling.as_ref().err(),
            "ceiling": row.ceiling.as_ref().ok().map(value),
            "common": row.common.as_ref().map(point),
        })).collect::<Vec<_>>(),
    })
}
