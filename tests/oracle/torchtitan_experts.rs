//! Mixtures of experts under torchtitan against torchtitan itself (`tests/oracles/torchtitan-experts.json`): collectives in
//! host order, memory phase by phase, and every allocation and free of the large pool in order.

use super::cases::{self, Config, Dims};
use serde_json::{Value, json};
use windtunnel::memory::{Settings, replay};
use windtunnel::model::experts::{Experts, Implementation, Router, Score};
use windtunnel::model::head::Loss;
use windtunnel::model::latent::LatentAttention;
use windtunnel::model::routing::Load;
use windtunnel::model::{FeedForward, Layer, Layers, Mixer, Position};
use windtunnel::program::{Collective, Instr, Program};
use windtunnel::runtime::train::{Checkpoint, TorchPlan, compile};
use windtunnel::units::Bytes;

/// Blocks up to here are of the allocator's small pool: index arrays and counts, which move no peak.
const SMALL: u64 = 1 << 20;

/// The job of a case; in a pipeline it takes more micro-batches and keeps parameters after forward.
pub fn job(c: &Value) -> TorchPlan {
    let number = |key: &str| c[key].as_u64().unwrap();
    let dims: Dims = serde_json::from_value(json!({
        "dim": c["dim"], "n_layers": c["layers"], "n_heads": c["heads"], "n_kv_heads": c["kv_heads"], "ffn": c["ffn"],
        "vocab": c["vocab"], "head_dim": 0, "n_experts": 0,
    }))
    .unwrap();
    let config: Config = serde_json::from_value(json!({
        "seq": c["seq"], "bs": c["bs"], "world": c["world"], "wrap": "titan", "reshard": c["reshard"] != false, "root_reshard": "default",
        "mp": "mixed", "ac": "none", "opt": "adamw_fused", "ga": c["micro"].as_u64().unwrap_or(1), "ga_sync": "last",
        "fwd_prefetch": u64::from(number("ep") > 1), "bwd_prefetch": u64::from(number("ep") > 1), "tp": 1, "hsdp": 1,
        "early_stop": c["early_stop"], "clip": c["clip"], "rs_max_input_buffers": 1, "cpu_offload": false,
    }))
    .unwrap();
    let mut job = cases::job(&dims, &config).unwrap();
    let experts = Experts {
        count: number("experts"),
        top_k: number("top_k"),
        width: number("width"),
        latent: None,
        shared: number("shared"),
        shared_gate: false,
        gating: job.model.gating(),
        router: Router {
            score: if c["score"] == "sigmoid" { Score::Sigmoid } else { Score::Softmax },
            normalises: c["norm"] == true,
            scales: c["scale"] != 1.0,
            bias: false,
            correction: c["balance"] == true,
            groups: c["groups"].as_array().map(|sizes| (sizes[0].as_u64().unwrap(), sizes[1].as_u64().unwrap())),
        },
        bias: false,
        clamped: false,
        auxiliary_loss: false,
        load: Load::Balanced,
    };
    let dense = job.model.layers.at(0).clone();
    let mut mixer = dense.mixer;
    if c["latent"].is_object() {
        let size = |key: &str| c["latent"][key].as_u64().unwrap();
        let latent = LatentAttention {
            heads: number("heads"),
            query_rank: Some(size("query_rank")).filter(|&rank| rank > 0),
            rank: size("rank"),
            plain: size("plain"),
            rotated: size("rotated"),
            value: size("value"),
        };
        mixer = Mixer::Latent(latent);
        job.model.position = Position::Rope { dims: latent.rotated };
    }
    job.model.layers = Layers::new(number("layers"), number("dense_first"), 1, |place| {
        let sparse = place >= number("dense_first");
        let feed_forward = if sparse { FeedForward::Experts(experts.clone()) } else { dense.feed_forward.clone() };
        Layer { mixer, feed_forward, norms: dense.norms }
    });
    job.fsdp.prefetches_ends = number("ep") > 1;
    job.style.experts = Implementation::Torchtitan { ranks: number("ep") };
    if let Some(chunks @ 1..) = c["chunks"].as_u64() {
        job.loss = Loss::ChunkedGradients { chunks: chunks as u32, compiled: false, unshards: false };
    }
    job.checkpoint = match c["ac"].as_str().unwrap() {
        "none" => Checkpoint::None,
        "full" => Checkpoint::Full,
        _ => Checkpoint::SelectiveOp,
    };
    job
}

