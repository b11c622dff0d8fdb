//! What reads a scenario: places for errors, keys that are left out, keys without effect, and remedies on trial.

use std::fmt;

use toml::{Spanned, Table};

use super::assumption::{Assumption, Taken, Written};
use super::change::Change;
use super::draft::Draft;
use super::error::{ScenarioError, UNKNOWN};
use super::keys::row::Key;
use super::source::Source;
use crate::hardware::Place;

/// Ranks of a job.
pub(crate) const MOST_RANKS: i64 = 1 << 17;
/// Tokens of a sequence.
pub(super) const MOST_SEQUENCE: i64 = 1 << 26;
/// Counts that make a step longer, and are no sizes.
pub(super) const MOST_SMALL: i64 = 1 << 16;

/// A key that the file has, and that changes nothing in its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// With its tables' names before it, such as `xla.sa_block_size`.
    pub key: String,
    /// Why it changes nothing.
    pub why: String,
}

/// Reads places and collects assumptions while the file is understood.
pub(super) struct Reader<'t> {
    pub file: &'t str,
    /// The runtime, as scenarios name it; empty until it is known.
    pub framework: &'static str,
    pub source: &'t Source<'t>,
    /// The keys of the source.
    pub table: &'t Table,
    pub assumptions: Vec<Assumption>,
    /// Keys of the file that change nothing in this plan.
    pub idle: Vec<Idle>,
    pub how: How<'t>,
}

/// How a scenario is read.
#[derive(Clone, Copy)]
pub(super) struct How<'t> {
    /// Whether this is a remedy on trial, whose own refusal nobody reads.
    pub trial: bool,
    /// The topology's file, instead of the one that the scenario names.
    pub topology: Option<&'t str>,
    /// Whether a draft, read in its way, is a scenario that there are rules for.
    pub reads: fn(&Draft, How<'_>) -> bool,
}

impl Reader<'_> {
    /// Those of some changes that the file is read with, and has rules for.
    pub(super) fn reading<'c>(&self, changes: impl IntoIterator<Item = &'c Change>) -> Vec<&'c Change> {
        // A trial's own remedies are for nobody.
        if self.how.trial {
            return vec![];
        }
        let draft = Draft::new(self.file, self.table.clone());
        let how = How { trial: true, ..self.how };
        changes.into_iter().filter(|change| (self.how.reads)(&draft.changed(change), how)).collect()
    }

    /// What to write: of some changes, each with its words, those that the file is read with; all, where it is read with none.
    pub(super) fn remedy(&self, changes: &[(Change, &str)]) -> String {
        let reads = |(change, _): &&(Change, &str)| !self.reading([change]).is_empty();
        let kept: Vec<&str> = changes.iter().filter(reads).map(|(_, words)| *words).collect();
        let all = || changes.iter().map(|(_, words)| *words).collect::<Vec<_>>().join(", or ");
        if kept.is_empty() { all() } else { kept.join(", or ") }
    }

    pub(super) fn place<T>(&self, at: &Spanned<T>) -> Box<Place> {
        Box::new(Place::of(self.file, self.source.text(), at.span()))
    }

    pub(super) fn plan<T>(
        &self,
        at: &Spanned<T>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError::Plan { code: None, problem: problem.into(), place: self.place(at), remedy: remedy.into() }
    }

    /// The same of a name that nothing has, whatever else the file says.
    pub(super) fn unknown<T>(
        &self,
        at: &Spanned<T>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        self.plan(at, problem, remedy).coded(UNKNOWN)
    }

    /// A count within the bounds of its key.
    pub(super) fn count(&self, key: &Key, at: &Spanned<i64>) -> Result<u64, ScenarioError> {
        let (least, most) = key.kind.bounds();
        self.count_within(key.path, at, least, most)
    }

    /// A count within bounds that follow from the rest of the file.
    pub(super) fn count_within(
        &self,
        key: &str,
        at: &Spanned<i64>,
        least: i64,
        most: i64,
    ) -> Result<u64, ScenarioError> {
        let value = *at.get_ref();
        if (least..=most).contains(&value) {
            Ok(value.unsigned_abs())
        } else {
            let problem = format!("{key} = {value} is out of range: expected {least} to {most}");
            Err(ScenarioError::Written { problem, place: self.place(at) })
        }
    }

    /// The same, or what follows from the rest of the file where it is left out.
    pub(super) fn count_or(
        &mut self,
        key: &Key,
        at: Option<&Spanned<i64>>,
        default: u64,
    ) -> Result<u64, ScenarioError> {
        match at {
            Some(at) => self.count(key, at),
            None => Ok(self.assume(key.path, default, default)),
        }
    }

    /// Takes a value for a key that the file leaves out; `written` is how a file would write it.
    pub(super) fn assume<T>(&mut self, key: &str, value: T, written: impl Into<Written>) -> T {
        self.assumptions.push(Assumption::Taken(Taken { key: key.to_owned(), value: written.into(), why: None }));
        value
    }

    /// Takes a value for a key that the file leaves out, and says why this one.
    pub(super) fn assume_for<T>(
        &mut self,
        key: &str,
        value: T,
        written: impl Into<Written>,
        why: impl Into<String>,
    ) -> T {
        let why = Some(why.into());
        self.assumptions.push(Assumption::Taken(Taken { key: key.to_owned(), value: written.into(), why }));
        value
    }

    /// Adds a remark on the plan to what the report lists as taken.
    pub(super) fn note(&mut self, words: impl fmt::Display) {
        self.assumptions.push(Assumption::Note(format!("note: {words}")));
    }

    /// What the file says, or what the framework takes where it is left out: off, unless the key's declaration says otherwise.
    pub(super) fn flag(&mut self, key: &Key, written: Option<bool>) -> bool {
        self.flag_or(key.path, written, key.taken(self.framework) == Some("true"))
    }

    /// The same, or what follows from the rest of the file.
    pub(super) fn flag_or(&mut self, key: &str, written: Option<bool>, default: bool) -> bool {
        written.unwrap_or_else(|| self.assume(key, default, default))
    }
}

impl Reader<'_> {
    /// Notes that a key of the file changes nothing.
    pub(super) fn idle(&mut self, key: impl Into<String>, why: impl Into<String>) {
        self.idle.push(Idle { key: key.into(), why: why.into() });
    }
}
