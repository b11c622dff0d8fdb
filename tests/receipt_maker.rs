//! What `calibrate/receipts/make.py` writes: read, mapped, and held against PyTorch's own allocator.
//!
//! `tests/oracles/receipt-maker.jsonl` is its output on a device that computes nothing (`--memory-only`): no row of it has
//! a time, none is a measured run.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windtunnel::receipt::check::{self, Choice};
use windtunnel::receipt::table::Tables;
use windtunnel::scenario::Scenario;

use crate::command::Folder;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/receipt-maker.jsonl")
}

fn rows() -> Vec<Value> {
    let text = std::fs::read_to_string(file()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A folder with one row in `r.jsonl`.
fn alone(test: &str, row: &Value) -> Folder {
    let folder = Folder::new(test);
    folder.write("r.jsonl", &format!("{row}\n"));
    folder
}

#[test]
fn oracle_every_configuration_of_the_receipt_maker_takes_the_memory_that_pytorchs_allocator_gave_it() {
    let files = check::read(&[file()]).unwrap();
    let outcome = check::check(&files, &Tables::shipped(), &Choice::default(), &|| {});
    assert_eq!((outcome.faults, outcome.skipped), (vec![], vec![]));
    assert_eq!((outcome.judged.len(), files.receipts.entries.len()), (50, 50));
    for judged in &outcome.judged {
        let off = [judged.allocated, judged.reserved].map(|pair| pair.unwrap().predicted - pair.unwrap().measured);
        assert_eq!(off, [0.0, 0.0], "{}: allocated and reserved, bytes too many", judged.id);
    }
}

#[test]
fn no_row_without_a_device_that_computes_has_a_time_or_the_lane_of_a_measured_run() {
    for row in rows() {
        assert!(row["measured"].get("step_time_s").is_none(), "{}", row["id"]);
        assert_eq!(row["lane"], "memory-only", "{}", row["id"]);
        assert!(row["quality"]["notes"].as_str().unwrap().contains("not a measured run"), "{}", row["id"]);
    }
}

#[test]
fn a_row_of_the_receipt_maker_becomes_a_scenario_that_flies() {
    for row in rows().iter().step_by(5) {
        let folder = alone("receipt-maker-scenario", row);
        let output = folder.windtunnel(&["receipt", "to-scenario", row["id"].as_str().unwrap(), "--from", "r.jsonl"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let scenario = Scenario::parse("written-out.toml", &text).unwrap_or_else(|error| panic!("{error}"));
        assert!(scenario.measured.is_some());
        // The script touches none of `fully_shard`'s finer settings, and its model and launches are PyTorch's own; all else a
        // row states. No board drew anything for it.
        let own = ["modules", "fused_qkv", "launch_blocking", "cuda_graphs", "repeat_kv", "rope"]
            .map(|key| format!("framework.{key}"));
        let own = |key: &String| key == "topology.power_limit" || own.contains(key);
        let unset = scenario.defaults().into_iter().map(|(key, _)| key);
        let unset: Vec<String> = unset.filter(|key| !key.starts_with("fsdp.") && !own(key)).collect();
        assert!(unset.is_empty(), "{}: {unset:?} are unset", row["id"]);
    }
}

#[test]
fn a_timed_row_and_one_that_ran_out_of_memory_are_held_against_their_predictions() {
    let mut row = rows()[0].clone();
    let folder = alone("receipt-maker-timed", &row);
    let files = check::read(&[folder.path.join("r.jsonl")]).unwrap();
    let case = check::case(&files.receipts.entries[0], &Tables::shipped()).unwrap();
    // A step as long as predicted: the format is what is tried here.
    let step = case.fly(false).unwrap().step.seconds();
    row["lane"] = "single-gpu".into();
    row["hardware"]["power_limit_w"] = 700.0.into();
    row["measured"]["step_time_s"] = step.into();
    row["measured"]["raw"]["time"] = json!({ "p10_s": step, "p90_s": step, "steps": 8, "board": {}, "soak_s": 0.0 });
    row["measured"]["raw"]["breakdown"] = json!({ "families": [{ "family": "matmul", "count": 1, "busy_s": step }] });
    folder.write("r.jsonl", &format!("{row}\n"));
    let output =
        folder.windtunnel(&["check", "r.jsonl", "--lane", "single-gpu", "--fail-above", "step_time.median=0.1%"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    row["measured"] = json!({ "oom": true, "raw": { "oom": "CUDA out of memory" } });
    folder.write("r.jsonl", &format!("{row}\n"));
    let output = folder.windtunnel(&["check", "r.jsonl"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("out of memory       fits"), "{text}");
}

#[test]
fn without_pytorch_the_receipt_maker_says_so_and_ends_as_on_bad_input() {
    let folder = Folder::new("receipt-maker-without");
    // Stands before an installed one, and fails as none does.
    folder.write("torch.py", "raise ModuleNotFoundError(\"No module named 'torch'\")\n");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("calibrate/receipts/make.py");
    let mut python = std::process::Command::new("python3");
    let Ok(output) = python.arg(script).arg("--list").env("PYTHONPATH", &folder.path).output() else {
        eprintln!("skipped: there is no python3 here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: PyTorch cannot be imported by ") && !said.contains("Traceback"), "{said}");
    assert!(said.contains("No module named 'torch'") && said.contains("pip install torch"), "{said}");
}
