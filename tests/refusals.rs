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

/// Refusals of which `tests/refusals.tsv` says that they leave more than one key to change (`stuck`), or that something they propose
/// is refused again (`again`): what is wrong, and what is proposed.
fn known(about: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refusals.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines.filter(|(of, _)| *of == about).map(|(_, kind)| kind.to_owned()).collect()
}

fn kind(problem: &str, remedy: &str) -> String {
    format!("{}\t{}", numberless(problem), numberless(remedy))
}

/// The kind of a failed proposal.
fn kind_of(failure: &str) -> String {
    let (refusal, _) = failure.split_once("\nfollowed: ").unwrap();
    let (problem, remedy) = refusal.strip_prefix("refused: ").unwrap().split_once("\nremedy: ").unwrap();
    kind(problem, remedy)
}

/// Fails with kinds that the list does not have, each with a witness, and with those that it has no reason to.
fn listed(about: &str, found: &BTreeMap<String, String>) {
    let known = known(about);
    let new: Vec<String> = found
        .iter()
        .filter(|(kind, _)| !known.contains(*kind))
        .map(|(kind, seen)| format!("{about}\t{kind}\n{seen}"))
        .collect();
    let gone: Vec<&String> = known.iter().filter(|kind| !found.contains_key(*kind)).collect();
    assert!(new.is_empty(), "{}", new.join("\n"));
    assert!(gone.is_empty(), "tests/refusals.tsv lists as {about} what is so no more: {gone:#?}");
}

#[test]
fn what_a_refusal_proposes_works_but_for_a_list_that_only_shrinks() {
    let keys = keys::all();
    let as_they_are = plans::plans().into_iter().filter(|plan| !plan.starts_with('#'));
    let plans: Vec<Table> = as_they_are.map(|plan| plan.parse().unwrap()).collect();
    let files: Vec<String> = plans
        .iter()
        .flat_map(|plan| keys.iter().flat_map(move |key| key.values.iter().map(move |value| (plan, key, value))))
        .map(|(plan, key, value)| keys::set(plan, &key.name, value.clone()).to_string())
        .collect();
    let again = files.par_iter().flat_map(|file| followed::failures(FILE, file));
    let again: BTreeMap<String, String> = again.map(|failure| (kind_of(&failure), failure)).collect();
    let stuck = files.par_iter().filter_map(|file| followed::no_way_out(FILE, file).map(|found| (found, file)));
    let stuck = stuck.map(|((problem, remedy), file)| (kind(&problem, &remedy), file.clone())).collect();
    listed("stuck", &stuck);
    listed("again", &again);
}
