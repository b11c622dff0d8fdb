//! Kernels of real runs: every scenario and every receipt that maps to one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use windtunnel::bug;
use windtunnel::program::Instr;
use windtunnel::receipt::check;
use windtunnel::receipt::table::Tables;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

use super::Job;
use super::kernels::what;
use crate::points::What;

/// Why the runs could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// A folder or file could not be read.
    #[error("cannot read {path}: {why}")]
    Read {
        /// Where.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// A scenario is wrong.
    #[error("{0}")]
    Scenario(#[from] windtunnel::scenario::ScenarioError),
    /// A file of receipts is wrong.
    #[error("{0}")]
    Receipts(#[from] windtunnel::receipt::ReceiptError),
    /// Nothing was found.
    #[error("no scenario and no receipt was found in {0}: name folders of *.toml and files of *.jsonl")]
    Nothing(String),
}

/// What runs were flown, and what their steps consist of.
#[derive(Debug, Default)]
pub struct Worth {
    /// Share of a step's time by kernel, averaged over runs.
    pub values: BTreeMap<What, f64>,
    /// Runs of different configurations.
    pub runs: usize,
    /// Receipts that map to no scenario, or are refused.
    pub unmapped: usize,
    /// Runs that met a bug of windtunnel, each with what it panicked with.
    pub panicked: Vec<String>,
}

impl Worth {
    /// The kernels as jobs.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        self.values.iter().map(|(what, value)| Job { what: what.clone(), value: *value })
    }
}

/// A configuration, told apart by the text of its scenario.
pub(super) struct Run {
    /// Its file, or a receipt's id.
    name: String,
    text: String,
    scenario: Scenario,
}

/// Shares of a step's time by kernel; none if the run is refused.
type Shares = Option<BTreeMap<What, f64>>;

/// Reads and flies all of them; `done` is called after each, from several threads, with their number.
pub fn worth(paths: &[PathBuf], done: &(dyn Fn(usize) + Sync)) -> Result<Worth, RunsError> {
    worth_by(paths, done, |scenario| {
        let settings = Settings { remedies: false, ..Settings::default() };
        predict(scenario, settings).ok().map(|answer| shares(scenario, &answer))
    })
}

/// The same with another way to fly a run.
pub(super) fn worth_by(
    paths: &[PathBuf],
    done: &(dyn Fn(usize) + Sync),
    fly: impl Fn(&Scenario) -> Shares + Sync,
) -> Result<Worth, RunsError> {
    let mut worth = Worth::default();
    let mut runs = read(paths, &mut worth.unmapped)?;
    let mut seen = BTreeSet::new();
    runs.retain(|run| seen.insert(run.text.clone()));
    let count = runs.len();
    let flown: Vec<Result<Shares, String>> = runs
        .par_iter()
        .map(|run| {
            let shares = bug::caught(|| fly(&run.scenario));
            done(count);
            shares.map_err(|what| format!("{}: a bug of windtunnel, please report it with the file: {what}", run.name))
        })
        .collect();
    for shares in flown {
        match shares {
            Err(panicked) => worth.panicked.push(panicked),
            Ok(None) => worth.unmapped += 1,
            Ok(Some(shares)) => {
                worth.runs += 1;
                for (what, share) in shares {
                    *worth.values.entry(what).or_default() += share;
                }
            }
        }
    }
    for value in worth.values.values_mut() {
        *value /= worth.runs.max(1) as f64;
    }
    if worth.runs == 0 && worth.panicked.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(RunsError::Nothing(names.join(", ")));
    }
    Ok(worth)
}

/// Share of the step that each kernel takes, however often it is launched: the mean of all ranks.
fn shares(scenario: &Scenario, answer: &Prediction) -> BTreeMap<What, f64> {
    let mut shares = BTreeMap::new();
    let step = answer.step.seconds();
    for class in &answer.classes {
        let part = f64::from(class.ranks) / answer.class_of.len() as f64;
        for instr in &class.program.step {
            let Instr::Launch { kernel, .. } = instr else { continue };
            if let Some(what) = what(&class.program.kernel(*kernel).work, &scenario.software) {
                let time = class.evidence.kernels[kernel.0 as usize].time;
                *shares.entry(what).or_default() += part * time.seconds() / step;
            }
        }
    }
    shares
}

/// Runs of folders of scenarios (`*.toml`) and of files of receipts (`*.jsonl`).
pub(super) fn read(paths: &[PathBuf], unmapped: &mut usize) -> Result<Vec<Run>, RunsError> {
    let mut scenarios = vec![];
    let mut receipts = vec![];
    for path in paths {
        collect(path, &mut scenarios, &mut receipts)?;
    }
    let mut runs = vec![];
    for path in scenarios {
        let text = windtunnel::files::text(&path).map_err(|why| cannot(&path, why))?;
        let name = path.display().to_string();
        let scenario = Scenario::parse(&name, &text)?;
        runs.push(Run { name, text: configuration(&text), scenario });
    }
    let tables = Tables::shipped();
    for entry in &check::read(&receipts)?.receipts.entries {
        match check::case(entry, &tables) {
            Ok(case) => {
                let text = configuration(&case.text);
                runs.push(Run { name: entry.row.id.clone(), text, scenario: case.scenario });
            }
            Err(_) => *unmapped += 1,
        }
    }
    Ok(runs)
}

/// A scenario's text without what was measured.
fn configuration(text: &str) -> String {
    let mut keys: toml::Table = text.parse().unwrap_or_default();
    keys.remove("measured");
    keys.to_string()
}

fn cannot(path: &Path, why: std::io::Error) -> RunsError {
    RunsError::Read { path: path.display().to_string(), why }
}

/// A file of thresholds for `check`, which lies beside the receipts: no scenario.
fn is_thresholds(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("thresholds"))
}

fn collect(path: &Path, scenarios: &mut Vec<PathBuf>, receipts: &mut Vec<PathBuf>) -> Result<(), RunsError> {
    if !path.is_dir() {
        let list = if path.extension().is_some_and(|ending| ending == "toml") { scenarios } else { receipts };
        list.push(path.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(|why| cannot(path, why))?;
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(|why| cannot(path, why))?;
    found.sort();
    for path in found {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") if !is_thresholds(&path) => scenarios.push(path),
            Some("jsonl") => receipts.push(path),
            _ => {}
        }
    }
    Ok(())
}
