//! What is asked of the planner: as written, and as understood.

use std::ops::Range;

use serde::Deserialize;
use toml::{Spanned, Table, Value};

use super::error::PlanError;
use super::frameworks::{DEFAULT, SEARCHED};
use super::site::Site;
use super::sites::{Machine, sites};
use crate::explore::prices;
use crate::explore::quantity::{Amount, whole};
use crate::files;
use crate::hardware::{Place, Topology};
use crate::model::{ModelConfig, huggingface};
use crate::near::did_you_mean;
use crate::scenario::{Draft, MOST_RANKS, Runtime, keys, relative};
use crate::tables::{self, Unread};

/// A request as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// A shipped model, or the path of a Hugging Face `config.json`.
    model: Spanned<String>,
    /// Tokens of a sequence.
    sequence: Spanned<i64>,
    /// Of a step: sequences as a number, or tokens such as `"4Mtok"`.
    global_batch: Spanned<Value>,
    /// Tokens to train on, such as `"2T"`.
    tokens: Option<Spanned<String>>,
    /// Frameworks to consider.
    frameworks: Option<Vec<Spanned<String>>>,
    /// Machines.
    machine: Vec<Machine>,
    /// Keys of a scenario that every plan has.
    #[serde(default)]
    set: Table,
    /// Keys of a scenario with the values to try, in place of the framework's own.
    #[serde(default)]
    vary: Table,
    /// What a plan must keep to.
    #[serde(default)]
    limits: Limit,
    /// Whether days and money count interruptions.
    interrupted: Option<bool>,
    /// A file of prices.
    prices: Option<Spanned<String>>,
    /// How many plans to rank.
    top: Option<Spanned<i64>>,
}

/// What a plan must keep to, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    /// Memory that must stay free on every device.
    headroom: Option<Spanned<crate::units::Bytes>>,
    /// Whether tensor-parallel ranks must be in one node.
    tp_inside_node: Option<bool>,
    /// The most chips, where a machine has no size.
    chips: Option<Spanned<i64>>,
    /// The most days for the tokens asked for.
    days: Option<Spanned<f64>>,
    /// The most money for them.
    money: Option<Spanned<String>>,
}

/// What a plan must keep to.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory that must stay free on every device \[B\].
    pub headroom: crate::units::Bytes,
    /// Whether tensor-parallel ranks must be in one node.
    pub tp_inside_node: bool,
    /// The most days for the tokens asked for.
    pub days: Option<f64>,
    /// The most money for them, with its currency.
    pub money: Option<(f64, String)>,
}

