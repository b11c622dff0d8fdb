//! The question that a receipt answers: all that no plan changes.

use serde_json::Value;

/// What receipts of a group have in common, as far as the row says it: who measured, with what software, on which machine, in which
/// types. Where no version is stated, the commit of the source stands for it: a publisher's page is of one release.
pub fn stated(row: &Value) -> String {
    let source = &row["source"];
    let publisher = ["repo", "paper", "title"].iter().find_map(|key| source[*key].as_str());
    let version = match &row["framework"]["version"] {
        Value::Null => &source["commit"],
        version => version,
    };
    let without_notes = |group: &Value| {
        let mut group = group.clone();
        if let Some(keys) = group.as_object_mut() {
            keys.remove("notes");
        }
        group
    };
    let (hardware, precision) = (without_notes(&row["hardware"]), without_notes(&row["precision"]));
    format!("{publisher:?} {} {version} {hardware} {precision}", row["framework"])
}

/// The scenario's tables that no plan changes.
const FIXED: [&str; 4] = ["topology", "model", "precision", "float8"];

/// Keys of other tables that no plan changes: the length of a sequence, the release, and what another result of the training follows from.
const KEPT: [(&str, &str); 6] = [
    ("batch", "sequence"),
    ("framework", "release"),
    ("optimizer", "name"),
    ("megatron", "moe_expert_capacity_factor"),
    ("megatron", "moe_pad_expert_input_to_capacity"),
    ("xla", "capacity_factor"),
];

/// What receipts of a group have in common, as far as their scenarios say it; `about` is the rest.
pub fn question(scenario: &toml::Table, about: &str) -> String {
    let fixed = FIXED.map(|table| scenario.get(table).map(toml::Value::to_string));
    let kept =
        KEPT.map(|(table, key)| scenario.get(table).and_then(|table| table.get(key)).map(toml::Value::to_string));
    format!("{about} {kept:?} {fixed:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_not_stated_is_that_of_the_source() {
        let row = |version: &str, commit: &str| {
            let text =
                format!(r#"{{"source":{{"repo":"r","commit":"{commit}"}},"framework":{{"name":"f"{version}}}}}"#);
            stated(&serde_json::from_str(&text).expect("JSON"))
        };
        assert_ne!(row("", "a"), row("", "b"));
        assert_eq!(row(r#","version":"1""#, "a"), row(r#","version":"1""#, "b"));
    }
}
