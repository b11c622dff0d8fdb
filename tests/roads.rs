//! A row of measured runs that has its run's own arguments becomes what those arguments become in a user's own file: there is one road.

use std::path::Path;

use toml::{Table, Value};
use windtunnel::import::{self, Machine, Request};
use windtunnel::receipt::map::map;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;

/// What a row says beside its run's arguments, and what runs that they do not state.
const BESIDE: [&str; 5] = ["description", "topology.", "measured.", "attention.backend", "megatron.get_batch"];

/// Arguments as somebody would type them.
fn command(arguments: &serde_json::Map<String, serde_json::Value>) -> String {
    let mut text = "torchrun pretrain_gpt.py".to_owned();
    for (name, value) in arguments {
        let words = match value {
            serde_json::Value::Bool(true) => String::new(),
            serde_json::Value::String(text) => match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
                Some(list) => list.to_owned(),
                None if text.contains(['(', '|', '*', ';']) => format!("'{text}'"),
                None => text.clone(),
            },
            value => value.to_string(),
        };
        text += &format!(" --{name} {words}");
    }
    text
}

/// All keys with their values, `table.key`; those of a model's config one by one.
fn flat(prefix: &str, table: &Table, all: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) if prefix.is_empty() || key == "model.config" => flat(&key, inner, all),
            value => all.push((key, value.clone())),
        }
    }
}

#[test]
fn a_row_with_its_own_arguments_is_what_they_are_in_a_users_file() {
    let mut receipts = Receipts::default();
    receipts.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts/public.jsonl")).unwrap();
    let (tables, importer) = (Tables::shipped(), import::find("megatron").unwrap());
    let (mut met, mut apart) = (0, vec![]);
    for entry in &receipts.entries {
        let row = entry.value();
        let Some(arguments) = row.pointer("/switches/full_model_args").and_then(serde_json::Value::as_object) else {
            continue;
        };
        let Ok(mapped) = map(entry, &tables) else { continue };
        let mut keys = vec![];
        flat("", &mapped.text.parse().unwrap(), &mut keys);
        let own = keys.iter().filter(|(key, _)| !BESIDE.iter().any(|beside| key.starts_with(beside)));
        let mut own: Vec<(String, Value)> = own.cloned().collect();
        let text = command(arguments);
        let variable = |name: &str| {
            let value = row.pointer(&format!("/switches/env_vars/{name}"))?;
            Some(format!("export {name}={}\n", value.to_string().trim_matches('"')))
        };
        let variables = ["CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF"].map(variable);
        let text = variables.into_iter().flatten().collect::<String>() + &text;
        let machine = Machine { on: Some("h100-sxm-80gb".to_owned()), nodes: Some(1), ..Machine::default() };
        let request = Request { file: "run.sh", text: &text, machine, ..Request::default() };
        let imported =
            import::import(importer, &request).unwrap_or_else(|why| panic!("{}: {why}\n{text}", entry.row.id));
        let entries = imported.entries.into_iter().map(|entry| (entry.key, entry.value));
        let mut theirs = Table::new();
        for (key, value) in entries.filter(|(key, _)| !BESIDE.iter().any(|beside| key.starts_with(beside))) {
            theirs.insert(key, value);
        }
        let mut theirs: Vec<(String, Value)> = theirs.into_iter().collect();
        own.sort_by(|one, other| one.0.cmp(&other.0));
        theirs.sort_by(|one, other| one.0.cmp(&other.0));
        met += 1;
        if own != theirs {
            let only = |these: &[(String, Value)], those: &[(String, Value)]| {
                these
                    .iter()
                    .filter(|one| !those.contains(one))
                    .map(|(key, value)| format!("{key} = {value}"))
                    .collect::<Vec<_>>()
            };
            apart.push(format!("{}: row {:?}, file {:?}", entry.row.id, only(&own, &theirs), only(&theirs, &own)));
        }
    }
    assert!(met > 180, "{met}");
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}
