//! Against the plugins themselves, fetched before into the user's cache.
//!
//! What is expected is counted by hand from the programs beside this file, never copied from an answer.

use std::path::PathBuf;

use serde_json::Value;

use super::{Command, Output, PROGRAMS, folder, on_a_full_disk, said};

/// Runs the calibrator with the cache that plugins were fetched into.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate")).args(arguments).current_dir(PROGRAMS).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(arguments);
    assert!(output.status.success(), "{}", said(&output).1);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn for_slice(program: &str) -> Value {
    json(&["xla", "compile", program, "--topology", "v6e:4x4", "--json"])
}

/// Kind, bytes, groups and how often, of each collective.
fn collectives(answer: &Value) -> Vec<(String, u64, Vec<Vec<u64>>, u64)> {
    let numbers = |group: &Value| group.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let one = |one: &Value| {
        let groups = one["groups"].as_array().unwrap().iter().map(numbers).collect();
        (
            one["kind"].as_str().unwrap().to_owned(),
            one["bytes"].as_u64().unwrap(),
            groups,
            one["count"].as_u64().unwrap(),
        )
    };
    answer["collectives"].as_array().unwrap().iter().map(one).collect()
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn the_tpu_s_compiler_holds_the_arguments_and_does_the_products_that_the_program_writes() {
    let answer = for_slice("matmul.mlir");
    // x: 4096 x 2048 over 4; w and v: 2048 x 8192 over 16; two bytes each. y as x.
    let (x, w) = (4096 * 2048 * 2 / 4, 2048 * 8192 * 2 / 16);
    assert_eq!(answer["memory"]["argument"], x + 2 * w);
    assert_eq!(answer["memory"]["output"], x);
    // Two products, shared by 16.
    assert_eq!(answer["flops"]["matmul"], 2 * (2 * 4096 * 2048 * 8192_u64) / 16);
    // Weights are gathered along "data", to a quarter; the sum over "model" is reduced.
    let columns: Vec<Vec<u64>> = (0..4).map(|column| (0..4).map(|row| row * 4 + column).collect()).collect();
    let rows: Vec<Vec<u64>> = (0..4).map(|row| (0..4).map(|column| row * 4 + column).collect()).collect();
    let expected = [
        ("all-gather".to_owned(), 2048 * 8192 * 2 / 4, columns, 2),
        ("all-reduce".to_owned(), 4096 * 2048 * 2 / 4, rows, 1),
    ];
    assert_eq!(collectives(&answer), expected);
    assert_eq!(answer["plugin"], "libtpu 0.0.51");
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn what_a_loop_does_counts_as_often_as_it_turns() {
    let answer = for_slice("layers.mlir");
    assert_eq!(answer["flops"]["matmul"], 8 * 2 * 4096 * 1024 * 1024_u64 / 16);
    assert_eq!(answer["flops"]["unbounded"], Value::Array(vec![]));
    let all = collectives(&answer);
    assert_eq!(all, [("all-gather".to_owned(), 1024 * 1024 * 2, vec![(0..16).collect()], 8)]);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn a_gradient_that_is_kept_split_is_summed_whole_and_then_cut() {
    // No reduce-scatter with default flags: each device receives all of the sum and keeps a sixteenth.
    let answer = for_slice("gradient.mlir");
    assert_eq!(collectives(&answer), [("all-reduce".to_owned(), 1024 * 1024 * 2, vec![(0..16).collect()], 1)]);
    assert_eq!(answer["memory"]["output"], 1024 * 1024 * 2 / 16);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn what_does_not_fit_is_an_answer_with_an_exit_code_of_its_own() {
    // The first product's result alone is 16,777,216 x 32,768 x 2 bytes, 64 GiB on each of 16 chips.
    let text = std::fs::read_to_string(format!("{PROGRAMS}/matmul.mlir")).unwrap();
    let large =
        text.replace("4096x", "16777216x").replace("x8192xbf16", "x32768xbf16").replace("8192x2048", "32768x2048");
    let program = folder("large").join("large.mlir");
    std::fs::write(&program, large).unwrap();
    let output = run(&["xla", "compile", program.to_str().unwrap(), "--topology", "v6e:4x4"]);
    let (code, said) = said(&output);
    assert_eq!(code, Some(8), "{said}");
    assert!(said.contains("exceeds available HBM"), "{said}");
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn a_flag_that_the_compiler_does_not_know_is_named() {
    let output = run(&["xla", "compile", "layers.mlir", "--topology", "v6e:4x4", "--flag", "xla_nonsense=true"]);
    let (code, said) = said(&output);
    assert_eq!(code, Some(2));
    assert!(said.contains("xla_nonsense"), "{said}");
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn what_is_not_here_is_compiled_and_said_to_be_compiled() {
    let out = folder("estimate").join("points.jsonl");
    let out = out.to_str().unwrap();
    let output = run(&["xla", "--topology", "v6e:2x2", "--kernels", "collectives", "--minutes", "0.001", "--out", out]);
    assert!(output.status.success(), "{}", said(&output).1);
    let lines: Vec<Value> =
        std::fs::read_to_string(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["machine"]["source"], "compiled, not run");
    let first = &lines[1]["compiled"];
    assert_eq!(first["what"]["collective"]["kind"], "all_gather");
    assert_eq!(first["collectives"]["all-gather"], 1);
    assert_eq!(first["argument"], (1 << 20) / 4);
    assert!(lines.iter().all(|line| line.get("point").is_none()), "nothing ran");
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn a_full_disk_leaves_the_old_program() {
    let folder = folder("disk");
    let path = folder.join("answer.hlo");
    std::fs::write(&path, "old").unwrap();
    let cache = PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/windtunnel");
    for (path, why) in [(path.as_path(), "File too large"), (std::path::Path::new("/dev/full"), "No space left")] {
        let line = format!("xla compile matmul.mlir --plugin cpu --no-cache --hlo {}", path.display());
        let (code, said) = said(&on_a_full_disk(&cache, &line));
        assert!(code == Some(2) && said.contains(path.to_str().unwrap()) && said.contains(why), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(super::files(&folder), [path]);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn devices_compute_what_the_host_does() {
    let output = run(&["xla", "--plugin", "cpu", "--devices", "4", "--check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", said(&output).1);
    for agreed in ["matmul bf16: equal", "matmul int8: equal", "reduce_scatter on 4 devices: equal"] {
        assert!(text.contains(agreed), "{text}");
    }
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn attention_is_two_products_forward_and_with_one_again_five_backward() {
    let out = folder("attention").join("points.jsonl");
    let out = out.to_str().unwrap();
    let arguments = ["xla", "--topology", "v6e:1x1", "--kernels", "attention", "--minutes", "0.001", "--out", out];
    // Each time one at least is compiled.
    assert!(run(&arguments).status.success());
    assert!(run(&arguments).status.success());
    let text = std::fs::read_to_string(out).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // 32 heads of 128 over 2048 tokens: a product of all queries and all keys.
    let one = 2 * 32 * 128 * 2048 * 2048_u64;
    for (line, products) in lines[1..3].iter().zip([2, 5]) {
        assert_eq!(line["compiled"]["flops"], products * one, "{line}");
    }
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn what_was_measured_is_gone_on_with() {
    let out: PathBuf = folder("measured").join("points.jsonl");
    let file = out.to_str().unwrap();
    let arguments = ["xla", "--plugin", "cpu", "--kernels", "memory", "--minutes", "3", "--out", file];
    assert!(run(&arguments).status.success());
    let first = std::fs::read_to_string(&out).unwrap();
    assert_eq!(first.lines().filter(|line| line.starts_with("{\"point\"")).count(), 5, "{first}");
    let again = run(&arguments);
    assert!(String::from_utf8_lossy(&again.stdout).contains("5 were in the file already"));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), first);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch cpu"]
fn the_cpu_s_compiler_counts_the_same_products() {
    let answer = json(&["xla", "compile", "layers.mlir", "--plugin", "cpu", "--json"]);
    assert_eq!(answer["flops"]["matmul"], 8 * 2 * 4096 * 1024 * 1024_u64 / 16);
}

#[test]
#[ignore = "needs: windtunnel calibrate plugins fetch tpu"]
fn a_program_by_itself_is_answered_with_memory_collectives_by_axis_and_a_time() {
    let answer = json(&["compile-check", "--program", "layers.mlir", "--topology", "v6e:4x4", "--json", "-"]);
    let memory = &answer["memory"];
    // x: 4096 x 1024 over 16; w: 8 of 1024 x 1024 over 16; two bytes each. The result as x.
    let (x, w) = (4096 * 1024 * 2 / 16, 8 * 1024 * 1024 * 2 / 16);
    assert_eq!((&memory["argument"], &memory["output"]), (&Value::from(x + w), &Value::from(x)));
    assert_eq!(answer["flops"]["matmul"], 8 * 2 * 4096 * 1024 * 1024_u64 / 16);
    let gather = &answer["collectives"][0];
    assert_eq!((&gather["axes"], &gather["kind"], &gather["times"]), (&"data".into(), &"all-gather".into(), &8.into()));
    let time = &answer["time"];
    let [least, step, most] =
        [&time["least_s"], &time["priced"]["step_s"], &time["most_s"]].map(|seconds| seconds.as_f64().unwrap());
    assert!(0.0 < least && least <= step && step <= most && time["at_least"] == false, "{time}");
    // The same program for two slices of four chips would be another; for as many devices of another chip it is taken.
    let other = json(&["compile-check", "--program", "layers.mlir", "--topology", "v5e:4x4", "--json", "-"]);
    assert_eq!(other["memory"]["argument"], memory["argument"]);
}
