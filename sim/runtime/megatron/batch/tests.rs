//! What a rank's host asks of the device to have a micro-batch read, against the releases' own code
//! (`tests/oracles/megatron_batch.py`).

use serde_json::Value;

use super::*;
use crate::program::builder::Section;
use crate::program::{Builder, Group, Instr, Program, StreamId};
use crate::runtime::eager::framework::Nanotron;
use crate::runtime::eager::{FrameworkState, LayerNorm, Settings, TensorGroup};

const SETTINGS: Settings = Settings {
    workspace: 0,
    persistent_workspace: false,
    fused_rms_norm: true,
    norm_code: crate::model::style::NormCode::Torch,
    layer_norm: LayerNorm::Torch,
    bias_tensor: false,
    sms: 132,
    early_stop: false,
    attention_reads_back: false,
    copies_gradients: false,
    trained: None,
    flex_attention: false,
    unnamed_logits: false,
    offload: None,
    forward: Dispatch::EagerForward,
    backward: Dispatch::EagerBackward,
};

fn cases() -> Vec<Value> {
    let text = include_str!("../../../../tests/oracles/megatron-batch.json");
    let mut file: Value = serde_json::from_str(text).expect("the oracle's file is JSON");
    file["cases"].take().as_array().expect("a list").clone()
}

fn reading(case: &Value) -> Reading {
    let number = |key: &str| case[key].as_u64().expect("a number");
    let mask = case["mask"].as_bool().expect("a truth");
    let loader = match case["release"].as_str().expect("a release") {
        "2.5" => Loader::SizesFirst { everywhere: true },
        "0.4" => Loader::SizesFirst { everywhere: false },
        "0.5" => Loader::Broadcast { mask, lengths: false },
        release => Loader::Broadcast { mask, lengths: release == "0.16" },
    };
    let ends = match case["where"].as_str().expect("a stage") {
        "whole" => [true, true],
        "first" => [true, false],
        "last" => [false, true],
        _ => [false, false],
    };
    Reading { loader, micro: number("micro"), seq: number("seq"), cp: number("cp"), ends }
}

/// The program of one reading, what it leaves on the device, and what each part takes there.
fn read(reading: Reading, ranks: u32) -> (Program, [u64; 5]) {
    let mut program = Builder::new(ranks, &["compute", "tensor-parallel"]);
    let group = program.add_group(Group::new("tp", ranks, 1));
    program.section(Section::Step);
    let tensor = TensorGroup { group, ranks: u64::from(ranks), stream: StreamId(1) };
    let nanotron = Nanotron { tensor: (ranks > 1).then_some(tensor), hooks: None };
    let mut eager = Eager::new(program, SETTINGS, 0, FrameworkState::Nanotron(nanotron));
    let batch = Batch::read(&mut eager, reading);
    let parts = [batch.tokens, batch.labels, batch.loss_mask, batch.mask, batch.positions];
    let bytes = parts.map(|part| eager.bytes(part));
    (eager.program.finish(), bytes)
}

/// Its copies, waits of the host, kernels and broadcasts, in the oracle's words.
fn calls(program: &Program) -> Vec<String> {
    let mut calls = vec![];
    for instr in &program.step {
        match *instr {
            Instr::Launch { kernel, .. } => calls.push(match program.kernel(kernel).work {
                Work::HostCopy { bytes, to_host: false } => format!("to device {}", bytes.0),
                Work::HostCopy { bytes, to_host: true } => format!("to host {}", bytes.0),
                Work::Memory { written, .. } if program.kernel(kernel).name == "aten.zeros" => {
                    format!("fill {}", written.0)
                }
                _ => "kernel".to_owned(),
            }),
            Instr::HostWait { .. } => calls.push("wait".to_owned()),
            Instr::Collective { comm, .. } => calls.push(format!("broadcast {}", program.comm(comm).bytes.0)),
            Instr::Host { .. } => calls.push("broadcast".to_owned()),
            _ => {}
        }
    }
    calls
}

#[test]
fn a_micro_batch_is_read_as_each_release_of_megatron_lm_reads_it() {
    let cases = cases();
    assert_eq!(cases.len(), 58);
    for case in &cases {
        let (program, parts) = read(reading(case), 2);
        let expected: Vec<&str> = case["calls"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        assert_eq!(calls(&program), expected, "{case}");
        let expected: Vec<u64> =
            case["parts"].as_array().expect("a list").iter().map(|v| v.as_u64().unwrap_or(0)).collect();
        assert_eq!(parts[..], expected, "{case}");
        // What was taken on the way is given back. The allocator rounds to 512 bytes.
        let held: i64 = program
            .step
            .iter()
            .map(|instr| match *instr {
                Instr::Alloc { buffer } => program.buffer(buffer).bytes.0.next_multiple_of(512) as i64,
                Instr::Free { buffer } => -(program.buffer(buffer).bytes.0.next_multiple_of(512) as i64),
                _ => 0,
            })
            .sum();
        assert_eq!(Some(held), case["held"].as_i64(), "{case}");
    }
}

#[test]
fn a_rank_alone_calls_the_same_broadcasts_and_moves_nothing() {
    for case in cases() {
        let several = calls(&read(reading(&case), 2).0);
        let alone = calls(&read(reading(&case), 1).0);
        let without = |calls: &[String]| {
            calls.iter().map(|call| call.replace(char::is_numeric, "")).map(|c| c.trim().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(without(&several), without(&alone), "{case}");
        assert!(alone.iter().all(|call| !call.starts_with("broadcast ")), "{case}");
    }
}

#[test]
fn ranks_that_share_a_sequence_keep_their_rows_of_each_part() {
    let loader = Loader::EachRank { mask: true };
    let whole = Reading { loader, micro: 1, seq: 4096, cp: 1, ends: [true, true] };
    let (_, all) = read(whole, 1);
    let (program, rows) = read(Reading { cp: 4, ..whole }, 1);
    assert_eq!(rows.map(|bytes| bytes * 4), all);
    // An index each, and a kernel that selects.
    let calls = calls(&program);
    assert_eq!(calls.iter().filter(|call| *call == "to device 16").count(), 5);
    assert_eq!(calls.iter().filter(|call| *call == "kernel").count(), 5);
}

#[test]
fn a_loader_of_each_rank_copies_what_its_stage_needs() {
    let reading = |ends| Reading { loader: Loader::EachRank { mask: false }, micro: 1, seq: 2048, cp: 1, ends };
    let bytes = |ends| read(reading(ends), 2).1;
    assert_eq!(bytes([true, false]), [16384, 0, 0, 0, 16384]);
    assert_eq!(bytes([false, true]), [0, 16384, 8192, 0, 0]);
    assert_eq!(bytes([false, false]), [0; 5]);
}
