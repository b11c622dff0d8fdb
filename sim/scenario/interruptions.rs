//! `[failures]` and `[checkpoint]`: what a file says of interruptions and checkpoints, checked key by key.

use std::sync::Arc;

use toml::{Spanned, Table, Value};

use super::error::ScenarioError;
use super::keys::row::Key;
use super::paths::relative;
use super::reader::{Idle, Reader};
use super::written;
use crate::failures::{FailuresError, Rates};
use crate::hardware::Topology;
use crate::runtime::Plan;
use crate::units::{Bandwidth, Span};

/// Nodes that may wait.
const MOST_SPARES: i64 = 1 << 17;
/// Steps between two checkpoints.
const MOST_STEPS: i64 = 1 << 40;
/// The least and the most that storage takes \[B/s\].
const STORAGE: (f64, f64) = (1e6, 1e18);

/// How often a checkpoint is saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// At the interval with the best goodput.
    Best,
    /// After so long \[s\].
    Time(f64),
    /// After so many steps.
    Steps(u64),
}

/// Nodes that wait to take the place of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spares {
    /// There always is one.
    Enough,
    /// So many at first.
    Nodes(u64),
}

/// What a file says; none where it leaves a key out.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub(super) rates: Option<Arc<Rates>>,
    pub(super) mean_time_between: Option<f64>,
    pub(super) planned: Option<bool>,
    pub(super) detection: Option<f64>,
    pub(super) restart: Option<f64>,
    pub(super) recompile: Option<f64>,
    pub(super) spares: Option<Spares>,
    pub(super) replacement: Option<f64>,
    pub(super) repair: Option<f64>,
    pub(super) elastic: Option<bool>,
    pub(super) draws: Option<u64>,
    pub(super) seed: Option<u64>,
    pub(super) every: Option<Every>,
    pub(super) storage: Option<f64>,
    pub(super) load: Option<f64>,
    pub(super) asynchronous: Option<bool>,
}

impl Asked {
    /// Keys that `run --for` does not read either, because of others.
    pub(super) fn idle(&self) -> Vec<Idle> {
        let idle = |key: &str, why: &str| Idle { key: key.to_owned(), why: why.to_owned() };
        let mut all = vec![];
        if self.repair.is_some() && !matches!(self.spares, Some(Spares::Nodes(_))) {
            all.push(idle("failures.repair", "there always is a spare node: write a number of failures.spares"));
        }
        if self.elastic.is_some() && !matches!(self.spares, Some(Spares::Nodes(_))) {
            all.push(idle("failures.elastic", "there always is a spare node: write a number of failures.spares"));
        }
        if self.planned.is_some() && self.mean_time_between.is_some() {
            all.push(idle("failures.planned", "failures.mean_time_between is of unexpected interruptions alone"));
        }
        all
    }
}

/// Reads both tables. Their keys have no effect on the step.
pub(super) fn asked(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (topology, job): (&Topology, &Plan),
) -> Result<Asked, ScenarioError> {
    let (failures, checkpoint) = (&scenario.failures, &scenario.checkpoint);
    for name in ["failures", "checkpoint"] {
        let keys = reader.table.get(name).and_then(Value::as_table).map(Table::keys);
        for key in keys.into_iter().flatten() {
            reader.idle(format!("{name}.{key}"), "only windtunnel run --for reads it");
        }
    }
    let rates = failures.rates.as_ref().map(|at| rates(reader, at)).transpose()?;
    if let (Some(at), Some(_)) = (&failures.mean_time_between, &failures.rates) {
        let problem = "failures.rates and failures.mean_time_between both say how often the job is interrupted";
        return Err(reader.plan(at, problem, "keep one of them"));
    }
    let mean = &failures.mean_time_between;
    let mean_time_between = mean.as_ref().map(|at| positive(reader, "failures.mean_time_between", at)).transpose()?;
    let spares = failures.spares.as_ref().map(|at| spares(reader, at)).transpose()?;
    if let (Some(at), Some(Spares::Nodes(_)), None) = (&failures.spares, spares, &failures.repair) {
        let problem = "failures.spares is a number, and nothing says when a node that failed comes back";
        return Err(reader.plan(at, problem, "write failures.repair = \"2 d\", or failures.spares = \"enough\""));
    }
    let flag = |at: &Option<Spanned<bool>>| at.as_ref().map(|at| *at.get_ref());
    let (copies, lost) = (u64::from(job.copies()), job.copies_on_node(topology.ranks_per_node()));
    if let Some(at) = failures.elastic.as_ref().filter(|at| *at.get_ref() && copies <= lost) {
        let copies = if copies == 1 { "one copy".to_owned() } else { format!("{copies} copies") };
        let problem = format!(
            "failures.elastic = true, and the job has {copies} of the model, each with a part on any one node: without the \
             node nothing can go on"
        );
        return Err(reader.plan(at, problem, "write failures.elastic = false, or a mesh with replicas on other nodes"));
    }
    let seconds = |at: &Option<Spanned<Span>>| at.as_ref().map(|at| at.get_ref().0);
    let count = |key: &Key, at: &Option<Spanned<i64>>| at.as_ref().map(|at| reader.count(key, at)).transpose();
    let draws = count(&written::Failures::draws, &failures.draws)?;
    let seed = count(&written::Failures::seed, &failures.seed)?;
    Ok(Asked {
        rates,
        mean_time_between,
        planned: flag(&failures.planned),
        detection: seconds(&failures.detection),
        restart: seconds(&failures.restart),
        recompile: seconds(&failures.recompile),
        spares,
        replacement: seconds(&failures.replacement),
        repair: seconds(&failures.repair),
        elastic: flag(&failures.elastic),
        draws,
        seed,
        every: checkpoint.every.as_ref().map(|at| every(reader, at)).transpose()?,
        storage: storage(reader, "checkpoint.storage_bandwidth", &checkpoint.storage_bandwidth)?,
        load: storage(reader, "checkpoint.load_bandwidth", &checkpoint.load_bandwidth)?,
        asynchronous: flag(&checkpoint.asynchronous),
    })
}

