//! Graphs of attention, planned by the real cuDNN where it is installed, for devices that need not be.
//!
//! cuDNN plans for a device that it is told about in JSON. What it takes: `libcudnn.so.9` and NVRTC, which compiles the
//! kernel, and a `libcuda.so.1`, which it only looks up functions in. Without them a test says so and ends.
#![allow(clippy::unwrap_used)]

use std::rc::Rc;

use super::backward::Backward;
use super::forward::Forward;
use super::plan;
use super::shape::Shape;
use crate::cuda::cudnn::{Api, Graph, Plan, Target};
use crate::points::{Machine, What};

/// Llama 3 8B at 8,192 tokens.
const LLAMA: Shape = Shape {
    batch: 1,
    heads: 32,
    kv_heads: 8,
    queries: 8192,
    keys: 8192,
    head_dim: 128,
    value_dim: 128,
    causal: true,
    window: None,
};

/// What the issue of attention in models comes down to.
const SHAPES: [(&str, Shape); 7] = [
    ("full", Shape { causal: false, ..LLAMA }),
    ("as many key-value heads", Shape { kv_heads: 32, ..LLAMA }),
    ("fewer key-value heads", LLAMA),
    ("sliding window", Shape { window: Some(4096), ..LLAMA }),
    ("narrow heads", Shape { head_dim: 64, value_dim: 64, ..LLAMA }),
    ("wide heads", Shape { heads: 16, head_dim: 256, value_dim: 256, ..LLAMA }),
    ("latent attention", Shape { heads: 128, kv_heads: 128, head_dim: 192, ..LLAMA }),
];

