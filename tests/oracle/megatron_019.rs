//! Megatron-Core 0.19.2 and Transformer Engine 2.20.2: what a step allocates at its peak, of configurations that were drawn before any of
//! them ran, a third of them set aside before any rule was written (`tests/oracles/megatron-019.json`).

use super::cases;
use super::{megatron_case, megatron_experts, megatron_fsdp, megatron_graphs, megatron_hybrid};
use serde_json::Value;
use windtunnel::memory::{Settings, replay};
use windtunnel::program::DType;
use windtunnel::runtime::megatron::{
    CrossEntropy, Fp8Recipe, Gradients, Matmuls, MegatronPlan, Release, TokenDispatcher, compile,
};
use windtunnel::units::Bytes;

/// What of a case is not simulated, if anything.
fn missing(c: &Value) -> Option<&'static str> {
    let on = |key: &str| c[key].as_array().is_some_and(|list| !list.is_empty());
    match () {
        () if c["fp4"].is_string() => Some("NVFP4"),
        () if c["optimizer"] == "dist_muon" => Some("Muon under Megatron-Core"),
        () if c["host_optimizer"].as_f64().is_some_and(|share| share > 0.0) => Some("the optimizer on the host"),
        () if on("offload") => Some("activations offloaded by part"),
        () if c["impl"] == "local" && c["scope"].as_array().is_some_and(Vec::is_empty) => {
            Some("graphs of Megatron's own")
        }
        () => None,
    }
}

fn job(c: &Value) -> MegatronPlan {
    let mut plain = c.clone();
    let mxfp8 = c["fp8"] == "mxfp8";
    if mxfp8 {
        plain["fp8"] = Value::Null;
    }
    let mut job = match c["kind"].as_str().unwrap() {
        "hybrid" => megatron_hybrid::job(&plain),
        "graphs" => megatron_graphs::job(&plain),
        "fsdp" => megatron_fsdp::job(&plain),
        _ => megatron_experts::job(&plain),
    };
    job.split.block.release = Release::V0_19;
    if job.split.block.cross_entropy == CrossEntropy::Engine {
        job.split.block.cross_entropy = CrossEntropy::EngineCopy;
    }
    job.split.sequence_parallel = job.split.mesh.tp > 1 && c["sp"] == true;
    if mxfp8 {
        job.split.matmuls = Matmuls::Fp8 { recipe: Fp8Recipe::Mxfp8, parameters: false, any_layout: true };
    }
    if let (Some(first), "step") = (c["first_stage"].as_u64(), c["kind"].as_str().unwrap()) {
        job.split.pipeline.layers = vec![first, c["layers"].as_u64().unwrap() - first];
    }
    let hybrid = c["dispatcher"] == "flex" && c["flex_backend"] == "hybridep";
    if let Some(mixture) = job.split.mixture.as_mut().filter(|_| hybrid) {
        mixture.dispatcher = TokenDispatcher::Hybrid;
    }
    if c["precision_aware"] == true {
        let narrow = |key: &str| if c[key] == "bf16" { DType::Bf16 } else { DType::Fp32 };
        (job.optimizer.first_moment, job.optimizer.second_moment) = (narrow("first_moment"), narrow("second_moment"));
        job.optimizer.remainders = c["remainders"] == true;
    }
    if c["kind"] == "fsdp" {
        // Since 0.17 main gradients have the parameters' type here, unless `megatron_fsdp_main_grads_dtype` says another, as these do.
        job.gradients = Gradients { dtype: DType::Fp32, ..job.gradients };
    }
    job
}

/// Predicted over allocated, less one.
fn off(c: &Value, outputs: &Value) -> f64 {
    let program = compile(&job(c));
    let report = replay(
        &program.classes[megatron_case::stage(c)],
        Settings { expandable_segments: false, capacity: Bytes(1 << 43) },
    );
    let ours = report.phases.iter().map(|phase| phase.peak_allocated.0).max().unwrap_or(0) as f64;
    let phases = outputs["phases"].as_object().unwrap().values();
    let theirs = phases.map(|phase| phase["peak"].as_u64().unwrap()).max().unwrap() as f64;
    ours / theirs - 1.0
}

#[test]
fn oracle_nine_of_ten_peaks_of_the_newest_release_are_within_a_hundredth() {
    let Some(file) = cases::read("megatron-019.json") else { return };
    let (mut table, mut left_out) = (String::new(), vec![]);
    let mut near = [(0, 0); 2];
    for case in file["cases"].as_array().unwrap() {
        let (id, config) = (case["id"].as_str().unwrap(), &case["config"]);
        if let Some(what) = missing(config) {
            left_out.push(format!("{id}: {what}"));
            continue;
        }
        let off = off(config, &case["outputs"]);
        let (count, within) = &mut near[usize::from(case["aside"] == true)];
        *count += 1;
        *within += usize::from(off.abs() < 0.01);
        table += &format!("{id:24} {:+.2} %\n", 100.0 * off);
    }
    println!("{table}{left_out:?}\n{near:?}");
    assert!(near[0].0 + near[1].0 >= 60, "{left_out:?}");
    for (count, within) in near {
        assert!(10 * within >= 9 * count, "{within} of {count}:\n{table}");
    }
}
