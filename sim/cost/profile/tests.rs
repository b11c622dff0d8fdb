//! `docs/schema/profile.json` is generated from the structs of the file.

use super::Written;
use crate::files::page_tests::{fresh, schema};

#[test]
fn the_schema_is_generated_from_the_structs() {
    let about = "What kernels, collectives and host calls cost on one chip. Generated from sim/cost/profile.rs.";
    fresh("docs/schema/profile.json", &format!("{:#}\n", schema::<Written>("Windtunnel profile", about)));
}
