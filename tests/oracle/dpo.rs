//! Steps of direct preference optimization against PyTorch's allocator and FLOP counter (`tests/oracles/dpo.json`): each case goes
//! through a scenario, as a user's does.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::cases;
use serde_json::Value;
use windtunnel::memory::{MemoryReport, Settings, replay};
use windtunnel::program::{Category, Instr, Program};
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

/// The least block that an order of blocks is compared of \[B\].
const LARGE: u64 = 1 << 20;
/// The same of transformers' classes: in a backward of two sequences their attention's projections come in another order than ours.
const LARGE_OF_TRANSFORMERS: u64 = 24 << 20;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpo");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn is(case: &Value, key: &str, value: &str) -> bool {
    case[key] == value
}

/// `[dpo]`, `[lora]` and `[trained]` of a case.
fn tables(case: &Value) -> String {
    let tune = is(case, "code", "tune");
    let code = if tune { "torchtune" } else { "trl" };
    let mut text = format!("[dpo]\nimplementation = \"{code}\"\nreference = {}\n", case["reference"]);
    if case["inputs"] == true {
        text += "[trained]\ninput_gradients = true\n";
    }
    if let Some(rank) = case["rank"].as_u64() {
        let base = if is(case, "base", "nf4") { "base = \"nf4\"" } else { "" };
        let (modules, dtype) = (&case["modules"], &case["dtype"]);
        text += &format!("[lora]\nrank = {rank}\nmodules = {modules}\ndtype = {dtype}\n{base}\n");
    }
    text
}

/// The scenario of a case, beside its config.
fn text(case: &Value, config: &str) -> String {
    let world = case["world"].as_u64().unwrap();
    let tune = is(case, "code", "tune");
    let replicas = case["hsdp"].as_u64().unwrap();
    let precision = match () {
        () if is(case, "mp", "mixed") => "",
        () if is(case, "store", "fp32") => "[precision]\nstorage = \"fp32\"",
        () => "[precision]\nstorage = \"bf16\"",
    };
    let wrap = match (world, case["wrap"].as_str()) {
        (1, _) => String::new(),
        (_, Some("ends")) => "[fsdp]\nwrap = \"torchtitan\"".to_owned(),
        _ => format!("[fsdp]\nwrap = \"block\"\nreshard_after_forward = {}", case["reshard"]),
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
[activation_checkpointing]
policy = {ac}
early_stop = {early_stop}
[optimizer]
implementation = "foreach"
clip_grad_norm = false
{wrap}
{tables}
"#,
        runtime = if world == 1 { "single_device" } else { "fsdp2" },
        shard = world / replicas,
        replicate = if replicas > 1 { format!("dp_replicate = {replicas}") } else { String::new() },
        seq = case["seq"],
        bs = case["bs"],
        framework = if tune { "" } else { "[framework]\nrelease = \"transformers 5.23\"" },
        implementation = if tune { "" } else { "implementation = \"sdpa\"" },
        ac = case["ac"],
        early_stop = case["reentrant"] != true,
        tables = tables(case),
    )
}

