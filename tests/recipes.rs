//! Public NeMo and Megatron-Bridge recipes against the planner: at the same model, machine, batch and types, the best plan is no slower.
//!
//! A recipe is what a row of `tests/receipts/public.jsonl` maps to. A plan keeps all of its keys but those of its layout ([`LAYOUT`]). Both
//! steps are predictions. Recipes that answer one question stand together, and the fastest of them is the one to beat.
//!
//! `RECIPES=llama3.1-8b cargo test --release --test all -- --ignored --nocapture every_recipe` prints the table of `docs/guide/recipes.md`
//! for the recipes whose id has that in it; without `RECIPES` for all, which takes more than an hour.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use toml::{Table, Value};
use windtunnel::explore::plan::{Planned, Request, drafts, plan};
use windtunnel::receipt::table::Tables;
use windtunnel::receipt::{Case, check};

/// Frameworks whose rows are recipes.
const FRAMEWORKS: [&str; 4] =
    ["NeMo", "NeMo container", "Megatron-Bridge / NeMo container", "Megatron-LM / NeMo perf script"];
/// What a plan chooses; tables whole.
const LAYOUT: [&str; 6] =
    ["mesh", "pipeline", "batch", "megatron.recompute", "megatron.cp_comm_type", "tensor_parallel.sequence"];
/// What the request itself says, and what was measured.
const ASKED: [&str; 5] = ["runtime", "description", "topology", "model.name", "measured"];
/// The switch that hides tensor-parallel exchanges, whose keys need such ranks.
const OVERLAP: &str = "megatron.tp_comm_overlap";

struct Recipe {
    id: String,
    case: Case,
    keys: BTreeMap<String, Value>,
    sequences: i64,
    chips: u64,
}

fn flat(text: &str) -> BTreeMap<String, Value> {
    let table: Table = text.parse().unwrap();
    let one = |(name, value): (String, Value)| match value {
        Value::Table(inner) => inner.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect(),
        value => vec![(name, value)],
    };
    table.into_iter().flat_map(one).collect()
}

/// Recipes whose id has `part` in it, by the question that they answer; small machines first.
fn questions(part: &str) -> Vec<Vec<Recipe>> {
    let public = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts/public.jsonl");
    let (files, tables) = (check::read(&[public]).unwrap(), Tables::shipped());
    let mut found: BTreeMap<(u64, String), Vec<Recipe>> = BTreeMap::new();
    for entry in files.receipts.entries.iter().filter(|entry| entry.row.id.contains(part)) {
        let row = &entry.row;
        let named = row.framework.name.as_deref().is_some_and(|name| FRAMEWORKS.contains(&name));
        if !named || !["A", "B"].contains(&row.grade()) {
            continue;
        }
        let Ok(case) = check::case(entry, &tables) else { continue };
        if case.measured().step.is_none() {
            continue;
        }
        let keys = flat(&case.text);
        // The planner asks for whole nodes, and a domain of 72 chips is one. Where a recipe does not say how many layers each stage
        // has, the planner's own stages are as good.
        let assumed = |key: &str| case.assumptions.iter().any(|assumption| assumption.key == key);
        if keys.contains_key("topology.chips") || assumed("pipeline.layers") {
            continue;
        }
        let sequences = case.scenario.job.tokens() as i64 / keys["batch.sequence"].as_integer().unwrap();
        let chips = case.scenario.job.ranks();
        let key = |name: &str| keys.get(name).map(Value::to_string);
        let types = [key("megatron.fp8"), key("batch.sequence"), key("model.layers"), key("model.name")];
        let question = (chips, format!("{:?} {types:?} {sequences}", key("topology.name")));
        let recipe = Recipe { id: row.id.clone(), case, keys, sequences, chips };
        found.entry(question).or_default().push(recipe);
    }
    found.into_values().collect()
}

/// Whether a key, or its table, is in a list.
fn among(list: &[&str], key: &str) -> bool {
    list.iter().any(|listed| key == *listed || key.split_once('.').is_some_and(|(table, _)| table == *listed))
}

/// What the planner is asked: the recipe's keys but those of its layout, and those that `without` names.
fn request(recipe: &Recipe, vary: &[(&str, Value)], without: impl Fn(&str) -> bool) -> Request {
    let kept = |key: &str| !among(&ASKED, key) && !among(&LAYOUT, key) && !without(key);
    let set: Table = recipe.keys.clone().into_iter().filter(|(key, _)| kept(key)).collect();
    let machine = Table::from_iter([
        ("name".to_owned(), recipe.keys["topology.name"].clone()),
        ("size".to_owned(), recipe.keys["topology.nodes"].clone()),
    ]);
    let keys = Table::from_iter([
        ("model".to_owned(), recipe.keys["model.name"].clone()),
        ("sequence".to_owned(), recipe.keys["batch.sequence"].clone()),
        ("global_batch".to_owned(), recipe.sequences.into()),
        ("frameworks".to_owned(), vec!["megatron"].into()),
        ("top".to_owned(), 1.into()),
        ("machine".to_owned(), Value::Array(vec![machine.into()])),
        ("set".to_owned(), set.into()),
        (
            "vary".to_owned(),
            vary.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<Table>().into(),
        ),
    ]);
    Request::of(&recipe.id, keys).unwrap()
}

/// What the planner is asked in the place of a recipe. Where it hides tensor-parallel exchanges, plans without such ranks are asked for apart.
fn asked(recipe: &Recipe) -> Vec<Request> {
    let hides = recipe.keys.get(OVERLAP).and_then(Value::as_bool) == Some(true);
    let alone = || request(recipe, &[("mesh.tp", vec![1].into())], |key| key.starts_with("megatron.tp_comm"));
    std::iter::once(request(recipe, &[], |_| false)).chain(hides.then(alone)).collect()
}

