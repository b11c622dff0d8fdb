//! A remedy of the form `write key = value` is followed as a reader would follow it, and must not be refused for the same key.
//!
//! [`remedy`] is called for every refusal that a test looks at, so a new refusal is held to this without a test of its own.

use toml::{Table, Value};
use windtunnel::scenario::{Scenario, ScenarioError};

/// One change that a remedy asks for.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Set(String, Value),
    Remove(String),
}

/// Where a refusal points: the key, and the table it stands in (empty at the top).
struct At {
    table: String,
    key: String,
}

/// Tables of a scenario: a key that begins with one is written in full, any other stands beside the key refused.
const TABLES: [&str; 26] = [
    "failures",
    "dpo",
    "checkpoint",
    "topology",
    "model",
    "mesh",
    "pipeline",
    "batch",
    "precision",
    "ranks",
    "float8",
    "fsdp",
    "fsdp1",
    "activation_checkpointing",
    "compile",
    "optimizer",
    "attention",
    "loss",
    "loop",
    "framework",
    "tensor_parallel",
    "megatron",
    "xla",
    "nanotron",
    "zero",
    "memory",
];

fn at(text: &str, line: usize) -> At {
    let mut table = String::new();
    for header in text.lines().take(line).filter(|line| line.starts_with('[')) {
        table = header.trim_matches(['[', ']']).to_owned();
    }
    let own = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let key = if own.starts_with('[') { "" } else { own.split('=').next().unwrap_or_default().trim() };
    At { table, key: key.to_owned() }
}

impl At {
    /// The key in full.
    fn full(&self) -> String {
        match (self.table.as_str(), self.key.as_str()) {
            (table, "") => table.to_owned(),
            ("", key) => key.to_owned(),
            (table, key) => format!("{table}.{key}"),
        }
    }

    /// What a key written in a remedy may mean.
    fn meant(&self, key: &str) -> Vec<String> {
        let first = key.split('.').next().unwrap_or_default();
        if self.table.is_empty() || first == "runtime" || (TABLES.contains(&first) && key.contains('.')) {
            return vec![key.to_owned()];
        }
        // Beside the key, or in the table that the key is.
        vec![format!("{}.{key}", self.table), format!("{}.{key}", self.full())]
    }
}

/// A value at the beginning of some text, and how long it is.
fn value(text: &str) -> Option<(Value, usize)> {
    let end = match text.chars().next()? {
        '"' => text[1..].find('"')? + 2,
        '[' => text.find(']')? + 1,
        '{' => text.find('}')? + 1,
        _ => text.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).unwrap_or(text.len()),
    };
    let written = text[..end].trim_end_matches('.');
    let parsed: Table = format!("v = {written}").parse().ok()?;
    Some((parsed.get("v")?.clone(), written.len()))
}

/// A key in front of ` = ` at the beginning of some text, and how long it is.
fn key(text: &str) -> Option<(&str, usize)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)))?;
    (end > 0 && text[end..].starts_with(" = ")).then(|| (&text[..end], end + 3))
}

/// Keys and tables named one after the other at the beginning of some text, and how long that is.
fn names(text: &str, at: &At) -> (Vec<String>, usize) {
    let (mut found, mut long): (Vec<String>, usize) = (vec![], 0);
    for word in text.split_inclusive(' ') {
        let name = word.trim_matches([' ', ',', '[', ']']);
        let is_key = !name.starts_with('"') && (name.contains(['.', '_']) || TABLES.contains(&name) || name == at.key);
        if is_key {
            // What follows a key in full stands in the same table.
            let table = found.first().and_then(|first| first.rsplit_once('.')).map(|(table, _)| table);
            let full = table.filter(|_| !name.contains('.')).map(|table| format!("{table}.{name}"));
            found.push(full.unwrap_or_else(|| name.to_owned()));
        } else if name != "and" || found.is_empty() {
            break;
        }
        long += word.len();
    }
    (found, long)
}