/// All cases; read once, since all tests write their configs to the same place.
fn all() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let Some(file) = cases::read("dpo.json") else { return vec![] };
        let folder = folder();
        let read = |case: &Value| {
            let id = case["id"].as_str().unwrap().to_owned();
            let config = if is(case, "code", "tune") { TUNE.to_owned() } else { case["config"].to_string() };
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
fn oracle_peak_memory_of_preference_optimization_agrees_with_pytorchs_allocator_phase_by_phase() {
    let (mut table, mut worst, mut worst_reserved) = (String::new(), 0.0_f64, 0.0_f64);
    for Case { value, report, .. } in all() {
        let number = |key: &str| value[key].as_u64().unwrap();
        let allocated = off(report.peak_allocated.0, number("peak_allocated"));
        let reserved = off(report.peak_reserved.0, number("peak_reserved"));
        (worst, worst_reserved) = (worst.max(allocated.abs()), worst_reserved.max(reserved.abs()));
        let id = value["id"].as_str().unwrap();
        table += &format!("{id:30} allocated {allocated:+7.3} % reserved {reserved:+7.3} %");
        for (phase, theirs) in value["phases"].as_object().unwrap() {
            let ours = report.phases.iter().find(|ours| ours.name == *phase);
            let ours = ours.unwrap_or_else(|| panic!("{id}: no phase {phase}")).peak_allocated.0;
            let error = off(ours, theirs["peak"].as_u64().unwrap());
            worst = worst.max(error.abs());
            table += &format!(" {phase} {error:+.3}");
        }
        table += "\n";
    }
    println!("{table}");
    assert!(all().len() >= 28 || cases::elsewhere());
    assert!(worst <= 0.1, "an allocated peak is off by over 0.1 %:\n{table}");
    assert!(worst_reserved <= 5.0, "a reserved peak is off by over 5 %:\n{table}");
}

#[test]
fn oracle_flops_of_preference_optimization_equal_pytorchs_flop_counter_exactly() {
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

/// The same with what is given back between two blocks that are taken in order of size: whichever goes first, the allocator ends in
/// the same state.
fn settled(mut list: Vec<i64>) -> Vec<i64> {
    list.chunk_by_mut(|one, next| *one < 0 && *next < 0).for_each(|run| run.sort_unstable());
    list
}

/// Large blocks taken, and given back as negative numbers.
fn order(program: &Program, least: u64) -> Vec<i64> {
    let bytes = |buffer| program.buffer(buffer).bytes.0.next_multiple_of(512);
    let large = |bytes: u64| (bytes >= least).then_some(bytes as i64);
    let moved = |instr: &Instr| match *instr {
        Instr::Alloc { buffer } => large(bytes(buffer)),
        Instr::Free { buffer } => large(bytes(buffer)).map(|bytes| -bytes),
        _ => None,
    };
    program.step.iter().filter_map(moved).collect()
}

#[test]
fn oracle_large_blocks_of_preference_optimization_come_and_go_in_pytorchs_order() {
    let mut wrong = String::new();
    for Case { value, program, .. } in all() {
        let Some(theirs) = value["events"].as_array() else { continue };
        let least = if is(value, "code", "tune") { LARGE } else { LARGE_OF_TRANSFORMERS };
        let theirs = theirs.iter().map(|bytes| bytes.as_i64().unwrap());
        let theirs = settled(theirs.filter(|bytes| bytes.unsigned_abs() >= least).collect());
        let ours = settled(order(program, least));
        let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        let Some(at) = differs.or((ours.len() != theirs.len()).then_some(ours.len().min(theirs.len()))) else {
            continue;
        };
        let around = |list: &[i64]| {
            let mib = |&bytes: &i64| (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0;
            list[at.saturating_sub(6)..list.len().min(at + 12)].iter().map(mib).collect::<Vec<_>>()
        };
        let (ours_around, theirs_around) = (around(&ours), around(&theirs));
        wrong += &format!(
            "{} at {at} of {}/{}:\n  ours   {ours_around:?}\n  theirs {theirs_around:?}\n",
            value["id"],
            ours.len(),
            theirs.len()
        );
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_reference_models_memory_has_a_category_of_its_own() {
    let Some(case) = all().iter().find(|case| case.value["id"] == "tune-single") else { return };
    let setup = case.program.setup.iter().filter_map(|instr| match *instr {
        Instr::Alloc { buffer } => Some(case.program.buffer(buffer)),
        _ => None,
    });
    let of = |category: Category| {
        setup.clone().filter(move |buffer| buffer.category == category).map(|buffer| buffer.bytes.0)
    };
    let parameters: u64 = of(Category::Parameter).sum();
    let reference: u64 = of(Category::Reference).sum();
    assert!(
        reference >= parameters && reference < parameters + parameters / 100,
        "{reference} B beside {parameters} B"
    );
}
