//! Logs of runs: lines as each framework writes them, and the receipt that they make.

use windtunnel::log::{self, LogError};
use windtunnel::scenario::Scenario;

use crate::command::Folder;

/// A run's log of some steps, with text around them that is not of steps.
fn log_of(line: impl Fn(usize, f64) -> String, rest: &str) -> String {
    // Two of warm-up, one checkpoint, else steady.
    let times = [30.0, 4.0, 2.0, 2.02, 1.98, 2.0, 2.0, 5.0, 2.0, 2.01, 1.99, 2.0];
    let lines = times.iter().enumerate().map(|(at, time)| line(at + 1, *time));
    format!("Starting up: 8 ranks\n{}\n{rest}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// A scenario of 16 sequences of 4,096 tokens on 8 chips.
const SCENARIO: &str = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n\
                        [mesh]\ndp_shard = 8\n[batch]\nsequence = 4096\nmicro = 2\n";

/// The table that a log makes, read as part of a scenario: the step [s], and its 10th and 90th percentiles.
fn receipt(file: &str, log: &str, sequences: Option<u64>) -> (windtunnel::scenario::Measured, String) {
    let run = log::read(file, log).unwrap_or_else(|error| panic!("{error}\n{log}"));
    let table = run.measured(file, sequences).unwrap_or_else(|error| panic!("{error}\n{log}"));
    let text = format!("{SCENARIO}\n{table}");
    let scenario = Scenario::parse("run.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (scenario.measured.expect("it was measured"), table)
}

fn seconds(measured: &windtunnel::scenario::Measured) -> f64 {
    measured.step.expect("a step").seconds()
}

#[test]
fn torchtitan_writes_rates_and_reserved_memory_in_colour() {
    let line = |step, time: f64| {
        let rate = 8192.0 / time;
        format!(
            "[rank0]:[titan] 2025-06-01 12:00:0{} - root - INFO - \u{1b}[31mstep: {step:2}  \u{1b}[32mloss:  8.12345  \u{1b}[38;2;180;60;0mgrad_norm:  1.2000  \
             \u{1b}[36mmemory: 47.50GiB(59.37%)  \u{1b}[34mtps: {rate:.0}  \u{1b}[36mtflops: 385.14  \u{1b}[35mmfu: 38.90%\u{1b}[39m",
            step % 10
        )
    };
    let (measured, table) = receipt("titan.log", &log_of(line, ""), None);
    assert!((seconds(&measured) - 2.0).abs() < 0.01, "{table}");
    assert!((measured.reserved.expect("it is printed").gib() - 47.5).abs() < 1e-3, "{table}");
    assert_eq!(measured.mfu, Some((0.389, "6N + 12LHS")), "{table}");
    assert!(table.contains("2 of 12 readings are dropped"), "{table}");
}

#[test]
fn megatron_writes_milliseconds_and_memory_once() {
    let line = |step, time: f64| {
        format!(
            " [2024-08-01 09:44:56] iteration {step:8}/     100 | consumed samples: {:12} | elapsed time per iteration (ms): {:.1} | \
             throughput per GPU (TFLOP/s/GPU): 411.2 | learning rate: 6.000000E-05 | global batch size:    32 |",
            step * 32,
            1e3 * time
        )
    };
    let memory = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 9554.5 | max allocated: 12288.0 | reserved: 13000.0 | max reserved: 13312.0\n\
                  [Rank 2] (after 2 iterations) memory (MB) | allocated: 9554.5 | max allocated: 11264.0 | reserved: 13000.0 | max reserved: 12288.0";
    let (measured, table) = receipt("slurm.out", &log_of(line, memory), None);
    assert!((seconds(&measured) - 2.0).abs() < 1e-9, "{table}");
    let gib = |bytes: Option<windtunnel::units::Bytes>| bytes.expect("it is printed").gib();
    assert!((gib(measured.allocated) - 12.0).abs() < 1e-3 && (gib(measured.reserved) - 13.0).abs() < 1e-3, "{table}");
    // The checkpoint is one of ten readings: it is the slowest tenth.
    let (low, high) = measured.spread.expect("ten readings");
    assert!(low.seconds() >= 1.98 && (2.0..5.1).contains(&high.seconds()), "{table}");
}

#[test]
fn nemo_maxtext_and_bridge_write_seconds() {
    let nemo = |step: usize, time: f64| {
        format!(
            "Training epoch 0, iteration {step}/99 | lr: 1.96e-06 | global_batch_size: 8 | global_step: {step} | peak_memory_usage: 68719476736 | \
             reduced_train_loss: 1.315 | train_step_timing in s: {time:.3}"
        )
    };
    let (measured, table) = receipt("nemo.log", &log_of(nemo, ""), None);
    assert!((seconds(&measured) - 2.0).abs() < 1e-9, "{table}");
    assert_eq!(measured.allocated.expect("it is printed").gib(), 64.0, "{table}");
    let bar = |step: usize, time: f64| {
        format!(
            "Epoch 0: :  10%|█         | {step}/100 [00:48<00:00, reduced_train_loss=0.0172, global_step={step}.00, train_step_timing in s={time:.3}]"
        )
    };
    assert!((seconds(&receipt("nemo1.log", &log_of(bar, ""), None).0) - 2.0).abs() < 1e-9);
    let maxtext = |step: usize, time: f64| {
        format!(
            "completed step: {step}, seconds: {time:.3}, TFLOP/s/device: 412.3, Tokens/s/device: 4096.000, total_weights: 65536, loss: 10.1"
        )
    };
    assert!((seconds(&receipt("maxtext.log", &log_of(maxtext, ""), None).0) - 2.0).abs() < 1e-9);
    let bridge = |step: usize, time: f64| {
        format!("iteration {step}/12\nStep Time : {time:.2}s GPU utilization: 600.1MODEL_TFLOP/s/GPU")
    };
    assert!((seconds(&receipt("bridge.log", &log_of(bridge, ""), None).0) - 2.0).abs() < 1e-9);
}

#[test]
fn deepspeed_writes_sequences_per_second_and_needs_the_scenario() {
    let line = |step: usize, time: f64| {
        format!(
            "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=7.9, \
             CurrSamplesPerSec={:.6}, MemAllocated=6.01GB, MaxMemAllocated=19.52GB",
            16.0 / time
        )
    };
    let log = log_of(line, "");
    let (measured, table) = receipt("ds.log", &log, Some(16));
    assert!((seconds(&measured) - 2.0).abs() < 1e-6, "{table}");
    let alone = log::read("ds.log", &log).expect("a log").measured("ds.log", None).expect_err("no batch");
    assert!(alone.contains("add --scenario"), "{alone}");
    let pipe = |step: usize, time: f64| format!("steps: {step} loss: 8.1234 iter time (s): {time:.3} samples/sec: 8.0");
    assert!((seconds(&receipt("pipe.log", &log_of(pipe, ""), None).0) - 2.0).abs() < 1e-9);
}

#[test]
fn the_trainer_of_hugging_face_writes_one_mean() {
    let log = "{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}\n\
               {'train_runtime': 123.4, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.5, 'train_loss': 2.1, 'epoch': 1.0}\n";
    let (measured, table) = receipt("trainer.log", log, None);
    assert!((seconds(&measured) - 2.0).abs() < 1e-9, "{table}");
    assert!(table.contains("warm-up among them"), "{table}");
}

#[test]
fn a_log_of_something_else_is_refused_with_what_is_read() {
    let refused = log::read("syslog", "kernel: step up\nloss of signal\n").expect_err("no log of training");
    let LogError::Unknown { known, .. } = &refused else { panic!("{refused}") };
    assert!(known.contains("torchtitan") && known.contains("MaxText"), "{refused}");
    assert!(refused.to_string().contains("rank 0"), "{refused}");
    // A line cut in the middle is no line of a step, and breaks nothing.
    let cut = "completed step: 7, sec";
    assert!(log::read("cut.log", cut).is_err());
}

#[test]
fn a_figure_that_no_step_has_is_refused_with_its_line() {
    for (line, said) in [
        ("elapsed time per iteration (ms): 1e308", "cut.log:2: a step's time is 1e305 s: expected 1e-6 to 1e6"),
        ("elapsed time per iteration (ms): 2e-9", "expected 1e-6 to 1e6"),
        ("elapsed time per iteration (ms): 900.0 | max reserved: 1e300", "memory is 1.048576e306 bytes"),
    ] {
        let text = format!("iteration 1 | elapsed time per iteration (ms): 800.0\niteration 2 | {line}\n");
        let refused = log::read("cut.log", &text).expect_err(line);
        assert!(matches!(refused, LogError::Impossible { line: 2, .. }), "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn the_command_makes_a_receipt_and_check_keeps_a_history() {
    let folder = Folder::new("logs");
    folder.write("mine.toml", SCENARIO);
    let maxtext = |step: usize, time: f64| {
        format!("completed step: {step}, seconds: {time:.3}, TFLOP/s/device: 412.3, loss: 10.1")
    };
    folder.write("train.log", &log_of(maxtext, ""));
    std::fs::create_dir(folder.path.join("runs")).expect("a folder");
    let output = folder.windtunnel(&["import", "log", "train.log", "--scenario", "mine.toml", "--out", "runs/a.toml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The same job on three days: slower since the last commit.
    let receipt = String::from_utf8(folder.read("runs/a.toml")).expect("text");
    assert!(receipt.starts_with("runtime = \"fsdp2\"") && receipt.contains("step_time = ["), "{receipt}");
    for (file, date, commit, time) in
        [("a", "2026-09-01", "aaa", 2.0), ("b", "2026-09-20", "bbb", 2.01), ("c", "2026-10-07", "ccc", 2.4)]
    {
        let run =
            format!("{SCENARIO}\n[measured]\nstep_time = \"{time} s\"\ndate = \"{date}\"\ncommit = \"{commit}\"\n");
        folder.write(&format!("runs/{file}.toml"), &run);
    }
    let output = folder.windtunnel(&["check", "runs", "--json", "check.json"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{report}");
    assert!(report.contains("part on 2026-10-07, commit ccc"), "{report}");
    let json: serde_json::Value = serde_json::from_slice(&folder.read("check.json")).expect("it is JSON");
    assert_eq!(json["history"][0]["parted"], "runs/c.toml", "{:#}", json["history"]);
    let twice = folder.refuses(&["import", "log", "train.log", "--scenario", "runs/a.toml"]);
    assert!(twice.contains("has a [measured] table"), "{twice}");
    std::fs::create_dir(folder.path.join("empty")).expect("a folder");
    assert!(folder.refuses(&["check", "empty"]).contains("holds no scenario"));
}
