//! How many rules of the shipped tables match one model, one size, one release or one page alone.

use super::{Rule, Tables};

/// Fields that name one model, one of its sizes, one release, or one page of a source.
const SINGULAR: [&str; 19] = [
    "model.name",
    "model.shipped",
    "model.n_layers",
    "model.hidden",
    "model.n_heads",
    "model.n_kv_heads",
    "model.ffn",
    "model.vocab",
    "model.n_experts",
    "sizes.layers",
    "sizes.hidden",
    "sizes.heads",
    "sizes.experts",
    "framework.version",
    "framework.date",
    "source.commit",
    "source.date",
    "source.table",
    "hardware.count",
];

/// The most exact rules that the tables may have.
const MOST: usize = 60;

/// Whether a pattern is one value: no `*`, no comparison, and not the absence of a value.
fn one_value(pattern: &str) -> bool {
    !pattern.is_empty() && !pattern.contains(['*', '<', '>'])
}

/// The field by which a rule matches one value alone.
fn exact(rule: &Rule) -> Option<&str> {
    let named = |(field, patterns): &(&String, &super::Patterns)| {
        SINGULAR.contains(&field.as_str()) && patterns.list().iter().any(|pattern| one_value(pattern))
    };
    rule.when.iter().find(named).map(|(field, _)| field.as_str())
}

#[test]
fn few_rules_match_one_model_or_release_alone_and_each_says_why() {
    let tables = Tables::shipped();
    let mut found = vec![];
    for (name, table) in tables.named() {
        for rule in &table.rules {
            let Some(field) = exact(rule) else { continue };
            let words = format!("{name}: {field}: {:?}", rule.when);
            assert!(!rule.source.is_empty() || rule.refuse.is_some() || rule.outside.is_some(), "no reason: {words}");
            found.push(words);
        }
    }
    assert!(found.len() <= MOST, "{} exact rules, {MOST} may be:\n{}", found.len(), found.join("\n"));
}

#[test]
fn what_a_table_fills_in_is_a_field_of_a_row_and_has_a_source() {
    let tables = Tables::shipped();
    for (name, table) in tables.named() {
        for rule in table.rules.iter().filter(|rule| !rule.fill.is_empty()) {
            assert!(!rule.source.is_empty(), "{name}: {:?}", rule.fill);
            for field in rule.fill.keys() {
                let known = field.split_once('.').is_some_and(|(group, key)| match group {
                    "hardware" => crate::receipt::row::Hardware::KEYS.contains(&key),
                    "batch" => crate::receipt::row::Batch::KEYS.contains(&key),
                    "parallel" => crate::receipt::row::Parallel::KEYS.contains(&key),
                    "model" => crate::receipt::row::Model::KEYS.contains(&key),
                    _ => false,
                });
                assert!(known, "{name}: {field} is no field that can be filled in");
            }
        }
    }
}

#[test]
fn a_release_with_a_date_is_one_that_the_table_knows() {
    for (name, table) in Tables::shipped().named() {
        for release in table.releases.keys() {
            assert!(table.versions.contains(release), "{name}: {release:?} is not among its versions");
        }
    }
}

#[test]
fn a_table_for_any_framework_comes_after_those_of_one() {
    let tables = Tables::shipped();
    let about = |framework: &str, version: Option<&str>| {
        tables.of(framework, version, "nvidia").map(|(_, table)| table.about.clone())
    };
    assert_eq!(about("torchtitan", Some("no such commit")), about("TorchTitan", Some("5940ddeb5")));
    assert!(about("Megatron-LM fork", Some("somebody's")).is_some_and(|about| about.contains("vocabulary")));
    for framework in ["veScale on Megatron-Core", "HF Trainer + DeepSpeed", "Lightning + FSDP2", "accelerate (FSDP)"] {
        assert!(about(framework, None).is_some_and(|about| about.starts_with("a framework on")), "{framework}");
    }
    assert_eq!(about("somebody's own trainer", None), None);
}
