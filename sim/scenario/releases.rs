//! `framework.release`: what a codebase's own release takes for keys that a scenario leaves out.
//!
//! PyTorch's defaults are not those of the code that trains with it. A release is a file of keys in `releases/`, each with
//! the line of that codebase that says so; to add one, add a file and a line in [`SHIPPED`].

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::entry::Runtime;
use super::error::ScenarioError;
use super::reader::Reader;
use super::written;
use crate::tables;

/// Releases, by the name that a scenario writes.
const SHIPPED: [(&str, &str); 4] = [
    ("torchtitan 0.0.2", include_str!("releases/torchtitan-0.0.2.toml")),
    ("torchtitan 0.2.2", include_str!("releases/torchtitan-0.2.2.toml")),
    ("torchtitan 0.3.0", include_str!("releases/torchtitan-0.3.0.toml")),
    ("transformers 5.23", include_str!("releases/transformers-5.23.toml")),
];

/// A file of `releases/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    /// Runtimes that it trains under.
    runtimes: Vec<String>,
    /// Defaults by key, such as `fsdp.wrap`.
    defaults: BTreeMap<String, Default>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Default {
    value: Value,
    source: String,
    /// Runtimes that read the key, where not all of the release's do.
    runtimes: Option<Vec<String>>,
    /// Another key without whose default this one means nothing: it goes where the file says something else there.
    with: Option<String>,
}

fn release(name: &str) -> Option<Release> {
    let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name)?;
    Some(tables::read(text).expect("a test reads every release"))
}

/// Defaults of a release for a runtime: each key with its value and the line of that codebase that says so. None if there is no table.
pub fn release_defaults(name: &str, runtime: &str) -> Vec<(String, Value, String)> {
    let Some(Release { defaults, .. }) = release(name) else { return vec![] };
    let read =
        |default: &Default| default.runtimes.as_ref().is_none_or(|names| names.iter().any(|name| name == runtime));
    let read = defaults.into_iter().filter(|(_, default)| read(default));
    read.map(|(key, default)| (key, default.value, format!("{name}: {}", default.source))).collect()
}

/// Takes what the file leaves out from the release that it names, if it names one.
pub(super) fn fill(
    reader: &mut Reader<'_>,
    scenario: &mut written::Scenario,
    runtime: Runtime,
) -> Result<(), ScenarioError> {
    let Some(at) = scenario.framework.release.clone() else { return Ok(()) };
    let Some(Release { runtimes, defaults }) = release(at.get_ref()) else {
        let problem = format!("there is no table of the defaults of {:?}", at.get_ref());
        let known = SHIPPED.map(|(name, _)| format!("{name:?}")).join(", ");
        return Err(reader.unknown(
            &at,
            problem,
            format!("write one of {known}, or remove the key and write what differs"),
        ));
    };
    if !runtimes.iter().any(|name| name == runtime.written()) {
        let problem = format!("{} does not train under runtime = {:?}", at.get_ref(), runtime.written());
        return Err(reader.plan(&at, problem, format!("remove the key, or write runtime = {:?}", runtimes[0])));
    }
    let mut below = Table::new();
    let said = |key: &str| {
        let (table, name) = key.split_once('.')?;
        reader.table.get(table)?.get(name)
    };
    let differs = |key: &String| {
        let default = defaults.get(key).map(|default| &default.value);
        said(key).is_some_and(|said| Some(said) != default)
    };
    for (key, Default { value, source, runtimes, with }) in &defaults {
        let Some((table, name)) = key.split_once('.') else { continue };
        let read = runtimes.as_ref().is_none_or(|names| names.iter().any(|name| name == runtime.written()));
        if !read || said(key).is_some() || with.as_ref().is_some_and(differs) {
            continue;
        }
        reader.assume_for(key, (), value.clone(), format!("{}: {source}", at.get_ref()));
        let table = below.entry(table).or_insert_with(|| Value::Table(Table::new()));
        if let Some(table) = table.as_table_mut() {
            table.insert(name.to_owned(), value.clone());
        }
    }
    *scenario = reader.source.written_over(&below, &at.span()).expect("a test reads every release's defaults");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn every_release_is_read_and_each_of_its_defaults_is_a_key_with_a_line_of_source() {
        let small = "runtime = \"\"\ntopology = { name = \"\" }\nmodel = {}\nmesh = {}\nbatch = { sequence = 1 }";
        let small = Source::parse(small).expect("it is TOML");
        for (name, _) in SHIPPED {
            let Release { runtimes, defaults } = release(name).expect("it is shipped");
            assert!(runtimes.iter().all(|runtime| Runtime::find(runtime).is_some()), "{name}: {runtimes:?}");
            for (key, Default { value, source, runtimes, with }) in defaults.clone() {
                assert!(runtimes.iter().flatten().all(|runtime| Runtime::find(runtime).is_some()), "{name}: {key}");
                assert!(with.is_none_or(|with| defaults.contains_key(&with)), "{name}: {key}");
                let (table, key) = key.split_once('.').expect("a key has its table");
                let inner = Table::from_iter([(key.to_owned(), value)]);
                let outer = Table::from_iter([(table.to_owned(), Value::Table(inner))]);
                let read = small.written_over(&outer, &(0..0));
                assert!(read.is_ok(), "{name}: {outer}: {read:?}");
                let has_line = [".py:", ".toml:", ".sh:"].iter().any(|line| source.contains(line));
                assert!(has_line, "{name}: {key}: {source}");
            }
        }
    }
}
