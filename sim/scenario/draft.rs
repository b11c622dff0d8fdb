//! A scenario file as a table of keys that can be changed and flown: what every what-if is made of.

use std::sync::Arc;

use toml::{Table, Value};

use super::change::Change;
use super::error::ScenarioError;
use super::paths::relative;
use super::programs::Programs;

/// The table of what a run has measured.
const MEASURED: &str = "measured";

/// Keys whose values are names or paths; a path counts from the scenario's own file.
const PATHS: [&str; 4] = ["topology.name", "topology.profile", "model.huggingface", "pipeline.schedule"];

/// A scenario file that can be changed, key by key.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What errors call the file, and what paths in it are relative to.
    file: String,
    table: Table,
    programs: Arc<Programs>,
}

impl Draft {
    /// A draft of keys that nobody has checked yet. What the run has measured is left behind: nobody has measured a what-if.
    pub fn new(file: &str, mut table: Table) -> Draft {
        table.remove(MEASURED);
        Draft { file: file.to_owned(), table, programs: Arc::default() }
    }

    /// The value of `table.key`, or of a key at the top.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match key.split_once('.') {
            Some((table, key)) => self.table.get(table)?.get(key),
            None => self.table.get(key),
        }
    }

    /// Sets `table.key`, or a key at the top; what says the same in other words goes.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        if key == "batch.micro" {
            self.remove("batch.per_device_batch_size");
        }
        match key.split_once('.') {
            Some((table, key)) => {
                let entry = self.table.entry(table).or_insert_with(|| Value::Table(Table::new()));
                // A value where a table belongs is refused when the draft is read.
                if let Some(table) = entry.as_table_mut() {
                    table.insert(key.to_owned(), value.into());
                }
            }
            None => {
                self.table.insert(key.to_owned(), value.into());
            }
        }
    }

    /// Leaves a key open.
    pub fn remove(&mut self, key: &str) {
        match key.split_once('.') {
            Some((table, key)) => {
                if let Some(table) = self.table.get_mut(table).and_then(Value::as_table_mut) {
                    table.remove(key);
                }
            }
            None => {
                self.table.remove(key);
            }
        }
    }

    /// The draft for a reader elsewhere: paths that count from its file's folder count from the working directory.
    #[must_use]
    pub fn located(&self) -> Draft {
        let mut draft = self.clone();
        for key in PATHS {
            if let Some(path) = self.get(key).and_then(Value::as_str) {
                draft.set(key, relative(&self.file, path));
            }
        }
        draft
    }

    /// The draft with a change made.
    #[must_use]
    pub fn changed(&self, change: &Change) -> Draft {
        let mut draft = self.clone();
        for (key, value) in change.keys() {
            match value {
                Some(value) => draft.set(key, value.clone()),
                None => draft.remove(key),
            }
        }
        draft
    }

    /// What errors call the file.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Programs of plans that were tried, of this draft and of those made from it.
    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The same draft, with another's programs.
    #[must_use]
    pub(super) fn sharing(self, other: &Draft) -> Draft {
        Draft { programs: Arc::clone(&other.programs), ..self }
    }

    /// The keys.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The file as a person would save it.
    pub fn text(&self) -> String {
        self.table.to_string()
    }
}

/// What is wrong, without the place: nobody has a draft's lines before them.
pub fn reason(error: &ScenarioError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
