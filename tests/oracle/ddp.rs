//! `DistributedDataParallel` against PyTorch 2.15's own reducer (`tests/oracles/ddp.json`): peaks, collectives with their bytes, and
//! every allocation and free of a step in host order.

use super::autocast::sorted;
use super::cases::{self, Config, Dims};
use super::fsdp2_switches::first_difference;
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::plan::torch::TorchPlan;
use windtunnel::plan::torch::ddp::Ddp;
use windtunnel::program::{Collective, DType, Instr, Program};
use windtunnel::runtime::Plan;
use windtunnel::runtime::fsdp::{MixedPrecision, Version};
use windtunnel::runtime::train::{self, Autocast};
use windtunnel::units::Bytes;

/// Cases at which PyTorch stops.
const STOP: [&str; 2] = ["static_ga", "unused_reentrant"];

/// Cases whose blocks come in another order, of the same peaks: what a kernel of fp32 attention saves under `no_grad`, and how many tensors
/// a kernel of gradients' norms takes, are not DistributedDataParallel's. With views after `no_sync`, a gradient of its own is freed before or
/// after the all-reduce of the bucket that it fills, or before or after another such.
const OUT_OF_ORDER: [&str; 7] =
    ["reentrant", "reentrant_static", "clip", "clip_view", "ga_view", "ga_bf16_view", "ga_autocast_full_view"];

/// The arguments of a case, with PyTorch's defaults.
fn arguments(case: &Value) -> Ddp {
    let given = &case["config"]["ddp"];
    let on = |key: &str, default: bool| given[key].as_bool().unwrap_or(default);
    let (bucket_cap, first_bucket) = match given["bucket_cap_mb"].as_u64() {
        Some(cap) => (cap << 20, cap << 20),
        None => (Ddp::DEFAULT_CAP << 20, Ddp::FIRST_BUCKET),
    };
    Ddp {
        bucket_cap,
        first_bucket,
        gradient_as_bucket_view: on("gradient_as_bucket_view", false),
        static_graph: on("static_graph", false),
        find_unused_parameters: on("find_unused_parameters", false),
        broadcast_buffers: on("broadcast_buffers", true),
        batched_grad_copy: on("batched_grad_copy", false),
        lazy_bucket_allocation: on("lazy_bucket_allocation", false),
        compressed: (case["config"]["hook"] == "bf16_compress_hook").then_some(DType::Bf16),
    }
}

fn job(case: &Value) -> TorchPlan {
    let dims: Dims = serde_json::from_value(case["model_dims"].clone()).expect("dims");
    let mut config: Config = serde_json::from_value({
        let mut known = case["config"].clone();
        if known["mp"] == "autocast" {
            known["mp"] = "fp32".into();
        }
        known
    })
    .expect("a configuration");
    let replicas = std::mem::replace(&mut config.world, 1);
    let mut job = cases::job(&dims, &config).expect("a job");
    job.fsdp.version = Version::Unsharded;
    job.fsdp.replicate = replicas;
    job.fsdp.wrap.blocks.fill(None);
    job.eager.unnamed_logits = true;
    job.reentrant = case["config"]["reentrant"].as_bool().expect("a flag");
    if case["config"]["mp"] == "autocast" {
        job.fsdp.mixed_precision = MixedPrecision { storage: DType::Fp32, param: None, reduce: None };
        job.autocast = Some(Autocast { cache: true });
    }
    job.ddp = Some(arguments(case));
    job
}

fn collectives(program: &Program) -> Vec<String> {
    let one = |instr: &Instr| match *instr {
        Instr::Collective { comm, .. } => {
            let comm = program.comm(comm);
            let name = if comm.kind == Collective::Broadcast { "broadcast" } else { "all_reduce" };
            assert_eq!(program.group(comm.group).size, 8);
            Some(format!("{name} {}", comm.bytes.0))
        }
        _ => None,
    };
    program.step.iter().filter_map(one).collect()
}

/// What a case exchanged, in host order.
fn theirs(case: &Value) -> Vec<String> {
    let micro_batches = case["config"]["ga"].as_u64().expect("a count");
    let at = |micro: u64| if micro_batches > 1 { micro.to_string() } else { String::new() };
    let phases = (0..micro_batches).flat_map(|micro| ["fwd", "bwd"].map(|phase| format!("{phase}{}", at(micro))));
    let calls = phases.flat_map(|phase| case["collectives"][&phase].as_array().cloned().unwrap_or_default());
    calls.map(|call| call.as_str().expect("a call").to_owned()).collect()
}

#[test]
fn oracle_distributed_data_parallel_is_pytorchs() {
    let Some(file) = cases::read("ddp.json") else { return };
    let (mut table, mut wrong, mut refused, mut exact, mut near) = (String::new(), String::new(), vec![], 0, 0);
    let list = file["cases"].as_array().expect("cases");
    for case in list {
        let id = case["id"].as_str().expect("a name");
        let job = job(case);
        let refusal = Plan::Torch(job.clone()).refuses();
        if case["error"].is_string() || refusal.is_some() {
            assert!(case["error"].is_string() && refusal.is_some(), "{id}: {refusal:?}");
            refused.push(id);
            continue;
        }
        let program = train::compile(&job);
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let off = |key: &str, ours: Bytes| (ours.0 as f64 / case[key].as_u64().expect("bytes") as f64 - 1.0) * 100.0;
        let off = [off("peak_allocated", report.peak_allocated), off("peak_reserved", report.peak_reserved)];
        near += usize::from(off[1].abs() < 1.5);
        if off[0].abs() > 0.1 {
            wrong += &format!("{id}: allocated {:+.3} %\n", off[0]);
        }
        if collectives(&program) != theirs(case) {
            wrong += &format!("{id}\n  ours   {:?}\n  theirs {:?}\n", collectives(&program), theirs(case));
        }
        let events = case["events"].as_str().expect("events");
        let autocast = job.autocast.is_some();
        let difference = first_difference(events, &program);
        let ours = sorted(super::fsdp2_switches::events(&program));
        let same = difference.is_empty() || autocast && ours == sorted(events.split_whitespace());
        exact += usize::from(same);
        if same == OUT_OF_ORDER.contains(&id) {
            wrong += &format!("{id}: {}", if same { "in order now\n" } else { &difference });
        }
        table += &format!("{id:24} allocated {:+8.4} %   reserved {:+8.4} %\n", off[0], off[1]);
    }
    println!("{table}{exact} of {} in order, {near} within 1.5 % of reserved; refused: {refused:?}", list.len());
    assert!(wrong.is_empty(), "{table}{wrong}");
    assert_eq!(refused, STOP);
}