fn rates(reader: &Reader<'_>, at: &Spanned<String>) -> Result<Arc<Rates>, ScenarioError> {
    let name = relative(reader.file, at.get_ref());
    Rates::load(&name).map(Arc::new).map_err(|error| match error {
        FailuresError::Unknown { .. } => reader.unknown(at, error.to_string(), "write one of these names, or a path"),
        FailuresError::Unreadable { .. } | FailuresError::Written { .. } => {
            reader.plan(at, error.to_string(), "correct the file that failures.rates names, or name shipped rates")
        }
    })
}

fn positive(reader: &Reader<'_>, key: &str, at: &Spanned<Span>) -> Result<f64, ScenarioError> {
    let seconds = at.get_ref().0;
    if seconds >= 1.0 {
        return Ok(seconds);
    }
    Err(reader.plan(at, format!("{key} is {}: expected 1 s or more", at.get_ref()), "write a time such as \"3 h\""))
}

fn spares(reader: &Reader<'_>, at: &Spanned<written::Spares>) -> Result<Spares, ScenarioError> {
    match at.get_ref() {
        written::Spares::Nodes(nodes) if (0..=MOST_SPARES).contains(nodes) => Ok(Spares::Nodes(nodes.unsigned_abs())),
        written::Spares::Nodes(nodes) => {
            let problem = format!("failures.spares = {nodes} is out of range: expected 0 to {MOST_SPARES}");
            Err(ScenarioError::Written { problem, place: reader.place(at) })
        }
        written::Spares::Text(word) if word == "enough" => Ok(Spares::Enough),
        written::Spares::Text(word) => {
            let problem = format!("failures.spares is {word:?}: expected \"enough\" or a number of nodes");
            Err(reader.unknown(at, problem, "write \"enough\", or a number such as 4"))
        }
    }
}

fn every(reader: &Reader<'_>, at: &Spanned<written::Every>) -> Result<Every, ScenarioError> {
    match at.get_ref() {
        written::Every::Steps(steps) if (1..=MOST_STEPS).contains(steps) => Ok(Every::Steps(steps.unsigned_abs())),
        written::Every::Steps(steps) => {
            let problem = format!("checkpoint.every = {steps} is out of range: expected 1 to {MOST_STEPS}");
            Err(ScenarioError::Written { problem, place: reader.place(at) })
        }
        written::Every::Text(word) if word == "best" => Ok(Every::Best),
        written::Every::Text(text) => match Span::parse(text) {
            Ok(Span(seconds)) if seconds > 0.0 => Ok(Every::Time(seconds)),
            Ok(_) | Err(_) => {
                let problem = format!("checkpoint.every is {text:?}: expected \"best\", a time or a number of steps");
                Err(reader.unknown(at, problem, "write \"best\", a time such as \"30 min\", or steps such as 500"))
            }
        },
    }
}

fn storage(reader: &Reader<'_>, key: &str, at: &Option<Spanned<Bandwidth>>) -> Result<Option<f64>, ScenarioError> {
    let Some(at) = at else { return Ok(None) };
    let rate = at.get_ref().0;
    if (STORAGE.0..=STORAGE.1).contains(&rate) {
        return Ok(Some(rate));
    }
    let problem = format!("{key} is {}: expected 1 MB/s to 1,000,000 TB/s", at.get_ref());
    Err(reader.plan(at, problem, "write what all nodes together get, such as \"200 GB/s\""))
}
