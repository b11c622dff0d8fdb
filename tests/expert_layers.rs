//! Matmuls of experts in one kernel, held against whole layers of experts that their fits did not see
//! (`calibrate/import/grouped.rs`): models kept aside, on every chip whose layers were published.

use windtunnel::cost::{CostModel, Profile, Regime};
use windtunnel::program::{DType, Grouping, MatmulLayout, Work};

const KEPT: [&str; 6] = [
    include_str!("costs/experts_h100.csv"),
    include_str!("costs/experts_h200.csv"),
    include_str!("costs/experts_b200.csv"),
    include_str!("costs/experts_b300.csv"),
    include_str!("costs/experts_gb200.csv"),
    include_str!("costs/experts_gb300.csv"),
];

/// Profile and type, and predicted over measured less one, of a layer.
fn error(line: &str) -> (String, f64) {
    let cells: Vec<&str> = line.split(',').collect();
    let number = |at: usize| cells[at].parse::<f64>().unwrap();
    let profile = Profile::find(cells[0]).unwrap();
    let costs = CostModel::new(&profile, Regime::Burst);
    let dtype = if cells[1] == "fp8" { DType::Fp8 } else { DType::Bf16 };
    let [tokens, hidden, inner, top_k, groups] = [2, 3, 4, 5, 6].map(|at| number(at) as u64);
    let matmul = |inputs, outputs| {
        let (layout, kernels) = (MatmulLayout::Forward, Grouping::OneKernel);
        let rows = tokens * top_k;
        let work = Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, kernels };
        1e6 * costs.work(&work).time.seconds()
    };
    let us = number(7) + matmul(hidden, 2 * inner) + matmul(inner, hidden);
    (format!("{} {}", cells[0], cells[1]), us / number(8) - 1.0)
}

#[test]
fn layers_of_experts_take_what_was_published_of_models_that_no_fit_saw() {
    for table in KEPT {
        let lines = table.lines().filter(|line| !line.starts_with(['#', 'p']));
        let errors: Vec<(String, f64)> = lines.map(error).collect();
        assert!(errors.len() >= 30, "{} layers", errors.len());
        let mut sizes: Vec<f64> = errors.iter().map(|(_, error)| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share) as usize];
        println!("{}: {} layers, median {:.3}, p90 {:.3}", errors[0].0, sizes.len(), at(0.5), at(0.9));
        for dtype in ["bf16", "fp8"] {
            let mut own: Vec<f64> =
                errors.iter().filter(|(of, _)| of.ends_with(dtype)).map(|(_, error)| error.abs()).collect();
            own.sort_by(f64::total_cmp);
            let middle = own[own.len() / 2];
            println!("  {dtype}: {} layers, median {middle:.3}, p90 {:.3}", own.len(), own[own.len() * 9 / 10]);
            assert!(middle < 0.12, "{dtype}: median {middle:.3}");
        }
        assert!(at(0.5) < 0.10 && at(0.9) < 0.25, "median {:.3}, p90 {:.3}: {errors:?}", at(0.5), at(0.9));
    }
}
