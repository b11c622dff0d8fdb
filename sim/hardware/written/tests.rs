//! `docs/schema/topology.json` is generated from the structs of the file.

use super::File;
use crate::files::page_tests::{fresh, schema};

#[test]
fn the_schema_is_generated_from_the_structs() {
    let about = "A machine: its chip, its node, its fabric, and a source for every number. Generated from sim/hardware/written.rs.";
    fresh("docs/schema/topology.json", &format!("{:#}\n", schema::<File>("Windtunnel topology", about)));
}

/// What a file must have: a base, or all that a base would have.
pub(super) fn based_or_whole() -> serde_json::Value {
    serde_json::json!([
        { "required": ["base"] },
        {
            "required": ["chip", "description", "fabric", "node", "profile", "sources"],
            "properties": {
                "chip": {
                    "required": ["cores", "host_bandwidth", "l2", "memory", "memory_bandwidth", "name", "peak", "vendor"],
                    "properties": { "peak": { "required": ["bf16"] } },
                },
                "node": { "required": ["chips", "host_cores", "nic_bandwidth", "nics"] },
                "fabric": { "items": { "required": ["bandwidth", "kind", "latency", "name", "size"] } },
            },
        },
    ])
}
