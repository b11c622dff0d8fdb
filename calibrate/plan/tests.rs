//! What the plan is held to.

use std::path::PathBuf;

use super::{between, family, ranked, runs};
use crate::points::What;

fn scenarios() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios")
}

#[test]
fn the_kernels_of_the_shipped_scenarios_carry_most_of_their_steps() {
    let worth = runs::worth(&[scenarios()], &|_| {}).expect("the shipped scenarios");
    assert!(worth.runs >= 10, "{} runs", worth.runs);
    let all: f64 = worth.values.values().sum();
    // Kernels beside communication and on two streams add up to a little more than the step.
    assert!((0.5..1.3).contains(&all), "{all} of the steps' time");
    let has = |m: u64, n: u64, k: u64| {
        worth
            .values
            .keys()
            .any(|what| matches!(what, What::Matmul { m: a, n: b, k: c, .. } if (*a, *b, *c) == (m, n, k)))
    };
    assert!(has(8192, 14_336, 4096), "Llama 3.1 8B's feed-forward at 8,192 tokens is planned");
    let families: std::collections::BTreeSet<&str> = worth.values.keys().map(family).collect();
    assert!(["attention", "matmul", "memory"].iter().all(|family| families.contains(family)), "{families:?}");
    let jobs = ranked(worth.values);
    assert!(jobs.windows(2).all(|pair| pair[0].value >= pair[1].value));
    let text = serde_json::to_string(&jobs[0]).expect("JSON");
    assert!(text.starts_with("{\"what\":{\"") && text.contains("\"value\":0."), "{text}");
    assert_eq!(between(std::iter::empty(), 7).len(), 7);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = runs::worth(&[PathBuf::from("no/such/folder.jsonl")], &|_| {}).expect_err("nothing there").to_string();
    assert!(error.contains("no/such/folder.jsonl"), "{error}");
}
