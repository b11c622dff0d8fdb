//! Public configurations against the importers: which are imported, and whether a scenario says what the framework itself says.
//!
//! `tests/import/imports.tsv` says of every file in `tests/import/configs` on which machine and with which words it is imported, and what
//! comes of it: a scenario that runs, or one that is understood and has no rules yet, each with the keys in which it differs from the
//! framework's own dump; or a refusal, and a part of its reason.
//! `tests/import/keys.toml` says which key of a dump is which key of a scenario. `IMPORT=NAME` prints what one file differs in.

mod derived;
mod hostile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use windtunnel::import::{ImportError, Imported, Machine, Request, find, import, recognise};
use windtunnel::scenario::Scenario;
use windtunnel::scenario::predict::release::ANOTHER_RELEASE;
use windtunnel::scenario::predict::{self, predict};

type Dump = BTreeMap<String, Value>;

/// A line of `imports.tsv`.
pub struct Line {
    pub config: String,
    importer: String,
    words: String,
    outcome: String,
    /// Keys that differ, or a part of the refusal.
    said: String,
}

/// A rule of `keys.toml`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    theirs: Vec<String>,
    absent: Option<toml::Value>,
    #[serde(default)]
    words: BTreeMap<String, String>,
    when: Option<String>,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name)
}

pub fn lines() -> Vec<Line> {
    let text = std::fs::read_to_string(folder("imports.tsv")).unwrap();
    let of = |line: &str| {
        let mut parts = line.split('\t').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Line { config: next(), importer: next(), words: next(), outcome: next(), said: next() }
    };
    text.lines().skip(1).map(of).collect()
}

impl Line {
    /// Its text, as a user's file has it.
    pub fn text(&self) -> String {
        std::fs::read_to_string(folder("configs").join(&self.config)).unwrap()
    }

    /// Imports a text as this file, with its machine and its words.
    pub fn import(&self, text: &str) -> Result<Imported, String> {
        self.import_as(text, None)
    }

    /// The same as of a release.
    fn import_as(&self, text: &str, version: Option<&str>) -> Result<Imported, String> {
        let mut machine = Machine::default();
        let (mut words, mut model) = (vec![], None);
        let number = |value: &str| Some(value.parse().unwrap());
        for word in self.words.split(' ').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("on", value)) => machine.on = Some(value.to_owned()),
                Some(("nodes", value)) => machine.nodes = number(value),
                Some(("chips", value)) => machine.chips = number(value),
                Some(("slice", value)) => machine.slice = Some(value.to_owned()),
                Some(("model", value)) => model = Some(value.to_owned()),
                _ => words.push(word.to_owned()),
            }
        }
        let importer = find(&self.importer).map_err(|error| error.to_string())?;
        let (file, model) = (self.config.as_str(), model.as_deref());
        let request = Request { file, text, overrides: &words, machine, version, model };
        let imported = import(importer, &request).map_err(|error| error.to_string())?;
        imported.scenario().map_err(|error| error.to_string())?;
        Ok(imported)
    }

    fn is_imported(&self) -> bool {
        self.outcome != "refused"
    }

    fn framework(&self) -> &str {
        self.config.split('/').next().unwrap()
    }

    /// What the framework itself makes of it, where it takes it.
    fn dump(&self) -> Option<Dump> {
        let path = folder("resolved").join(&self.config).with_extension("json");
        let value: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).unwrap();
        let Value::Object(keys) = &value["keys"] else { panic!("{}: a dump has keys", self.config) };
        let mut dump: Dump = keys.clone().into_iter().collect();
        dump.insert("=topology".to_owned(), value["topology"].clone());
        derived::add(self.framework(), &mut dump);
        Some(dump)
    }

    /// Whether the framework itself refuses it.
    fn is_refused_by_its_framework(&self) -> bool {
        folder("resolved").join(&self.config).with_extension("refused.json").exists()
    }
}

/// A value of TOML as a dump would have it.
fn json_of(value: &toml::Value) -> Value {
    match value {
        toml::Value::Integer(number) => json!(number),
        toml::Value::Float(number) => json!(number),
        toml::Value::Boolean(flag) => json!(flag),
        toml::Value::Array(list) => list.iter().map(json_of).collect(),
        toml::Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), json_of(value))).collect(),
        other => json!(other.as_str().map_or_else(|| other.to_string(), str::to_owned)),
    }
}

/// What an import says, by key; of the model what the scenario understands.
fn ours(imported: &Imported) -> Dump {
    let mut all: Dump = imported.entries.iter().map(|entry| (entry.key.clone(), json_of(&entry.value))).collect();
    let scenario: Scenario = imported.scenario().unwrap();
    let model = scenario.job.model();
    // Biases of a router that no gradient reaches are buffers there.
    let untrained = model.experts().filter(|experts| experts.router.correction).map_or(0, |experts| experts.count);
    let trained = model.params().total - model.expert_blocks() * untrained;
    for (key, value) in [
        ("layers", model.layers.count()),
        ("width", model.width),
        ("heads", model.heads()),
        ("kv_heads", model.kv_heads()),
        ("ffn", model.feed_forward_width()),
        ("vocab", model.vocab),
        ("params", trained),
    ] {
        all.insert(format!("model:{key}"), json!(value));
    }
    all.insert("model:tied".to_owned(), json!(model.tied_head));
    if let Some(experts) = model.experts() {
        for (key, value) in [
            ("experts", experts.count),
            ("top_k", experts.top_k),
            ("expert_width", experts.width),
            ("shared", experts.shared),
        ] {
            all.insert(format!("model:{key}"), json!(value));
        }
    }
    all
}