/// What a remedy proposes: alternatives, each of some changes. Words that no rule here knows propose nothing.
fn alternatives(remedy: &str, at: &At) -> Vec<Vec<Change>> {
    remedy.split("; ").flat_map(|segment| proposed(segment, at)).collect()
}

fn proposed(segment: &str, at: &At) -> Vec<Vec<Change>> {
    let mut found: Vec<Vec<Change>> = vec![];
    let (mut last, mut joined, mut writes, mut bare) = (None::<String>, false, false, false);
    let mut rest = segment;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("such as ") {
            // An example is for a person to replace.
            rest = value(after).map_or(after, |(_, long)| &after[long..]);
            continue;
        }
        if let Some(after) = rest.strip_prefix("in place of ") {
            let (keys, long) = names(after, at);
            found.iter_mut().for_each(|changes| changes.extend(keys.iter().cloned().map(Change::Remove)));
            rest = &after[long.max(1)..];
            continue;
        }
        if let Some(after) = rest.strip_prefix("without ") {
            let (keys, long) = names(after, at);
            found.last_mut().into_iter().for_each(|changes| changes.extend(keys.iter().cloned().map(Change::Remove)));
            rest = &after[long..];
            (last, bare) = (None, false);
            continue;
        }
        if let Some(after) = rest.strip_prefix("remove ") {
            let own = |word: &str| after == word || after.starts_with(&format!("{word},"));
            let (keys, long) = match () {
                () if own("the key") || own("it") => (vec![at.full()], 2),
                () if own("the table") => (vec![if at.table.is_empty() { at.full() } else { at.table.clone() }], 9),
                () => names(after, at),
            };
            let removed: Vec<Change> = keys.into_iter().map(Change::Remove).collect();
            if joined {
                found.iter_mut().for_each(|changes| changes.extend(removed.iter().cloned()));
            } else if !removed.is_empty() {
                found.push(removed);
            }
            rest = &after[long..];
            (last, joined, bare) = (None, false, false);
            continue;
        }
        let mut push = |change: Change, joined: bool| match found.last_mut().filter(|_| joined) {
            Some(changes) => changes.push(change),
            None => found.push(vec![change]),
        };
        if writes
            && let Some((name, long)) = key(rest)
            && let Some((value, more)) = value(&rest[long..])
        {
            push(Change::Set(name.to_owned(), value), joined);
            (last, joined, bare, rest) = (Some(name.to_owned()), false, false, &rest[long + more..]);
            continue;
        }
        // Another value of the same key, or of the key refused.
        if let Some((value, more)) = value(rest)
            && !rest[more..].starts_with(" = ")
            && (last.is_some() || bare && matches!(value, Value::String(_) | Value::Boolean(_)))
        {
            let change = Change::Set(last.clone().unwrap_or_default(), value);
            match found.last().filter(|_| last.is_some()).cloned() {
                // What goes with one value goes with the next.
                Some(mut changes) => {
                    changes.pop();
                    changes.push(change);
                    found.push(changes);
                }
                None => found.push(vec![change]),
            }
            (joined, rest) = (false, &rest[more..]);
            continue;
        }
        let next = rest.find(' ').map_or(rest.len(), |space| space + 1);
        let word = rest[..next].trim_matches([' ', ',']);
        // "2 or more and …" still joins.
        joined = matches!(word, "and" | "with") || joined && word == "write";
        (writes, bare) = (writes || word == "write", word == "write" || bare && matches!(word, "or" | ""));
        if !matches!(word, "or" | "") {
            last = None;
        }
        rest = &rest[next..];
    }
    found
}

fn get<'t>(file: &'t mut Table, key: &str) -> Option<(&'t mut Table, String)> {
    let (path, last) = key.rsplit_once('.').map_or((None, key), |(path, last)| (Some(path), last));
    let mut table = file;
    for part in path.into_iter().flat_map(|path| path.split('.')) {
        table = table.entry(part).or_insert_with(|| Value::Table(Table::new())).as_table_mut()?;
    }
    Some((table, last.to_owned()))
}