/// A device in the JSON that cuDNN 9.26 itself writes of one (`CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`); none, said
/// once, where another version wants other words.
fn device(api: &Rc<Api>, name: &str, capability: u32, processors: u32, shared: u32) -> Option<Target> {
    let json = serde_json::json!({
        "deviceName": name, "deviceVer": capability, "multiProcessorCount": processors, "smCountOrigin": 0,
        "maxSharedMemoryPerBlock": 49_152, "maxSharedMemoryPerBlockOptin": shared, "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 52_428_800, "totalGlobalMem": 85_899_345_920u64,
        "maxGridSize": [2_147_483_647u32, 65_535, 65_535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65_536,
        "maxRegistersPerSM": 65_536, "warpSize": 32, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
        "smClockRateKHz": 1_980_000, "memClockRateKHz": 2_619_000, "driverVer": 13_000, "cudaDeviceId": 0,
    });
    Target::device(api, &json.to_string()).inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

fn hopper(api: &Rc<Api>) -> Option<Target> {
    device(api, "NVIDIA H100 80GB HBM3", 900, 132, 232_448)
}

/// cuDNN, or none, said once.
fn cudnn() -> Option<Rc<Api>> {
    Api::load().inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

/// The plan of a graph, or why there is none; none at all where the machine has no driver library to plan with.
fn planned(api: &Rc<Api>, target: &Target, graph: &Graph) -> Option<Result<Plan, String>> {
    match Plan::new(api, target, graph) {
        Ok(plan) => Some(Ok(plan)),
        Err(error) => {
            let why = error.to_string();
            if why.contains("libcuda") {
                eprintln!("skipped: {why}");
                return None;
            }
            Some(Err(why))
        }
    }
}

#[test]
fn cudnn_has_a_fused_kernel_for_every_shape_that_models_ask_for() {
    let Some(api) = cudnn() else { return };
    let Some(hopper) = hopper(&api) else { return };
    for (name, shape) in SHAPES {
        let Some(forward) = planned(&api, &hopper, &Forward::new(&shape).graph) else { return };
        let forward = forward.unwrap_or_else(|why| panic!("{name}, forward: {why}"));
        assert!(forward.algorithm.starts_with("engine "), "{}", forward.algorithm);
        // A fused kernel keeps no scores: they would take gigabytes.
        assert!(forward.workspace < 1 << 20, "{name}, forward: {} B of scratch", forward.workspace);
        let Some(backward) = planned(&api, &hopper, &Backward::new(&shape).graph) else { return };
        let backward = backward.unwrap_or_else(|why| panic!("{name}, backward: {why}"));
        // Gradients of keys and values for each query head, before they are summed.
        let each = 2 * shape.batch * shape.heads * shape.keys * (shape.head_dim + shape.value_dim);
        assert!(backward.workspace < each + (1 << 20), "{name}, backward: {} B of scratch", backward.workspace);
    }
}

#[test]
#[ignore = "compiles a kernel for every job of three chips: minutes"]
fn cudnn_has_a_fused_kernel_for_every_job() {
    let Some(api) = cudnn() else { return };
    let chips = [
        ("H100", hopper(&api)),
        ("A100", device(&api, "NVIDIA A100-SXM4-80GB", 800, 108, 166_912)),
        ("B200", device(&api, "NVIDIA B200", 1000, 148, 232_448)),
    ];
    for (chip, target) in chips {
        let Some(target) = target else { return };
        let jobs = plan::plan(&machine(141 << 30));
        let mut refused: Vec<String> = vec![];
        for job in &jobs {
            let (shape, backward) = Shape::of(&job.what).unwrap();
            let graph = if backward { Backward::new(&shape).graph } else { Forward::new(&shape).graph };
            let Some(planned) = planned(&api, &target, &graph) else { return };
            refused.extend(planned.err().map(|why| format!("backward {backward} {shape:?}: {why}")));
        }
        eprintln!("{chip}: {} of {} jobs have a kernel", jobs.len() - refused.len(), jobs.len());
        // What cuDNN says of itself: on A100 heads wider than 128 only forward, on B200 no 256 backward.
        assert!(refused.iter().all(|why| chip != "H100" && why.starts_with("backward true")), "{refused:#?}");
    }
}

#[test]
fn what_a_chip_cannot_do_is_said_in_a_line() {
    let Some(api) = cudnn() else { return };
    let Some(ampere) = device(&api, "NVIDIA A100-SXM4-80GB", 800, 108, 166_912) else { return };
    let wide = Shape { head_dim: 256, value_dim: 256, ..LLAMA };
    let Some(refused) = planned(&api, &ampere, &Backward::new(&wide).graph) else { return };
    let why = refused.err().expect("cuDNN has no backward kernel for heads of 256 on A100");
    assert!(why.lines().count() == 1 && why.contains("128"), "{why}");
}

#[test]
fn a_graph_that_is_no_attention_finds_no_engine() {
    let Some(api) = cudnn() else { return };
    // Scores where the output belongs: the widths do not fit.
    let mut forward = Forward::new(&LLAMA);
    forward.graph.matmul(forward.q, forward.k, forward.o);
    let Some(hopper) = hopper(&api) else { return };
    if let Some(planned) = planned(&api, &hopper, &forward.graph) {
        let why = planned.err().expect("no such product");
        assert!(why.contains("CUDNN_STATUS") || why.contains("no engine"), "{why}");
    }
}

/// A machine of so many bytes.
fn machine(memory: u64) -> Machine {
    Machine { memory, ..Machine::example() }
}

#[test]
fn everything_planned_is_a_shape_that_is_measured() {
    let jobs = plan::plan(&machine(141 << 30));
    for job in &jobs {
        let (shape, backward) = Shape::of(&job.what).unwrap();
        assert_eq!(shape.what(backward), job.what);
    }
    let value: f64 = jobs.iter().map(|job| job.value).sum();
    assert!((value - 0.18).abs() < 1e-9, "{value}");
}

#[test]
fn the_plan_has_every_kind_that_models_ask_for() {
    let jobs = plan::plan(&machine(141 << 30));
    let shapes: Vec<Shape> = jobs.iter().map(|job| Shape::of(&job.what).unwrap().0).collect();
    let has = |name: &str, found: fn(&Shape) -> bool| assert!(shapes.iter().any(found), "{name}");
    has("full", |shape| !shape.causal);
    has("64 wide", |shape| shape.head_dim == 64);
    has("256 wide", |shape| shape.head_dim == 256);
    has("as many key-value heads", |shape| shape.heads == shape.kv_heads);
    has("one key-value head", |shape| shape.kv_heads == 1);
    has("latent", |shape| shape.head_dim != shape.value_dim);
    has("window", |shape| shape.window.is_some());
    has("more keys than queries", |shape| shape.keys > shape.queries);
    let backward = jobs.iter().filter(|job| matches!(job.what, What::Attention { backward: true, .. })).count();
    assert_eq!(2 * backward, jobs.len());
}

#[test]
fn small_memories_are_not_asked_for_more_than_half() {
    let small = plan::plan(&machine(8 << 30));
    assert!(!small.is_empty() && small.len() < plan::plan(&machine(141 << 30)).len());
}

#[test]
fn shapes_that_make_no_sense_are_refused_in_words() {
    let refused = |shape: Shape| Shape::of(&shape.what(false)).expect_err("refused");
    assert!(refused(Shape { kv_heads: 5, ..LLAMA }).contains("share 5"));
    assert!(refused(Shape { head_dim: 100, ..LLAMA }).contains("multiples of 8"));
    assert!(refused(Shape { keys: 0, ..LLAMA }).contains("above zero"));
    assert!(refused(Shape { batch: u64::MAX, ..LLAMA }).contains("2^64"));
    assert!(refused(Shape { window: Some(16), causal: false, ..LLAMA }).contains("causal"));
}

#[test]
fn a_window_hides_what_lies_further_back() {
    let shape = Shape { window: Some(3), ..LLAMA };
    assert_eq!((0..10).filter(|key| shape.sees(5, *key)).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((0..10).filter(|key| LLAMA.sees(2, *key)).collect::<Vec<_>>(), [0, 1, 2]);
}