fn all() -> Vec<Value> {
    let Some(file) = cases::read("torchtitan-experts.json") else { return vec![] };
    file["cases"].as_array().unwrap().clone()
}

fn kind(kind: Collective) -> &'static str {
    match kind {
        Collective::AllGather => "all_gather",
        Collective::ReduceScatter => "reduce_scatter",
        Collective::AllReduce => "all_reduce",
        Collective::AllToAll => "all_to_all",
        other => panic!("torchtitan issues no {other:?}"),
    }
}

/// Kinds and bytes; norms and counts of tokens that all ranks add up are small, and counted without.
fn collectives(program: &Program) -> Vec<(String, u64)> {
    let comm = |instr: &Instr| match instr {
        Instr::Collective { comm, .. } => Some(program.comm(*comm)),
        _ => None,
    };
    let comms = program.step.iter().filter_map(comm);
    comms
        .map(|comm| (kind(comm.kind).to_owned(), if comm.kind == Collective::AllReduce { 0 } else { comm.bytes.0 }))
        .collect()
}

#[test]
fn oracle_torchtitans_mixtures_issue_its_collectives_in_order() {
    for case in all() {
        let theirs: Vec<(String, u64)> = case["collectives"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| {
                let kind = one[0].as_str().unwrap();
                (kind.to_owned(), if kind == "all_reduce" { 0 } else { one[1].as_u64().unwrap() })
            })
            .collect();
        let ours = collectives(&compile(&job(&case["config"])));
        assert_eq!(ours, theirs, "{}", case["id"]);
    }
}

#[test]
fn oracle_torchtitans_mixtures_take_the_memory_it_takes() {
    let mut wrong = String::new();
    for case in all() {
        let settings = Settings { expandable_segments: false, capacity: Bytes(1 << 43) };
        let report = replay(&compile(&job(&case["config"])), settings);
        for phase in &report.phases {
            let theirs = case["phases"][&phase.name]["peak"].as_u64().unwrap();
            let off = phase.peak_allocated.0 as f64 / theirs as f64 - 1.0;
            println!("{} {}: {} {theirs} {:+.3} %", case["id"], phase.name, phase.peak_allocated.0, 100.0 * off);
            if off.abs() > 0.01 {
                wrong += &format!("{} {}: {:+.2} %\n", case["id"], phase.name, 100.0 * off);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_torchtitans_mixtures_take_and_give_back_every_large_block_in_its_order() {
    let mut wrong = String::new();
    for case in all() {
        let program = compile(&job(&case["config"]));
        let event = |instr: &Instr| match *instr {
            Instr::Alloc { buffer } => Some(('+', program.buffer(buffer).bytes.0)),
            Instr::Free { buffer } => Some(('-', program.buffer(buffer).bytes.0)),
            _ => None,
        };
        let large = |&(_, bytes): &(char, u64)| bytes > SMALL;
        let ours: Vec<(char, u64)> = program.step.iter().filter_map(event).filter(large).collect();
        let text = case["events"].as_str().unwrap();
        let theirs = text.split_whitespace().map(|event| (event.chars().next().unwrap(), event[1..].parse().unwrap()));
        let theirs: Vec<(char, u64)> = theirs.filter(large).collect();
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) {
            let around = at.saturating_sub(4)..at + 8;
            wrong += &format!(
                "{}: event {at} of {} and {}:\n  ours {:?}\ntheirs {:?}\n",
                case["id"],
                ours.len(),
                theirs.len(),
                &ours[around.start..around.end.min(ours.len())],
                &theirs[around.start..around.end.min(theirs.len())]
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
