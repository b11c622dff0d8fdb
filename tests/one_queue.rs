//! `CUDA_DEVICE_MAX_CONNECTIONS`: who runs with one queue to the device, and what that does.

use crate::make::{self, MEGATRON, TINY, parse, replaced};

const KEY: (&str, &str) = ("framework", "device_max_connections");

fn one_queue(text: &str) -> bool {
    parse(text).one_queue
}

#[test]
fn megatron_with_tensor_parallel_ranks_is_run_with_one_queue_before_blackwell() {
    assert!(one_queue(MEGATRON));
    assert!(parse(MEGATRON).assumption_lines().iter().any(|line| line == "framework.device_max_connections = 1"));
    assert!(!one_queue(&replaced(MEGATRON, &[("tp = 2", "tp = 1"), ("pp = 2", "pp = 4")])));
    assert!(!one_queue(&replaced(MEGATRON, &[("h100-sxm-80gb", "b200-sxm")])));
    assert!(!one_queue(TINY));
}

#[test]
fn what_is_written_is_taken() {
    assert!(!one_queue(&make::with(MEGATRON, KEY.0, KEY.1, 8)));
    assert!(one_queue(&make::with(TINY, KEY.0, KEY.1, 1)));
}

#[test]
fn fsdp2_in_one_queue_loses_what_it_prefetches() {
    // PyTorch issues the next block's all-gather behind this one's kernels: in one queue it holds up what is behind it, until
    // the gathering before it has ended.
    let text =
        replaced(TINY, &[("huggingface = \"config.json\"", "name = \"llama-3.1-8b\"\nlayers = 8"), ("128", "1024")]);
    let flown = |connections: i64| make::fly(&make::with(&text, KEY.0, KEY.1, connections));
    let (one, many) = (flown(1), flown(8));
    assert!(one.step > many.step, "{:?} {:?}", one.step, many.step);
    assert_eq!(many.step, make::fly(&text).step);
}
