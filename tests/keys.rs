//! The one table of keys is what the reader reads, what frameworks refuse, and what `docs/keys.md` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use rayon::prelude::*;
use windtunnel::scenario::keys::{Choice, Key, Kind, TABLES, Table};
use windtunnel::scenario::{Runtime, Scenario, ScenarioError};

use crate::defaults;
use crate::every_key::{keys, plans};
use crate::make::FILE;

pub fn rows() -> impl Iterator<Item = (&'static Table, &'static Key)> {
    TABLES.into_iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
}

/// Names of tables and of keys in them, each with its tables' names before it.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (table, key) in rows() {
        let path = table.path(key);
        names.extend(path.match_indices('.').map(|(at, _)| path[..at].to_owned()));
        names.insert(path);
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
    let paths: Vec<String> = rows().map(|(table, key)| table.path(key)).collect();
    assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len(), "a key has two rows");
}

#[test]
fn a_key_takes_what_its_row_says() {
    for (table, key) in rows() {
        let path = table.path(key);
        let said = keys::said_of_a_word(&path);
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
        .filter_map(|(table, key)| {
            let Kind::Count(Some((least, most))) = key.kind else { return None };
            let path = table.path(key);
            // Below every least.
            let answers = || {
                let of_readers = key.read_by.iter().flat_map(|framework| &plans[framework]);
                of_readers.filter_map(|plan| {
                    let file = keys::set(plan, &path, toml::Value::Integer(-1)).to_string();
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
            let path = table.path(key);
            bounds.into_iter().flat_map(move |_| {
                let path = path.clone();
                of_readers.clone().filter_map(move |plan| {
                    let file = keys::set(plan, &path, toml::Value::Integer(-1)).to_string();
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
        for (table, key) in rows().filter(|(_, key)| !key.is_read_by(framework)) {
            let path = table.path(key);
            for value in keys::values(&path, key.kind) {
                let file = keys::set(plan, &path, value.clone()).to_string();
                if Scenario::parse(FILE, &file).is_ok() {
                    accepted.push(format!("{framework}: {path} = {value}"));
                }
            }
        }
    }
    assert!(accepted.is_empty(), "read over in silence:\n{}", accepted.join("\n"));
}

/// A key's type in words.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Count(_) => "count",
        Kind::Flag => "flag",
        Kind::Number => "number",
        Kind::Text => "text",
        Kind::Quantity(_) => "quantity",
        Kind::Choice(_) => "choice",
        Kind::List(_) => "list",
        Kind::Other(_) => "other",
    }
}

/// What a key takes, in words.
fn takes(kind: Kind) -> String {
    match kind {
        Kind::Count(None) | Kind::Number | Kind::Text | Kind::List([]) => String::new(),
        Kind::Count(Some((least, i64::MAX))) => format!("{least} or more"),
        Kind::Count(Some((least, most))) => format!("{least} to {most}"),
        Kind::Flag => "`true`, `false`".to_owned(),
        Kind::Quantity(example) => format!("such as `\"{example}\"`"),
        Kind::Choice(choices) => {
            let form = |choice: &Choice| match choice {
                Choice::Word(word) => format!("`\"{word}\"`"),
                Choice::With(word, what) => format!("`{{ {word} = {what} }}`"),
            };
            choices.iter().map(form).collect::<Vec<_>>().join(", ")
        }
        Kind::List(words) => {
            format!("of {}", words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "))
        }
        Kind::Other(words) => words.to_owned(),
    }
}

/// Frameworks in words: all, or those that are fewer to name.
fn frameworks(names: &[&str]) -> String {
    match Runtime::ALL.len() - names.len() {
        0 => "all".to_owned(),
        1..=3 => {
            let others = Runtime::ALL.map(Runtime::written).into_iter().filter(|name| !names.contains(name));
            format!("all but {}", others.collect::<Vec<_>>().join(", "))
        }
        _ => names.join(", "),
    }
}

/// What frameworks take where a file says nothing, by key: values, each with those that take it.
fn taken() -> BTreeMap<&'static str, BTreeMap<&'static str, Vec<&'static str>>> {
    let mut taken: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for line in include_str!("defaults.tsv").lines().skip(1) {
        let mut fields = line.split('\t');
        let [Some(framework), Some(key), Some(value)] = [fields.next(), fields.next(), fields.next()] else {
            panic!("{line}")
        };
        taken.entry(key).or_default().entry(value).or_default().push(framework);
    }
    taken
}

fn default(values: &BTreeMap<&str, Vec<&str>>) -> String {
    let shown = |value: &str| match value {
        "by size" => "by size".to_owned(),
        value => value.split(" or ").map(|one| format!("`{one}`")).collect::<Vec<_>>().join(" or "),
    };
    match values.iter().next() {
        Some((value, _)) if values.len() == 1 => shown(value),
        _ => {
            let each = values.iter().map(|(value, names)| format!("{} ({})", shown(value), names.join(", ")));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Keys of a scenario\n\nWritten from `sim/scenario/keys.rs` and `tests/defaults.tsv` by `UPDATE=1 cargo test keys`. A default is what is \
         taken where the file leaves the key out; `tests/defaults.tsv` says on what grounds. A framework refuses keys that it does not \
         read.\n\n[schema/scenario.json](schema/scenario.json) is the same as a JSON Schema, which `windtunnel show schema scenario` prints. \
         With a line `#:schema PATH` at its top, a scenario file is completed and checked by editors that read TOML through taplo.\n",
    );
    let taken = taken();
    for table in TABLES {
        let name = if table.name.is_empty() { "At the top".to_owned() } else { format!("[{}]", table.name) };
        let _ = write!(page, "\n## {name}\n\n{}\n\n", table.help);
        page += "| key | type | values | default | frameworks | |\n|---|---|---|---|---|---|\n";
        for key in table.keys {
            let taken = taken.get(table.path(key).as_str()).map(default).unwrap_or_default();
            let (kind, values) = (kind(key.kind), takes(key.kind));
            let (name, read_by) = (key.name, frameworks(key.read_by));
            let _ = writeln!(page, "| `{name}` | {kind} | {values} | {taken} | {read_by} | {} |", key.help);
        }
    }
    page
}

#[test]
fn the_reference_of_keys_is_written_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/keys.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &page).unwrap();
    }
    let shown = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(shown == page, "docs/keys.md says something else than the table: UPDATE=1 cargo test keys");
    let known = names();
    let strange: Vec<&str> = taken().into_keys().filter(|key| !known.contains(*key)).collect();
    assert!(strange.is_empty(), "defaults.tsv speaks of keys that the table does not have: {strange:?}");
}
