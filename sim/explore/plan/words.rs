//! Names of keys and values as the planner's reports write them: short, for a table.

use toml::Value;

use super::answer::OnSite;
use super::planned::Planned;

/// Keys with a shorter name, in the order in which reports show them.
const SHORT: [(&str, &str); 23] = [
    ("mesh.tp", "tp"),
    ("mesh.tensor", "tensor"),
    ("mesh.cp", "cp"),
    ("mesh.context", "context"),
    ("mesh.ep", "ep"),
    ("mesh.etp", "etp"),
    ("mesh.pp", "pp"),
    ("pipeline.virtual_stages", "vpp"),
    ("pipeline.layers", "layers"),
    ("mesh.dp_shard", "shard"),
    ("mesh.dp_replicate", "replicate"),
    ("mesh.data", "data"),
    ("mesh.fsdp", "fsdp"),
    ("zero.stage", "zero"),
    ("batch.micro", "micro"),
    ("megatron.recompute", "recompute"),
    ("activation_checkpointing.policy", "recompute"),
    ("xla.remat_policy", "remat"),
    ("xla.num_vocab_tiling", "vocabulary in"),
    ("fsdp.reshard_after_forward", "reshard"),
    ("megatron.cp_comm_type", "cp by"),
    ("pipeline.schedule", "schedule"),
    ("tensor_parallel.sequence", "sp"),
];

/// A value in few letters.
fn value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Table(table) => table.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(" "),
        Value::Array(list) => {
            let numbers: Vec<String> = list.iter().map(Value::to_string).collect();
            format!("[{}]", numbers.join(", "))
        }
        other => other.to_string(),
    }
}

fn place(key: &str) -> usize {
    SHORT.iter().position(|(known, _)| *known == key).unwrap_or(SHORT.len())
}

/// A plan's layout in words, without keys that all plans of a machine under its framework have alike.
pub(super) fn layout(plan: &Planned, alike: &[(&'static str, Value)]) -> String {
    let mut keys: Vec<&(&'static str, Value)> = plan.candidate.keys.iter().filter(|key| !alike.contains(key)).collect();
    keys.sort_by_key(|(key, _)| place(key));
    let word = |(key, of): &&(&'static str, Value)| {
        let name = SHORT.iter().find(|(known, _)| known == key).map_or(*key, |(_, short)| short);
        match of {
            Value::Integer(_) => format!("{name} {}", value(of)),
            _ => format!("{name} {}", value(of)),
        }
    };
    let is_one = |(key, value): &&&(&'static str, Value)| !(key.starts_with("mesh.") && value.as_integer() == Some(1));
    let mut words: Vec<String> = keys.iter().filter(is_one).map(word).collect();
    if plan.candidate.keys.iter().all(|(key, _)| !key.starts_with("mesh.dp") && *key != "mesh.data") {
        words.push(format!("dp {}", plan.replicas));
    }
    words.join(" · ")
}

/// Keys with one value in every plan of the space of a framework.
pub(super) fn alike(on: &OnSite, framework: &str) -> Vec<(&'static str, Value)> {
    let plans: Vec<&Planned> = on.all().filter(|plan| plan.candidate.runtime.written() == framework).collect();
    let Some(first) = plans.first() else { return vec![] };
    let constant = |key: &&(&'static str, Value)| {
        place(key.0) == SHORT.len() && plans.iter().all(|plan| plan.candidate.keys.contains(key))
    };
    first.candidate.keys.iter().filter(constant).cloned().collect()
}

/// `pp 4 · vpp 10` of the keys in which a plan differs from another.
pub(super) fn difference(plan: &Planned, from: &Planned) -> String {
    if plan.candidate.runtime != from.candidate.runtime {
        return plan.candidate.runtime.written().to_owned();
    }
    let same: Vec<(&'static str, Value)> =
        plan.candidate.keys.iter().filter(|key| from.candidate.keys.contains(key)).cloned().collect();
    layout(plan, &same)
}
