//! The JSON Schema under `docs/schema`, held against reports as they are written.

mod check;

use std::fs;
use std::path::{Path, PathBuf};

use check::against;
use rayon::prelude::*;
use serde_json::Value;
use windtunnel::scenario::Scenario;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(root().join("docs/schema").join(name)).unwrap()).unwrap()
}

/// The shipped scenarios.
fn shipped() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("scenarios")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn the_report_of_every_shipped_scenario_is_as_its_schema_says() {
    let schema = schema("report-1.json");
    let wrong: Vec<String> = shipped()
        .par_iter()
        .flat_map(|path| {
            let scenario = Scenario::load(path).unwrap_or_else(|error| panic!("{error}"));
            let report = scenario.predict().unwrap_or_else(|error| panic!("{error}")).report(&scenario);
            let written: Value = serde_json::from_str(&format!("{:#}", report.json())).unwrap();
            let found = against(&schema, &written);
            found.into_iter().map(|what| format!("{}{what}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_schema_of_the_report_refuses_what_no_report_says() {
    let schema = schema("report-1.json");
    let scenario = Scenario::load(root().join("scenarios/two-narrow-blocks-4xv6e.toml")).unwrap();
    let report = scenario.predict().unwrap().report(&scenario).json();
    let refused = |change: fn(&mut Value)| {
        let mut report = report.clone();
        change(&mut report);
        !against(&schema, &report).is_empty()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|report| report["format"] = 2.into()));
    assert!(refused(|report| report["step_time_s"] = "1 s".into()));
    assert!(refused(|report| report["bound_by"] = "luck".into()));
    assert!(refused(|report| report["memory"]["phases"][0]["end_allocated_bytes"] = (-1).into()));
    assert!(refused(|report| drop(report.as_object_mut().unwrap().remove("mfu"))));
}
