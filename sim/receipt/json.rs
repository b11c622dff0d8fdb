//! A check as JSON.

use serde_json::{Value, json};

use super::case::{Judged, Pair};
use super::check::Outcome;
use super::history::{self, History};
use super::picks::{self, Layout, Picks};
use super::summary::{Errors, Group, by_confidence};
use crate::scenario::predict::{Kind, Reasons};

/// Version of the layout below; raised when a key changes its meaning, or goes.
const FORMAT: u32 = 1;

fn pair(pair: Option<Pair>) -> Value {
    pair.map_or(Value::Null, |p| json!({"predicted": p.predicted, "measured": p.measured, "error": p.error()}))
}

fn errors(errors: Option<Errors>) -> Value {
    errors.map_or(
        Value::Null,
        |e| json!({"rows": e.rows, "mean_abs": e.mean, "median_abs": e.median, "p90_abs": e.p90, "median_signed": e.bias}),
    )
}

fn row(row: &Judged) -> Value {
    let [compute, communication, host, waiting] = row.breakdown;
    json!({
        "id": row.id, "lane": row.lane, "hardware": row.hardware, "grade": row.grade,
        "step_time_s": pair(row.step), "inside_interval": row.inside,
        "kind": Kind::PARTS.iter().zip(row.kind.parts()).map(|(&name, part)| (name.to_owned(), part.into()))
            .collect::<serde_json::Map<_, Value>>(),
        "reasons": Reasons::PARTS.iter().zip(row.reasons.parts()).map(|(&name, part)| (name.to_owned(), part.into()))
            .collect::<serde_json::Map<_, Value>>(),
        "residual_half_width": row.reasons.residual, "confidence": row.confidence.word(), "chips": row.chips, "family": row.family,
        "reserved_bytes": pair(row.reserved), "allocated_bytes": pair(row.allocated),
        "unstated_memory_bytes": pair(row.unstated), "mfu": pair(row.mfu),
        "memory": {"needs": row.room.needs, "capacity": row.room.capacity, "chance_to_fit": row.room.chance},
        "out_of_memory": {"predicted": row.memory_verdict.0, "measured": row.memory_verdict.1},
        "bound_by": row.bound,
        "shares": {"compute": compute, "exposed_communication": communication, "host_bound": host, "waiting": waiting},
        "parts": row.parts.iter().map(|(name, share)| json!({"name": name, "share": share})).collect::<Vec<_>>(),
        "assumed_keys": row.assumed,
    })
}

fn group(g: &Group) -> Value {
    json!({
        "lane": g.lane, "hardware": g.hardware, "rows": g.rows, "covered": g.covered, "outside": g.outside,
        "configurations": g.configurations, "coverage": g.coverage(), "step_time": errors(g.step),
        "inside_interval": g.inside, "reserved": errors(g.reserved), "allocated": errors(g.allocated),
        "unstated_memory": errors(g.unstated), "mfu": errors(g.mfu),
        "mfu_by_convention": g.mfu_by_convention.iter()
            .map(|(name, e)| ((*name).to_owned(), errors(Some(*e))))
            .collect::<serde_json::Map<_, _>>(),
        "picks": picked(g.picks),
        "out_of_memory": {"measured": g.out_of_memory.0, "predicted": g.out_of_memory.1, "false_alarms": g.false_alarms},
    })
}

fn picked(picks: Option<Picks>) -> Value {
    picks.map_or(Value::Null, |p| {
        json!({
            "groups": p.groups, "right": p.right, "right_by_chance": p.chance, "pairs": p.pairs, "pairs_in_order": p.ordered,
            "predicted_not_to_fit": p.unfit,
        })
    })
}

fn layouts(group: &picks::Group<'_>) -> Value {
    let (pairs, ordered) = group.pairs();
    let ids = |layout: &Layout<'_>| layout.rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
    json!({
        "picked": group.pick().map(ids), "right": group.is_right(), "right_by_chance": group.chance(),
        "behind": group.pick().map(|pick| group.behind(pick)), "pairs": pairs, "pairs_in_order": ordered,
        "layouts": group.0.iter().map(|layout| json!({
            "ids": ids(layout), "measured_s": layout.measured, "predicted_s": layout.predicted, "predicted_to_fit": layout.fits,
        })).collect::<Vec<_>>(),
    })
}

fn past(history: &History<'_>) -> Value {
    let run = |run: &&Judged| json!({"id": run.id, "date": run.date, "commit": run.commit, "measured_over_predicted": history::ratio(run)});
    json!({
        "job": history.job, "runs": history.runs.iter().map(run).collect::<Vec<_>>(),
        "parted": history.parted.map(|at| history.runs[at].id.clone()),
    })
}

/// The whole check.
pub fn report(outcome: &Outcome, groups: &[Group]) -> Value {
    json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
        "by_confidence": by_confidence(outcome).into_iter().map(|of| json!({
            "confidence": of.confidence.word(), "step_time": errors(Some(of.step)), "inside_interval": of.inside,
        })).collect::<Vec<_>>(),
        "history": history::histories(&outcome.judged).iter().map(past).collect::<Vec<_>>(),
        "layouts": picks::groups(&outcome.judged.iter().collect::<Vec<_>>()).iter().map(layouts).collect::<Vec<_>>(),
        "rows": outcome.judged.iter().map(row).collect::<Vec<_>>(),
        "skipped": outcome.skipped.iter().map(|s| json!({
            "id": s.id, "place": s.place, "lane": s.lane, "hardware": s.hardware, "reason": s.reason.words(),
            "class": match s.reason {
                super::Reason::Outside(_) => "outside",
                super::Reason::Uncovered(_) => "uncovered",
                super::Reason::Contradiction(_) => "contradiction",
                super::Reason::Panicked(_) => "panicked",
            },
        })).collect::<Vec<_>>(),
        "faults": outcome.faults.iter().map(|f| json!({"file": f.file, "line": f.line, "problem": f.problem})).collect::<Vec<_>>(),
    })
}
