//! Llama 3 under torchtitan 0.3.0 against its own `Trainer` (`tests/oracles/torchtitan.json`): peaks, collectives in host order, and
//! every allocation and free of the large pool in order.

use super::cases::{self, Config, Dims};
use super::memory::first_large_difference;
use serde_json::{Value, json};
use windtunnel::memory::{Settings, replay};
use windtunnel::model::head::Loss;
use windtunnel::model::style::Rope;
use windtunnel::program::{Collective, Instr, Program};
use windtunnel::runtime::fsdp::Reshard;
use windtunnel::runtime::train::{Initialisation, TorchPlan, compile};
use windtunnel::units::Bytes;

/// Whether a case's optimizer is simulated: it is not where its states are in bf16.
fn followed(case: &Value) -> bool {
    case["config"]["implementation"] != "fused_opt_states_bf16"
}

/// Cases with CUDA graphs, or without.
fn captured(graphs: bool) -> Vec<Value> {
    all().into_iter().filter(|case| (case["config"]["disable_cuda_graphs"] != true) == graphs).collect()
}

/// The job of a case.
fn job(c: &Value) -> TorchPlan {
    let dims: Dims = serde_json::from_value(json!({
        "dim": c["dim"], "n_layers": c["layers"], "n_heads": c["n_heads"], "n_kv_heads": c["n_kv_heads"],
        "ffn": c["hidden_dim"], "vocab": c["vocab_size"], "head_dim": 0, "n_experts": 0,
    }))
    .unwrap();
    let keeps = c["fsdp_reshard_after_forward"] == "never";
    let components = c["components"].as_array().unwrap();
    let recompute = match c["activation_checkpoint"].as_str() {
        None => "none",
        Some("selective") => "sac_op",
        Some(other) => other,
    };
    let compiled = c["compile"] == true;
    let config: Config = serde_json::from_value(json!({
        "seq": c["seq_len"], "bs": c["local_batch_size"], "world": c["world"], "wrap": "titan", "reshard": !keeps,
        "root_reshard": "default", "mp": "mixed", "ac": recompute,
        "opt": if c["implementation"] == "foreach" { "adamw_foreach" } else { "adamw_fused" },
        "ga": c["accumulation"], "ga_sync": "every", "fwd_prefetch": 0, "bwd_prefetch": 0, "tp": 1,
        "hsdp": c["data_parallel_replicate_degree"], "early_stop": false, "clip": 1, "rs_max_input_buffers": 1,
        "cpu_offload": false, "ga_is_last": false, "compile": compiled, "compile_loss": compiled && components.iter().any(|it| it == "loss"),
    }))
    .unwrap();
    let mut job = cases::job(&dims, &config).unwrap();
    if c["fsdp_reshard_after_forward"] == "always" {
        job.fsdp.wrap.head = Some(Reshard::Always);
    }
    job.initialisation = Initialisation::TruncatedNormal;
    job.style.rope = Rope::ComplexByPosition;
    job.cuda_graphs = c["disable_cuda_graphs"] != true;
    job.style.fused_qkv = c["fuse_qkv"] == true;
    job.eager.flex_attention = c["attention"] == "flex";
    if let Some(chunks) = c["num_chunks"].as_u64() {
        job.loss = Loss::ChunkedGradients { chunks: chunks as u32, compiled: config.compile_loss, unshards: true };
    }
    job
}

fn all() -> Vec<Value> {
    let Some(file) = cases::read("torchtitan.json") else { return vec![] };
    file["cases"].as_array().unwrap().iter().filter(|case| followed(case)).cloned().collect()
}

/// Peaks of a case, allocated and reserved, ours over torchtitan's less one.
fn errors(case: &Value) -> [f64; 2] {
    let settings = Settings { expandable_segments: false, capacity: Bytes(1 << 43) };
    let report = replay(&compile(&job(&case["config"])), settings);
    let off = |ours: Bytes, key: &str| ours.0 as f64 / case[key].as_f64().unwrap() - 1.0;
    let both = [off(report.peak_allocated, "peak_allocated"), off(report.peak_reserved, "peak_reserved")];
    let [allocated, reserved] = both.map(|error| 100.0 * error);
    println!("{:28} allocated {allocated:+7.3} %, reserved {reserved:+7.3} %", case["id"].as_str().unwrap());
    for phase in &report.phases {
        let named = &case["phases"][&phase.name]["peak"];
        if let Some(theirs) = named.as_f64() {
            print!("    {} {:+.3} %", phase.name, 100.0 * (phase.peak_allocated.0 as f64 / theirs - 1.0));
        }
    }
    println!();
    both
}