/// A key with values that a request gives; none stands for its default.
pub(super) type Varied = (&'static str, Vec<Option<Value>>);

/// A request, understood.
#[derive(Clone, Debug)]
pub struct Request {
    /// What errors call it, and what paths in it are relative to.
    pub(super) file: String,
    /// The key of the model in `[model]`, and its value.
    pub(super) named: (&'static str, String),
    /// The model.
    pub model: ModelConfig,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences of a step.
    pub sequences: u64,
    /// Tokens to train on.
    pub tokens: Option<f64>,
    /// Frameworks to consider.
    pub frameworks: Vec<Runtime>,
    /// Machines at their sizes.
    pub sites: Vec<Site>,
    /// Keys that every plan has.
    pub set: Vec<(&'static str, Value)>,
    /// Keys whose values are given.
    pub(super) vary: Vec<Varied>,
    /// What a plan must keep to.
    pub limits: Limits,
    /// Whether days and money count interruptions.
    pub interrupted: bool,
    /// How many plans to rank.
    pub top: usize,
    /// What was taken for what the request leaves open.
    pub notes: Vec<String>,
}

/// How many plans are ranked where a request does not say.
const TOP: usize = 10;
/// The most that can be ranked.
const MOST_TOP: i64 = 1_000;
impl Request {
    /// Reads a request's file; `file` names it in errors, and paths in it are relative to its folder.
    pub fn parse(file: &str, text: &str) -> Result<Request, PlanError> {
        let written: Written = tables::read(text).map_err(|error| unread(file, text, &error))?;
        understood(file, written)
    }

    /// Reads a request from its keys, as flags make them.
    pub fn of(file: &str, keys: Table) -> Result<Request, PlanError> {
        let text = keys.to_string();
        Request::parse(file, &text)
    }

    /// Whether a key has the same value in every plan.
    pub(super) fn fixes(&self, key: &str) -> bool {
        self.fixed(key).is_some()
    }

    /// The value that every plan has for a key.
    pub(super) fn fixed(&self, key: &str) -> Option<&Value> {
        self.set.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Whether a framework reads a key.
    pub(super) fn is_read(&self, key: &str, runtime: Runtime) -> bool {
        keys::row(key).is_some_and(|row| row.is_read_by(runtime.written()))
    }

    /// What every plan on a machine under a framework has in common.
    pub(super) fn draft(&self, site: &Site, runtime: Runtime) -> Draft {
        let mesh = Table::from_iter([("mesh".to_owned(), Value::Table(Table::new()))]);
        let mut draft = Draft::new(&self.file, mesh);
        draft.set("runtime", runtime.written());
        draft.set("topology.name", site.name.as_str());
        draft.set(&format!("topology.{}", site.size.0), site.size.1.clone());
        draft.set(&format!("model.{}", self.named.0), self.named.1.as_str());
        draft.set("batch.sequence", integer(self.sequence));
        draft.set("batch.global", integer(self.sequences));
        for (key, value) in self.set.iter().filter(|(key, _)| self.is_read(key, runtime)) {
            draft.set(key, value.clone());
        }
        draft
    }
}

fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn unread(file: &str, text: &str, error: &Unread) -> PlanError {
    placed(file, text, error.message().to_owned(), error.span().unwrap_or(0..0))
}

fn placed(file: &str, text: &str, problem: String, span: Range<usize>) -> PlanError {
    PlanError::Written { problem, place: Box::new(Place::of(file, text, span)) }
}

fn understood(file: &str, written: Written) -> Result<Request, PlanError> {
    let mut notes = vec![];
    let (named, model) = model(file, written.model.get_ref())?;
    let sequence = positive("sequence", *written.sequence.get_ref())?;
    let sequences = sequences(written.global_batch.get_ref(), sequence, &mut notes)?;
    let tokens = written.tokens.as_ref().map(|at| tokens(at.get_ref())).transpose()?;
    let limits = limits(&written.limits)?;
    if let (None, true) = (tokens, limits.days.is_some() || limits.money.is_some()) {
        let problem =
            "limits.days and limits.money are about the tokens to train on, and the request does not say how many";
        return Err(PlanError::request(problem, "write tokens = \"2T\", or remove the limit"));
    }
    let (set, vary) = (set(&written.set)?, vary(&written.vary)?);
    if let Some((key, _)) = set.iter().find(|(key, _)| vary.iter().any(|(other, _)| other == key)) {
        let problem = format!("{key} has one value in set and several in vary");
        return Err(PlanError::request(problem, "remove it from one of the two"));
    }
    let prices = match &written.prices {
        None => prices::shipped(),
        Some(path) => {
            let path = relative(file, path.get_ref());
            let text = files::text(path.as_ref())
                .map_err(|error| PlanError::Unknown(format!("cannot read the prices {path}: {error}")))?;
            prices::read(&text).map_err(|(problem, span)| placed(&path, &text, problem, span))?
        }
    };
    let most = written.limits.chips.as_ref().map(|at| positive("limits.chips", *at.get_ref())).transpose()?;
    if let Some(most) = most.filter(|&most| most > MOST_RANKS as u64) {
        let problem = format!("limits.chips = {most} is more than any job has");
        return Err(PlanError::request(problem, format!("write limits.chips = {MOST_RANKS} or less")));
    }
    let sites = sites(file, &written.machine, (&prices, most), limits.money.as_ref(), &mut notes)?;
    let largest = sites.iter().map(|site| site.machine.chip.memory).max();
    if let Some(memory) = largest.filter(|&memory| memory <= limits.headroom) {
        let problem = format!("limits.headroom = {} is all that a chip has, {memory}", limits.headroom);
        return Err(PlanError::request(problem, "write limits.headroom = \"4 GiB\", which a plan leaves free"));
    }
    if written.prices.is_some() {
        let nowhere = |price: &&prices::Price| {
            Topology::name_of(&price.machine).is_none() && !sites.iter().any(|site| site.machine.name == price.machine)
        };
        for price in prices.iter().filter(nowhere) {
            let hint = did_you_mean(&price.machine, sites.iter().map(|site| site.machine.name.as_str()));
            notes.push(format!("the price of {} is of no machine that is asked for{hint}", price.machine));
        }
    }
    let frameworks = frameworks(written.frameworks.as_deref(), &sites)?;
    let top = written.top.as_ref().map_or(Ok(TOP as i64), |at| match *at.get_ref() {
        top @ 1..=MOST_TOP => Ok(top),
        other => Err(PlanError::request(
            format!("top = {other} is out of range: expected 1 to {MOST_TOP}"),
            "write top = 10",
        )),
    })?;
    let file = file.to_owned();
    // Whoever sets what interrupts a job wants it counted.
    let tables = ["failures.", "checkpoint."];
    let sets = set.iter().any(|(key, _)| tables.iter().any(|table| key.starts_with(table)));
    let interrupted = written.interrupted.unwrap_or(sets);
    Ok(Request {
        file,
        named,
        model,
        sequence,
        sequences,
        tokens,
        frameworks,
        sites,
        set,
        vary,
        limits,
        interrupted,
        top: top as usize,
        notes,
    })
}

fn positive(key: &str, value: i64) -> Result<u64, PlanError> {
    match u64::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(PlanError::request(format!("{key} = {value} is not above zero"), "write a number above zero")),
    }
}

fn model(file: &str, name: &str) -> Result<((&'static str, String), ModelConfig), PlanError> {
    let unknown = |error: huggingface::ModelError| PlanError::Unknown(format!("model = {name:?}: {error}"));
    if name.to_lowercase().ends_with(".json") {
        let path = relative(file, name);
        return Ok((("huggingface", name.to_owned()), huggingface::load(path.as_ref()).map_err(unknown)?));
    }
    if huggingface::shipped(name).is_none() {
        let hint = did_you_mean(name, huggingface::shipped::names());
        let remedy = "all are in scenarios/models/; model = \"path/config.json\" reads your own";
        return Err(PlanError::request(format!("no model is named {name:?}{hint}"), remedy));
    }
    Ok((("name", name.to_owned()), huggingface::shipped::named(name).map_err(unknown)?))
}

/// Sequences of a step. An amount of tokens that is no whole number of sequences by decimal prefixes is taken by binary ones,
/// as `4Mtok` of 8,192 tokens a sequence is meant.
fn sequences(written: &Value, sequence: u64, notes: &mut Vec<String>) -> Result<u64, PlanError> {
    let wrong = |shown: &str| {
        let problem = format!("global_batch = {shown} is neither sequences nor tokens");
        PlanError::request(problem, "write global_batch = 512, in sequences, or global_batch = \"4Mtok\"")
    };
    let text = match written {
        Value::Integer(count) => return positive("global_batch", *count),
        Value::String(text) => text,
        other => return Err(wrong(&other.to_string())),
    };
    let amount = Amount::read(text).ok_or_else(|| wrong(&format!("{text:?}")))?;
    if !amount.tokens {
        return whole(amount.decimal()).ok_or_else(|| wrong(&format!("{text:?}")));
    }
    let divides =
        |tokens: f64| whole(tokens).filter(|tokens| tokens.is_multiple_of(sequence)).map(|tokens| tokens / sequence);
    if let Some(sequences) = divides(amount.decimal()) {
        return Ok(sequences);
    }
    let Some(sequences) = divides(amount.binary()) else {
        let near = ((amount.decimal() / sequence as f64).round().max(1.0)) as u64;
        let problem = format!("{text} are no whole number of sequences of {sequence} tokens");
        return Err(PlanError::request(problem, format!("write global_batch = {near}, in sequences")));
    };
    notes.push(format!(
        "{text} is taken as {} tokens, {sequences} sequences: {} are no whole number of them",
        amount.binary(),
        amount.decimal()
    ));
    Ok(sequences)
}

fn tokens(written: &str) -> Result<f64, PlanError> {
    Amount::read(written).map(Amount::decimal).ok_or_else(|| {
        PlanError::request(format!("tokens = {written:?} is no amount of tokens"), "write tokens = \"2T\", or \"300B\"")
    })
}

/// A hundred years: beyond is no limit.
const MOST_DAYS: f64 = 36_525.0;

fn limits(written: &Limit) -> Result<Limits, PlanError> {
    let days = match written.days.as_ref().map(|at| *at.get_ref()) {
        Some(days) if !(days > 0.0 && days <= MOST_DAYS) => {
            return Err(PlanError::request(
                format!("limits.days = {days} is out of range: expected above zero, to {MOST_DAYS}"),
                "write limits.days = 30",
            ));
        }
        days => days,
    };
    let money = written.money.as_ref().map(|at| {
        let text = at.get_ref();
        let amount = |text: &str| {
            let (number, currency) = match text.trim().split_once(' ') {
                Some((number, currency)) => (number, currency.trim().to_uppercase()),
                None => (text.trim(), "USD".to_owned()),
            };
            Some((Amount::read(number.trim_start_matches('$'))?.decimal(), currency))
        };
        amount(text).ok_or_else(|| {
            PlanError::request(
                format!("limits.money = {text:?} is no amount of money"),
                "write limits.money = \"2M USD\"",
            )
        })
    });
    Ok(Limits {
        headroom: written.headroom.as_ref().map_or(crate::units::Bytes(0), |at| *at.get_ref()),
        tp_inside_node: written.tp_inside_node.unwrap_or(true),
        days,
        money: money.transpose()?,
    })
}

/// Keys that the request itself decides.
const OWN: [&str; 9] = [
    "runtime",
    "topology.name",
    "topology.nodes",
    "topology.slice",
    "model.name",
    "model.huggingface",
    "batch.sequence",
    "batch.global",
    "batch.global_tokens",
];

/// A key of a scenario by its path; an error if there is none, or if the request decides it.
fn key(written: &str) -> Result<&'static str, PlanError> {
    if OWN.contains(&written) {
        let problem = format!("{written} is what the request itself says");
        return Err(PlanError::request(problem, "write model, sequence, global_batch, frameworks or [[machine]]"));
    }
    match keys::row(written).map(|row| row.path) {
        Some(path) if !written.starts_with("measured.") => Ok(path),
        _ => {
            let problem = keys::misnamed(written).unwrap_or_else(|| format!("{written} is what a run has measured"));
            Err(PlanError::request(problem, "`windtunnel explain` lists the keys of a scenario"))
        }
    }
}

/// Keys of a table and of the tables in it, as `table.key`.
fn flat(table: &Table) -> Vec<(String, Value)> {
    let one = |(name, value): (&String, &Value)| match value {
        Value::Table(inner) if keys::row(name).is_none() && keys::table(name).is_some() => {
            inner.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())).collect()
        }
        value => vec![(name.clone(), value.clone())],
    };
    table.iter().flat_map(one).collect()
}

fn set(table: &Table) -> Result<Vec<(&'static str, Value)>, PlanError> {
    flat(table).into_iter().map(|(name, value)| Ok((key(&name)?, value))).collect()
}

/// A word that stands for the default of a key.
const UNSET: &str = "unset";

fn vary(table: &Table) -> Result<Vec<Varied>, PlanError> {
    let one = |(name, value): (String, Value)| match (key(&name)?, value) {
        (key, Value::Array(values)) if !values.is_empty() => Ok((
            key,
            values.into_iter().map(|value| Some(value).filter(|value| value.as_str() != Some(UNSET))).collect(),
        )),
        (key, other) => {
            let problem = format!("vary.{key} = {other} is no list of values");
            Err(PlanError::request(problem, format!("write \"{key}\" = [{other}]")))
        }
    };
    flat(table).into_iter().map(one).collect()
}

fn frameworks(written: Option<&[Spanned<String>]>, sites: &[Site]) -> Result<Vec<Runtime>, PlanError> {
    let runs = |runtime: &Runtime| sites.iter().any(|site| site.machine.chip.vendor == runtime.vendor());
    let Some(written) = written else {
        return Ok(DEFAULT.iter().filter_map(|name| Runtime::find(name)).filter(runs).collect());
    };
    let one = |at: &Spanned<String>| {
        let name = at.get_ref();
        let known = SEARCHED.join(", ");
        let Some(runtime) = Runtime::find(name) else {
            let hint = did_you_mean(name, SEARCHED);
            return Err(PlanError::request(
                format!("there is no framework {name:?}{hint}"),
                format!("write some of: {known}"),
            ));
        };
        if !SEARCHED.contains(&name.as_str()) {
            let problem = format!("plans are not searched for under {name}");
            return Err(PlanError::request(
                problem,
                format!("write some of: {known}; or run a grid with `windtunnel sweep`"),
            ));
        }
        if !runs(&runtime) {
            let problem = format!("{name} runs on none of the machines asked for");
            return Err(PlanError::request(problem, "name another machine, or another framework"));
        }
        Ok(runtime)
    };
    written.iter().map(one).collect()
}
