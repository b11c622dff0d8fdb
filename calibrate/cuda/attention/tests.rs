//! Graphs of attention, built with the real cuDNN where it is installed, for devices that need not be.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::backward::Backward;
use super::forward::Forward;
use super::shape::Shape;
use crate::cuda::cudnn::{Api, Graph, Plan, Target};

/// cuDNN, or none, said once.
fn cudnn() -> Option<Arc<Api>> {
    match Api::load() {
        Ok(api) => Some(api),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// A device in the JSON that cuDNN itself writes of one (`CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`).
fn device(name: &str, capability: u32, processors: u32, shared: u32, l2: u64, memory: u64) -> Target {
    Target::Device(
        serde_json::json!({
            "deviceName": name, "deviceVer": capability, "multiProcessorCount": processors, "smCountOrigin": 0,
            "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": shared,
            "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": l2,
            "totalGlobalMem": memory, "maxGridSize": [2147483647u32, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
            "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "warpSize": 32, "maxCtasPerSM": 32,
            "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
            "supportCoopLaunch": 1, "smClockRateKHz": 1_980_000, "memClockRateKHz": 3_201_000, "driverVer": 13000,
            "cudaDeviceId": 0,
        })
        .to_string(),
    )
}

fn h200() -> Target {
    device("NVIDIA H200", 900, 132, 232_448, 62_914_560, 150_754_820_096)
}

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

fn plan(api: &Arc<Api>, target: &Target, graph: &Graph) -> String {
    match Plan::new(api, target, graph) {
        Ok(plan) => format!("{} + {} B", plan.algorithm, plan.workspace),
        Err(error) => format!("{error}"),
    }
}

#[test]
fn probe() {
    let Some(api) = cudnn() else { return };
    let llama = LLAMA;
    let shapes = [
        ("full", Shape { causal: false, ..llama }),
        ("mha", Shape { kv_heads: 32, ..llama }),
        ("gqa", llama),
        ("window", Shape { window: Some(4096), ..llama }),
        ("64", Shape { head_dim: 64, value_dim: 64, ..llama }),
        ("256", Shape { head_dim: 256, value_dim: 256, ..llama }),
        ("mla", Shape { heads: 128, kv_heads: 128, head_dim: 192, ..llama }),
    ];
    for (name, shape) in shapes {
        let a100 = device("NVIDIA A100-SXM4-80GB", 800, 108, 166_912, 41_943_040, 85_899_345_920);
        let b200 = device("NVIDIA B200", 1000, 148, 232_448, 132_120_576, 192_000_000_000);
        for (chip, target) in [("h200", h200()), ("a100", a100), ("b200", b200)] {
            eprintln!("{name} forward {chip}: {}", plan(&api, &target, &Forward::new(&shape).graph));
            eprintln!("{name} backward {chip}: {}", plan(&api, &target, &Backward::new(&shape).graph));
        }
    }
}
