//! A row of measured runs that has its run's own arguments becomes what those arguments become in a user's own file: there is one road.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};
use windtunnel::import::{self, Machine, Request};
use windtunnel::plan::xla::flags;
use windtunnel::receipt::map::map;
use windtunnel::receipt::read::Receipts;
use windtunnel::receipt::table::Tables;

type Json = serde_json::Map<String, serde_json::Value>;

/// What a row says beside its run's arguments, and what runs that they do not state.
const BESIDE: [&str; 5] = ["description", "topology.", "measured.", "attention.backend", "megatron.get_batch"];

/// Arguments as somebody would type them for Megatron-LM.
fn megatron(arguments: &Json, variables: &Json) -> String {
    let mut text = String::new();
    for name in ["CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF"] {
        if let Some(value) = variables.get(name) {
            text += &format!("export {name}={}\n", value.to_string().trim_matches('"'));
        }
    }
    text += "torchrun pretrain_gpt.py";
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

/// The same for MaxText, in the command that a launcher is given; groups of flags as the flags that they are.
fn maxtext(arguments: &Json, variables: &Json) -> String {
    let words: Vec<String> =
        arguments.iter().map(|(key, value)| format!("{key}={}", value.to_string().trim_matches('"'))).collect();
    let flags = variables.get("LIBTPU_INIT_ARGS").and_then(serde_json::Value::as_str).unwrap_or_default();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let flags: Vec<String> =
        flags::named(&flags).unwrap().iter().map(|(name, value)| format!("--{name}={value}")).collect();
    format!(
        "#!/bin/bash\nXLA_FLAGS=\" \\\n  {} \"\nMAXTEXT_ARGS=\"\\\n{}\"\nxpk workload create --num-slices=1 \\\n  \
         --command=\"set -e && export LIBTPU_INIT_ARGS='${{XLA_FLAGS}}' && python3 -m maxtext.trainers.pre_train.train \
         maxtext/configs/base.yml ${{MAXTEXT_ARGS}} | tee train.log\"\n",
        flags.join(" \\\n  "),
        words.join(" \\\n"),
    )
}

/// All keys with their values, `table.key`; those of a model's config one by one, flags by what they set.
fn flat(prefix: &str, table: &Table, all: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) if prefix.is_empty() || key == "model.config" => flat(&key, inner, all),
            value if key == "xla.flags" => {
                let words = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
                let set = flags::named(&words).unwrap().into_iter().map(|(name, value)| (name, Value::from(value)));
                all.push((key, Value::Table(set.collect())));
            }
            value if key == "framework.not_simulated" => {
                let words = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                all.push((key, Value::from(words.map(without_place).collect::<Vec<_>>())));
            }
            value => all.push((key, value.clone())),
        }
    }
}

/// What is left out, without where it stands: a row's arguments have no line.
fn without_place(left: &str) -> String {
    let place = left.find(" (run.sh:").or_else(|| left.find(" (the command line)"));
    let end = place.and_then(|at| Some((at, at + left[at..].find(')')? + 1)));
    end.map_or_else(|| left.to_owned(), |(at, end)| format!("{}{}", &left[..at], &left[end..]))
}

/// Writes arguments and variables as a file of its codebase.
type Typed = fn(&Json, &Json) -> String;

/// How the arguments of each codebase are typed.
const TYPED: [(&str, Typed); 2] = [("megatron", megatron), ("maxtext", maxtext)];

#[test]
fn a_row_with_its_own_arguments_is_what_they_are_in_a_users_file() {
    let mut receipts = Receipts::default();
    receipts.add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts/public.jsonl")).unwrap();
    let tables = Tables::shipped();
    let (mut met, mut apart) = (BTreeMap::<&str, usize>::new(), vec![]);
    for entry in &receipts.entries {
        let row = entry.value();
        let of = |field: &str| row.pointer(field).and_then(serde_json::Value::as_object);
        let (Some(arguments), Some(variables)) = (of("/switches/full_model_args"), of("/switches/env_vars")) else {
            continue;
        };
        let Ok(mapped) = map(entry, &tables) else { continue };
        let mut keys = vec![];
        flat("", &mapped.text.parse().unwrap(), &mut keys);
        let word = |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let slice = word("topology.slice").and_then(|slice| Some(slice.as_str()?.to_owned()));
        let machine = Machine {
            on: word("topology.name").and_then(|name| Some(name.as_str()?.to_owned())),
            nodes: slice.is_none().then_some(1),
            slices: word("topology.slices").and_then(|slices| u32::try_from(slices.as_integer()?).ok()),
            slice,
            ..Machine::default()
        };
        let name = if machine.slice.is_some() { "maxtext" } else { "megatron" };
        let (_, typed) = TYPED.iter().find(|(known, _)| *known == name).unwrap();
        let text = typed(arguments, variables);
        let request = Request { file: "run.sh", text: &text, machine, ..Request::default() };
        let imported = import::import(import::find(name).unwrap(), &request)
            .unwrap_or_else(|why| panic!("{}: {why}\n{text}", entry.row.id));
        let mut theirs = vec![];
        flat("", &imported.text().parse().unwrap(), &mut theirs);
        for list in [&mut keys, &mut theirs] {
            list.retain(|(key, _)| !BESIDE.iter().any(|beside| key.starts_with(beside)));
            list.sort_by(|one, other| one.0.cmp(&other.0));
        }
        *met.entry(name).or_default() += 1;
        if keys != theirs {
            let only = |these: &[(String, Value)], those: &[(String, Value)]| {
                these
                    .iter()
                    .filter(|one| !those.contains(one))
                    .map(|(key, value)| format!("{key} = {value}"))
                    .collect::<Vec<_>>()
            };
            apart.push(format!("{}: row {:?}, file {:?}", entry.row.id, only(&keys, &theirs), only(&theirs, &keys)));
        }
    }
    assert!(met["megatron"] > 180 && met["maxtext"] > 35, "{met:?}");
    assert!(apart.is_empty(), "{}", apart.join("\n"));
}
