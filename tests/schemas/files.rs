//! Schemas of files other than scenarios, held against what is shipped: each file is as its schema says, and a file with a wrong
//! key or a wrong type is not.

use std::fs;

use serde_json::Value;

use super::check::against;
use super::{root, schema};

/// Shipped files of a folder, as JSON.
fn shipped(folder: &str) -> Vec<(String, Value)> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let read = files.map(|path| {
        let file: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        (path.display().to_string(), serde_json::to_value(file).unwrap())
    });
    read.collect()
}

/// Lines of the shipped receipts.
fn receipts() -> Vec<(String, Value)> {
    let files = ["public.jsonl", "vtrain-a100.jsonl", "windtunnel-h200.jsonl"]
        .map(|name| (name, root().join("tests/receipts").join(name)));
    let lines = files.into_iter().flat_map(|(name, path)| {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(at, line)| (format!("{name}:{}", at + 1), serde_json::from_str(line).unwrap())).collect::<Vec<_>>()
    });
    lines.collect()
}

/// Each file of which a schema has something against.
fn wrong(schema: &Value, files: &[(String, Value)]) -> Vec<String> {
    assert!(!files.is_empty());
    let found = files.iter().map(|(name, file)| (name, against(schema, file)));
    found.filter(|(_, found)| !found.is_empty()).map(|(name, found)| format!("{name}{}", found.join("\n"))).collect()
}

/// A file in which a table has a key that nobody knows.
fn with_an_unknown_key(file: &Value, place: &str) -> Value {
    let mut file = file.clone();
    file.pointer_mut(place).unwrap()["no-such-key"] = 1.into();
    file
}

/// A file in which something is of another type.
fn with_another_type(file: &Value, place: &str) -> Value {
    let mut file = file.clone();
    let value = file.pointer_mut(place).unwrap_or_else(|| panic!("there is no {place}"));
    *value = if value.is_string() { Value::Bool(true) } else { "seven".into() };
    file
}

#[track_caller]
fn refuses(schema: &Value, file: &Value, tables: &[&str], values: &[&str]) {
    for place in tables {
        assert!(!against(schema, &with_an_unknown_key(file, place)).is_empty(), "{place:?} takes any key");
    }
    for place in values {
        assert!(!against(schema, &with_another_type(file, place)).is_empty(), "{place} takes any type");
    }
}

#[test]
fn every_shipped_topology_is_as_the_schema_says_and_a_wrong_one_is_not() {
    let (schema, files) = (schema("topology.json"), shipped("topologies"));
    let wrong = wrong(&schema, &files);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (_, h100) = files.iter().find(|(name, _)| name.ends_with("h100-sxm-80gb.toml")).unwrap();
    let values = ["/name", "/chip/memory/value", "/chip/memory/source", "/node/chips/value", "/fabric/0/size/value"];
    refuses(&schema, h100, &["", "/chip", "/chip/memory", "/node", "/fabric/0"], &values);
    let mut bare = h100.clone();
    bare["chip"]["memory_bandwidth"]["value"] = 3.35e12.into();
    assert!(!against(&schema, &bare).is_empty(), "a number without its unit");
    bare["chip"].as_object_mut().unwrap().remove("memory_bandwidth");
    assert!(!against(&schema, &bare).is_empty(), "a chip without a bandwidth");
}

#[test]
fn every_shipped_profile_is_as_the_schema_says_and_a_wrong_one_is_not() {
    let (schema, files) = (schema("profile.json"), shipped("sim/cost/profiles"));
    let wrong = wrong(&schema, &files);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (_, h100) = files.iter().find(|(name, _)| name.ends_with("h100-sxm-80gb.toml")).unwrap();
    let values =
        ["/format", "/machine/memory", "/matmul/bf16/peak", "/overlap/matmul/factor", "/attention/kernels/0/rate"];
    refuses(&schema, h100, &["", "/machine", "/matmul/bf16", "/attention/kernels/0", "/layout/evidence"], &values);
}

#[test]
fn every_shipped_receipt_is_as_the_schema_says_and_a_wrong_one_is_not() {
    let (schema, rows) = (schema("receipt.json"), receipts());
    let wrong = wrong(&schema, &rows);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let (_, row) = rows.iter().find(|(_, row)| row["id"] == "tt-llama31-8b-h100x8-fsdp").unwrap();
    refuses(&schema, row, &["", "/hardware", "/model", "/measured"], &["/id", "/hardware/count", "/measured"]);
    assert!(
        against(&schema, &with_an_unknown_key(row, "/quality")).is_empty(),
        "what is said of a row's quality is free"
    );
}

#[test]
fn a_line_of_a_plan_is_as_the_schema_says_and_a_wrong_one_is_not() {
    let schema = schema("plan.json");
    let line = serde_json::json!({
        "what": {"matmul": {"m": 8192, "n": 4096, "k": 4096, "dtype": "bf16", "layout": "forward"}},
        "value": 0.25,
    });
    assert_eq!(against(&schema, &line), Vec::<String>::new());
    refuses(&schema, &line, &["", "/what", "/what/matmul"], &["/value", "/what/matmul/m", "/what/matmul/dtype"]);
}
