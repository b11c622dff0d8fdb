//! Training on one device, in bf16 all over, against PyTorch's allocator (`tests/oracles/single.json`).

use super::cases;
use windtunnel::memory::{Settings, replay};
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

/// The scenario of a case: its keys are those of the script that computed it.
fn text(over: &serde_json::Value) -> String {
    let on = |key: &str, default: bool| over[key].as_bool().unwrap_or(default);
    let word = |key: &str, default: &str| over[key].as_str().unwrap_or(default).to_owned();
    let (loss, upcast) = (word("loss", "fp32"), word("upcast", "model"));
    let output = if loss == "fp32" && upcast == "model" { "output = \"fp32\"" } else { "" };
    let kind = if loss == "chunked" { "chunked_output" } else { "fp32" };
    format!(
        r#"runtime = "single_device"
[topology]
name = "h100-sxm-80gb"
chips = 1
[model]
huggingface = "single.json"
tied_head = {tied}
layers = {layers}
[mesh]
dp_shard = 1
[batch]
sequence = 2048
micro = 2
[precision]
storage = "bf16"
{output}
[framework]
rope = "stacked"
repeat_kv = {repeat}
fused_rms_norm = {fused}
[loss]
kind = "{kind}"
[activation_checkpointing]
policy = "{policy}"
early_stop = true
{offload}
[optimizer]
implementation = "{implementation}"
clip_grad_norm = false
scale_gradients = {scale}
in_backward = {in_backward}
"#,
        layers = over["layers"].as_u64().unwrap_or(4),
        offload = over["offload"].as_str().map(|stream| format!("offload = \"{stream}\"")).unwrap_or_default(),
        tied = on("tied", true),
        repeat = on("rep", true),
        fused = !on("composite", true),
        policy = if on("ac", false) { "full" } else { "none" },
        implementation = word("opt", "foreach"),
        scale = on("scale", true),
        in_backward = on("in_backward", false),
    )
}

#[test]
fn oracle_peak_memory_on_one_device_agrees_with_pytorchs_allocator() {
    let Some(file) = cases::read("single.json") else { return };
    let (mut table, mut exact, mut near) = (String::new(), 0, 0);
    let list = file["cases"].as_array().unwrap();
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");
    for case in list {
        let scenario = Scenario::parse(beside, &text(&case["over"])).unwrap_or_else(|error| panic!("{error}"));
        let report = replay(
            &scenario.job.compile().classes.remove(0),
            Settings { expandable_segments: false, capacity: Bytes(1 << 43) },
        );
        let theirs = ["alloc", "reserved"].map(|key| case[key].as_u64().unwrap());
        let ours = [report.peak_allocated.0, report.peak_reserved.0];
        exact += usize::from(ours == theirs);
        // Parts of two sequences are copies there, of hidden state and labels, and views here; a value that came back on
        // a stream of its own stays a node longer.
        near += usize::from((0..2).all(|at| theirs[at].abs_diff(ours[at]) <= 2 << 20));
        let off = |at: usize| (ours[at] as f64 - theirs[at] as f64) / f64::from(1 << 20);
        table += &format!("{:64} {:+10.3} MiB {:+10.3} MiB\n", case["over"].to_string(), off(0), off(1));
    }
    println!("{table}{exact} of {} to the byte, allocated and reserved", list.len());
    assert!(near == list.len() && exact >= 7, "{table}");
}
