//! The same model as other codebases write it, against PyTorch's allocator (`tests/oracles/styles.json`).

use super::cases::{self, Config, Dims};
use windtunnel::memory::{Settings, replay};
use windtunnel::model::style::{Rope, Style};
use windtunnel::program::DType;
use windtunnel::runtime::train;
use windtunnel::units::Bytes;

#[test]
fn oracle_peak_memory_of_other_codebases_blocks_and_loops_agrees_with_pytorchs_allocator() {
    let Some(file) = cases::read("styles.json") else { return };
    let mut table = String::new();
    let mut exact = 0;
    let list = file["cases"].as_array().unwrap();
    for case in list {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let mut job = cases::job(&dims, &config).unwrap();
        let style = &case["style"];
        job.style = Style {
            rope: match style["rope"].as_str().unwrap_or("complex") {
                "rotate_half" => Rope::RotateHalf,
                "stacked" => Rope::Stacked,
                _ => Rope::Complex,
            },
            repeat_kv: style["repeat_kv"] == true,
            ..Style::default()
        };
        if style["keep_logits"].is_string() {
            job.keep_logits = train::KeepLogits::NextForward;
        }
        job.output = (style["keep_logits"] == "fp32").then_some(DType::Fp32);
        let report = replay(&train::compile(&job), Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let outputs = ["peak_allocated", "peak_reserved"].map(|key| case["outputs"][key].as_u64().unwrap());
        let ours = [report.peak_allocated.0, report.peak_reserved.0];
        exact += usize::from(ours == outputs);
        let off = |at: usize| (ours[at] as f64 - outputs[at] as f64) / f64::from(1 << 20);
        table += &format!("{:44} {:+10.3} MiB {:+10.3} MiB\n", case["id"].as_str().unwrap(), off(0), off(1));
    }
    println!("{table}{exact} of {} to the byte, allocated and reserved", list.len());
    assert_eq!(exact, list.len(), "{table}");
}
