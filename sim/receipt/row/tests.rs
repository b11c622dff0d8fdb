//! `docs/schema/receipt.json` is generated from the structs of the file.

use super::Row;
use crate::files::page_tests::{fresh, schema};

#[test]
fn the_schema_is_generated_from_the_structs() {
    let about = "A measured run: one line of a file of receipts. Generated from sim/receipt/row.rs.";
    fresh("docs/schema/receipt.json", &format!("{:#}\n", schema::<Row>("Windtunnel receipt", about)));
}

fn row(count: u64, parallel: &str) -> Row {
    let text =
        format!(r#"{{"id":"x","lane":"tp+pp","hardware":{{"count":{count}}},"parallel":{parallel},"measured":{{}}}}"#);
    serde_json::from_str(&text).expect("a row")
}

#[test]
fn only_degrees_that_are_stated_contradict_and_a_single_open_one_follows() {
    for (count, parallel, open, contradicts) in [
        (64, r#"{"dp":1,"pp":16}"#, Some((vec!["tp"], 4)), false),
        (64, r#"{"dp":2,"tp":4,"cp":2}"#, Some((vec!["pp"], 4)), false),
        (64, r#"{"dp":16}"#, Some((vec!["tp", "pp"], 4)), false),
        (64, r#"{"dp":64}"#, None, false),
        (64, r#"{"dp":1,"tp":1,"pp":16}"#, None, true),
        (64, r#"{"dp":3,"pp":16}"#, None, true),
        (64, r#"{"dp":1,"fsdp":16}"#, None, true),
        (256, r#"{"tp":1,"pp":8,"ep":64}"#, None, true),
        (256, r#"{"tp":1,"pp":4,"ep":64}"#, None, false),
    ] {
        let row = row(count, parallel);
        assert_eq!(row.open(), open, "{parallel}");
        assert_eq!(row.contradiction(|_| false).is_some(), contradicts, "{parallel}");
    }
}
