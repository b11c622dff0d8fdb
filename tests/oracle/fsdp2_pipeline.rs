//! Pipelines whose stages are `fully_shard` roots against PyTorch itself (`tests/oracles/fsdp2-pipeline.json`), rank by rank:
//! messages and collectives in host order, memory, and every allocation and free of the large pool in order.

use super::cases::{self, Config, Dims};
use serde_json::{Value, json};
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Collective, Direction, Instr, Program};
use windtunnel::runtime::Job;
use windtunnel::runtime::fsdp::Reshard;
use windtunnel::runtime::train::{Checkpoint, pipeline::Pipeline, pipeline::split};
use windtunnel::schedule::{Kind, order};
use windtunnel::units::Bytes;

/// Blocks up to here are of the allocator's small pool: index arrays and numbers, which move no peak.
const SMALL: u64 = 1 << 20;

struct Case {
    id: String,
    ranks: Vec<Value>,
    programs: Vec<Program>,
}

/// Those whose schedules are simulated.
fn all() -> Vec<Case> {
    let Some(file) = cases::read("fsdp2-pipeline.json") else { return vec![] };
    let cases = file["cases"].as_array().unwrap().iter();
    let cases = cases.filter_map(|case| {
        let programs = Job::of(job(&case["config"])?).compile().classes;
        let ranks = case["ranks"].as_array().unwrap().clone();
        Some(Case { id: case["id"].as_str().unwrap().to_owned(), ranks, programs })
    });
    let all: Vec<Case> = cases.collect();
    let ranks = all.iter().map(|case| case.ranks.len()).sum::<usize>();
    assert_eq!((all.len(), ranks), (17, 40), "three more have halved backwards");
    all
}

