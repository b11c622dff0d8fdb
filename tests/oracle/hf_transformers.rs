//! Hugging Face transformers' own classes in training, against PyTorch's allocator and FLOP counter
//! (`tests/oracles/hf-transformers.json`): each case goes through a `config.json` and a scenario, as a user's does.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::cases;
use serde_json::Value;
use windtunnel::memory::{MemoryReport, Settings, replay};
use windtunnel::program::Program;
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

struct Case {
    id: String,
    value: Value,
    program: Program,
    report: MemoryReport,
}

/// The scenario of a case, beside its config.
fn text(case: &Value, config: &str) -> String {
    let single = case["world"] == 1;
    let word = |key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let (runtime, chips) = if single { ("single_device", 1) } else { ("fsdp2", 8) };
    format!(
        r#"runtime = "{runtime}"
[topology]
name = "h100-sxm-80gb"
chips = {chips}
[model]
huggingface = "{config}"
[mesh]
dp_shard = {chips}
[batch]
sequence = {seq}
micro = {bs}
[framework]
release = "transformers 5.23"
{precision}
[attention]
backend = "flash2"
implementation = "{attention}"
[compile]
blocks = {compiled}
[loss]
inside_model = {inside}
keep_logits = {keeps}
[activation_checkpointing]
policy = "{policy}"
early_stop = {early_stop}
[optimizer]
implementation = "foreach"
clip_grad_norm = false
{wrap}
"#,
        seq = case["seq"],
        bs = case["bs"],
        precision = if single { "[precision]\nstorage = \"bf16\"" } else { "" },
        attention = word("attention"),
        compiled = word("mode") == "compiled",
        inside = word("loss") == "inside",
        keeps = if word("loss") == "inside" && word("held") == "output" { "\"backward\"" } else { "false" },
        policy = if word("mode") == "checkpointed" { "full" } else { "none" },
        early_stop = case["use_reentrant"] != true,
        wrap = if single { "" } else { "[fsdp]\nwrap = \"block\"" },
    )
}

/// All cases, read once for both tests.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(read)
}

fn read() -> Vec<Case> {
    let Some(file) = cases::read("hf-transformers.json") else { return vec![] };
    let folder = tempfile::tempdir().unwrap();
    let read = |case: &Value| {
        let id = case["id"].as_str().unwrap().to_owned();
        std::fs::write(folder.path().join(format!("{id}.json")), case["config"].to_string()).unwrap();
        let beside = folder.path().join("scenario.toml");
        let scenario = Scenario::parse(&beside.display().to_string(), &text(case, &format!("{id}.json")))
            .unwrap_or_else(|error| panic!("{id}: {error}"));
        let program = scenario.job.compile().programs().remove(0);
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        assert_eq!(scenario.job.model().params().total, case["params"].as_u64().unwrap(), "{id}");
        Case { id, value: case.clone(), program, report }
    };
    file["cases"].as_array().unwrap().iter().map(read).collect()
}

fn off(ours: u64, theirs: u64) -> f64 {
    100.0 * (ours as f64 / theirs as f64 - 1.0)
}

/// Peaks of forward and backward.
fn phases(report: &MemoryReport) -> BTreeMap<String, u64> {
    report.phases.iter().map(|phase| (phase.name.clone(), phase.peak_allocated.0)).collect()
}

#[test]
fn oracle_peak_memory_of_transformers_classes_agrees_with_pytorchs_allocator() {
    let mut table = String::new();
    let (mut allocated, mut reserved) = (vec![], vec![]);
    for Case { id, value, report, .. } in cases() {
        let number = |key: &str| value[key].as_u64().unwrap();
        let a = off(report.peak_allocated.0, number("peak_allocated"));
        let r = off(report.peak_reserved.0, number("peak_reserved"));
        let ours = phases(report);
        let of_phase = |name: &str| {
            let theirs = value["phases"][name]["peak"].as_u64().unwrap();
            ours.get(name).map_or(f64::NAN, |&ours| off(ours, theirs))
        };
        table += &format!(
            "{id:26} allocated {a:+7.3} % reserved {r:+7.3} % forward {:+7.3} % backward {:+7.3} % optimizer {:+7.3} %\n",
            of_phase("fwd"),
            of_phase("bwd"),
            of_phase("opt"),
        );
        allocated.push(a.abs());
        reserved.push(r.abs());
    }
    println!("{table}");
    let worst = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
    assert!(!allocated.is_empty() || cases::elsewhere());
    assert!(worst(&allocated) <= 0.1, "an allocated peak is off by over 0.1 %:\n{table}");
    assert!(worst(&reserved) <= 1.5, "a reserved peak is off by over 1.5 %:\n{table}");
}

#[test]
fn oracle_flops_of_transformers_classes_equal_pytorchs_flop_counter_exactly() {
    let mut wrong = String::new();
    let mut checked = 0;
    for Case { id, value, program, .. } in cases() {
        let Some(theirs) = value["flops"].as_u64() else { continue };
        checked += 1;
        if program.flops.0 != u128::from(theirs) {
            wrong += &format!("{id}: {} against {theirs}\n", program.flops.0);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(checked >= 40 || cases::elsewhere(), "only {checked} cases carry FLOPs");
}
