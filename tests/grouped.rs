//! Transformer Engine's grouped matmuls on four streams, held against published times of an A100
//! (MooreThreads/SimuMax@4dcaae513:configs/system/a100_pcie.json): how much longer than one matmul of all rows they take.

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{DType, MatmulLayout, Work};

/// Groups, rows of each, columns of the input and of the output, \[µs\] of the groups and of all rows in one matmul; forward
/// and data gradient.
const MEASURED: [(u64, u64, u64, u64, f64, f64); 4] = [
    (40, 616, 5120, 3072, 3934.97, 3354.23),
    (40, 616, 3072, 5120, 3658.26, 3380.44),
    (20, 1232, 5120, 3072, 3512.03, 3354.23),
    (20, 1232, 3072, 5120, 3529.61, 3380.44),
];

#[test]
fn four_streams_of_grouped_matmuls_lose_what_they_lose_on_an_a100() {
    let profile = Profile::find("a100-sxm-80gb").unwrap();
    let costs = CostModel::new(&profile, Regime::Sustained);
    let seconds = |groups: u64, rows: u64, inputs: u64, outputs: u64| {
        let (dtype, layout) = (DType::Bf16, MatmulLayout::Forward);
        costs.work(&Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout }).time.seconds()
    };
    let (mut table, mut worst) = (String::new(), 0.0_f64);
    for (groups, rows, inputs, outputs, apart, together) in MEASURED {
        let ours =
            (groups / 4) as f64 * seconds(4, 4 * rows, inputs, outputs) / seconds(1, groups * rows, inputs, outputs);
        let theirs = apart / together;
        table += &format!("{groups} x {rows}: {ours:.3} for a measured {theirs:.3}\n");
        worst = worst.max((ours / theirs - 1.0).abs());
    }
    println!("{table}");
    assert!(worst < 0.12, "{table}");
}
