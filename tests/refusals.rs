//! What a refusal proposes works: refusals are made of every value of every key in small plans of every framework, and each change
//! that one proposes is made.

use std::collections::BTreeMap;

use rayon::prelude::*;
use toml::Table;

use crate::every_key::{keys, plans};
use crate::followed;
use crate::make::FILE;

#[test]
fn what_a_refusal_proposes_is_not_refused_in_turn() {
    let keys = keys::all();
    let plans: Vec<Table> = plans::plans().iter().map(|plan| plan.parse().unwrap()).collect();
    let files: Vec<String> = plans
        .iter()
        .flat_map(|plan| keys.iter().flat_map(move |key| key.values.iter().map(move |value| (plan, key, value))))
        .map(|(plan, key, value)| keys::set(plan, &key.name, value.clone()).to_string())
        .collect();
    let failed: Vec<String> = files.par_iter().flat_map(|file| followed::dead_ends(FILE, file)).collect();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for failure in failed {
        *kinds.entry(failure).or_default() += 1;
    }
    let listed: Vec<String> = kinds.iter().map(|(failure, count)| format!("{count} × {failure}\n")).collect();
    assert!(kinds.is_empty(), "{} of {} files\n{}", kinds.len(), files.len(), listed.join("\n"));
}
