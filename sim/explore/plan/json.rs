//! The answer as data.

use serde_json::{Value, json};

use super::answer::{Answer, OnSite, Ranked};
use super::planned::Planned;
use crate::units::Time;

/// The answer as `windtunnel plan --json` writes it: times in seconds, sizes in bytes.
pub fn report(answer: &Answer) -> Value {
    let request = &answer.request;
    json!({
        "schema": "windtunnel-plan-1",
        "model": request.model.name,
        "sequence": request.sequence,
        "global_batch_sequences": request.sequences,
        "tokens": request.tokens,
        "notes": request.notes,
        "exhaustive": answer.exhaustive,
        "best": answer.winner().map(|site| json!({ "machine": site, "rank": 1 })),
        "machines": answer.sites.iter().enumerate().map(|(place, on)| machine(answer, place, on)).collect::<Vec<_>>(),
        "front": answer.front.iter().map(|&(site, place)| front(answer, site, place)).collect::<Vec<_>>(),
    })
}

fn machine(answer: &Answer, place: usize, on: &OnSite) -> Value {
    let mut value = json!({
        "machine": on.site.machine.name,
        on.site.size.0: on.site.size.1,
        "chips": on.site.chips,
        "price": on.site.price,
        "counts": on.counts,
        "refused": on.refused.iter().map(|(why, count)| json!({ "why": why, "plans": count })).collect::<Vec<_>>(),
        "plans": on.ranked.iter().enumerate().map(|(rank, ranked)| plan(answer, place, rank, ranked)).collect::<Vec<_>>(),
    });
    if let (Some(possible), Value::Object(fields)) = (on.possible, &mut value) {
        fields.insert("least_undecided_step_time_s".to_owned(), json!(possible.seconds()));
    }
    value
}

fn plan(answer: &Answer, site: usize, rank: usize, ranked: &Ranked) -> Value {
    let mut value = figures(&ranked.plan);
    if let Value::Object(fields) = &mut value {
        fields.insert("rank".to_owned(), json!(rank + 1));
        fields.insert("probability_that_the_first_is_faster".to_owned(), json!(ranked.behind));
        fields.insert("tied_with_the_first".to_owned(), json!(rank > 0 && ranked.is_tied()));
        fields.insert("bill".to_owned(), json!(ranked.bill));
        if answer.request.interrupted {
            fields.insert("goodput".to_owned(), json!(ranked.plan.goodput));
        }
        fields.insert("breaks".to_owned(), json!(ranked.broken));
        fields.insert("scenario".to_owned(), json!(answer.draft(site, rank).map(|draft| draft.text())));
    }
    value
}

fn front(answer: &Answer, site: usize, place: usize) -> Value {
    let on = &answer.sites[site];
    let plan = on.all().nth(place);
    json!({ "machine": site, "plan": plan.map(figures) })
}

fn figures(plan: &Planned) -> Value {
    let seconds = |time: Time| time.seconds();
    let keys: serde_json::Map<String, Value> =
        plan.candidate.keys.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let split = &plan.breakdown;
    json!({
        "framework": plan.candidate.runtime.written(),
        "keys": keys,
        "step_time_s": seconds(plan.step),
        "step_time_80_s": [seconds(plan.interval.0), seconds(plan.interval.1)],
        "step_time_bound_s": seconds(plan.floor.step),
        "tokens_per_step": plan.tokens,
        "tokens_per_second_per_chip": plan.rate,
        "mfu": plan.mfu,
        "mfu_convention": plan.convention,
        "bound_by": plan.bound,
        "breakdown_s": {
            "compute": seconds(split.compute),
            "exposed_communication": seconds(split.exposed_communication),
            "bubble": seconds(split.bubble),
            "host_bound": seconds(split.host_bound),
            "waiting": seconds(split.waiting),
        },
        "device_total_bytes": plan.memory.0,
        "device_total_bound_bytes": plan.floor.memory.0,
        "capacity_bytes": plan.capacity.0,
        "fits_for_sure": plan.sure,
        "replicas": plan.replicas,
        "micro_batches": plan.micro_batches,
    })
}
