//! Records every answer, for a change that may not move any: of all shipped scenarios, all receipts that map, all plans that keys are
//! tried in, and random drafts.
//!
//! `RECORD=before cargo test --release recorded -- --ignored`, the change, the same with `RECORD=after`, then `diff -r before after`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::strategy::Strategy as _;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rayon::prelude::*;
use windtunnel::receipt::check::{self, Files};
use windtunnel::receipt::table::Tables;
use windtunnel::report::{json, text};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, ScenarioError, predict};

use crate::every_key::plans;
use crate::hostile::Ground;
use crate::make;

/// How many random drafts of FSDP2, and how many pairs of keys in plans of every runtime.
const DRAFTS: usize = 300;
const PAIRS: u64 = 1_000;
/// The seed of those.
const SEED: u64 = 22;

/// What is said of a scenario: the report and its JSON, or why there is none. Remedies cost time, and cases that look for them are few.
fn said(read: Result<Scenario, ScenarioError>, remedies: bool) -> String {
    let predicted = read.and_then(|scenario| {
        predict(&scenario, Settings { remedies, ..Settings::default() }).map(|answer| (scenario, answer))
    });
    match predicted {
        Ok((scenario, answer)) => {
            let report = text::report(
                &scenario,
                &answer,
                text::Detail { all_conventions: true, verbose: true, ..Default::default() },
            );
            format!("{:#}\n{report}", json::report(&scenario, &answer))
        }
        Err(error) => format!("error: {error}\n"),
    }
}

/// Names and texts of shipped scenarios.
fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    files
}

/// Receipts of every file, by id.
fn receipts() -> Files {
    let files = ["public", "vtrain-a100"]
        .map(|name| PathBuf::from(format!("{}/tests/receipts/{name}.jsonl", env!("CARGO_MANIFEST_DIR"))));
    check::read(&files).unwrap()
}

/// Random drafts, the same each time.
fn drafts() -> Vec<String> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[22; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = make::scenarios();
    (0..DRAFTS).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
#[ignore = "writes every answer to the folder RECORD"]
fn record() {
    let folder = PathBuf::from(std::env::var("RECORD").expect("RECORD = the folder to write to"));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, said: String| {
        let name = name.replace(|letter: char| !letter.is_alphanumeric() && letter != '-' && letter != '.', "_");
        std::fs::write(folder.join(name), said).unwrap();
    };
    shipped().par_iter().for_each(|file| {
        let name = file.file_stem().unwrap().to_string_lossy();
        write(&format!("scenario-{name}"), said(Scenario::load(file), true));
    });
    let (files, tables) = (receipts(), Tables::shipped());
    files.receipts.entries.par_iter().for_each(|entry| {
        let mut said_of = String::new();
        match check::case(entry, &tables) {
            Ok(case) => {
                let _ = write!(said_of, "{}\n{}", case.text, said(Ok(case.scenario), false));
            }
            Err(reason) => said_of = reason.words().to_owned(),
        }
        write(&format!("receipt-{}", entry.row.id), said_of);
    });
    plans::plans().par_iter().enumerate().for_each(|(number, plan)| {
        write(&format!("plan-{number:03}"), said(Scenario::parse(make::FILE, plan), true));
    });
    drafts().par_iter().enumerate().for_each(|(number, draft)| {
        write(&format!("draft-{number:03}"), format!("{draft}\n{}", said(Scenario::parse(make::FILE, draft), false)));
    });
    let ground = Ground::new();
    (0..PAIRS).into_par_iter().for_each(|number| {
        let case = ground.case(SEED, ground.singles() + number);
        write(&format!("pair-{number:04}"), format!("{case}\n{}", said(Scenario::parse(make::FILE, &case), false)));
    });
}
