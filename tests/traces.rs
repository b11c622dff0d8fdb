//! `windtunnel import trace`: reports of small traces, choices of steps, and files that are refused.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::Folder;

fn small(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small").join(name);
    path.display().to_string()
}

fn json(folder: &Folder, arguments: &[&str]) -> Value {
    let output = folder.windtunnel(&[&["import", "trace", "--json", "-"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All files in `tests/traces/small`.
fn all() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 9);
    names
}

#[test]
fn the_report_of_a_trace_says_where_its_step_went() {
    let folder = Folder::new("trace_report");
    let output = folder.windtunnel(&["import", "trace", &small("kineto-2025.json")]);
    let text = String::from_utf8(output.stdout).unwrap();
    let said = text.split_once('\n').unwrap().1;
    for line in [
        "  rank          3 of 8",
        "  device        NVIDIA H100 80GB HBM3, 132 SMs, 79.2 GiB",
        "  software      CUDA driver 12.8, CUDA runtime 12.6, CUPTI 24, NCCL 2.28.9",
        "Time of one step, the mean of whole steps 10, 11",
        "  exposed collectives           100 us    10.0 %",
        "  step                         1.00 ms   100.0 %",
    ] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.lines().any(|found| words(found) == words(line)), "{line}\n{said}");
    }
}

#[test]
fn parts_of_every_step_of_every_trace_add_up_to_it() {
    let folder = Folder::new("trace_parts");
    for name in all() {
        let report = json(&folder, &[&small(&name)]);
        let sums = |spent: &Value| {
            let parts = spent.as_object().unwrap().iter().filter(|(key, _)| *key != "total_ns");
            parts.map(|(_, ns)| ns.as_u64().unwrap()).sum::<u64>()
        };
        let steps = report["steps"].as_array().unwrap();
        assert!(!steps.is_empty(), "{name}");
        for step in steps {
            let window = step["end_ns"].as_u64().unwrap() - step["start_ns"].as_u64().unwrap();
            assert_eq!((sums(&step["spent"]), step["spent"]["total_ns"].as_u64()), (window, Some(window)), "{name}");
        }
        assert_eq!(Some(sums(&report["spent"])), report["spent"]["total_ns"].as_u64(), "{name}");
        let time =
            |rows: &Value| rows.as_array().unwrap().iter().map(|row| row["time_ns"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(time(&report["classes"]), time(&report["kernels"]), "{name}");
    }
}

#[test]
fn a_step_is_asked_for_by_its_number() {
    let folder = Folder::new("trace_step");
    let file = small("kineto-2025.json");
    let report = json(&folder, &["--step", "12", &file]);
    assert_eq!(report["chosen"]["steps"], serde_json::json!([12]));
    assert_eq!(report["spent"]["total_ns"], 700_000);
    let said = folder.refuses(&["import", "trace", "--step", "9", &file]);
    assert!(said.contains("has no step 9: its steps are 10, 11, 12"), "{said}");
}

#[test]
fn several_traces_are_reported_one_after_the_other() {
    let folder = Folder::new("trace_several");
    let files = [small("kineto-2023.json"), small("nsight.sqlite")];
    let report = json(&folder, &[&files[0], &files[1]]);
    let formats: Vec<&str> = report.as_array().unwrap().iter().map(|one| one["format"].as_str().unwrap()).collect();
    assert_eq!(formats, ["PyTorch profiler (Kineto)", "Nsight Systems (SQLite)"]);
}

/// What a file of SQLite would run, or read elsewhere, is refused by its name: it is an input of somebody else's.
#[test]
fn only_plain_tables_of_an_export_are_read() {
    let folder = Folder::new("trace_sqlite");
    let of = |name: &str, sql: &str| {
        let path = folder.path.join(name);
        std::fs::copy(small("nsight.sqlite"), &path).unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        folder.refuses(&["import", "trace", name])
    };
    let renamed = "alter table CUPTI_ACTIVITY_KIND_KERNEL rename to kernels;";
    let view = of("view.sqlite", &format!("{renamed} create view CUPTI_ACTIVITY_KIND_KERNEL as select * from kernels"));
    assert!(view.contains("CUPTI_ACTIVITY_KIND_KERNEL: expected a plain table, found a view"), "{view}");
    let strings = of("strings.sqlite", "drop table StringIds; create view StringIds as select 1 id, 'kernel' value");
    assert!(strings.contains("StringIds: expected a plain table, found a view"), "{strings}");
    let fts =
        of("virtual.sqlite", &format!("{renamed} create virtual table CUPTI_ACTIVITY_KIND_KERNEL using fts5(start)"));
    assert!(fts.contains("CUPTI_ACTIVITY_KIND_KERNEL: expected a plain table, found a virtual table"), "{fts}");
    let long = of("long.sqlite", "update StringIds set value = hex(zeroblob(4194304))");
    assert!(long.contains("too big"), "{long}");
    // Names without an index are looked for from the first to the last, for each kernel again.
    let numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 8000)";
    let slow = of(
        "slow.sqlite",
        &format!(
            "drop table StringIds; create table StringIds (id integer, value text);
            {numbers} insert into StringIds select i, 'k' from n;
            create table one as select * from CUPTI_ACTIVITY_KIND_KERNEL limit 1;
            {numbers} insert into CUPTI_ACTIVITY_KIND_KERNEL select one.* from one, n;
            update CUPTI_ACTIVITY_KIND_KERNEL set demangledName = rowid"
        ),
    );
    assert!(slow.contains("interrupted"), "{slow}");
    // A file whose name means something in a URI is that file.
    std::fs::copy(small("nsight.sqlite"), folder.path.join("a b#1%20?x=y.sqlite")).unwrap();
    assert_eq!(json(&folder, &["a b#1%20?x=y.sqlite"])["format"], "Nsight Systems (SQLite)");
}

#[test]
fn what_is_no_trace_is_refused_with_what_to_try() {
    let folder = Folder::new("trace_refused");
    folder.write("cut.json", "{\"schemaVersion\": 1, \"traceEvents\": [{\"ph\": \"X\", \"cat\": \"kernel\"");
    let said = folder.refuses(&["import", "trace", "cut.json"]);
    assert!(said.contains("cut.json, byte 37 (line 1)") && said.contains("The file was cut"), "{said}");
    let said = folder.refuses(&["import", "trace", "config.json"]);
    assert!(said.contains("config.json is no trace that can be read") && said.contains("Kineto"), "{said}");
    let said = folder.refuses(&["import", "trace", "nowhere.json"]);
    assert!(said.contains("cannot read the trace nowhere.json"), "{said}");
    let said = folder.refuses(&["import", "trace"]);
    assert!(said.contains("<FILE>"), "{said}");
}