fn job(c: &Value) -> Option<windtunnel::runtime::train::Job> {
    let number = |key: &str| c[key].as_u64().unwrap();
    let layers: Vec<u64> = c["layers"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
    let dims: Dims = serde_json::from_value(json!({
        "dim": c["dim"], "n_layers": layers.iter().sum::<u64>(), "n_heads": c["heads"], "n_kv_heads": c["kv_heads"],
        "ffn": c["ffn"], "vocab": c["vocab"], "head_dim": 0, "n_experts": 0,
    }))
    .unwrap();
    let config: Config = serde_json::from_value(json!({
        "seq": c["seq"], "bs": c["bs"], "world": number("dp") * number("tp"), "wrap": c["wrap"], "reshard": c["reshard"],
        "root_reshard": "default", "mp": "mixed", "ac": "none", "opt": "adamw_fused", "ga": c["micro"], "ga_sync": "last",
        "fwd_prefetch": 0, "bwd_prefetch": 0, "tp": c["tp"], "hsdp": 1, "early_stop": false, "clip": c["clip"],
        "rs_max_input_buffers": 1, "cpu_offload": false, "sp": true, "loss_parallel": true,
    }))
    .unwrap();
    let mut job = cases::job(&dims, &config).unwrap();
    if c["reshard"] == true && job.fsdp.wrap.head.is_some() {
        job.fsdp.wrap.head = Some(Reshard::Always);
    }
    if c["ac"] == "full" {
        job.checkpoint = Checkpoint::Full;
    }
    let schedule = order::TORCH.into_iter().find(|entry| entry.name == c["schedule"])?;
    let (ranks, virtual_stages) = (number("pp") as u32, number("virtual") as u32);
    job.pipeline = Some(Pipeline { schedule, ranks, virtual_stages, layers });
    Some(job)
}

/// What a rank issues, in words: gathers and reductions with their bytes, sends and receives with the other's rank.
fn issued(program: &Program, rank: u32, ranks: u32) -> Vec<String> {
    let each = program.ranks / ranks;
    let word = |instr: &Instr| match *instr {
        Instr::Collective { comm, .. } => {
            let comm = program.comm(comm);
            // What tensor-parallel ranks exchange is in the other oracles.
            match Some(comm.kind).filter(|_| program.group(comm.group).name == "dp_shard")? {
                Collective::AllGather => Some(format!("AG {}", comm.bytes.0)),
                Collective::ReduceScatter => Some(format!("RS {}", comm.bytes.0)),
                _ => None,
            }
        }
        Instr::Exchange { exchange, .. } => {
            let ends = program.exchanges[exchange.0 as usize].iter().map(|id| program.transfers[id.0 as usize]);
            let bytes = program.transfers[program.exchanges[exchange.0 as usize][0].0 as usize].bytes;
            let words: Vec<String> = ends
                .map(|end| {
                    let word = if end.direction == Direction::Send { "send" } else { "recv" };
                    let peer = program.group(end.group).peer(rank * each, end.ahead).unwrap() / each;
                    format!("{word}{peer}")
                })
                .collect();
            Some(format!("{} {}", words.join("+"), bytes.0))
        }
        _ => None,
    };
    program.step.iter().filter_map(word).collect()
}

#[test]
fn oracle_pipelines_issue_pytorchs_messages_and_collectives_in_order() {
    for case in all() {
        for (rank, (theirs, program)) in case.ranks.iter().zip(&case.programs).enumerate() {
            let computes = |word: &str| {
                let kinds = [Kind::Forward, Kind::Backward, Kind::Input, Kind::Weight];
                !word.contains(' ') && kinds.iter().any(|kind| word.contains(kind.word()))
            };
            let theirs: Vec<&str> = theirs["order"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let theirs: Vec<&str> = theirs.into_iter().filter(|word| !computes(word)).collect();
            let ours = issued(program, rank as u32, case.ranks.len() as u32);
            assert_eq!(ours, theirs, "{} rank {rank}", case.id);
        }
    }
}

#[test]
fn oracle_pipelines_take_the_memory_that_pytorch_takes_to_the_byte() {
    for case in all() {
        for (rank, (theirs, program)) in case.ranks.iter().zip(&case.programs).enumerate() {
            let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
            let ours = [report.peak_allocated, report.peak_reserved];
            let theirs = ["peak_allocated", "peak_reserved"].map(|key| Bytes(theirs[key].as_u64().unwrap()));
            assert_eq!(ours, theirs, "{} rank {rank}: allocated and reserved", case.id);
        }
    }
}

#[test]
fn oracle_pipelines_take_and_give_back_every_large_block_in_pytorchs_order() {
    let mut wrong = String::new();
    for case in all() {
        for (rank, (theirs, program)) in case.ranks.iter().zip(&case.programs).enumerate() {
            let event = |instr: &Instr| match *instr {
                Instr::Alloc { buffer } => Some(('+', program.buffer(buffer).bytes.0, program.buffer(buffer).name)),
                Instr::Free { buffer } => Some(('-', program.buffer(buffer).bytes.0, program.buffer(buffer).name)),
                _ => None,
            };
            let large = |&(_, bytes, _): &(char, u64, &str)| bytes > SMALL;
            let ours: Vec<_> = program.step.iter().filter_map(event).filter(large).collect();
            let text = theirs["events"].as_str().unwrap();
            let parse = |event: &str| (event.chars().next().unwrap(), event[1..].parse::<u64>().unwrap());
            let theirs: Vec<_> = text.split_whitespace().map(parse).filter(|&(_, bytes)| bytes > SMALL).collect();
            let same = |at: usize| ours.get(at).map(|&(sign, bytes, _)| (sign, bytes)) == theirs.get(at).copied();
            if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| !same(at)) {
                let around = at.saturating_sub(6)..at + 8;
                wrong += &format!(
                    "{} rank {rank}: event {at} of {} and {}:\n  ours {:?}\ntheirs {:?}\n",
                    case.id,
                    ours.len(),
                    theirs.len(),
                    &ours[around.start..around.end.min(ours.len())],
                    &theirs[around.start..around.end.min(theirs.len())]
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_models_are_cut_where_torchtitan_cuts_them() {
    let Some(file) = cases::read("fsdp2-pipeline.json") else { return };
    for case in file["splits"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        let ours = split(number("layers"), number("stages"), [number("first"), number("last")]);
        let theirs: Option<Vec<u64>> = serde_json::from_value(case["blocks"].clone()).unwrap();
        assert_eq!(ours.ok(), theirs, "{case}");
    }
}
