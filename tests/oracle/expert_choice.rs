//! Experts that choose their tokens against PyTorch's allocator and FLOP counter (`expert-choice.json`).

use super::cases::{self, Config, Dims};
use super::memory;
use windtunnel::memory::{Settings, replay};
use windtunnel::runtime::train;
use windtunnel::units::Bytes;

#[test]
fn oracle_experts_that_choose_tokens_allocate_free_and_compute_what_pytorch_does() {
    let Some(file) = cases::read("expert-choice.json") else { return };
    let mut wrong = String::new();
    for case in file["cases"].as_array().unwrap() {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let id = &case["id"];
        let program = train::compile(&cases::job(&dims, &config).unwrap());
        wrong += &memory::first_difference(case, &program);
        let flops = u128::from(case["flops"].as_u64().unwrap()) * u128::from(config.ga);
        if program.flops.0 != flops {
            wrong += &format!("{id}: {} FLOPs for {flops}\n", program.flops.0);
        }
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        for (what, predicted, key) in [
            ("allocated", report.peak_allocated, "peak_allocated"),
            ("reserved", report.peak_reserved, "peak_reserved"),
        ] {
            let measured = case[key].as_u64().unwrap();
            let off = predicted.0 as f64 / measured as f64 - 1.0;
            println!("{id}: {what} {measured} {:+.4} %", off * 100.0);
            if off.abs() > if what == "allocated" { 0.005 } else { 0.03 } {
                wrong += &format!("{id}: {what} {} for {measured}\n", predicted.0);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
