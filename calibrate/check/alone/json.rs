//! The answer as JSON.

use serde_json::{Value, json};

use super::Found;

/// One object.
pub fn json(found: &Found) -> Value {
    let compiled = found.compiler.compiled();
    let held = found.compiler.memory();
    let memory = compiled.map(|compiled| compiled.memory);
    let exchange = |((axes, between, kind), sum): (&super::Which, &super::Along)| {
        json!({"axes": axes, "between_slices": between, "kind": kind, "times": sum.times, "bytes": sum.bytes,
            "asynchronous_bytes": sum.asynchronous_bytes})
    };
    json!({
        "program": found.program,
        "slice": found.slice.to_string(),
        "devices": found.target.partitions,
        "mesh": found.axes,
        "plugin": found.target.plugin.to_string(),
        "compiler": compiled.map(|compiled| &compiled.compiler),
        "flags": found.target.flags,
        "cached": compiled.map(|compiled| compiled.cached),
        "compile_seconds": found.compiler.seconds(),
        "fits": found.compiler.fits(),
        "refusal": found.refusal(),
        "memory": {
            "capacity": found.capacity(),
            "argument": held.map(|(argument, _)| argument),
            "output": memory.map(|memory| memory.output),
            "alias": memory.map(|memory| memory.alias),
            "temp": memory.map(|memory| memory.temp),
            "peak": held.map(|(_, peak)| peak),
            "host_temp": memory.map(|memory| memory.host_temp),
            "needed": found.needed(),
            "live": found.compiler.account().map(|account| &account.live),
        },
        "flops": compiled.map(|compiled| json!({"matmul": compiled.flops.matmul, "unseen": compiled.flops.unseen})),
        "collectives": found.exchanges.iter().map(exchange).collect::<Vec<_>>(),
        "time": found.time.as_ref().map(|time| json!({
            "at_least": found.at_least(), "binds": time.parts.first().map(|(name, _)| name), "utilisation": time.utilisation,
            "least_s": time.between.0, "most_s": time.between.1,
            "priced": time.priced,
        })),
        "remarks": found.remarks(),
    })
}