/// The file with changes made.
fn changed(text: &str, changes: &[(String, Option<Value>)]) -> Option<String> {
    let mut file: Table = text.parse().ok()?;
    for (key, value) in changes {
        let (table, last) = get(&mut file, key)?;
        match value {
            Some(value) => drop(table.insert(last, value.clone())),
            None => {
                let was_table = table.remove(&last).is_some_and(|value| value.is_table());
                // A table in which nothing but this one stood was written for it: `[fsdp.wrap]`.
                if was_table
                    && table.is_empty()
                    && let Some((parent, _)) = key.rsplit_once('.')
                {
                    let (above, name) = get(&mut file, parent)?;
                    above.remove(&name);
                }
            }
        }
    }
    Some(file.to_string())
}

fn read(file: &str, text: &str) -> Result<(), ScenarioError> {
    Scenario::parse(file, text)?.simulable()
}

/// Why a changed file is refused for the key it was refused for before, if it is.
fn still(file: &str, text: &str, before: (&str, &str)) -> Option<String> {
    let Err(error) = read(file, text) else { return None };
    let said = error.to_string();
    let same = match &error {
        ScenarioError::Plan { problem, place, .. } => {
            let key = at(text, place.line).full();
            let is_missing = problem.starts_with("cannot read");
            *problem == before.0 || !is_missing && (key == before.1 && !key.is_empty() && key != "model")
        }
        // An example of a file need not be there.
        _ if said.starts_with("cannot read") => false,
        ScenarioError::Written { .. } => true,
        _ => false,
    };
    same.then_some(said)
}

/// Keys that changes may mean, each set or removed.
fn meanings(changes: &[Change], own: &At) -> Vec<Vec<(String, Option<Value>)>> {
    let mut meanings: Vec<Vec<(String, Option<Value>)>> = vec![vec![]];
    for change in changes {
        let (keys, value) = match change {
            Change::Set(key, value) if key.is_empty() => (vec![own.full()], Some(value.clone())),
            Change::Set(key, value) => (own.meant(key), Some(value.clone())),
            Change::Remove(key) if key.contains('.') || *key == own.full() || TABLES.contains(&key.as_str()) => {
                (vec![key.clone()], None)
            }
            Change::Remove(key) => (own.meant(key), None),
        };
        let one = |meaning: &Vec<_>, key: &String| {
            let mut meaning = meaning.clone();
            meaning.push((key.clone(), value.clone()));
            meaning
        };
        meanings =
            meanings.iter().flat_map(|meaning| keys.iter().map(|key| one(meaning, key)).collect::<Vec<_>>()).collect();
    }
    meanings
}

/// What a remedy would have changed, without the way to ask a compiler that may stand behind it.
fn changes_of(remedy: &str) -> &str {
    remedy.split("\nor ask XLA's compiler").next().unwrap_or(remedy)
}

/// A refused file with what its remedy proposes, in each way that it may be read; none where it proposes no change.
pub fn mended(file: &str, text: &str) -> Vec<String> {
    let Err(ScenarioError::Plan { place, remedy, .. }) = read(file, text) else { return vec![] };
    let own = at(text, place.line);
    let ways = alternatives(changes_of(&remedy), &own).into_iter().flat_map(|changes| meanings(&changes, &own));
    ways.filter_map(|meaning| changed(text, &meaning)).collect()
}

/// Follows everything that the refusal of a scenario proposes.
pub fn remedy(file: &str, text: &str) {
    let failed = failures(file, text);
    assert!(failed.is_empty(), "{}\n{text}", failed.join("\n"));
}

/// What becomes of those proposals of a scenario's refusal that are refused in turn, for the same key.
pub fn failures(file: &str, text: &str) -> Vec<String> {
    follow(file, text, still)
}

/// What becomes of the proposals of a scenario's refusal, if all are refused in turn.
pub fn no_way_out(file: &str, text: &str) -> Option<(String, String)> {
    let Err(ScenarioError::Plan { problem, place, remedy, .. }) = read(file, text) else { return None };
    let proposed = alternatives(changes_of(&remedy), &at(text, place.line)).len();
    let refused = |file: &str, text: &str, _: (&str, &str)| {
        let said = read(file, text).err()?.to_string();
        // An example of a file need not be there.
        (!said.contains("cannot read")).then_some(said)
    };
    let none = proposed > 0 && follow(file, text, refused).len() == proposed;
    none.then_some((problem, remedy))
}

