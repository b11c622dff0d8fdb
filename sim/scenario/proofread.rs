//! All problems of a scenario's file at once, not the first alone.
//!
//! Keys are looked at first, each by itself: names, types and ranges, then the names of machines, models and the like. A file is read
//! again without what has been found (`proofread/mend.rs`), until nothing more comes up. Whether the plan can run is said only once no
//! key is wrong: until then it may be a consequence.

mod mend;

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::entry::Runtime;
use super::error::{MOST, ScenarioError};
use super::keys::{self, Kind};
use super::reader::{How, Reader};
use super::source::Source;
use super::understood::{Scenario, runtime, unread};
use super::{machine, model, written};
use crate::tables;

/// Tables whose keys say how large a job is: what others may be follows from them.
const SIZES: [&str; 4] = ["runtime", "topology", "model", "mesh"];

impl Scenario {
    /// Reads a scenario file. An error names every problem that can be found.
    pub fn load(path: impl AsRef<Path>) -> Result<Scenario, ScenarioError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let text = crate::files::text(path).map_err(|error| ScenarioError::unreadable(path, &error))?;
        Scenario::proofread(&file, &text)
    }

    /// Understands a scenario's text, as [`Scenario::parse`] does. An error names every problem that can be found.
    pub fn proofread(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::parse(file, text).map_err(|first| match tables::document(text) {
            Ok(keys) => Problems { file, text, keys, found: vec![], wrong: BTreeSet::new() }.all(first),
            // What is no TOML has no keys.
            Err(_) => first,
        })
    }
}

/// What has been found in a file.
struct Problems<'t> {
    file: &'t str,
    text: &'t str,
    /// Its keys, without those at which something has been found.
    keys: Spanned<DeTable<'t>>,
    found: Vec<ScenarioError>,
    /// The keys at which something has been found.
    wrong: BTreeSet<String>,
}

impl<'t> Problems<'t> {
    /// All problems, of which this is the first that a reader meets.
    fn all(mut self, first: ScenarioError) -> ScenarioError {
        if let Some(scenario) = self.keys() {
            let runtime = Runtime::find(scenario.runtime.get_ref());
            self.ranges(runtime.filter(|_| !self.wrong.contains("runtime")));
            self.names();
        }
        let Problems { mut found, .. } = self;
        let at = |error: &ScenarioError| error.place().map(|place| place.at);
        // The reader's own words, where it says the same in others.
        let known = found.iter().any(|error| error.to_string() == first.to_string());
        match found.iter().position(|error| at(error) == at(&first)) {
            _ if known => {}
            Some(same) => found[same] = first,
            None if first.is_of_a_key() || found.is_empty() => found.push(first),
            None => {}
        }
        found.sort_by_key(at);
        found.truncate(MOST);
        if found.len() == 1 { found.remove(0) } else { ScenarioError::Several(found) }
    }

    fn source(&self) -> Source<'t> {
        Source::of(self.text, &self.keys)
    }

    /// Keeps a problem of a key, and reads on without the key: which it was, if it is in the file.
    fn keep(&mut self, error: ScenarioError) -> Option<String> {
        let key = mend::without(self.keys.get_mut(), "", error.place()?.at)?;
        self.found.push(error);
        self.wrong.insert(key.clone());
        Some(key)
    }

    /// Unknown keys, wrong types and missing keys. What is left is a scenario as written, unless there is no end of them.
    fn keys(&mut self) -> Option<written::Scenario> {
        // Tables with a key that nobody knows: one that is missing may have been meant.
        let mut misspelt = BTreeSet::new();
        for _ in 0..2 * MOST {
            let error = match self.source().written() {
                Ok(scenario) => return Some(scenario),
                Err(error) => error,
            };
            let said = unread(self.file, self.text, &error);
            match error.message().strip_prefix("missing field ") {
                Some(key) => {
                    let key = mend::with(self.keys.get_mut(), key.trim_matches('`'), &error.span()?)?;
                    if !misspelt.contains(table(&key)) {
                        self.found.push(said);
                    }
                    self.wrong.insert(key);
                }
                None => {
                    let key = self.keep(said)?;
                    if error.message().starts_with("unknown field ") {
                        misspelt.insert(table(&key).to_owned());
                    }
                }
            }
        }
        None
    }

    /// Counts out of the range that the table of keys has for them, of those that the runtime reads.
    fn ranges(&mut self, runtime: Option<Runtime>) {
        let source = self.source();
        let table = source.table();
        let reader = reader(self.file, &source);
        let read = |key: &keys::Key| runtime.is_none_or(|runtime| key.is_read_by(runtime.written()));
        let out = keys::all().filter(|key| read(key)).filter_map(|key| {
            let Kind::Count(Some(_)) = key.kind else { return None };
            reader.count(key, &count(self.keys.get_ref(), table, key.path)?).err()
        });
        for error in out.collect::<Vec<_>>() {
            self.keep(error);
        }
    }

    /// Names that nothing has, and what else is wrong at one key, as readers meet it.
    fn names(&mut self) {
        let Ok(scenario) = self.source().written() else { return };
        let of_keys = {
            let source = self.source();
            let mut reader = reader(self.file, &source);
            let runtime = runtime(&reader, &scenario.runtime);
            // Whose chips they are is no matter of the name.
            let any = runtime.as_ref().map_or(Runtime::ALL[0], |runtime| *runtime);
            let topology = machine::topology(&reader, &scenario.topology, any);
            let profile =
                topology.as_ref().ok().map(|topology| machine::profile(&reader, &scenario.topology, topology));
            let model = model::model(&mut reader, &scenario.model);
            [runtime.err(), topology.err(), profile.and_then(Result::err), model.err()]
        };
        let of_keys: Vec<ScenarioError> = of_keys.into_iter().flatten().filter(ScenarioError::is_of_a_key).collect();
        for error in of_keys {
            self.keep(error);
        }
        // Without its sizes a plan is another, which says nothing of this one.
        let sized = |key: &String| SIZES.contains(&key.split('.').next().unwrap_or_default());
        while self.found.len() < MOST && !self.wrong.iter().any(sized) {
            let error = match Scenario::understood(self.file, &self.source()) {
                Err(error) if error.is_of_a_key() => error,
                Ok(_) | Err(_) => return,
            };
            if self.keep(error).is_none() {
                return;
            }
        }
    }
}

/// The table of a key; of one at the top it has no name.
fn table(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(table, _)| table)
}

/// A key's count, with its place.
fn count(keys: &DeTable<'_>, table: &Table, path: &str) -> Option<Spanned<i64>> {
    let mut names = path.split('.');
    let first = names.next()?;
    let first = (keys.get::<str>(first)?, table.get(first)?);
    let (at, value) = names.try_fold(first, |(at, value): (&Spanned<DeValue<'_>>, &Value), name| {
        Some((at.get_ref().as_table()?.get::<str>(name)?, value.get(name)?))
    })?;
    Some(Spanned::new(at.span(), value.as_integer()?))
}

/// A reader of what is left of a file.
fn reader<'t>(file: &'t str, source: &'t Source<'t>) -> Reader<'t> {
    // Of what a plan would need instead, nothing is said here.
    let how = How { trial: true, topology: None, reads: |_, _| false };
    Reader { file, framework: "", source, table: source.table(), assumptions: vec![], idle: vec![], how }
}
