//! `docs/schema/receipt.json` is generated from the structs of the file.

use super::Row;
use crate::files::page_tests::{fresh, schema};

#[test]
fn the_schema_is_generated_from_the_structs() {
    let about = "A measured run: one line of a file of receipts. Generated from sim/receipt/row.rs.";
    fresh("docs/schema/receipt.json", &format!("{:#}\n", schema::<Row>("Windtunnel receipt", about)));
}
