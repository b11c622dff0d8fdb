//! Flies every receipt that can be mapped, several at a time, and keeps the order of the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::case::{Case, Judged};
use super::map::{Mapped, Reason, map};
use super::read::{Entry, Fault, Receipts};
use super::table::Tables;
use super::{ReceiptError, read};
use crate::scenario::Scenario;

/// A row that was not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its id.
    pub id: String,
    /// Where it stands: `file:line`.
    pub place: String,
    /// Lane.
    pub lane: String,
    /// Hardware.
    pub hardware: String,
    /// Grade.
    pub grade: String,
    /// Why.
    pub reason: Reason,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Receipts held against their predictions, in the order of the files.
    pub judged: Vec<Judged>,
    /// Rows that were not, in order.
    pub skipped: Vec<Skipped>,
    /// Lines that are no receipts.
    pub faults: Vec<Fault>,
}

/// Receipts of all files: rows of JSON lines, and scenarios with `[measured]`.
#[derive(Debug, Default)]
pub struct Files {
    /// Rows.
    pub receipts: Receipts,
    /// Users' own.
    pub own: Vec<Case>,
}

/// Reads files; one that ends in `.toml` is a scenario with `[measured]`.
pub fn read(files: &[PathBuf]) -> Result<Files, ReceiptError> {
    let mut all = Files::default();
    for path in files {
        if path.extension().is_some_and(|ending| ending == "toml") {
            all.own.push(own(path)?);
        } else {
            all.receipts.add(path)?;
        }
    }
    Ok(all)
}

/// A scenario with `[measured]`.
pub fn own(path: &Path) -> Result<Case, ReceiptError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ReceiptError::Unreadable { path: file.clone(), reason: error.to_string() })?;
    let scenario = Scenario::parse(&file, &text)?;
    if scenario.measured.is_none() {
        return Err(ReceiptError::NothingMeasured { file });
    }
    Ok(Case::new(&file, &text, scenario, vec![]))
}

/// Maps a row to a case that can be flown, or says why not.
pub fn case(entry: &Entry, tables: &Tables) -> Result<Case, Reason> {
    let Mapped { text, assumptions } = map(entry, tables)?;
    let scenario = Scenario::parse(&entry.row.id, &text)
        .map_err(|error| Reason::Uncovered(format!("refused: {}", first_line(&error.to_string()))))?;
    Ok(Case::new(&entry.row.id, &text, scenario, assumptions))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

/// Which rows to check.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only these lanes; all if empty.
    pub lanes: Vec<String>,
    /// Only this hardware; all if empty.
    pub hardware: Vec<String>,
    /// Only these grades; all if empty.
    pub grades: Vec<String>,
}

impl Choice {
    fn takes(&self, lane: &str, hardware: &str, grade: &str) -> bool {
        let among = |list: &[String], name: &str| list.is_empty() || list.iter().any(|one| one == name);
        among(&self.lanes, lane) && among(&self.hardware, hardware) && (grade.is_empty() || among(&self.grades, grade))
    }
}

impl Files {
    /// Names in use that a choice may take: lanes, hardware, grades.
    pub fn names(&self) -> [BTreeSet<String>; 3] {
        let rows = self.receipts.entries.iter();
        let rows = rows.map(|entry| (entry.row.lane.as_str(), entry.row.family(), entry.row.grade()));
        let own = self.own.iter().map(Case::measured);
        let own = own.map(|m| (m.lane.as_str(), m.hardware.as_str(), m.grade.as_str()));
        let mut names = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
        for (lane, hardware, grade) in rows.chain(own) {
            for (set, name) in names.iter_mut().zip([lane, hardware, grade]) {
                set.insert(name.to_owned());
            }
        }
        names
    }

    /// Names of a choice that no receipt has, each with those that there are.
    pub fn unknown(&self, choice: &Choice) -> Option<String> {
        let asked = [("lane", &choice.lanes), ("hardware", &choice.hardware), ("grade", &choice.grades)];
        let mut odd = asked.iter().zip(self.names()).filter_map(|((what, asked), known)| {
            let name = asked.iter().find(|name| !known.contains(*name))?;
            let known: Vec<String> = known.into_iter().filter(|name| !name.is_empty()).collect();
            Some(format!("no receipt has the {what} {name:?}: there are {}", known.join(", ")))
        });
        odd.next()
    }
}

/// Checks what was read; `done` is called after each row, from several threads.
pub fn check(files: &Files, tables: &Tables, choice: &Choice, done: &(dyn Fn() + Sync)) -> Outcome {
    let rows: Vec<&Entry> = files
        .receipts
        .entries
        .iter()
        .filter(|entry| choice.takes(&entry.row.lane, entry.row.family(), entry.row.grade()))
        .collect();
    let flown: Vec<Result<Judged, Box<Skipped>>> = rows
        .par_iter()
        .map(|entry| {
            let result = case(entry, tables).and_then(|case| {
                let refused = |error: crate::scenario::ScenarioError| {
                    Reason::Uncovered(format!("refused: {}", first_line(&error.to_string())))
                };
                case.fly(false).map(|answer| case.judge(&answer)).map_err(refused)
            });
            done();
            result.map_err(|reason| {
                Box::new(Skipped {
                    id: entry.row.id.clone(),
                    place: format!("{}:{}", entry.file, entry.line),
                    lane: entry.row.lane.clone(),
                    hardware: entry.row.family().to_owned(),
                    grade: entry.row.grade().to_owned(),
                    reason,
                })
            })
        })
        .collect();
    let mut outcome = Outcome { faults: files.receipts.faults.clone(), ..Outcome::default() };
    for case in files
        .own
        .iter()
        .filter(|case| choice.takes(&case.measured().lane, &case.measured().hardware, &case.measured().grade))
    {
        match case.fly(false) {
            Ok(answer) => outcome.judged.push(case.judge(&answer)),
            Err(error) => outcome.skipped.push(Skipped {
                id: case.id.clone(),
                place: case.id.clone(),
                lane: case.measured().lane.clone(),
                hardware: case.measured().hardware.clone(),
                grade: case.measured().grade.clone(),
                reason: Reason::Uncovered(format!("refused: {}", first_line(&error.to_string()))),
            }),
        }
        done();
    }
    for result in flown {
        match result {
            Ok(judged) => outcome.judged.push(judged),
            Err(skipped) => outcome.skipped.push(*skipped),
        }
    }
    outcome
}

impl Outcome {
    /// Reasons with the rows they hold for, the commonest first.
    pub fn reasons(&self) -> Vec<(&Reason, Vec<&Skipped>)> {
        let mut rows: BTreeMap<&Reason, Vec<&Skipped>> = BTreeMap::new();
        for skipped in &self.skipped {
            rows.entry(&skipped.reason).or_default().push(skipped);
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.len()));
        rows
    }
}

/// The entry with an id among the rows read.
pub fn find<'f>(files: &'f Files, id: &str) -> Result<&'f read::Entry, ReceiptError> {
    files.receipts.find(id)
}