fn follow(file: &str, text: &str, refused_again: fn(&str, &str, (&str, &str)) -> Option<String>) -> Vec<String> {
    let Err(ScenarioError::Plan { problem, place, remedy, .. }) = read(file, text) else { return vec![] };
    let own = at(text, place.line);
    let mut failed = vec![];
    for changes in alternatives(changes_of(&remedy), &own) {
        let meanings = meanings(&changes, &own);
        let mut refused = vec![];
        for meaning in &meanings {
            let Some(text) = changed(text, meaning) else { continue };
            match refused_again(file, &text, (&problem, &own.full())) {
                None => {
                    refused.clear();
                    break;
                }
                Some(said) => refused.push(said),
            }
        }
        if !refused.is_empty() {
            let again = refused.join("\n");
            failed.push(format!(
                "refused: {problem}\nremedy: {remedy}\nfollowed: {changes:?}\nand refused again: {again}"
            ));
        }
    }
    failed
}

/// What a scenario is refused with, once everything that it proposes has been followed.
pub fn refusal(file: &str, text: &str) -> String {
    let said = read(file, text).expect_err(text).to_string();
    remedy(file, text);
    said
}

#[test]
fn remedies_are_read_as_a_person_reads_them() {
    let own = At { table: "megatron".to_owned(), key: "fp8".to_owned() };
    let set = |key: &str, value: &str| {
        Change::Set(key.to_owned(), format!("v = {value}").parse::<Table>().unwrap()["v"].clone())
    };
    for (remedy, expected) in [
        ("write mesh.tp = 1 or 2", vec![vec![set("mesh.tp", "1")], vec![set("mesh.tp", "2")]]),
        (
            "write megatron.fp8 = \"delayed\", \"tensorwise\" or \"blockwise\"",
            vec![
                vec![set("megatron.fp8", "\"delayed\"")],
                vec![set("megatron.fp8", "\"tensorwise\"")],
                vec![set("megatron.fp8", "\"blockwise\"")],
            ],
        ),
        (
            "write batch.sequence = 4096, or mesh.tp = 2",
            vec![vec![set("batch.sequence", "4096")], vec![set("mesh.tp", "2")]],
        ),
        (
            "write mesh.tp = 2 or more and pipeline.schedule = \"ZB-H1\"",
            vec![vec![set("mesh.tp", "2"), set("pipeline.schedule", "\"ZB-H1\"")]],
        ),
        (
            "write mesh.tp = 1 without [tensor_parallel]",
            vec![vec![set("mesh.tp", "1"), Change::Remove("tensor_parallel".to_owned())]],
        ),
        (
            "remove the key, or write stage = 2",
            vec![vec![Change::Remove("megatron.fp8".to_owned())], vec![set("stage", "2")]],
        ),
        ("write \"bf16\" or \"fp16\"", vec![vec![set("", "\"bf16\"")], vec![set("", "\"fp16\"")]]),
        (
            "write megatron.cp_comm_type = \"p2p\" or \"all_gather\", and remove megatron.sizes",
            ["p2p", "all_gather"]
                .map(|way| {
                    vec![set("megatron.cp_comm_type", &format!("{way:?}")), Change::Remove("megatron.sizes".to_owned())]
                })
                .to_vec(),
        ),
        (
            "it shards states: write megatron.distributed_optimizer = true, in place of [fsdp]",
            vec![vec![set("megatron.distributed_optimizer", "true"), Change::Remove("fsdp".to_owned())]],
        ),
        ("dp × pp must be 4 beside pp = 2; or change the topology's size", vec![]),
        ("write axes whose product divides it, or change the topology's size", vec![]),
    ] {
        assert_eq!(alternatives(remedy, &own), expected, "{remedy}");
    }
}
