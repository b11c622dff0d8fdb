//! Transformer Engine's grouped matmuls held against published times of one linear's experts, forward and both gradients.

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{DType, Dispatch, Grouping, MatmulLayout, Work};

/// Published times: the chip, groups, rows of each, the linear's columns, the matmul, and \[us\].
struct Measured {
    chip: &'static str,
    work: Work,
    us: f64,
}

fn measured() -> Vec<Measured> {
    let lines = include_str!("costs/grouped_te.csv").lines().filter(|line| !line.starts_with(['#', 'g']));
    let read = |line: &'static str| {
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells[at].parse::<u64>().unwrap();
        let layout = match (cells[5], cells[6]) {
            ("forward", _) => MatmulLayout::Forward,
            ("data_gradient", _) => MatmulLayout::DataGradient,
            (_, "fp32") => MatmulLayout::MainGradient(DType::Fp32),
            _ => MatmulLayout::MainGradient(DType::Bf16),
        };
        let (groups, dtype, kernels) = (number(1), DType::Bf16, Grouping::Streams);
        let (rows, inputs, outputs) = (groups * number(2), number(3), number(4));
        let work = Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels };
        Measured { chip: cells[0], work, us: cells[7].parse().unwrap() }
    };
    lines.map(read).collect()
}

/// Predicted over measured, as logarithms, of the points of a chip.
fn errors(chip: &str, profile: &str) -> (Vec<f64>, String) {
    let profile = Profile::find(profile).unwrap();
    let costs = CostModel::new(&profile, Regime::Sustained);
    let host = costs.dispatch(Dispatch::GroupedMatmul).time.seconds();
    let mut table = String::new();
    let mut errors = Vec::new();
    for point in measured().into_iter().filter(|point| point.chip == chip) {
        let Work::GroupedMatmul { groups, rows, inputs, outputs, layout, .. } = point.work else { unreachable!() };
        // A call in a loop takes as long as the device or the host, whichever is slower. The A100 is a PCIe board with the SXM's memory.
        let device = costs.work(&point.work).time.seconds();
        let us = 1e6 * device.max(host * groups as f64);
        errors.push((us / point.us).ln());
        table += &format!(
            "{groups} x {} {inputs} -> {outputs} {layout:?}: {us:.0} for {:.0} ({:.2})\n",
            rows / groups,
            point.us,
            us / point.us
        );
    }
    (errors, table)
}

fn quantile(errors: &[f64], share: f64) -> f64 {
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    sizes[((sizes.len() - 1) as f64 * share) as usize]
}

#[test]
fn grouped_matmuls_of_transformer_engine_take_what_they_were_measured_to_take() {
    for (chip, profile, median, most) in
        [("A100", "a100-sxm-80gb", 0.10, 0.25), ("B200", "b200-sxm-throttled", 0.10, 0.25)]
    {
        let (errors, table) = errors(chip, profile);
        println!("{chip}\n{table}");
        let (middle, nine) = (quantile(&errors, 0.5), quantile(&errors, 0.9));
        assert!(middle < median && nine < most, "{chip}: median {middle:.3}, p90 {nine:.3}\n{table}");
    }
}
