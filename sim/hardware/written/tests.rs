//! `docs/schema/topology.json` is generated from the structs of the file.

use super::File;
use crate::files::page_tests::{fresh, schema};

#[test]
fn the_schema_is_generated_from_the_structs() {
    let about = "A machine: its chip, its node, its fabric, and a source for every number. Generated from sim/hardware/written.rs.";
    fresh("docs/schema/topology.json", &format!("{:#}\n", schema::<File>("Windtunnel topology", about)));
}
