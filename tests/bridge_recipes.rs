//! Megatron-Bridge 0.6.2's own pretrain recipes against what its importer makes of the files that runs of them save.
//!
//! `tests/oracles/bridge_recipes.py` drew 100 of all recipes before one was read, and built each one's model to count its parameters:
//! `tests/import/bridge/recipes.tsv`. Of these, twenty-one files are beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use windtunnel::import::{Imported, Machine, Request, find, import};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import/bridge")
}

/// A recipe, by the columns of the table.
struct Recipe {
    name: String,
    columns: BTreeMap<&'static str, i128>,
}

const COLUMNS: [&str; 11] =
    ["gpus", "tp", "pp", "cp", "ep", "etp", "vp", "sequence", "global_batch", "micro_batch", "parameters"];

fn recipes() -> Vec<Recipe> {
    let text = std::fs::read_to_string(folder().join("recipes.tsv")).unwrap();
    let of = |line: &str| {
        let (name, rest) = line.split_once('\t').unwrap();
        let numbers = rest.split('\t').map(|field| field.parse().unwrap_or(1));
        Recipe { name: name.to_owned(), columns: COLUMNS.into_iter().zip(numbers).collect() }
    };
    text.lines().skip(1).map(of).collect()
}

/// Its file, if it is one of those that are kept here.
fn text(recipe: &Recipe) -> Option<String> {
    std::fs::read_to_string(folder().join(&recipe.name).with_extension("yaml")).ok()
}

/// The file as a user imports it, on as many chips as its name says.
fn imported(recipe: &Recipe, text: &str) -> Imported {
    let chip =
        ["gb300", "gb200", "b300", "b200", "h100"].into_iter().find(|chip| recipe.name.contains(&format!("_{chip}_")));
    let (on, domain) = match chip.unwrap() {
        "gb300" => ("gb300-nvl72", 72),
        "gb200" => ("gb200-nvl72", 72),
        "b300" => ("b300-sxm", 8),
        "b200" => ("b200-sxm", 8),
        _ => ("h100-sxm-80gb", 8),
    };
    let gpus = recipe.columns["gpus"] as u32;
    // NVL72 is rented by 64 where a mesh divides no 72.
    let (nodes, chips) = match domain {
        _ if gpus <= domain => (None, Some(gpus)),
        72 => (Some(gpus / 64), Some(64)),
        _ => (Some(gpus / domain), None),
    };
    let machine = Machine { on: Some(on.to_owned()), nodes, chips, ..Machine::default() };
    let request = Request { file: &recipe.name, text, overrides: &[], machine, version: None, model: None };
    import(find("nemo").unwrap(), &request).unwrap_or_else(|error| panic!("{}: {error}", recipe.name))
}

/// By how much parameters differ and why, by the beginning of a recipe's name.
const COUNTED_OTHERWISE: [(&str, i128, &str); 7] = [
    (
        "deepseek_v3_",
        59 * 256,
        "the bias that balances experts is a buffer of the router in Megatron, and counted here",
    ),
    ("nemotron_3_nano_pretrain", 23 * 128, "the same"),
    ("nemotron_3_super_", 41 * 512, "the same"),
    ("deepseek_v2_lite_", -27 * 2048, "core 0.19 puts one more norm before queries that have no rank of their own"),
    ("gpt_oss_20b_", -24 * 32, "the router's bias"),
    ("qwen25_72b_", -2 * 8192 * 768, "words that fill the vocabulary up"),
    ("qwen3_14b_", -2 * 5120 * 640, "the same"),
];

#[test]
fn recipes_have_bridge_s_own_mesh_batch_and_parameters() {
    let mut read = 0;
    let mut wrong = String::new();
    for recipe in recipes() {
        let Some(text) = text(&recipe) else { continue };
        read += 1;
        let imported = imported(&recipe, &text);
        let scenario = imported.scenario().unwrap_or_else(|error| panic!("{}: {error}", recipe.name));
        let degree = |key: &str| {
            let entry = imported.entries.iter().find(|entry| entry.key == key);
            entry.and_then(|entry| entry.value.as_integer()).map_or(1, i128::from)
        };
        let theirs = |column: &str| recipe.columns[column];
        let mesh = ["tp", "pp", "cp", "ep"].map(|axis| (axis, degree(&format!("mesh.{axis}"))));
        let batch = [
            ("vp", degree("pipeline.virtual_stages")),
            ("sequence", degree("batch.sequence")),
            ("micro_batch", degree("batch.micro")),
            ("global_batch", degree("batch.global")),
        ];
        for (column, ours) in mesh.into_iter().chain(batch) {
            if ours != theirs(column) {
                wrong += &format!("{}: {column} is {ours}, not {}\n", recipe.name, theirs(column));
            }
        }
        let ours = i128::from(scenario.job.model().params().total);
        let known = COUNTED_OTHERWISE.iter().find(|(name, ..)| recipe.name.starts_with(name));
        let off = ours - theirs("parameters");
        if off != known.map_or(0, |(_, by, _)| *by) {
            wrong +=
                &format!("{}: {off} more parameters than {}, known {known:?}\n", recipe.name, theirs("parameters"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(read, 21);
}

/// The file of one recipe as a user imports it.
fn named(name: &str) -> Imported {
    let recipe = recipes().into_iter().find(|recipe| recipe.name == name).unwrap();
    imported(&recipe, &text(&recipe).unwrap())
}

#[test]
fn no_mask_comes_with_a_batch_of_bridge_s() {
    // `get_batch_from_iterator` leaves it out, and no field of a file says so: a sequence of 8,192 would bring 64 MiB a micro-batch.
    let imported = named("llama3_8b_pretrain_8gpu_gb200_fp8cs_config");
    assert_eq!(imported.get("megatron.get_batch").and_then(|word| word.as_str()), Some("each_rank"));
    assert_eq!(imported.get("megatron.create_attention_mask_in_dataloader"), None);
}

#[test]
fn bridge_s_optimizer_keeps_whole_masters_beside_narrow_moments() {
    // DeepSeek-V3's recipe: bf16 moments, and `optimizer.fp8_recipe` is written whatever is computed in.
    let imported = named("deepseek_v3_pretrain_256gpu_b200_fp8cs_config");
    assert_eq!(imported.get("megatron.exp_avg_dtype").and_then(|word| word.as_str()), Some("bf16"));
    assert_eq!(imported.get("megatron.store_param_remainders").and_then(|flag| flag.as_bool()), Some(false));
}
