//! Causes as a program reads them, with units in the names.

use serde_json::{Value, json};

use super::{Cause, Row, Why};
use crate::scenario::Scenario;

/// Version of the layout below; raised when a key changes its meaning, or goes.
const FORMAT: u32 = 1;

/// Causes as JSON.
pub fn report(scenario: &Scenario, why: &Why) -> Value {
    json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "scenario": scenario.file,
        "step_s": why.step.seconds(),
        "tokens_per_second_per_chip": why.rate,
        "parameters": { "all": why.parameters.0, "active": why.parameters.1 },
        "kernels": { "memory_bound": why.kernels.0, "all": why.kernels.1 },
        "changes_simulated": why.simulated,
        "causes": why.rows.iter().map(|row| cause(why, row)).collect::<Vec<_>>(),
    })
}

fn cause(why: &Why, row: &Row) -> Value {
    let (name, group, link) = match &row.cause {
        Cause::Exchange { group, link } => ("exchange", Some(group), Some(link)),
        Cause::Peak => ("peak", None, None),
        Cause::Beyond => ("other_flops", None, None),
        Cause::Repeated => ("repeated_work", None, None),
        Cause::Matmuls => ("matmuls_below_peak", None, None),
        Cause::Attention => ("attention_below_peak", None, None),
        Cause::Memory => ("memory_bound_kernels", None, None),
        Cause::Recompute => ("recompute", None, None),
        Cause::Optimizer => ("optimizer", None, None),
        Cause::Copies => ("copies", None, None),
        Cause::Host => ("host", None, None),
        Cause::Bubble => ("bubble", None, None),
    };
    json!({
        "cause": name,
        "group": group,
        "link": link,
        "time_s": row.time.seconds(),
        "share": row.time.seconds() / why.step.seconds(),
        "detail": row.detail,
        "best_change": row.best.as_ref().map(|best| json!({
            "change": best.change,
            "step_s": best.step.seconds(),
            "tokens_per_step": best.tokens,
            "tokens_per_second_per_chip": best.rate,
            "device_bytes": best.device_total.0,
        })),
    })
}
