//! A comparison as a program reads it; differences are integers and add up.

use serde_json::{Value, json};

use super::{Change, Comparison, Difference, Figures};
use crate::scenario::predict::Verdict;

/// Version of the layout below; raised when a key changes its meaning, or goes.
const FORMAT: u32 = 1;

/// The comparison as JSON.
pub fn report(answer: &Comparison) -> Value {
    let side = |at: usize, figures: &Figures| json!({"scenario": answer.sides[at].0, "description": answer.sides[at].1, "figures": self::figures(figures)});
    json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "a": side(0, &answer.total.from),
        "b": side(1, &answer.total.to),
        "total": change(&answer.total),
        "rows": answer.rows.iter().map(|row| json!({
            "differences": differences(&row.differences),
            "joined_because": row.joined,
            "change": change(&row.change),
            "then": figures(&row.change.to),
            "alone": row.alone.as_ref().ok().map(change),
            "alone_refused": row.alone.as_ref().err(),
        })).collect::<Vec<_>>(),
        "follows": differences(&answer.follows),
    })
}

fn differences(list: &[Difference]) -> Vec<Value> {
    list.iter()
        .map(|difference| {
            let value = |value: &Option<toml::Value>| value.as_ref().map(toml::Value::to_string);
            json!({
                "key": difference.key, "group": difference.group().name(),
                "a": value(&difference.from), "b": value(&difference.to),
            })
        })
        .collect()
}

fn figures(figures: &Figures) -> Value {
    json!({
        "step_time_ps": figures.step.0,
        "allocated_bytes": figures.allocated.0,
        "reserved_bytes": figures.reserved.0,
        "mfu_billionths": figures.mfu_billionths,
        "tokens_per_second_per_chip": figures.rate,
        "tokens_per_step": figures.tokens,
        "fits": matches!(figures.verdict, Verdict::Yes | Verdict::Perhaps),
        "verdict": figures.verdict.to_string(),
        "host_bytes_per_node": figures.host.0,
    })
}

/// Sums of such values are exact: every one is below 2⁶³.
fn change(change: &Change) -> Value {
    let whole = |value: i128| i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX });
    json!({
        "step_time_ps": whole(change.step()),
        "allocated_bytes": whole(change.allocated()),
        "reserved_bytes": whole(change.reserved()),
        "mfu_billionths": whole(change.mfu_billionths()),
    })
}
