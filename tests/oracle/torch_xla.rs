//! Training steps of PyTorch/XLA under SPMD (`oracles/torch-xla.json`, by `oracles/torch_xla_steps.py`): traced by torch_xla 2.9 itself, and
//! compiled for v6e by libtpu. Most rules of this runtime were read off these steps, so what is held here is that they still say so.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use windtunnel::program::{Instr, Program, Work};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

#[derive(Deserialize)]
struct Row {
    name: String,
    argument: u64,
    peak: u64,
    matmul_flops_per_chip: f64,
    case: Case,
    /// The step in this program's words, where it has such.
    scenario: Option<String>,
}

#[derive(Deserialize)]
struct Case {
    attention: String,
    remat: bool,
    experts: u64,
}

fn rows() -> Vec<(Row, Scenario)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/torch-xla.json");
    let rows: Vec<Row> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let parsed = rows.into_iter().filter_map(|row| {
        let text = row.scenario.clone()?;
        let scenario = Scenario::parse("tests/oracles/torch.toml", &text);
        Some((row, scenario.unwrap_or_else(|why| panic!("{why}"))))
    });
    parsed.collect()
}

fn program(scenario: &Scenario) -> Arc<Program> {
    scenario.job.compile().classes.remove(0)
}

#[test]
fn arguments_are_those_that_the_graph_of_torch_xla_has() {
    for (row, scenario) in rows() {
        let program = program(&scenario);
        let bytes = |instr: &Instr| match instr {
            Instr::Alloc { buffer } => program.buffer(*buffer).bytes.0,
            _ => 0,
        };
        let own: u64 = program.setup.iter().map(bytes).sum();
        let error = own as f64 / row.argument as f64 - 1.0;
        assert!(error.abs() < 0.01, "{}: {:+.2} %", row.name, error * 100.0);
    }
}

#[test]
fn peaks_are_the_compilers_within_five_percent_in_the_median() {
    let mut errors: Vec<(f64, String)> = rows()
        .into_iter()
        .map(|(row, scenario)| {
            let memory = predict(&scenario, Settings { remedies: false, ..Settings::default() }).unwrap().memory;
            (memory.report.peak_allocated.0 as f64 / row.peak as f64 - 1.0, row.name)
        })
        .collect();
    errors.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    assert!(errors.len() >= 22, "{}", errors.len());
    let at = |share: f64| errors[((errors.len() - 1) as f64 * share).round() as usize].0.abs();
    assert!(at(0.5) <= 0.05 && at(0.8) <= 0.08, "{errors:?}");
    // Attention in matmuls of all heads on a tensor axis is made again within what reads it, and takes less than is said of it.
    assert!(errors.iter().all(|(error, _)| (-0.09..0.25).contains(error)), "{errors:?}");
}

/// A chip's matmuls, where all of attention's are in a kernel, or stand alone. Products around a softmax are made again within its backward,
/// or once for two readers, as fusion has it.
#[test]
fn matmul_flops_are_the_compilers_where_fusion_repeats_none_of_them() {
    let mut seen = 0;
    for (row, scenario) in rows() {
        let exact = row.case.attention == "flash" || (row.case.attention == "einsum" && !row.case.remat);
        if !exact || row.case.experts > 0 {
            continue;
        }
        seen += 1;
        let program = program(&scenario);
        let flops = |instr: &Instr| match instr {
            Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
                Work::Matmul { m, n, k, .. } => 2.0 * m as f64 * n as f64 * k as f64,
                _ => 0.0,
            },
            _ => 0.0,
        };
        let (ours, theirs) = (program.step.iter().map(flops).sum::<f64>(), row.matmul_flops_per_chip);
        assert!((ours / theirs - 1.0).abs() < 0.005, "{}: {ours:e} FLOPs, and {theirs:e}", row.name);
    }
    assert!(seen >= 3, "{seen}");
}
