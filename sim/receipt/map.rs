//! From a row to a scenario: what the row states, then what its framework's table adds.

mod keys;
mod measured;
mod scope;
mod stated;

use keys::Gathered;
use measured::{measured, source};
use scope::{beyond, without};
use stated::{accumulation, stated};

use toml::Value;

use super::pattern::matches;
use super::read::Entry;
use super::table::{Rule, Tables, switches, word};

/// Why a row is not checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is about something that its lane does not have.
    Outside(String),
    /// It should be covered, and is not.
    Uncovered(String),
    /// It states what cannot all be true.
    Contradiction(String),
    /// The program panicked: a bug of ours, not of the row.
    Panicked(String),
}

impl Reason {
    /// In words.
    pub fn words(&self) -> &str {
        match self {
            Reason::Outside(words)
            | Reason::Uncovered(words)
            | Reason::Contradiction(words)
            | Reason::Panicked(words) => words,
        }
    }
}

/// One key that the row does not state.
#[derive(Clone, Debug, PartialEq)]
pub struct Assumption {
    /// The key, `table.key`.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// Where it is known from.
    pub source: String,
}

/// A row as a scenario.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The scenario's text, with `[measured]` and the assumptions marked.
    pub text: String,
    /// What the row does not state.
    pub assumptions: Vec<Assumption>,
}

/// Maps a row, or says why not.
pub fn map(entry: &Entry, tables: &Tables) -> Result<Mapped, Reason> {
    let row = &entry.row;
    let framework = row.framework.name.as_deref().unwrap_or("");
    let known = tables.of(framework, row.framework.version.as_deref());
    let distrusted = |field: &str| known.is_some_and(|(_, table)| table.distrust.contains_key(field));
    if let Some(what) = row.contradiction(distrusted) {
        return Err(Reason::Contradiction(what));
    }
    let Some((common, table)) = known else {
        beyond(row, &entry.value, "")?;
        return Err(Reason::Uncovered(format!("no table of defaults for the framework {framework:?}")));
    };
    let rules: Vec<&Rule> = common.rules.iter().chain(&table.rules).filter(|rule| rule.holds(&entry.value)).collect();
    let runtime = rules.iter().rev().find_map(|rule| rule.set.get("runtime")?.as_str()).unwrap_or("");
    beyond(row, &entry.value, runtime)?;
    let version = row.framework.version.as_deref();
    if !table.versions.iter().any(|known| matches(known, version)) {
        let known = table.versions.join(", ");
        let version = version.unwrap_or("not stated");
        return Err(Reason::Uncovered(format!(
            "the table of {framework:?} does not know the version {version:?}: it has {known}"
        )));
    }
    for rule in &rules {
        if let Some(why) = &rule.outside {
            return Err(without(row, why.clone()));
        }
        if let Some(why) = &rule.refuse {
            return Err(Reason::Uncovered(why.clone()));
        }
    }
    for field in switches(&entry.value) {
        let named = rules.iter().any(|rule| rule.when.contains_key(&field));
        if !named && !table.ignore.contains_key(&field) && !common.ignore.contains_key(&field) {
            let value = word(&entry.value, &field).unwrap_or_default();
            return Err(Reason::Uncovered(format!("the table of {framework:?} does not know {field} = {value:?}")));
        }
    }
    let mut keys = Gathered::default();
    stated(row, runtime, &mut keys)?;
    for rule in rules {
        keys.apply(rule, &entry.value);
    }
    keys.without_idle();
    accumulation(row, &mut keys)?;
    measured(row, &mut keys)?;
    for needed in ["runtime", "topology.name", "model.name", "batch.sequence"] {
        if keys.get(needed).is_none() {
            let what = match needed {
                "topology.name" => {
                    format!("no topology for the hardware {:?}", row.hardware.name.as_deref().unwrap_or(""))
                }
                "batch.sequence" => "states no sequence length".to_owned(),
                "model.name" => format!("no shipped model is called {:?}", row.model.name.as_deref().unwrap_or("")),
                _ => format!("the table of {framework:?} names no runtime"),
            };
            return Err(Reason::Uncovered(what));
        }
    }
    // An id or a path may hold the end of a line, a comment may not.
    let words = format!("{}: {}", row.id, source(row)).replace(char::is_control, " ");
    let comment = format!("# {words}\n# Mapped from {}:{}.", entry.file, entry.line);
    Ok(Mapped { assumptions: keys.assumptions(), text: keys.text(&comment) })
}
