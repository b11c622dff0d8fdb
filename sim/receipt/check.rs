//! Flies every receipt that can be mapped, several at a time, and keeps the order of the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::case::{Case, Judged, asked};
use super::map::{Mapped, Reason, map};
use super::read::{Entry, Fault, Receipts};
use super::table::Tables;
use super::{ReceiptError, question, read};
use crate::bug;
use crate::cost::Variation;
use crate::files::{Answers, digest};
use crate::near::did_you_mean;
use crate::scenario::{Prediction, Scenario, ScenarioError};

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

impl Outcome {
    /// Of the receipts that a choice takes.
    pub fn only(&self, choice: &Choice) -> Outcome {
        let judged = self.judged.iter().filter(|row| choice.takes(&row.lane, &row.hardware, &row.grade));
        let skipped = self.skipped.iter().filter(|row| choice.takes(&row.lane, &row.hardware, &row.grade));
        Outcome { judged: judged.cloned().collect(), skipped: skipped.cloned().collect(), faults: self.faults.clone() }
    }
}

/// Receipts of all files: rows of JSON lines, and scenarios with `[measured]`.
#[derive(Debug, Default)]
pub struct Files {
    /// Rows.
    pub receipts: Receipts,
    /// Users' own.
    pub own: Vec<Case>,
}

/// Reads files, all or none; one that ends in `.toml` is a scenario with `[measured]`.
pub fn read(files: &[PathBuf]) -> Result<Files, ReceiptError> {
    let (all, refused) = read_what_can_be(files);
    refused.into_iter().next().map_or(Ok(all), Err)
}

/// Reads files, and all of folders, and says which could not be used.
pub fn read_what_can_be(files: &[PathBuf]) -> (Files, Vec<ReceiptError>) {
    let mut all = Files::default();
    let mut refused = vec![];
    let mut within = vec![];
    for path in files {
        match folder(path) {
            Ok(files) => within.extend(files),
            Err(error) => refused.push(error),
        }
    }
    for path in &within {
        let result = if path.extension().is_some_and(|ending| ending == "toml") {
            own(path).map(|case| all.own.push(case))
        } else {
            all.receipts.add(path)
        };
        refused.extend(result.err());
    }
    (all, refused)
}

/// A file itself; of a folder, the scenarios and receipts in it, by name.
fn folder(path: &Path) -> Result<Vec<PathBuf>, ReceiptError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error: std::io::Error| ReceiptError::Unreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let entries = std::fs::read_dir(path).map_err(unreadable)?;
    let mut files =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml" || ending == "jsonl"));
    files.sort();
    match files.is_empty() {
        false => Ok(files),
        true => Err(ReceiptError::Unreadable {
            path: path.display().to_string(),
            reason: "the folder holds no scenario (*.toml) and no receipts (*.jsonl)".to_owned(),
        }),
    }
}

/// A scenario with `[measured]`.
pub fn own(path: &Path) -> Result<Case, ReceiptError> {
    let file = path.display().to_string();
    let text = crate::files::text(path)
        .map_err(|error| ReceiptError::Unreadable { path: file.clone(), reason: error.to_string() })?;
    let scenario = Scenario::parse(&file, &text)?;
    if scenario.measured.is_none() {
        return Err(ReceiptError::NothingMeasured { file });
    }
    Ok(Case::new(&file, &text, scenario, vec![]))
}

/// Maps a row to a case that can be flown, or says why not.
pub fn case(entry: &Entry, tables: &Tables) -> Result<Case, Reason> {
    case_of(entry, map(entry, tables)?)
}

/// A row that is mapped as a case.
fn case_of(entry: &Entry, Mapped { text, assumptions }: Mapped) -> Result<Case, Reason> {
    let scenario = Scenario::parse(&entry.row.id, &text)
        .map_err(|error| Reason::Uncovered(format!("refused: {}", first_line(&error.to_string()))))?;
    if let Some(what) = entry.row.other_model(scenario.job.model()) {
        return Err(Reason::Contradiction(what));
    }
    let stated = question::stated(&entry.value());
    // Megatron-LM's writer of logs is the last rank (`megatron/training/global_vars.py`, `_set_tensorboard_writer`).
    let logs = |kind: &String| kind.contains("rank that logs");
    let of_last_rank = entry.row.measured.peak_mem_kind.as_ref().is_some_and(logs);
    Ok(Case { stated, of_last_rank, ..Case::new(&entry.row.id, &text, scenario, assumptions) })
}

