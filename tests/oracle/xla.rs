//! What XLA's TPU compiler makes of a training step (`oracles/xla_steps.json`, by `oracles/xla_step.py`): bytes of arguments,
//! the most that is live, and FLOPs.

use std::path::Path;

use serde::Deserialize;
use windtunnel::program::{Instr, Work};
use windtunnel::runtime::{Parts, Plan, spmd};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::{COMPILED, DeviceMemory, Settings};
use windtunnel::units::Bytes;

use super::xla_case::{Case, LIMIT, Step, all, steps};

/// The error of each step's `figure`, relative, with the step's name.
fn errors(figure: impl Fn(&Step) -> (u64, u64)) -> Vec<(f64, String)> {
    let error = |step: &Step| {
        let (ours, theirs) = figure(step);
        (ours as f64 / theirs as f64 - 1.0, step.name.clone())
    };
    let mut list: Vec<_> = steps().iter().map(error).collect();
    list.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    list
}

fn memory(step: &Step) -> DeviceMemory {
    let settings = Settings { remedies: false, ..Settings::default() };
    predict(&step.case.scenario(), settings).unwrap().memory
}

#[test]
fn arguments_are_the_compilers_to_a_fifth_of_a_percent() {
    for (error, name) in errors(|step| {
        let program = step.case.scenario().job.compile().classes.remove(0);
        (program.buffers.iter().take(3).map(|buffer| buffer.bytes.0).sum(), step.argument)
    }) {
        assert!(error.abs() <= 0.002, "{name}: {:+.3} %", error * 100.0);
    }
}

#[test]
fn the_peak_is_the_compilers_within_one_percent_in_the_median_and_what_we_say_of_it_at_worst() {
    let mut errors = errors(|step| (memory(step).report.peak_allocated.0, step.peak));
    // Of a small step a good part lies in fast memory, 128 MB of v6e, which is not modelled.
    let small: Vec<String> = steps().into_iter().filter(|step| step.peak < 512 << 20).map(|step| step.name).collect();
    errors.retain(|(_, name)| !small.contains(name));
    let median = errors[errors.len() / 2].0.abs();
    assert!(median <= 0.01, "median {:.1} %: {errors:?}", median * 100.0);
    let (worst, name) = errors.last().unwrap();
    assert!(worst.abs() <= COMPILED, "{name}: {:+.1} %", worst * 100.0);
}

#[test]
fn a_step_fits_where_the_compiler_finds_that_it_does() {
    let near = |step: &Step| {
        let memory = memory(step);
        let ran = step.refused.is_none();
        assert!(memory.fits() == ran, "{}: {} B at the peak", step.name, memory.wanted.0);
        let share = memory.wanted.0 as f64 / LIMIT;
        (0.95..1.05).contains(&share).then_some(ran)
    };
    let near: Vec<bool> = all().iter().filter_map(near).collect();
    assert!(near.contains(&true) && near.contains(&false), "steps on both sides of the limit, near to it: {near:?}");
}

/// Whether something that reads logits comes after the loop back (`oracles/xla-late.json`).
#[derive(Deserialize)]
struct Late {
    name: String,
    case: Case,
    late: bool,
    peak: u64,
}

#[test]
fn what_the_loss_leaves_for_after_the_loop_back_is_not_forgotten() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla-late.json");
    let rows: Vec<Late> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for Late { name, case, late, peak } in &rows {
        let step = Step {
            name: name.clone(),
            case: case.clone(),
            refused: None,
            argument: 0,
            peak: *peak,
            collectives: vec![],
            matmul_flops: None,
        };
        let scenario = step.case.scenario();
        let Parts::Compiled(job) = scenario.job.parts() else { panic!("{name}: no compiled step") };
        assert_eq!(job.late_loss(), *late, "{name}");
        let error = memory(&step).wanted.0 as f64 / *peak as f64 - 1.0;
        // The head's gradient, whole, may be made before or after.
        assert!((-0.03..0.15).contains(&error), "{name}: {:+.1} %", error * 100.0);
    }
}

#[test]
fn what_a_refused_step_needs_is_what_the_compiler_says() {
    let refused: Vec<Step> = all().into_iter().filter(|step| step.refused.is_some()).collect();
    let error = |step: &Step| {
        let needs = step.needs().unwrap_or_else(|| panic!("{}: how much does it need?", step.name));
        (memory(step).wanted.0 as f64 / needs - 1.0, step.name.clone())
    };
    let mut errors: Vec<_> = refused.iter().map(error).collect();
    errors.sort_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
    // Far beyond the limit it reduces the head's gradient early in some steps and not in others (30 and 31 sequences, not 33).
    assert!(errors[errors.len() / 2].0.abs() <= 0.02, "{errors:?}");
    assert!(errors.iter().all(|(error, _)| error.abs() <= 0.07), "{errors:?}");
}

#[test]
fn matmul_flops_are_the_compilers_to_a_thousandth() {
    for step in steps().iter().filter(|step| step.matmul_flops.is_some()) {
        // Near the limit it computes again what this says of a step that has no room at all.
        let short = step.name == "llama8b-wide-vocab-b20";
        let job = step.case.scenario().job;
        let job = match job.parts() {
            Parts::Compiled(compiled) if short => Plan::Xla(spmd::XlaPlan { hbm: Bytes(0), ..compiled.clone() }),
            _ => job,
        };
        let program = job.compile().classes.remove(0);
        let matmul = |instr: &Instr| match instr {
            Instr::Launch { kernel, .. } => match program.kernel(*kernel).work {
                Work::Matmul { m, n, k, .. } => 2.0 * m as f64 * n as f64 * k as f64,
                _ => 0.0,
            },
            _ => 0.0,
        };
        // Sorted rows are multiplied by kernels that the compiler does not look into: three products, again, and six gradients.
        let (case, sorted) = (&step.case, step.case.experts > 0 && step.case.capacity.is_none());
        let rows = if sorted { case.own_tokens() * case.top_k } else { 0 };
        let kernels = 12.0 * 2.0 * (case.layers * rows * case.d * case.ff) as f64;
        let (ours, theirs) = (program.step.iter().map(matmul).sum::<f64>() - kernels, step.matmul_flops.unwrap());
        assert!((ours / theirs - 1.0).abs() < 0.001, "{}: {ours:e} FLOPs, and {theirs:e}", step.name);
    }
}
