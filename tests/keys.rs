//! The one table of keys is what the reader reads, what frameworks refuse, and what `docs/keys.md` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rayon::prelude::*;
use windtunnel::scenario::keys::{Key, Kind, TABLES, Table, example, words};
use windtunnel::scenario::{Runtime, Scenario, ScenarioError};

use crate::defaults;
use crate::every_key::{keys, plans};
use crate::make::FILE;
use crate::pages::fresh;

pub fn rows() -> impl Iterator<Item = (&'static Table, &'static Key)> {
    TABLES.into_iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
}

/// Names of tables and of keys in them, each with its tables' names before it.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, key) in rows() {
        let path = key.path;
        names.extend(path.match_indices('.').map(|(at, _)| path[..at].to_owned()));
        names.insert(path.to_owned());
    }
    names
}

#[test]
fn the_table_and_the_reader_name_the_same_keys() {
    let names = names();
    let is_table = |name: &str| names.iter().any(|other| other.starts_with(&format!("{name}.")));
    let mut read: BTreeSet<String> = keys::of_table("").into_iter().collect();
    let mut open: Vec<String> = read.iter().filter(|name| is_table(name)).cloned().collect();
    while let Some(table) = open.pop() {
        let found = keys::of_table(&table);
        open.extend(found.iter().filter(|name| is_table(name)).cloned());
        read.extend(found);
    }
    let missing: Vec<_> = read.difference(&names).collect();
    let unknown: Vec<_> = names.difference(&read).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}\nwithout a field: {unknown:?}");
    let paths: Vec<&str> = rows().map(|(_, key)| key.path).collect();
    assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len(), "a key has two rows");
}

#[test]
fn a_key_takes_what_its_row_says() {
    for (_, key) in rows() {
        let path = key.path;
        let said = keys::said_of_a_word(path);
        let expects = |what: &str| said.contains(&format!("expected {what}"));
        let holds = match key.kind {
            Kind::Count(_) => expects("a whole number") || expects("u32"),
            Kind::Flag => expects("true or false"),
            Kind::Number => expects("f64"),
            Kind::Choice(choices) => {
                let words: Vec<&str> = choices.iter().map(|choice| choice.word()).collect();
                said.contains("there is no choice") && keys::listed(&said) == words
            }
            Kind::Text => !expects("a whole number") && !expects("true or false") && !expects("a table"),
            Kind::Quantity(example) => said.contains(keys::WORD) && !expects("a whole number") && example.contains(' '),
            Kind::List(_) => expects("a sequence") || expects("sequence"),
            Kind::Other(_) => !said.is_empty(),
        };
        assert!(holds, "{path}: {:?}, and the reader says: {said}", key.kind);
    }
}

/// Small plans of every runtime, by its name.
fn plans_by_runtime() -> BTreeMap<&'static str, Vec<toml::Table>> {
    let mut by: BTreeMap<&'static str, Vec<toml::Table>> = BTreeMap::new();
    for text in defaults::plans().into_iter().chain(plans::plans()) {
        let scenario = Scenario::parse(FILE, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        by.entry(scenario.runtime.written()).or_default().push(text.parse().unwrap());
    }
    assert_eq!(by.len(), Runtime::ALL.len());
    by
}

