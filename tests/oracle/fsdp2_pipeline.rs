//! Pipelines whose stages are `fully_shard` roots against PyTorch itself (`tests/oracles/fsdp2-pipeline.json`), and with
//! torchtitan's mixtures of experts (`torchtitan-pipeline.json`), rank by rank:
//! messages and collectives in host order, memory, and every allocation and free of the large pool in order.

use super::cases::{self, Config, Dims};
use super::torchtitan_experts;
use serde_json::{Value, json};
use windtunnel::memory::{Settings, replay};
use windtunnel::program::{Collective, Direction, Instr, Program};
use windtunnel::runtime;
use windtunnel::runtime::fsdp::Reshard;
use windtunnel::runtime::train::pipeline::{Order, Pipeline, split};
use windtunnel::runtime::train::{Checkpoint, TorchPlan};
use windtunnel::schedule::{Kind, csv, order};
use windtunnel::units::Bytes;

/// Blocks up to here are of the allocator's small pool: index arrays and numbers, which move no peak.
const SMALL: u64 = 1 << 20;
/// A segment of that pool \[B\]: sizes of index arrays are found by a formula, and decide whether one more is taken.
const SEGMENT: f64 = (2 << 20) as f64;

struct Case {
    id: String,
    ranks: Vec<Value>,
    programs: Vec<Program>,
    /// How far its peaks may be off.
    within: f64,
}

/// Those of a file.
fn read(file: &str, job: impl Fn(&Value) -> TorchPlan, within: f64) -> Vec<Case> {
    let Some(file) = cases::read(file) else { return vec![] };
    let case = |case: &Value| {
        let c = &case["config"];
        let number = |key: &str| c[key].as_u64().unwrap();
        let mut job = job(c);
        let schedule = order::TORCH.into_iter().find(|entry| entry.name == c["schedule"]).unwrap();
        let (ranks, virtual_stages) = (number("pp") as u32, number("virtual") as u32);
        let placement = schedule.placement;
        let schedule = match c["csv"].as_str() {
            Some(text) => Order::File(csv::read("plan.csv", text).unwrap().into(), placement),
            None => Order::Named(schedule),
        };
        job.pipeline = Some(Pipeline { schedule, ranks, virtual_stages, layers: layers(c) });
        let programs = runtime::Plan::Torch(job).compile().programs();
        let ranks = case["ranks"].as_array().unwrap().clone();
        Case { id: case["id"].as_str().unwrap().to_owned(), ranks, programs, within }
    };
    file["cases"].as_array().unwrap().iter().map(case).collect()
}

fn all() -> Vec<Case> {
    let mut all = read("fsdp2-pipeline.json", job, 0.0);
    all.extend(read("torchtitan-pipeline.json", experts, 0.01));
    all
}

fn layers(c: &Value) -> Vec<u64> {
    c["layers"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect()
}

/// Mixtures of experts, whose oracle has another shape of configuration.
fn experts(c: &Value) -> TorchPlan {
    let mut c = c.clone();
    c["layers"] = json!(layers(&c).iter().sum::<u64>());
    c["world"] = c["dp"].clone();
    torchtitan_experts::job(&c)
}

fn job(c: &Value) -> TorchPlan {
    let number = |key: &str| c[key].as_u64().unwrap();
    let layers = layers(c);
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
    job
}

/// What a rank issues, in words: gathers and reductions with their bytes, sends and receives with the other's rank.
fn issued(program: &Program, rank: u32, ranks: u32) -> Vec<String> {
    let each = program.ranks / ranks;
    let word = |instr: &Instr| match *instr {
        Instr::Collective { comm, .. } => {
            let comm = program.comm(comm);
            // What tensor-parallel ranks exchange is in the other oracles.
            match Some(comm.kind).filter(|_| ["dp_shard", "efsdp"].contains(&&*program.group(comm.group).name))? {
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
fn oracle_pipelines_take_the_memory_that_pytorch_takes_to_the_byte_but_for_a_segment_on_three_ranks() {
    let (mut wrong, mut segments, mut ranks) = (String::new(), 0, 0);
    for case in all() {
        for (rank, (theirs, program)) in case.ranks.iter().zip(&case.programs).enumerate() {
            let report = replay(program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
            let ours = [report.peak_allocated, report.peak_reserved];
            let theirs = ["peak_allocated", "peak_reserved"].map(|key| Bytes(theirs[key].as_u64().unwrap()));
            let off = |at: usize| ours[at].0.abs_diff(theirs[at].0) as f64;
            let most = case.within * theirs[0].0 as f64;
            ranks += 1;
            // Index arrays of `split_with_sizes`, known to 4 KiB, begin a segment of the small pool more, or do not.
            segments += usize::from(case.within == 0.0 && off(1) > 0.0);
            if off(0) > most || off(1) > most.max(SEGMENT) {
                wrong += &format!("{} rank {rank}: allocated and reserved {ours:?} {theirs:?}\n", case.id);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(segments <= 3 && ranks >= 80, "{segments} segments on {ranks} ranks");
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