/// A case held against its prediction.
fn judged(case: &Case, speed: Option<&Variation>) -> Result<Judged, Reason> {
    answer(case, speed).map(|answer| case.judge(&answer))
}

fn answer(case: &Case, speed: Option<&Variation>) -> Result<Prediction, Reason> {
    let refused = |error: ScenarioError| Reason::Uncovered(format!("refused: {}", first_line(&error.to_string())));
    case.fly_apart(speed).map_err(refused)
}

/// One row's answer; a panic is a reason like others, so that it ends no other row.
fn caught<T>(row: impl FnOnce() -> Result<T, Reason>) -> Result<T, Reason> {
    bug::caught(row).unwrap_or_else(|what| {
        Err(Reason::Panicked(format!("a bug of windtunnel, please report it with the row: {what}")))
    })
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
    /// How the chips of all runs on GPUs differ; none: they are alike.
    pub speed: Option<&'static Variation>,
}

impl Choice {
    /// How many receipts are chosen, and the lanes and hardware asked for that no receipt has.
    pub fn count(&self, files: &Files) -> (usize, Vec<ReceiptError>) {
        let mut missing = vec![];
        let rows = files.receipts.entries.iter().map(|e| (e.row.lane.as_str(), e.row.family(), e.row.grade()));
        let own = files.own.iter().map(Case::measured).map(|m| (&*m.lane, &*m.hardware, &*m.grade));
        let all: Vec<(&str, &str, &str)> = rows.chain(own).collect();
        let lanes = all.iter().map(|one| one.0).collect();
        let hardware = all.iter().map(|one| one.1).collect();
        let known: [(&'static str, BTreeSet<&str>, &[String]); 2] =
            [("lane", lanes, &self.lanes), ("hardware", hardware, &self.hardware)];
        for (what, known, wanted) in known {
            let all = known.iter().copied().collect::<Vec<_>>().join(", ");
            for name in wanted.iter().filter(|name| !known.contains(name.as_str())) {
                let hint = did_you_mean(name, known.iter().copied());
                missing.push(ReceiptError::NoneChosen { what, name: name.clone(), hint, known: all.clone() });
            }
        }
        let chosen = all.iter().filter(|(lane, hardware, grade)| self.takes(lane, hardware, grade)).count();
        (chosen, missing)
    }

    /// Whether a receipt of these is chosen.
    fn takes(&self, lane: &str, hardware: &str, grade: &str) -> bool {
        let among = |list: &[String], name: &str| list.is_empty() || list.iter().any(|one| one == name);
        among(&self.lanes, lane) && among(&self.hardware, hardware) && among(&self.grades, grade)
    }
}

/// Checks what was read; `done` is called after each row, from several threads.
pub fn check(files: &Files, tables: &Tables, choice: &Choice, done: &(dyn Fn() + Sync)) -> Outcome {
    check_with(files, tables, choice, (None, done))
}

/// The same with answers that are known: a row that stands as it stood when it was checked before is not flown again.
pub fn check_with(
    files: &Files,
    tables: &Tables,
    choice: &Choice,
    (known, done): (Option<&Answers>, &(dyn Fn() + Sync)),
) -> Outcome {
    let known = Known { answers: known, speed: choice.speed };
    let rows: Vec<&Entry> = files
        .receipts
        .entries
        .iter()
        .filter(|entry| choice.takes(&entry.row.lane, entry.row.family(), entry.row.grade()))
        .collect();
    let flown = flown(&rows, tables, (known, done));
    let mut outcome = Outcome { faults: files.receipts.faults.clone(), ..Outcome::default() };
    for case in files
        .own
        .iter()
        .filter(|case| choice.takes(&case.measured().lane, &case.measured().hardware, &case.measured().grade))
    {
        match known.or(|| case.question(), || caught(|| judged(case, choice.speed))) {
            Ok(judged) => outcome.judged.push(judged),
            Err(reason) => outcome.skipped.push(Skipped {
                id: case.id.clone(),
                place: case.id.clone(),
                lane: case.measured().lane.clone(),
                hardware: case.measured().hardware.clone(),
                grade: case.measured().grade.clone(),
                reason,
            }),
        }
        done();
    }
    for (entry, result) in rows.into_iter().zip(flown) {
        match result {
            Ok(judged) => outcome.judged.push(judged),
            Err(reason) => outcome.skipped.push(Skipped {
                id: entry.row.id.clone(),
                place: format!("{}:{}", entry.file, entry.line),
                lane: entry.row.lane.clone(),
                hardware: entry.row.family().to_owned(),
                grade: entry.row.grade().to_owned(),
                reason,
            }),
        }
    }
    outcome
}

/// Answers that are known, to be asked at a pace of the chips.
#[derive(Clone, Copy)]
struct Known<'a> {
    answers: Option<&'a Answers>,
    speed: Option<&'static Variation>,
}

impl Known<'_> {
    fn asked(self, question: &str) -> String {
        format!("{} {question}", self.speed.map_or_else(|| "alike".to_owned(), |speed| digest(&speed)))
    }

