//! The ceiling as a program reads it, with units in the names.

use serde_json::{Value, json};

use super::{Ceiling, End};
use crate::explore::Point;
use crate::explore::fixed::Fixed;
use crate::scenario::Scenario;

/// Version of the layout below; raised when a key changes its meaning, or goes.
const FORMAT: u32 = 1;

/// A ceiling as JSON.
pub fn report(scenario: &Scenario, ceiling: &Ceiling) -> Value {
    json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "scenario": scenario.file,
        "description": scenario.description,
        "fixed": Fixed::of(scenario).json(),
        "ceiling": value(ceiling),
    })
}

/// A ceiling, without what it is the ceiling of.
pub(in crate::explore) fn value(ceiling: &Ceiling) -> Value {
    json!({
        "step_tokens": ceiling.options.step,
        "own_tokens": ceiling.own,
        "ceiling_tokens": ceiling.top().map(|point| point.sequence),
        "longest_tokens": ceiling.longest.as_ref().map(|point| point.sequence),
        "longest_beyond_doubt_tokens": ceiling.sure.as_ref().map(|point| point.sequence),
        "ends_because": end(&ceiling.end),
        "longest": ceiling.longest.as_ref().map(point),
        "longest_beyond_doubt": ceiling.sure.as_ref().map(point),
        "one_step_more": ceiling.beyond.as_ref().map(point),
        "ladder": ceiling.ladder.iter().map(point).collect::<Vec<_>>(),
        "refused": ceiling.refused.iter()
            .map(|(sequence, reason)| json!({"sequence_tokens": sequence, "reason": reason}))
            .collect::<Vec<_>>(),
        "longer_with": ceiling.longer.iter()
            .map(|(change, longest)| json!({"change": change, "longest_tokens": longest}))
            .collect::<Vec<_>>(),
        "lengths_flown": ceiling.flown,
        "compiled_longest_tokens": ceiling.compiled().0.map(|one| one.sequence),
        "compiled_refused_tokens": ceiling.compiled().1.map(|one| one.sequence),
        "compile_checked": ceiling.checked.iter()
            .map(|one| json!({
                "sequence_tokens": one.sequence,
                "compiler": one.compiler,
                "fits": one.fits,
                "bytes": one.bytes.map(|bytes| bytes.0),
            }))
            .collect::<Vec<_>>(),
    })
}

fn end(end: &End) -> Value {
    match end {
        End::Memory => json!({"kind": "memory"}),
        End::Positions(positions) => json!({"kind": "positions", "positions": positions}),
        End::Asked(most) => json!({"kind": "asked", "most_tokens": most}),
        End::Refused { sequence, reason } => json!({"kind": "refused", "sequence_tokens": sequence, "reason": reason}),
    }
}

/// One length.
pub(in crate::explore) fn point(point: &Point) -> Value {
    let memory = &point.memory;
    json!({
        "sequence_tokens": point.sequence,
        "step_time_s": point.step.seconds(),
        "step_time_interval_80_s": [point.interval.0.seconds(), point.interval.1.seconds()],
        "tokens_per_second_per_chip": point.rate,
        "mfu": point.mfu,
        "bound_by": point.bound,
        "fits": memory.fits(),
        "verdict": memory.verdict().to_string(),
        "host_bytes_per_node": memory.host.map(|host| host.wanted().0),
        "fits_beyond_doubt": memory.fits_beyond_doubt(),
        "may_fit": memory.may_fit(),
        "allocated_bytes": memory.report.peak_allocated.0,
        "reserved_bytes": memory.report.peak_reserved.0,
        "device_total_bytes": memory.device_total().0,
        "outside_allocator_bytes": memory.outside.0,
        "doubt_bytes": memory.doubt.0,
        "capacity_bytes": memory.capacity.0,
        "shortfall_bytes": memory.shortfall().0,
        "allocator_retries": memory.report.retries,
        "peak_phase": memory.report.peak_phase,
        "breakdown_bytes": memory.report.breakdown.sorted().into_iter()
            .map(|(category, count)| (category.label().to_owned(), json!(count.0)))
            .collect::<serde_json::Map<_, _>>(),
    })
}