#[test]
fn a_count_has_the_bounds_of_its_row() {
    let plans = plans_by_runtime();
    let rows: Vec<_> = rows().filter(|(table, _)| table.name != "measured").collect();
    let wrong: Vec<String> = rows
        .into_par_iter()
        .filter_map(|(_, key)| {
            let Kind::Count(Some((least, most))) = key.kind else { return None };
            let path = key.path;
            // Below every least.
            let answers = || {
                let of_readers = key.read_by.iter().flat_map(|framework| &plans[framework]);
                of_readers.filter_map(|plan| {
                    let file = keys::set(plan, path, toml::Value::Integer(-1)).to_string();
                    Scenario::parse(FILE, &file).err().map(|error| error.to_string())
                })
            };
            let expected = format!("is out of range: expected {least} to {most}");
            // The queues of a device are no count of the plan.
            let met = path == "framework.device_max_connections" || answers().any(|said| said.contains(&expected));
            (!met).then(|| format!("{path}: {least} to {most}, and: {:?}", answers().next()))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn one_count_out_of_its_bounds_is_one_problem() {
    let plans = plans_by_runtime();
    let rows: Vec<_> = rows().collect();
    let changed: Vec<String> = rows
        .into_par_iter()
        .flat_map_iter(|(table, key)| {
            let bounds = if let Kind::Count(bounds) = key.kind { bounds } else { None };
            let of_readers = key.read_by.iter().map(|framework| &plans[framework][0]);
            let path = key.path;
            bounds.into_iter().flat_map(move |_| {
                of_readers.clone().filter_map(move |plan| {
                    // A table of adapters must name their modules.
                    let modules = toml::Value::Array(vec!["all-linear".into()]);
                    let whole = (table.name == "lora").then(|| keys::set(plan, "lora.modules", modules));
                    let plan = whole.as_ref().unwrap_or(plan);
                    let file = keys::set(plan, path, toml::Value::Integer(-1)).to_string();
                    let first = Scenario::parse(FILE, &file).err()?;
                    let all = Scenario::proofread(FILE, &file).err()?.to_string();
                    // What refuses the whole table, say, comes once its keys are right.
                    let later = matches!(first, ScenarioError::Plan { .. });
                    let alike = first.to_string() == all;
                    let holds = alike || later && all.starts_with(&format!("{path} = -1 is out of range"));
                    (!holds).then(|| format!("{path}\n{first}\n{all}"))
                })
            })
        })
        .collect();
    assert!(changed.is_empty(), "{}", changed.join("\n\n"));
}

#[test]
fn a_framework_refuses_every_key_that_its_rows_do_not_name() {
    let plans = plans_by_runtime();
    let mut accepted = vec![];
    for (framework, plans) in &plans {
        let plan = &plans[0];
        for (_, key) in rows().filter(|(_, key)| !key.is_read_by(framework)) {
            let path = key.path;
            for value in keys::values(path, key.kind) {
                let file = keys::set(plan, path, value.clone()).to_string();
                if Scenario::parse(FILE, &file).is_ok() {
                    accepted.push(format!("{framework}: {path} = {value}"));
                }
            }
        }
    }
    assert!(accepted.is_empty(), "read over in silence:\n{}", accepted.join("\n"));
}

/// A cell of a table in Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Where the defaults of a table's keys come from, a line each.
fn sources(table: &Table) -> String {
    let mut list = String::new();
    for key in table.keys {
        for preset in key.defaults {
            let (value, frameworks) = (words::value(preset.value), preset.frameworks.join(", "));
            let _ = writeln!(list, "- `{}` is {value} under {frameworks}: {}.", key.name(), preset.source());
        }
    }
    list
}

/// What to write in place of a table's keys, a line for all keys of which the same is said.
fn elsewhere(table: &Table) -> String {
    type Told = (Vec<&'static str>, &'static str);
    let mut told: Vec<(Told, Vec<&str>)> = vec![];
    for key in table.keys {
        for one in words::elsewhere(table, key) {
            match told.iter_mut().find(|(known, _)| *known == one) {
                Some((_, keys)) => keys.push(key.name()),
                None => told.push((one, vec![key.name()])),
            }
        }
    }
    let mut list = String::new();
    for ((frameworks, instead), keys) in told {
        let keys = match keys.len() == table.keys.len() {
            true => "every key".to_owned(),
            false => keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
        };
        let _ = writeln!(list, "- {}, in place of {keys}: {instead}.", frameworks.join(", "));
    }
    list
}

fn page() -> String {
    let mut page = String::from(
        "# Keys of a scenario\n\nGenerated from `sim/scenario/keys/` by `UPDATE=1 cargo test keys`. `windtunnel explain KEY` prints what this \
         page says of one key.\n\nWhere a file leaves a key out, the framework's default holds. *By size* means that it follows from the \
         size of the job. A framework refuses keys that it does not read.\n\n[schema/scenario.json](schema/scenario.json) is the same as a \
         JSON Schema, which `windtunnel show schema scenario` prints. With a line `#:schema PATH` at its top, an editor that reads TOML \
         through taplo completes and checks a scenario.\n",
    );
    for table in TABLES {
        let name = if table.name.is_empty() { "At the top".to_owned() } else { format!("[{}]", table.name) };
        let _ = write!(page, "\n## {name}\n\n{}\n\n", table.help);
        page +=
            "| key | what it says | type | values | default | frameworks | example |\n|---|---|---|---|---|---|---|\n";
        for key in table.keys {
            let cells = [
                format!("`{}`", key.name()),
                words::about(key),
                key.kind.word().to_owned(),
                key.kind.values(),
                words::defaults(key),
                words::frameworks(key.read_by),
                format!("`{} = {}`", key.name(), example::example(key)),
            ];
            let _ = writeln!(page, "| {} |", cells.map(|text| cell(&text)).join(" | "));
        }
        for (title, list) in
            [("Where defaults come from", sources(table)), ("Under other frameworks", elsewhere(table))]
        {
            if !list.is_empty() {
                let _ = write!(page, "\n{title}:\n\n{list}");
            }
        }
    }
    page
}

#[test]
fn an_example_is_a_value_that_a_framework_takes() {
    let plans = plans_by_runtime();
    // A figure of a measured run stands beside others of it.
    let rows: Vec<_> = rows().filter(|(table, _)| table.name != "measured").collect();
    let refused: Vec<String> = rows
        .into_par_iter()
        .filter_map(|(_, key)| {
            let path = key.path;
            let line: toml::Table = format!("v = {}", example::example(key)).parse().unwrap();
            let of_readers = key.read_by.iter().flat_map(|framework| &plans[framework]);
            let mut said = of_readers.map(|plan| {
                let file = keys::set(plan, path, line["v"].clone()).to_string();
                Scenario::parse(FILE, &file).err().map(|error| error.to_string())
            });
            let first = said.next().flatten()?;
            // What else the plan would need is another matter; a value that is no value is not.
            let holds =
                said.any(|said| said.is_none()) || !first.contains("expected") && !first.contains("there is no");
            (!holds).then(|| format!("{path}: {first}"))
        })
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn the_reference_of_keys_is_written_from_the_table() {
    fresh("docs/keys.md", &page(), "the table of keys");
}
