//! Plans are data: they are compared, hashed and written down, and two scenarios that differ in what matters differ in them.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use windtunnel::runtime::Plan;
use windtunnel::scenario::Scenario;
use windtunnel::schedule::order::ENTRIES;

use crate::make::replaced;

fn hash(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

#[test]
fn the_plan_of_every_shipped_scenario_equals_its_clone_and_is_written_down() {
    let (mut hashes, mut texts, mut frameworks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        let plan = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}")).job;
        let again = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}")).job;
        assert_eq!(plan, plan.clone(), "{}", path.display());
        assert_eq!((&plan, hash(&plan)), (&again, hash(&again)), "{}", path.display());
        let json = serde_json::to_value(&plan).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        frameworks.extend(json.as_object().unwrap().keys().cloned());
        hashes.insert(hash(&plan));
        texts.insert(json.to_string());
    }
    assert_eq!(frameworks.len(), 6, "one framework each: {frameworks:?}");
    assert_eq!(hashes.len(), texts.len(), "two plans have one hash if they are one");
}

#[test]
fn scenarios_that_differ_in_one_key_that_matters_have_different_plans() {
    let cases = [
        ("llama3.1-8b-fsdp2-8xh100.toml", "sequence = 8192", "sequence = 4096"),
        (
            "llama3.1-8b-deepspeed-zero3-8xh100.toml",
            "reduce_bucket_size = 50_000_000",
            "reduce_bucket_size = 50_000_001",
        ),
        ("llama3.1-8b-deepspeed-zero3-8xh100.toml", "clip_grad_norm = true", "clip_grad_norm = false"),
        ("gpt3-175b-megatron-1024xa100.toml", "sequence = 2048", "sequence = 1024"),
        ("internlm-7b-internevo-64xa100.toml", "sequence = 2048", "sequence = 1024"),
        ("llama-8.9b-nanotron-8xh100.toml", "sequence = 4096", "sequence = 2048"),
        ("llama3.1-8b-maxtext-8xv6e.toml", "sequence = 8192", "sequence = 4096"),
    ];
    for (name, from, to) in cases {
        let path = folder().join(name);
        let text = fs::read_to_string(&path).unwrap();
        let plan =
            |text: &str| Scenario::parse(&path.display().to_string(), text).unwrap_or_else(|e| panic!("{e}")).job;
        let (one, other) = (plan(&text), plan(&replaced(&text, &[(from, to)])));
        assert_ne!(one, other, "{name}: {to}");
        assert_ne!(hash(&one), hash(&other), "{name}: {to}");
    }
}

#[test]
fn what_changes_no_program_changes_no_plan() {
    let path = folder().join("llama3.1-8b-fsdp2-8xh100.toml");
    let text = fs::read_to_string(&path).unwrap();
    let plan = |text: &str| Scenario::parse(&path.display().to_string(), text).unwrap_or_else(|e| panic!("{e}")).job;
    let segments = format!("{text}\n[memory]\nexpandable_segments = true\n");
    assert_eq!(plan(&text), plan(&segments));
}

#[test]
fn a_schedule_is_known_by_its_name() {
    let names: BTreeSet<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), ENTRIES.len());
}
