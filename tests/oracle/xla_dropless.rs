//! MaxText's own train step with dropless experts over an expert axis, and of models whose scan runs several layers in a turn, by libtpu
//! without a TPU (`oracles/xla-dropless.json`, by `oracles/xla_dropless.py`). Each row is imported from MaxText's own words.

use std::path::Path;

use serde::Deserialize;
use windtunnel::import::{Machine, Request, find, import};
use windtunnel::program::{Category, Instr};
use windtunnel::scenario::Scenario;
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::{DeviceMemory, Settings};

#[derive(Deserialize)]
struct Row {
    name: String,
    /// MaxText's command line.
    words: Vec<String>,
    /// The machine that it was compiled for; none: v6e.
    on: Option<String>,
    /// The slice.
    slice: String,
    /// Slices.
    slices: Option<u32>,
    /// Whether it led to a rule.
    seen: bool,
    parameters: u64,
    argument: u64,
    peak: u64,
}

fn rows() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/xla-dropless.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn scenario(row: &Row) -> Scenario {
    let machine = Machine {
        on: Some(row.on.clone().unwrap_or("tpu-v6e".to_owned())),
        slice: Some(row.slice.clone()),
        slices: row.slices,
        ..Machine::default()
    };
    let request = Request {
        file: "base.yml",
        text: "enable_checkpointing: false\n",
        overrides: &row.words,
        machine,
        ..Request::default()
    };
    let imported = import(find("maxtext").unwrap(), &request).unwrap_or_else(|why| panic!("{}: {why}", row.name));
    imported.scenario().unwrap_or_else(|why| panic!("{}: {why}", row.name))
}

fn memory(row: &Row) -> DeviceMemory {
    predict(&scenario(row), Settings { remedies: false, ..Settings::default() }).unwrap().memory
}

#[test]
fn parameters_and_arguments_are_maxtexts() {
    for row in rows() {
        let scenario = scenario(&row);
        let own = scenario.job.model().params().total;
        // MaxText's state has a step's number and random state besides.
        assert!(own.abs_diff(row.parameters) < 1_000, "{}: {own} parameters of {}", row.name, row.parameters);
        let program = scenario.job.compile().classes.remove(0);
        let given = [Category::Parameter, Category::OptimizerState, Category::Buffer];
        let bytes = |instruction: &Instr| match instruction {
            Instr::Alloc { buffer } if given.contains(&program.buffer(*buffer).category) => {
                program.buffer(*buffer).bytes.0
            }
            _ => 0,
        };
        let own: u64 = program.setup.iter().map(bytes).sum();
        let off = own as f64 / row.argument as f64 - 1.0;
        // Chips pad widths to 128 numbers: half of GPT-OSS's 2,880 is none of it.
        let most = if row.name.starts_with("gptoss") { 0.02 } else { 0.002 };
        assert!(off.abs() < most, "{}: arguments {off:+.4}", row.name);
    }
}

#[test]
fn peaks_are_within_what_a_prediction_says_of_itself() {
    let mut errors = vec![];
    for row in rows() {
        let memory = memory(&row);
        let own = memory.report.peak_allocated.0 as f64;
        let off = own / row.peak as f64 - 1.0;
        let doubt = memory.doubt.0 as f64 / own;
        assert!(
            off.abs() <= doubt + 0.01,
            "{} (seen: {}): {off:+.3}, said to be known to {doubt:.3}",
            row.name,
            row.seen
        );
        errors.push(off.abs());
    }
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    assert!(median <= 0.04, "median {median}: {errors:?}");
}