    fn find(self, question: &str) -> Option<Result<Judged, Reason>> {
        self.answers.and_then(|answers| answers.get(&self.asked(question)))
    }

    /// Writes an answer down, but for a bug's, which another attempt may not meet.
    fn keep(self, question: &str, said: &Result<Judged, Reason>) {
        if let Some(answers) = self.answers.filter(|_| !matches!(said, Err(Reason::Panicked(_)))) {
            answers.keep(&self.asked(question), said);
        }
    }

    /// What is known, or else is found now and kept.
    fn or(
        self,
        question: impl FnOnce() -> String,
        find: impl FnOnce() -> Result<Judged, Reason>,
    ) -> Result<Judged, Reason> {
        if self.answers.is_none() {
            return find();
        }
        let question = question();
        self.find(&question).unwrap_or_else(|| {
            let said = find();
            self.keep(&question, &said);
            said
        })
    }
}

/// A row whose answer is not known, by its place among them, and what it is mapped to.
type Open = (usize, Result<Mapped, Reason>);

/// Answers for all rows, in their order. Those that ask the same of the simulator, as a run and its repetition do, are flown once. A
/// scenario is there only while it is flown: with its programs it takes some megabytes.
fn flown(
    rows: &[&Entry],
    tables: &Tables,
    (known, done): (Known<'_>, &(dyn Fn() + Sync)),
) -> Vec<Result<Judged, Reason>> {
    let found: Vec<Option<Result<Judged, Reason>>> = rows.par_iter().map(|entry| known.find(entry.text())).collect();
    let open: Vec<usize> = (0..rows.len()).filter(|&at| found[at].is_none()).collect();
    (open.len()..rows.len()).for_each(|_| done());
    let mapped = |&at: &usize| (at, caught(|| map(rows[at], tables)));
    let mapped: Vec<Open> = open.par_iter().map(mapped).collect();
    let mut alike: BTreeMap<String, Vec<Open>> = BTreeMap::new();
    for (at, mapped) in mapped {
        let asked = mapped.as_ref().map_or_else(|_| format!("row {at}"), |mapped| asked(&mapped.text));
        alike.entry(asked).or_default().push((at, mapped));
    }
    let fly = |group: Vec<Open>| {
        let mut answered = None;
        let judge = |(at, mapped): Open| {
            let case = caught(|| case_of(rows[at], mapped?));
            let said = case.and_then(|case| {
                let answered = answered.get_or_insert_with(|| caught(|| answer(&case, known.speed)));
                let answered = answered.as_ref().map_err(|reason| reason.clone())?;
                caught(|| Ok(case.judge(answered)))
            });
            known.keep(rows[at].text(), &said);
            done();
            (at, said)
        };
        group.into_iter().map(judge).collect::<Vec<_>>()
    };
    let groups: Vec<_> = alike.into_values().collect();
    let flown: BTreeMap<usize, Result<Judged, Reason>> = groups.into_par_iter().flat_map_iter(fly).collect();
    let mut flown = flown.into_values();
    found.into_iter().filter_map(|known| known.or_else(|| flown.next())).collect()
}

impl Outcome {
    /// Whether a row met a bug.
    pub fn panicked(&self) -> bool {
        self.skipped.iter().any(|row| matches!(row.reason, Reason::Panicked(_)))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_reason_of_its_row_alone() {
        let rows: Vec<Result<u32, Reason>> =
            (0..3).map(|row| caught(|| if row == 1 { panic!("row {row} broke\nmore") } else { Ok(row) })).collect();
        assert_eq!((&rows[0], &rows[2]), (&Ok(0), &Ok(2)));
        let Err(Reason::Panicked(words)) = &rows[1] else { panic!("{rows:?}") };
        assert!(words.ends_with("report it with the row: row 1 broke"), "{words}");
    }
}
