//! A scenario with keys that take several values: every combination is a point, and every point a row.
//!
//! Points are numbered as `itertools.product` lists them: the last key varies fastest. A row depends on its number alone, so that
//! processes may share a grid and the rows are the same.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rayon::ThreadPool;
use rayon::prelude::*;
use toml::{Table, Value};

use windtunnel::scenario::{Draft, ScenarioError};
use windtunnel::{Scenario, Settings, keys, predict};

use crate::errors::{Refusal, is_of_a_file, raised};
use crate::watch::listen;

/// A key and the values that it takes; without one it is left to its default.
pub struct Axis {
    /// The key with its tables, or a table.
    pub key: String,
    /// At least one.
    pub values: Vec<Option<Value>>,
}

/// One point's prediction as JSON, or why it has none.
#[derive(Debug, IntoPyObject)]
pub struct Row {
    report: Option<String>,
    refusal: Option<Refusal>,
}

/// A scenario and what varies in it.
pub struct Grid {
    base: Draft,
    axes: Vec<Axis>,
}

/// Why rows were not computed to the end.
enum Stop {
    /// The caller said so.
    Asked,
    /// A file that a scenario names could not be read.
    Unread(ScenarioError),
}

/// How many points there are.
pub fn points(axes: &[Axis]) -> PyResult<usize> {
    let points = axes.iter().try_fold(1_usize, |points, axis| points.checked_mul(axis.values.len()));
    points.ok_or_else(|| PyValueError::new_err("the grid has more points than can be counted: vary fewer keys"))
}

impl Grid {
    /// A scenario's text, which need not be a scenario before keys are set.
    pub fn of(file: &str, text: &str, axes: Vec<Axis>) -> PyResult<Grid> {
        let base = match text.parse::<Table>() {
            Ok(table) => Draft::new(file, table),
            // What is no TOML is no scenario, and the reader says it with the place.
            Err(_) => Scenario::parse(file, text).map_err(|error| raised(&error))?.draft,
        };
        axes.iter().try_for_each(|axis| known(file, &axis.key)).map_err(|error| raised(&error))?;
        Ok(Grid { base, axes })
    }

    /// Rows of a part of the grid. `tick` hears on this thread, now and then, how many are done; with an error it ends the rest.
    pub fn rows(
        &self,
        range: Range<usize>,
        pool: &ThreadPool,
        tick: impl Fn(usize) -> PyResult<()>,
    ) -> PyResult<Vec<Row>> {
        self.holds(&range)?;
        let asked = AtomicBool::new(false);
        let (done, heard) = mpsc::channel();
        let one = |done: &mut mpsc::Sender<()>, at: usize| {
            if asked.load(Ordering::Relaxed) {
                return Err(Stop::Asked);
            }
            let row = self.row(at)?;
            // Nobody listens after an error, and then nothing is counted.
            let _ = done.send(());
            Ok(row)
        };
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                let part = range.into_par_iter().with_max_len(1);
                pool.install(|| part.map_with(done, one).collect::<Result<Vec<Row>, Stop>>())
            });
            let mut done = 0;
            let told = listen(&heard, |news: Vec<()>| {
                done += news.len();
                tick(done)
            });
            asked.store(told.is_err(), Ordering::Relaxed);
            let rows = work.join().unwrap_or_else(|panic| resume_unwind(panic));
            told?;
            rows.map_err(|stop| match stop {
                Stop::Unread(error) => raised(&error),
                Stop::Asked => PyValueError::new_err("the sweep was stopped"),
            })
        })
    }

    /// Whether the grid has these points.
    fn holds(&self, range: &Range<usize>) -> PyResult<()> {
        let (Range { start, end }, points) = (range, points(&self.axes)?);
        if start <= end && *end <= points {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("points {start} to {end} of a grid that has {points}")))
    }

    fn row(&self, at: usize) -> Result<Row, Stop> {
        let answer = self.point(at).scenario().and_then(|scenario| {
            let answer = predict(&scenario, Settings { remedies: false, ..Settings::default() })?;
            Ok(format!("{:#}\n", answer.report(&scenario).json()))
        });
        match answer {
            Ok(report) => Ok(Row { report: Some(report), refusal: None }),
            Err(error) if is_of_a_file(&error) => Err(Stop::Unread(error)),
            Err(error) => Ok(Row { report: None, refusal: Some(Refusal::of(&error)) }),
        }
    }

    /// The keys of one point.
    fn point(&self, at: usize) -> Draft {
        let mut rest = at;
        let mut chosen: Vec<(&str, &Option<Value>)> = vec![];
        for axis in self.axes.iter().rev() {
            chosen.push((&axis.key, &axis.values[rest % axis.values.len()]));
            rest /= axis.values.len();
        }
        let mut draft = self.base.clone();
        for (key, value) in chosen.into_iter().rev() {
            put(&mut draft, key, value.as_ref());
        }
        draft
    }
}

/// Sets a key, a key of a table in a table, or a whole table; or leaves it to its default.
fn put(draft: &mut Draft, key: &str, value: Option<&Value>) {
    let Some((top, inner)) = key.split_once('.') else {
        return match value {
            Some(value) => draft.set(key, value.clone()),
            None => draft.remove(key),
        };
    };
    let mut whole = draft.get(top).cloned();
    match value {
        Some(value) => set(whole.get_or_insert_with(|| Value::Table(Table::new())), inner, value),
        None => whole.iter_mut().for_each(|whole| remove(whole, inner)),
    }
    if let Some(whole) = whole {
        draft.set(top, whole);
    }
}

/// Sets a key in a value. What stands where a table belongs stays, and the scenario's reader refuses it.
fn set(whole: &mut Value, key: &str, value: &Value) {
    let Some(table) = whole.as_table_mut() else { return };
    match key.split_once('.') {
        Some((outer, inner)) => {
            set(table.entry(outer).or_insert_with(|| Value::Table(Table::new())), inner, value);
        }
        None => {
            table.insert(key.to_owned(), value.clone());
        }
    }
}

fn remove(whole: &mut Value, key: &str) {
    let Some(table) = whole.as_table_mut() else { return };
    match key.split_once('.') {
        Some((outer, inner)) => table.get_mut(outer).into_iter().for_each(|whole| remove(whole, inner)),
        None => {
            table.remove(key);
        }
    }
}

/// Whether a scenario has such a key, or such a table.
fn known(file: &str, key: &str) -> Result<(), ScenarioError> {
    let measured = key == "measured" || key.starts_with("measured.");
    let is = |table: &&keys::Table| table.name == key || table.keys.iter().any(|row| row.path == key);
    if !measured && !key.is_empty() && keys::TABLES.iter().any(is) {
        return Ok(());
    }
    // A builder says the first thing that is wrong, which is this key: with the nearest name, or why nobody may set it.
    Scenario::builder(file).set(key, "").build().map(|_| ())
}
