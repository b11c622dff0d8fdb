//! Training steps on packed documents with attention inside each, against PyTorch's allocator and FLOP counter
//! (`tests/oracles/documents.json`): each case goes through a scenario, as a user's does.

use std::path::{Path, PathBuf};

use super::cases;
use serde_json::Value;
use windtunnel::memory::{MemoryReport, Settings, replay};
use windtunnel::program::Program;
use windtunnel::scenario::Scenario;
use windtunnel::units::Bytes;

/// The config of cases without transformers' classes: lora.py's Llama.
const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": WORDS, "num_hidden_layers": 3, "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192, "tie_word_embeddings": false}"#;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documents");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The scenario of a case, beside its config; with the mask by document, or without.
fn text(case: &Value, config: &str, masked: bool) -> String {
    let world = case["world"].as_u64().unwrap();
    let (runtime, fsdp) = match (world, case["wrap"].as_str()) {
        (1, _) => ("single_device", ""),
        (_, Some("ends")) => ("fsdp2", "[fsdp]\nwrap = \"torchtitan\""),
        _ => ("fsdp2", "[fsdp]\nwrap = \"block\""),
    };
    let transformers = case["code"] == "transformers";
    let (seq, bs) = (case["seq"].as_u64().unwrap(), case["bs"].as_u64().unwrap());
    let adapters = match case["rank"].as_u64() {
        Some(rank) => {
            format!("[lora]\nrank = {rank}\ndropout = 0.0\nmodules = {}\nimplementation = \"peft\"", case["modules"])
        }
        None => String::new(),
    };
    format!(
        r#"runtime = "{runtime}"
[topology]
name = "h100-sxm-80gb"
chips = {world}
[model]
huggingface = "{config}"
[mesh]
dp_shard = {world}
[batch]
sequence = {seq}
micro = {bs}
{documents}
{framework}
{precision}
[attention]
backend = "{backend}"
{implementation}
[loss]
inside_model = {transformers}
keep_logits = false
[activation_checkpointing]
policy = {ac}
[optimizer]
implementation = "foreach"
clip_grad_norm = false
{fsdp}
{adapters}
"#,
        documents = if masked { format!("documents = {{ length = {} }}", case["length"]) } else { String::new() },
        framework = if transformers { "[framework]\nrelease = \"transformers 5.23\"" } else { "" },
        precision = if case["mp"] == "mixed" { "" } else { "[precision]\nstorage = \"bf16\"" },
        backend = if case["code"] == "flex" { "flex" } else { "flash2" },
        implementation = if transformers { "implementation = \"flash_attention_2\"" } else { "" },
        ac = case["ac"],
    )
}

/// All cases, each with the program and the memory of a scenario.
fn all(masked: bool) -> Vec<(Value, Program, MemoryReport)> {
    let Some(file) = cases::read("documents.json") else { return vec![] };
    let folder = folder();
    let read = |case: &Value| {
        let id = case["id"].as_str().unwrap();
        let config =
            case.get("config").map_or_else(|| LLAMA.replace("WORDS", &case["words"].to_string()), Value::to_string);
        let name = format!("{id}-{masked}.json");
        // Tests beside this one read the same file: it is whole from the first.
        let part = folder.join(format!("{name}.{:?}", std::thread::current().id()));
        std::fs::write(&part, config).unwrap();
        std::fs::rename(part, folder.join(&name)).unwrap();
        let beside = folder.join("scenario.toml").display().to_string();
        let scenario =
            Scenario::parse(&beside, &text(case, &name, masked)).unwrap_or_else(|error| panic!("{id}: {error}"));
        let program = scenario.job.compile().programs().remove(0);
        let report = replay(&program, Settings { expandable_segments: false, capacity: Bytes(1 << 43) });
        (case.clone(), program, report)
    };
    file["cases"].as_array().unwrap().iter().map(read).collect()
}

fn off(ours: u64, theirs: u64) -> f64 {
    100.0 * (ours as f64 / theirs as f64 - 1.0)
}

#[test]
fn oracle_documents_take_the_memory_that_pytorch_allocates() {
    let (mut table, mut worst) = (String::new(), 0.0_f64);
    let (cases, plain) = (all(true), all(false));
    for ((case, _, report), (_, _, without)) in cases.iter().zip(&plain) {
        let number = |key: &str| case[key].as_u64().unwrap();
        let allocated = off(report.peak_allocated.0, number("peak_allocated"));
        let reserved = off(report.peak_reserved.0, number("peak_reserved"));
        let before = off(without.peak_allocated.0, number("peak_allocated"));
        worst = worst.max(allocated.abs());
        let id = case["id"].as_str().unwrap();
        table += &format!(
            "{id:24} allocated {allocated:+7.3} % (without the mask {before:+7.3} %) reserved {reserved:+7.3} %"
        );
        for phase in &report.phases {
            if let Some(theirs) = case["phases"][&phase.name]["peak"].as_u64() {
                let mib = (phase.peak_allocated.0 as f64 - theirs as f64) / f64::from(1 << 20);
                table += &format!(" {} {mib:+.2}", phase.name);
            }
        }
        table += "\n";
    }
    println!("{table}");
    assert!(cases.len() >= 20 || cases::elsewhere());
    assert!(worst <= 1.0, "an allocated peak is off by over 1 %:\n{table}");
}

#[test]
fn oracle_flops_of_documents_equal_pytorchs_flop_counter_exactly() {
    for (case, program, _) in all(true) {
        if let Some(theirs) = case["flops"].as_u64() {
            assert_eq!(program.flops.0, u128::from(theirs), "{}", case["id"]);
        }
    }
}
