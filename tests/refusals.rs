//! Refusals of every value of every key, in a plan of every framework: what they propose is followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use toml::Table;

use crate::every_key::{keys, plans};
use crate::followed;
use crate::make::FILE;

/// A text with one letter for all numbers in it: refusals that differ in numbers alone are one.
fn numberless(text: &str) -> String {
    let mut kept = String::new();
    for c in text.replace(['\n', '\t'], " ").chars() {
        match c {
            c if !c.is_ascii_digit() => kept.push(c),
            _ if kept.ends_with('N') => {}
            _ => kept.push('N'),
        }
    }
    kept
}

/// Refusals of which `tests/refusals.tsv` says that they leave more than one key to change: what is wrong, and what is proposed.
fn known() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refusals.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn something_that_a_refusal_proposes_works_and_nothing_is_refused_again_for_the_same_key() {
    let keys = keys::all();
    let as_they_are = plans::plans().into_iter().filter(|plan| !plan.starts_with('#'));
    let plans: Vec<Table> = as_they_are.map(|plan| plan.parse().unwrap()).collect();
    let files: Vec<String> = plans
        .iter()
        .flat_map(|plan| keys.iter().flat_map(move |key| key.values.iter().map(move |value| (plan, key, value))))
        .map(|(plan, key, value)| keys::set(plan, &key.name, value.clone()).to_string())
        .collect();
    let again: BTreeSet<String> = files.par_iter().flat_map(|file| followed::failures(FILE, file)).collect();
    let stuck = files.par_iter().filter_map(|file| followed::no_way_out(FILE, file).map(|kind| (kind, file)));
    let stuck: BTreeMap<String, &String> = stuck
        .map(|((problem, remedy), file)| (format!("{}\t{}", numberless(&problem), numberless(&remedy)), file))
        .collect();
    let known = known();
    let new: Vec<String> =
        stuck.iter().filter(|(kind, _)| !known.contains(*kind)).map(|(kind, file)| format!("{kind}\n{file}")).collect();
    let gone: Vec<&String> = known.iter().filter(|kind| !stuck.contains_key(*kind)).collect();
    assert!(new.is_empty(), "{}\nrefused again: {}", new.join("\n"), again.len());
    assert!(gone.is_empty(), "tests/refusals.tsv lists what has a way out now: {gone:?}");
    assert!(again.is_empty(), "{}", again.into_iter().collect::<Vec<_>>().join("\n\n"));
}