fn alike(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

/// How many keys agree, and those that differ, each with both values.
fn compared(rules: &BTreeMap<String, Rule>, ours: &Dump, theirs: &Dump) -> (usize, BTreeMap<String, String>) {
    let (mut agree, mut differ) = (0, BTreeMap::new());
    for (key, rule) in rules {
        let set =
            |key: &String| theirs.get(key).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)));
        if rule.when.as_ref().is_some_and(|key| !set(key)) {
            continue;
        }
        let Some(said) = rule.theirs.iter().find_map(|key| theirs.get(key)) else { continue };
        let word = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
        let said = rule
            .words
            .get(&word)
            .map_or_else(|| said.clone(), |word| word.parse::<i64>().map_or(json!(word), Value::from));
        let absent = rule.absent.as_ref().map(json_of).map(|value| match value.as_str() {
            Some(name) if name.starts_with('=') => theirs.get(name).cloned().unwrap_or(Value::Null),
            _ => value,
        });
        let own = ours.get(key).cloned().or(absent).unwrap_or(Value::Null);
        if alike(&own, &said) {
            agree += 1;
        } else {
            differ.insert(key.clone(), format!("{own} here, {said} there"));
        }
    }
    (agree, differ)
}

#[test]
fn every_public_configuration_is_listed_and_comes_out_as_its_line_says() {
    let index = std::fs::read_to_string(folder("configs/index.tsv")).unwrap();
    let there: BTreeSet<&str> = index.lines().skip(1).map(|line| line.split('\t').next().unwrap()).collect();
    let lines = lines();
    let listed: BTreeSet<&str> = lines.iter().map(|line| line.config.as_str()).collect();
    assert_eq!(
        listed, there,
        "tests/import/imports.tsv lists every file of tests/import/configs/index.tsv, and no other"
    );
    let mut wrong = vec![];
    for line in &lines {
        match (line.import(&line.text()), line.is_imported()) {
            (Ok(imported), true) => {
                let refused = imported.not_simulated(&imported.scenario().unwrap());
                let outcome = if refused.is_some() { "understood" } else { "runs" };
                if line.outcome != outcome {
                    wrong.push(format!("{}: {outcome}, {refused:?}", line.config));
                }
            }
            (Err(error), false) if error.contains(&line.said) && !line.said.is_empty() => {}
            (Ok(_), false) => wrong.push(format!("{}: it is imported", line.config)),
            (Err(error), _) => wrong.push(format!("{}: {error}", line.config)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let imported = lines.iter().filter(|line| line.is_imported()).count();
    let run = lines.iter().filter(|line| line.outcome == "runs").count();
    println!("{imported} configurations are imported, of which {run} can be run");
    assert!(imported >= 60 && run >= 50, "{imported} configurations are imported, of which {run} can be run");
}

#[test]
fn scenarios_say_what_the_frameworks_themselves_say() {
    let rules: BTreeMap<String, BTreeMap<String, Rule>> =
        toml::from_str(&std::fs::read_to_string(folder("keys.toml")).unwrap()).unwrap();
    let asked = std::env::var("IMPORT").ok();
    let (mut whole, mut keys, mut wrong) = (0, 0, vec![]);
    for line in lines() {
        whole += usize::from(line.is_refused_by_its_framework() && !line.is_imported());
        let Some(theirs) = line.dump().filter(|_| line.is_imported()) else { continue };
        let imported = line.import(&line.text()).unwrap();
        let (agree, differ) = compared(&rules[line.framework()], &ours(&imported), &theirs);
        if asked.as_ref().is_some_and(|name| line.config.contains(name.as_str())) {
            println!("{}: {agree} agree, {differ:#?}", line.config);
        }
        keys += agree;
        whole += usize::from(differ.is_empty());
        let known: BTreeSet<&str> = line.said.split(", ").filter(|key| !key.is_empty()).collect();
        let found: BTreeSet<&str> = differ.keys().map(String::as_str).collect();
        if known != found {
            wrong.push(format!("{} differs in {differ:#?}, and its line says {known:?}", line.config));
        }
        assert!(agree > 5, "{}: {agree} keys were compared", line.config);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(whole >= 54, "{whole} configurations agree in every key that matters");
    assert!(keys >= 1390, "{keys} keys agree");
}

/// A dump written as a file of JSON: keys below `section`, without its name.
fn file_of(line: &Line, section: &str) -> String {
    let path = folder("resolved").join(&line.config).with_extension("json");
    let value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let keys = value["keys"].as_object().unwrap().iter();
    let below = keys.filter_map(|(key, value)| Some((key.strip_prefix(section)?.to_owned(), value.clone())));
    Value::Object(below.collect()).to_string()
}

#[test]
fn what_a_framework_dumps_is_imported_as_the_configuration_is() {
    let rules: BTreeMap<String, BTreeMap<String, Rule>> =
        toml::from_str(&std::fs::read_to_string(folder("keys.toml")).unwrap()).unwrap();
    let (mut read, mut wrong) = (0, vec![]);
    for line in lines().into_iter().filter(Line::is_imported) {
        let (importer, text) = match line.framework() {
            "megatron" if line.dump().is_some() => ("nemo", file_of(&line, "args.")),
            "torchtitan" if line.config.ends_with(".args") => ("torchtitan", file_of(&line, "")),
            _ => continue,
        };
        let theirs = line.dump().unwrap();
        let dumped = Line { importer: importer.to_owned(), ..line };
        let imported = match dumped.import(&text) {
            Ok(imported) => imported,
            Err(error) => {
                wrong.push(format!("{}: {error}", dumped.config));
                continue;
            }
        };
        let (agree, differ) = compared(&rules[dumped.framework()], &ours(&imported), &theirs);
        assert!(agree > 15, "{}: {agree} keys were compared", dumped.config);
        read += 1;
        if !differ.is_empty() {
            wrong.push(format!("{}: {differ:#?}", dumped.config));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read >= 15, "{read} dumps were imported");
}

#[test]
fn a_configuration_is_recognised_as_its_frameworks_own() {
    for line in lines() {
        let known = match recognise(&line.config, &line.text()) {
            Ok(found) => found.map(|found| found.name),
            // Two keys tell nothing.
            Err(ImportError::Nobody { .. }) => continue,
            Err(error) => panic!("{}: {error}", line.config),
        };
        assert!(known.is_none_or(|name| name == line.importer), "{} is taken for {known:?}", line.config);
    }
}

#[test]
fn imported_scenarios_run() {
    const RUN: [&str; 7] = [
        "torchtitan/v0_2_base_config.toml",
        "torchtitan/v0_2_qwen3_0_6b.toml",
        "nanotron/tiny_llama.yaml",
        "megatron/pp4_uneven_pipeline.yaml",
        "torchtune/llama3_1_8b_full.yaml",
        "accelerate/fsdp1_two_gpus.yaml",
        "axolotl/llama3_3b_fp8_fsdp2.yaml",
    ];
    for line in lines().iter().filter(|line| RUN.contains(&line.config.as_str())) {
        let imported = line.import(&line.text()).unwrap_or_else(|error| panic!("{}: {error}", line.config));
        let prediction = predict(&imported.scenario().unwrap(), predict::Settings::default())
            .unwrap_or_else(|error| panic!("{}: {error}", line.config));
        assert!(prediction.step.0 > 0, "{}", line.config);
    }
}

#[test]
fn two_releases_differ_by_what_the_interval_of_an_unknown_one_is_widened_by() {
    let steps = |line: &Line| {
        let step = |release| {
            let scenario = line.import_as(&line.text(), Some(release)).ok()?.scenario().ok()?;
            predict(&scenario, predict::Settings::default()).ok().map(|answer| answer.step.seconds())
        };
        Some((step("0.1.0")?, step("0.2.2")?))
    };
    let runs = lines().into_iter().filter(|line| line.importer == "torchtitan" && line.outcome == "runs");
    let files = runs.filter(|line| line.config.ends_with(".toml"));
    let mut apart: Vec<f64> = files.filter_map(|line| steps(&line)).map(|(old, new)| (new / old).ln().abs()).collect();
    apart.sort_by(f64::total_cmp);
    assert!(apart.len() >= 14, "{apart:?}");
    let within = apart.iter().filter(|apart| **apart <= ANOTHER_RELEASE).count() as f64 / apart.len() as f64;
    assert!((0.75..0.85).contains(&within), "{within} of them lie within {ANOTHER_RELEASE}: {apart:?}");
}

#[test]
fn a_release_that_nobody_knows_makes_the_interval_wider_and_nothing_else_other() {
    let all = lines();
    let line = all.iter().find(|line| line.config == "torchtitan/v0_2_qwen3_0_6b.toml").unwrap();
    let flown = |release| {
        let scenario = line.import_as(&line.text(), Some(release)).unwrap().scenario().unwrap();
        (scenario.unknown_release.clone(), predict(&scenario, predict::Settings::default()).unwrap())
    };
    let ((known, sure), (unknown, doubtful)) = (flown("0.2.2"), flown("0.2.9"));
    assert_eq!((known, unknown.as_deref()), (None, Some("0.2.9")));
    assert_eq!(sure.step, doubtful.step);
    assert!(doubtful.interval.0 < sure.interval.0 && doubtful.interval.1 > sure.interval.1);
}
