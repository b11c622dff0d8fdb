//! The report a program reads: everything the text says and more, with units in the names.

use serde_json::{Value, json};

use super::{pipeline, start_up};
use crate::scenario::{Prediction, Scenario};
use crate::units::{Bytes, Time};

/// Version of the layout below; raised when a key changes its meaning.
const FORMAT: u32 = 1;

fn seconds(time: Time) -> Value {
    json!(time.seconds())
}

fn bytes(count: Bytes) -> Value {
    json!(count.0)
}

/// The prediction as JSON.
pub fn report(scenario: &Scenario, answer: &Prediction) -> Value {
    let memory = &answer.memory;
    let questions: Vec<Value> = super::questions::questions(scenario, answer)
        .into_iter()
        .map(|(question, reply)| json!({"question": question, "answer": reply}))
        .collect();
    let mut report = json!({
        "format": FORMAT,
        "windtunnel": env!("CARGO_PKG_VERSION"),
        "scenario": scenario.file,
        "description": scenario.description,
        "lane": scenario.runtime.lane(),
        "model": {"name": scenario.job.model().name, "parameters": scenario.job.model().params().total},
        "topology": {"name": scenario.topology.name, "chips": scenario.topology.chips(), "nodes": scenario.topology.nodes},
        "step_time_s": seconds(answer.step),
        "step_time_interval_80_s": [seconds(answer.interval.0), seconds(answer.interval.1)],
        "tokens_per_step": answer.tokens,
        "sequences_per_step": answer.tokens / scenario.job.seq().max(1),
        "tokens_per_second_per_chip": answer.tokens_per_second_per_chip(scenario.topology.chips()),
        "bubble": pipeline::bubble(scenario, answer),
        "bound_by": answer.bound(),
        "breakdown_s": {
            "compute": seconds(answer.breakdown.compute),
            "exposed_communication": seconds(answer.breakdown.exposed_communication),
            "bubble": seconds(answer.breakdown.bubble),
            "host_bound": seconds(answer.breakdown.host_bound),
            "waiting": seconds(answer.breakdown.waiting),
        },
        "stages": pipeline::json(scenario, answer),
        "start_up": start_up::json(scenario, answer),
        "mfu": answer.mfu.iter().map(|mfu| json!({
            "convention": mfu.name, "formula": mfu.formula, "utilisation": mfu.utilisation,
            "flops_per_step": mfu.flops.0.to_string(),
        })).collect::<Vec<_>>(),
        "memory": {
            "fits": memory.fits(),
            "verdict": memory.verdict().to_string(),
            "fits_beyond_doubt": memory.fits_beyond_doubt(),
            "may_fit": memory.may_fit(),
            "doubt_bytes": bytes(memory.doubt),
            "allocated_bytes": bytes(memory.report.peak_allocated),
            "reserved_bytes": bytes(memory.report.peak_reserved),
            "device_total_bytes": bytes(memory.device_total()),
            "outside_allocator_bytes": bytes(memory.outside),
            "capacity_bytes": bytes(memory.capacity),
            "shortfall_bytes": bytes(memory.shortfall()),
            "allocator_retries": memory.report.retries,
            "peak_phase": memory.report.peak_phase,
            "breakdown_bytes": memory.report.breakdown.sorted().into_iter()
                .map(|(category, count)| (category.label().to_owned(), bytes(count)))
                .collect::<serde_json::Map<_, _>>(),
            "phases": memory.report.phases.iter().map(|phase| json!({
                "name": phase.name, "peak_allocated_bytes": bytes(phase.peak_allocated),
                "end_allocated_bytes": bytes(phase.end_allocated),
            })).collect::<Vec<_>>(),
            "live_at_peak": memory.report.live(&answer.classes[answer.tightest].program).iter().map(|live| json!({
                "name": live.name, "category": live.category.label(), "count": live.count, "bytes": bytes(live.bytes),
            })).collect::<Vec<_>>(),
            "remedies": memory.remedies.iter().map(|remedy| json!({
                "change": remedy.change, "device_total_bytes": bytes(remedy.device_total),
            })).collect::<Vec<_>>(),
        },
        "parts": answer.parts.iter().map(|part| json!({
            "group": part.group, "name": part.name, "count": part.count, "busy_s": seconds(part.busy),
            "exposed_s": seconds(part.exposed), "basis": part.basis.label(),
        })).collect::<Vec<_>>(),
        "evidence": answer.shares.iter()
            .map(|(basis, share)| (basis.label().to_owned(), json!(share)))
            .collect::<serde_json::Map<_, _>>(),
        "questions": questions,
        "assumptions": scenario.assumption_lines(),
    });
    report["residual_half_width"] = json!(answer.residual);
    report["runs_like_it"] = json!({
        "configurations": answer.alike.runs, "models": answer.alike.families, "median_error": answer.alike.bias,
    });
    report["allocator_stall_s"] = seconds(answer.stall);
    report["topology_without_effect"] = json!(answer.unread.iter().map(|fact| &fact.key).collect::<Vec<_>>());
    report["keys_without_effect"] =
        scenario.idle.iter().chain(&answer.idle).map(|idle| json!({"key": idle.key, "why": idle.why})).collect();
    if let Some(host) = memory.host {
        report["memory"]["host_bytes"] = bytes(host.rank.all);
        report["memory"]["host_pinned_bytes"] = bytes(host.rank.pinned);
        report["memory"]["host_bytes_per_node"] = bytes(host.wanted());
        report["memory"]["host_capacity_bytes"] = json!(host.capacity.map(|has| has.0));
        if host.rank.files.0 > 0 {
            report["memory"]["disk_bytes"] = bytes(host.rank.files);
        }
    }
    report
}
