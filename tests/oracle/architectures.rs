//! Block variants, attention kernels and losses against PyTorch's allocator and FLOP counter
//! (`tests/oracles/architectures.json`).

use super::cases::{self, Config, Dims};
use windtunnel::memory::{Settings, replay};
use windtunnel::program::Program;
use windtunnel::runtime::train;
use windtunnel::units::Bytes;

struct Case {
    id: String,
    value: serde_json::Value,
    program: Program,
    params: u64,
}

fn cases() -> Vec<Case> {
    let Some(file) = cases::read("architectures.json") else { return vec![] };
    let read = |case: &serde_json::Value| {
        let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
        let config: Config = serde_json::from_value(case["config"].clone()).unwrap();
        let job = cases::job(&dims, &config).unwrap();
        let (program, params) = (train::compile(&job), job.model.params().total);
        Case { id: case["id"].as_str().unwrap().to_owned(), value: case.clone(), program, params }
    };
    file["cases"].as_array().unwrap().iter().map(read).collect()
}

#[test]
fn oracle_peak_memory_of_every_block_variant_and_loss_agrees_with_pytorchs_allocator() {
    let mut table = String::new();
    let (mut exact, mut worst) = (0, [0.0_f64; 2]);
    let cases = cases();
    for case in &cases {
        let report = replay(&case.program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        let allocated = case.value["outputs"]["peak_allocated"].as_u64().unwrap();
        let reserved = case.value["outputs"]["peak_reserved"].as_u64().unwrap();
        let off = [(report.peak_allocated.0, allocated), (report.peak_reserved.0, reserved)]
            .map(|(ours, theirs)| ours as f64 / theirs as f64 - 1.0);
        exact += usize::from(report.peak_allocated.0 == allocated);
        worst = [worst[0].max(off[0].abs()), worst[1].max(off[1].abs())];
        table += &format!(
            "{:26} allocated {:13} {:+.4} % reserved {:13} {:+.3} %\n",
            case.id,
            allocated,
            off[0] * 100.0,
            reserved,
            off[1] * 100.0
        );
        assert_eq!(case.params, case.value["params"].as_u64().unwrap(), "{}", case.id);
    }
    println!("{table}{exact} of {} allocated peaks to the byte", cases.len());
    assert!(worst[0] <= 0.01, "an allocated peak is off by over 1 %:\n{table}");
    assert!(worst[1] <= 0.03, "a reserved peak is off by over 3 %:\n{table}");
    assert!(exact * 10 >= cases.len() * 9, "only {exact} allocated peaks are exact:\n{table}");
}

#[test]
fn oracle_flops_of_every_block_variant_equal_pytorchs_flop_counter_exactly() {
    let mut checked = 0;
    for case in cases() {
        let Some(flops) = case.value["outputs"]["flops"].as_u64() else { continue };
        assert_eq!(case.program.flops.0, u128::from(flops), "{}", case.id);
        checked += 1;
    }
    assert!(checked >= 20 || cases::elsewhere(), "only {checked} cases carry FLOPs");
}
