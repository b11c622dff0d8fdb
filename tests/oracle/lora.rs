//! Training steps in which not every parameter is trained, LoRA and QLoRA among them, against PyTorch's allocator and FLOP counter
//! (`tests/oracles/lora.json`): each case goes through a scenario, as a user's does.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::cases;
use serde_json::Value;
use windtunnel::memory::{MemoryReport, Settings, replay};
use windtunnel::program::Program;
use windtunnel::runtime::train::trained_parameters;
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

struct Case {
    value: Value,
    program: Program,
    report: MemoryReport,
}

/// The config of torchtune's cases.
const TUNE: &str = r#"{"model_type": "llama", "vocab_size": 32000, "num_hidden_layers": 3, "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lora");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// `[trained]` and `[lora]` of a case.
fn tables(case: &Value) -> String {
    let mut text = String::new();
    let frozen = case["freeze"].as_array().unwrap();
    let inputs = case["inputs"] == true;
    if !frozen.is_empty() || !case["last"].is_null() || inputs {
        text += "[trained]\n";
        if case["rank"].is_null() {
            text += &format!("freeze = {}\n", case["freeze"]);
        }
        if let Some(last) = case["last"].as_u64() {
            text += &format!("last_layers = {last}\n");
        }
        if inputs {
            text += "input_gradients = true\n";
        }
    }
    if let Some(rank) = case["rank"].as_u64() {
        let code = if case["code"] == "tune" { "torchtune" } else { "peft" };
        let base = if case["base"] == "nf4" { "base = \"nf4\"" } else { "" };
        let (dropout, modules, dtype) = (&case["dropout"], &case["modules"], &case["dtype"]);
        text += &format!(
            "[lora]\nrank = {rank}\ndropout = {dropout:?}\nmodules = {modules}\nimplementation = \"{code}\"\ndtype = {dtype}\n{base}\n",
            dropout = dropout.as_f64().unwrap(),
        );
    }
    text
}

/// The scenario of a case, beside its config.
fn text(case: &Value, config: &str) -> String {
    let world = case["world"].as_u64().unwrap();
    let tune = case["code"] == "tune";
    let runtime = if world == 1 { "single_device" } else { "fsdp2" };
    let replicas = case["hsdp"].as_u64().unwrap();
    let mixed = case["mp"] == "mixed";
    let precision = if mixed { "" } else { "[precision]\nstorage = \"bf16\"" };
    let wrap = match (world, case["wrap"].as_str()) {
        (1, _) => "",
        (_, Some("ends")) => "[fsdp]\nwrap = \"torchtitan\"",
        _ => "[fsdp]\nwrap = \"block\"",
    };
    format!(
        r#"runtime = "{runtime}"
[topology]
name = "h100-sxm-80gb"
chips = {world}
[model]
huggingface = "{config}"
[mesh]
dp_shard = {shard}
{replicate}
[batch]
sequence = {seq}
micro = {bs}
{framework}
{precision}
[attention]
backend = "flash2"
{implementation}
[loss]
inside_model = {inside}
keep_logits = false
[activation_checkpointing]
policy = {ac}
early_stop = {early_stop}
[optimizer]
implementation = "{implementation_of_step}"
clip_grad_norm = false
{wrap}
{tables}
"#,
        shard = world / replicas,
        replicate = if replicas > 1 { format!("dp_replicate = {replicas}") } else { String::new() },
        seq = case["seq"],
        bs = case["bs"],
        framework = if tune { "" } else { "[framework]\nrelease = \"transformers 5.23\"" },
        implementation = match case["model"].as_str() {
            _ if tune => "",
            Some("gemma2") => "implementation = \"eager\"",
            _ => "implementation = \"sdpa\"",
        },
        inside = !tune,
        ac = case["ac"],
        early_stop = case["reentrant"] != true,
        implementation_of_step = if case["fused"] == true { "fused" } else { "foreach" },
        tables = tables(case),
    )
}

/// All cases; read once, since all tests write their configs to the same place.
fn all() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let Some(file) = cases::read("lora.json") else { return vec![] };
        let folder = folder();
        let read = |case: &Value| {
            let id = case["id"].as_str().unwrap().to_owned();
            let config = if case["code"] == "tune" { TUNE.to_owned() } else { case["config"].to_string() };
            std::fs::write(folder.join(format!("{id}.json")), config).unwrap();
            let beside = folder.join("scenario.toml");
            let scenario = Scenario::parse(&beside.display().to_string(), &text(case, &format!("{id}.json")))
                .unwrap_or_else(|error| panic!("{id}: {error}"));
            let plan = scenario.job.train().expect("cases are of PyTorch's own runtimes");
            assert_eq!(trained_parameters(plan), case["trained"].as_u64().unwrap(), "{id}: trained parameters");
            let program = scenario.job.compile().programs().remove(0);
            let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
            Case { value: case.clone(), program, report }
        };
        file["cases"].as_array().unwrap().iter().map(read).collect()
    })
}

fn off(ours: u64, theirs: u64) -> f64 {
    100.0 * (ours as f64 / theirs as f64 - 1.0)
}

#[test]
fn oracle_peak_memory_with_frozen_parameters_agrees_with_pytorchs_allocator() {
    let (mut table, mut worst) = (String::new(), 0.0_f64);
    for Case { value, report, .. } in all() {
        let number = |key: &str| value[key].as_u64().unwrap();
        let allocated = off(report.peak_allocated.0, number("peak_allocated"));
        let reserved = off(report.peak_reserved.0, number("peak_reserved"));
        worst = worst.max(allocated.abs());
        let id = value["id"].as_str().unwrap();
        table += &format!("{id:34} allocated {allocated:+7.3} % reserved {reserved:+7.3} %");
        for phase in &report.phases {
            let theirs = &value["phases"][&phase.name];
            if let Some(theirs) = theirs["peak"].as_u64() {
                let mib = (phase.peak_allocated.0 as f64 - theirs as f64) / f64::from(1 << 20);
                table += &format!(" {} {mib:+.2}", phase.name);
            }
        }
        table += "\n";
    }
    println!("{table}");
    assert!(all().len() >= 40 || cases::elsewhere());
    assert!(worst <= 1.0, "an allocated peak is off by over 1 %:\n{table}");
}

#[test]
fn oracle_flops_with_frozen_parameters_equal_pytorchs_flop_counter_exactly() {
    let wrong: String = all()
        .iter()
        .filter(|case| {
            let theirs = ["flops", "uncounted"].map(|key| u128::from(case.value[key].as_u64().unwrap()));
            case.program.flops.0 != theirs.iter().sum::<u128>()
        })
        .map(|case| format!("{}: {} against {}\n", case.value["id"], case.program.flops.0, case.value["flops"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong}");
}