/// The best plan.
fn search(recipe: &Recipe) -> Option<Planned> {
    let answers = asked(recipe).into_iter().filter_map(|request| plan(request, false, &|_| ()).ok());
    let sites = answers.filter_map(|answer| answer.sites.into_iter().next());
    sites.filter_map(|site| site.ranked.into_iter().next()).map(|ranked| ranked.plan).min_by_key(|plan| plan.step)
}

/// A layout, with the layers of its stages where they do not divide.
fn layout(get: impl Fn(&str) -> Option<Value>) -> (Vec<(&'static str, String)>, Option<String>) {
    (words(&get), get("pipeline.layers").map(|layers| layers.to_string()))
}

/// A layout in the planner's words, without what is usual.
fn words(get: impl Fn(&str) -> Option<Value>) -> Vec<(&'static str, String)> {
    let said = [
        ("tp", "mesh.tp"),
        ("cp", "mesh.cp"),
        ("cp by", "megatron.cp_comm_type"),
        ("ep", "mesh.ep"),
        ("etp", "mesh.etp"),
        ("pp", "mesh.pp"),
        ("vpp", "pipeline.virtual_stages"),
        ("micro", "batch.micro"),
        ("recompute", "megatron.recompute"),
    ];
    let usual = |word: &str| match word {
        "recompute" => "none",
        "cp by" => "p2p",
        _ => "1",
    };
    let one = |&(word, key): &(&'static str, &str)| {
        let value = get(key).map_or_else(
            || usual(word).to_owned(),
            |value| match value {
                Value::String(text) => text,
                Value::Table(table) => table.iter().map(|(key, value)| format!("{key} {value}")).collect(),
                value => value.to_string(),
            },
        );
        (word, value)
    };
    said.iter().map(one).filter(|(word, value)| value != usual(word)).collect()
}

fn line(words: &[(&'static str, String)]) -> String {
    words.iter().map(|(word, value)| format!("{word} {value}")).collect::<Vec<_>>().join(" · ")
}

/// A row of the table for the fastest recipe of a question, and whether the best plan is no slower.
fn held(recipes: &[Recipe]) -> (String, bool) {
    let flown = recipes.iter().map(|recipe| (recipe, recipe.case.fly(false).unwrap()));
    let (recipe, answer) = flown.min_by_key(|(recipe, answer)| (answer.step, recipe.id.clone())).unwrap();
    let keys = &recipe.keys;
    let own = line(&words(|key| keys.get(key).cloned()));
    let types = if keys.contains_key("megatron.fp8") { "fp8" } else { "bf16" };
    let layers = keys.get("model.layers").map_or_else(String::new, |layers| format!(", {layers} layers"));
    let (model, sequence) = (keys["model.name"].as_str().unwrap(), &keys["batch.sequence"]);
    let fits = answer.memory.fits();
    let said = if fits { "" } else { ", predicted not to fit" };
    let step = answer.step.seconds();
    let (chips, sequences) = (recipe.chips, recipe.sequences);
    let row = format!("| {model}{layers} | {chips} | {sequences} × {sequence} | {types} | {own}{said} | {step:.3} s |");
    let Some(best) = search(recipe) else { return (format!("{row} none | | |"), !fits) };
    let chosen: BTreeMap<&str, &Value> = best.candidate.keys.iter().map(|(key, value)| (*key, value)).collect();
    let found = line(&words(|key| chosen.get(key).map(|value| (*value).clone())));
    let found = if found == own { "the same".to_owned() } else { found };
    let unsure = if best.sure { "" } else { " ?" };
    let better = best.step.seconds();
    let row = format!("{row} {found}{unsure} | {better:.3} s | {:+.1} % |", 100.0 * (better / step - 1.0));
    (row, best.step <= answer.step || !fits)
}

fn all(part: &str) {
    let mut slower = vec![];
    for recipes in questions(part) {
        let (row, good) = held(&recipes);
        println!("{row}");
        recipes.iter().for_each(|recipe| println!("    {}", recipe.id));
        slower.extend((!good).then_some(row));
    }
    assert_eq!(slower, [] as [String; 0], "plans that are slower than the recipe");
}

/// So nothing but a bound or a refusal can keep the planner from finding it.
#[test]
fn the_layout_of_every_recipe_is_among_the_plans() {
    let own = |recipe: &Recipe| layout(|key| recipe.keys.get(key).cloned());
    let mut recipes: Vec<Recipe> = vec![];
    for mut one in questions("") {
        one.sort_by_key(own);
        one.dedup_by_key(|recipe| own(recipe));
        recipes.extend(one);
    }
    assert!(recipes.len() > 80, "{}", recipes.len());
    let is_there = |recipe: &&Recipe| {
        let drafts = asked(recipe).iter().flat_map(drafts).collect::<Vec<_>>();
        drafts.iter().any(|draft| layout(|key| draft.get(key).cloned()) == own(recipe))
    };
    let missing: Vec<&str> =
        recipes.par_iter().filter(|recipe| !is_there(recipe)).map(|recipe| recipe.id.as_str()).collect();
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn a_published_recipe_is_found_or_beaten() {
    let part = "dgxc-v24.11.1-llama3.1-8b-bf16-h100x8-";
    assert_eq!(questions(part).len(), 1);
    all(part);
}

#[test]
#[ignore = "takes more than an hour"]
fn every_recipe_is_found_or_beaten() {
    all(&std::env::var("RECIPES").unwrap_or_default());
}