/// How far a case may be off, allocated and reserved.
const EAGER: [f64; 2] = [0.0005, 0.001];
const COMPILED: [f64; 2] = [0.005, 0.015];

#[test]
fn oracle_torchtitan_takes_the_memory_it_takes() {
    for (compiled, bounds) in [(false, EAGER), (true, COMPILED)] {
        let of_kind = |case: &&Value| (case["config"]["compile"] == true) == compiled;
        let cases: Vec<Value> = captured(false).iter().filter(of_kind).cloned().collect();
        let errors: Vec<[f64; 2]> = cases.iter().map(errors).collect();
        let worst = [0, 1].map(|at| errors.iter().map(|both| both[at].abs()).fold(0.0, f64::max));
        let [allocated, reserved] = worst.map(|error| 100.0 * error);
        println!(
            "{} cases, compiled {compiled}: allocated within {allocated:.3} %, reserved within {reserved:.3} %",
            cases.len()
        );
        assert!(worst[0] <= bounds[0] && worst[1] <= bounds[1], "compiled {compiled}: {allocated} %, {reserved} %");
    }
}

#[test]
fn oracle_torchtitan_in_a_cuda_graph_takes_the_memory_it_takes() {
    for case in captured(true) {
        let settings = Settings { expandable_segments: false, capacity: Bytes(1 << 43) };
        let program = compile(&job(&case["config"]));
        let report = replay(&program, settings);
        let first = usize::from(program.graph_pool.unwrap().0);
        let side = |streams: &[Bytes]| streams.iter().map(|bytes| bytes.0).sum::<u64>();
        let of_pools = [
            ("default", report.reserved_by_stream[0].0),
            ("default of side streams", side(&report.reserved_by_stream[1..first])),
            ("graphs of side streams", side(&report.reserved_by_stream[first..])),
        ];
        let off = |ours: u64, theirs: &Value| 100.0 * (ours as f64 / theirs.as_f64().unwrap() - 1.0);
        let allocated = off(report.peak_allocated.0, &case["peak_allocated"]);
        let reserved = off(report.peak_reserved.0, &case["peak_reserved"]);
        print!("{:20} allocated {allocated:+.3} %, reserved {reserved:+.3} %", case["id"].as_str().unwrap());
        for (name, ours) in of_pools {
            print!(", {name} {:+.3} %", off(ours, &case["pools"][name]["reserved"]));
        }
        println!();
        assert!(allocated.abs() <= 0.1 && reserved.abs() <= 0.3, "{}: {allocated} %, {reserved} %", case["id"]);
    }
}

fn kind(kind: Collective) -> &'static str {
    match kind {
        Collective::AllGather => "all_gather",
        Collective::ReduceScatter => "reduce_scatter",
        Collective::AllReduce => "all_reduce",
        other => panic!("torchtitan issues no {other:?}"),
    }
}

/// Kinds and bytes of a step's collectives, without those of a few numbers: tokens that all ranks count, and norms.
fn collectives(program: &Program) -> Vec<(String, u64)> {
    let comm = |instr: &Instr| match instr {
        Instr::Collective { comm, .. } => Some(program.comm(*comm)),
        _ => None,
    };
    let comms =
        program.step.iter().filter_map(comm).filter(|comm| comm.bytes.0 > 4096 || comm.kind != Collective::AllReduce);
    comms.map(|comm| (kind(comm.kind).to_owned(), comm.bytes.0)).collect()
}

#[test]
fn oracle_torchtitan_issues_its_collectives_in_order() {
    let mut wrong = String::new();
    for case in captured(false) {
        let theirs: Vec<(String, u64)> = case["collectives"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one[0].as_str().unwrap().to_owned(), one[1].as_u64().unwrap()))
            .filter(|(kind, bytes)| *bytes > 4096 || kind != "all_reduce")
            .collect();
        let ours = collectives(&compile(&job(&case["config"])));
        if let Some(at) = (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at)) {
            wrong += &format!("{} {at}: ours {:?}, theirs {:?}\n", case["id"], ours.get(at), theirs.get(at));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn oracle_torchtitan_takes_and_gives_back_every_large_block_in_its_order() {
    let mut wrong = String::new();
    for case in captured(false).iter().filter(|case| case["events"].is_array() && case["config"]["compile"] != true) {
        let sign = |event: &Value| event[0].as_str().unwrap().chars().next().unwrap();
        let theirs = case["events"].as_array().unwrap().iter().map(|event| (sign(event), event[1].as_u64().unwrap()));
        wrong += &first_large_difference(&case["id"], &compile(&job(&case["config"])), theirs);
    }
    assert!(wrong.is_empty(), "{wrong}");
}
