//! The JSON Schemas under `docs/schema`, held against what they describe: reports as they are written, scenarios as they are read.

mod check;
mod files;
mod scenario;

use std::fs;
use std::path::{Path, PathBuf};

use check::against;
use rayon::prelude::*;
use serde_json::Value;
use windtunnel::scenario::keys::Kind;
use windtunnel::scenario::{Runtime, Scenario};

use crate::defaults;
use crate::every_key::{keys, plans};
use crate::keys::rows;
use crate::make::FILE;

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

#[test]
fn the_schema_of_a_scenario_is_generated_from_the_table_of_keys() {
    let path = root().join("docs/schema/scenario.json");
    let text = format!("{:#}\n", scenario::schema());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let shown = fs::read_to_string(&path).unwrap_or_default();
    assert!(shown == text, "docs/schema/scenario.json says something else than the table: UPDATE=1 cargo test schemas");
}

fn as_json(file: &toml::Table) -> Value {
    serde_json::to_value(file).unwrap()
}

#[test]
fn every_shipped_scenario_is_as_the_schema_says() {
    let schema = scenario::schema();
    for path in shipped() {
        let file: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let found = against(&schema, &as_json(&file));
        assert!(found.is_empty(), "{}: {}", path.display(), found.join("\n"));
    }
}

#[test]
fn the_schema_refuses_nothing_that_the_reader_accepts() {
    let schema = scenario::schema();
    let plans: Vec<String> = defaults::plans().into_iter().chain(plans::plans()).collect();
    for plan in &plans {
        let found = against(&schema, &as_json(&plan.parse().unwrap()));
        assert!(found.is_empty(), "{}\n{plan}", found.join("\n"));
    }
    // The first plan of each runtime, with every value of every key that it reads.
    let firsts: Vec<toml::Table> = Runtime::ALL
        .iter()
        .map(|runtime| {
            let mut files = plans.iter().map(|plan| plan.parse::<toml::Table>().unwrap());
            files.find(|file| file["runtime"].as_str() == Some(runtime.written())).unwrap()
        })
        .collect();
    let rows: Vec<_> = rows().filter(|(table, _)| !["", "measured"].contains(&table.name)).collect();
    let wrong: Vec<String> = rows
        .into_par_iter()
        .flat_map(|(_, key)| {
            let path = key.path;
            let read = firsts.iter().filter(|file| file["runtime"].as_str().is_some_and(|name| key.is_read_by(name)));
            let files = read.flat_map(|plan| {
                let values = keys::values(path, key.kind).into_iter();
                values.map(|value| keys::set(plan, path, value)).collect::<Vec<_>>()
            });
            let refused = files.filter_map(|file| {
                let found = against(&schema, &as_json(&file));
                (!found.is_empty() && Scenario::parse(FILE, &file.to_string()).is_ok()).then(|| found.join("\n"))
            });
            refused.collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_schema_refuses_unknown_keys_wrong_types_and_wrong_values() {
    let schema = scenario::schema();
    let plan = |runtime: &str| {
        let plans = defaults::plans().into_iter().chain(plans::plans());
        let mut files = plans.map(|plan| plan.parse::<toml::Table>().unwrap());
        files.find(|file| file["runtime"].as_str() == Some(runtime)).unwrap()
    };
    let plans: Vec<(&str, toml::Table)> = Runtime::ALL.iter().map(|of| (of.written(), plan(of.written()))).collect();
    let passed = |plan: &toml::Table, path: &str, value: toml::Value| {
        against(&schema, &as_json(&keys::set(plan, path, value))).is_empty()
    };
    let word = || toml::Value::from(keys::WORD);
    let mut wrong = vec![];
    for (table, key) in rows() {
        let path = key.path;
        let unknown = [table.name, keys::WORD].join(".").trim_start_matches('.').to_owned();
        for (runtime, plan) in &plans {
            if !key.is_read_by(runtime) {
                let values = keys::values(path, key.kind).into_iter().take(1);
                wrong.extend(
                    values.filter(|value| passed(plan, path, value.clone())).map(|_| format!("{runtime}: {path}")),
                );
                continue;
            }
            let bad = match key.kind {
                Kind::Text | Kind::Quantity(_) => toml::Value::Boolean(true),
                // A time is text to a schema.
                Kind::Other(words) if words.contains("a time") => toml::Value::Boolean(true),
                Kind::Count(Some((least, _))) => toml::Value::Integer(least - 1),
                Kind::Flag | Kind::Count(None) | Kind::Number | Kind::List(_) | Kind::Choice(_) | Kind::Other(_) => {
                    word()
                }
            };
            for (path, value) in [(path, bad), (unknown.as_str(), word())] {
                if passed(plan, path, value.clone()) {
                    wrong.push(format!("{runtime}: {path} = {value}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "accepted:\n{}", wrong.join("\n"));
    let bare = |text: &str| !against(&schema, &as_json(&text.parse().unwrap())).is_empty();
    assert!(bare("runtime = \"fsdp2\""), "a file needs a machine, a model and a batch");
    assert!(bare(
        "runtime = \"fsdp3\"\n[topology]\nname = \"h100-sxm-80gb\"\n[model]\n[mesh]\n[batch]\nsequence = 1\n"
    ));
}

#[test]
fn the_command_line_prints_the_schemas() {
    for (of, file) in [
        ("scenario", "scenario.json"),
        ("report", "report-1.json"),
        ("topology", "topology.json"),
        ("profile", "profile.json"),
        ("receipt", "receipt.json"),
        ("plan", "plan.json"),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windtunnel"));
        let output = command.args(["show", "schema", of]).output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed, schema(file), "{of}");
    }
}
