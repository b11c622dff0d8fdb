//! From a row to a scenario: what the row states, then what its framework's table adds.

use std::fmt::Write as _;

use serde_json::Value;
use toml::{Table as Keys, Value as Key};

use super::pattern::matches;
use super::read::Entry;
use super::row::{Row, degree};
use super::table::{Rule, Tables, switches, word};

/// Why a row is not checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is about something the FSDP lanes do not have.
    Outside(String),
    /// It should be covered, and is not.
    Uncovered(String),
    /// It states what cannot all be true.
    Contradiction(String),
}

impl Reason {
    /// In words.
    pub fn words(&self) -> &str {
        match self {
            Reason::Outside(words) | Reason::Uncovered(words) | Reason::Contradiction(words) => words,
        }
    }
}

/// One key that the row does not state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The key, `table.key`.
    pub key: String,
    /// Its value as TOML.
    pub value: String,
    /// Where it is known from.
    pub source: String,
}

/// A row as a scenario.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The scenario's text, with `[measured]` and the assumptions marked.
    pub text: String,
    /// What the row does not state.
    pub assumptions: Vec<Assumption>,
}

/// Tables of a scenario in the order people write them.
const ORDER: [&str; 17] = [
    "",
    "topology",
    "model",
    "mesh",
    "batch",
    "precision",
    "fsdp",
    "fsdp1",
    "compile",
    "activation_checkpointing",
    "attention",
    "loss",
    "optimizer",
    "loop",
    "framework",
    "memory",
    "measured",
];

/// Keys being gathered, each with the source of an assumption.
#[derive(Default)]
struct Gathered(Vec<(String, Key, Option<String>)>);

impl Gathered {
    fn put(&mut self, key: &str, value: impl Into<Key>, source: Option<String>) {
        self.0.retain(|(known, _, _)| known != key);
        self.0.push((key.to_owned(), value.into(), source));
    }

    fn stated(&mut self, key: &str, value: impl Into<Key>) {
        self.put(key, value, None);
    }

    fn apply(&mut self, rule: &Rule, row: &Value) {
        flatten("", &rule.set, &mut |key, value| {
            let source = (!rule.stated).then(|| rule.source.clone());
            // "$field": what the row has there.
            let field = value.as_str().and_then(|text| text.strip_prefix('$'));
            match field.map(|field| word(row, field)) {
                Some(Some(word)) => self.put(key, value_of(word), source),
                Some(None) => {}
                None => self.put(key, value.clone(), source),
            }
        });
    }

    /// The scenario's text.
    fn text(&self, comment: &str) -> String {
        let mut out = format!("{comment}\n");
        for table in ORDER {
            let mut keys: Vec<_> = self.0.iter().filter(|(key, _, _)| split(key).0 == table).collect();
            keys.sort_by_key(|(key, _, _)| rank(key));
            if keys.is_empty() {
                continue;
            }
            if !table.is_empty() {
                let _ = write!(out, "\n[{table}]");
            }
            out.push('\n');
            for (key, value, source) in keys {
                let _ = write!(out, "{} = {value}", split(key).1);
                match source {
                    Some(source) => {
                        let _ = writeln!(out, "  # assumed: {source}");
                    }
                    None => out.push('\n'),
                }
            }
        }
        out
    }
}

/// A word of a row as a key's value.
fn value_of(word: String) -> Key {
    if let Ok(whole) = word.parse() {
        return Key::Integer(whole);
    }
    word.parse().map_or(Key::String(word), Key::Boolean)
}

/// Keys of the first table come in the order people write them.
fn rank(key: &str) -> usize {
    ["description", "runtime", "topology.name", "model.name"].iter().position(|known| *known == key).unwrap_or(9)
}

/// `"table.key"` of each value; an inline table stays one value unless the scenario has a table of that name.
fn flatten(prefix: &str, keys: &Keys, put: &mut dyn FnMut(&str, &Key)) {
    for (name, value) in keys {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Key::Table(inner) if prefix.is_empty() && ORDER.contains(&name.as_str()) => flatten(&key, inner, put),
            value => put(&key, value),
        }
    }
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

/// Maps a row, or says why not.
pub fn map(entry: &Entry, tables: &Tables) -> Result<Mapped, Reason> {
    let row = &entry.row;
    let framework = row.framework.name.as_deref().unwrap_or("");
    let known = tables.of(framework);
    let distrusted = |field: &str| known.is_some_and(|(_, table)| table.distrust.contains_key(field));
    if let Some(what) = row.contradiction(distrusted) {
        return Err(Reason::Contradiction(what));
    }
    beyond(row, &entry.value)?;
    let Some((common, table)) = known else {
        return Err(Reason::Uncovered(format!("no table of defaults for the framework {framework:?}")));
    };
    let version = row.framework.version.as_deref();
    if !table.versions.iter().any(|known| matches(known, version)) {
        let known = table.versions.join(", ");
        let version = version.unwrap_or("not stated");
        return Err(Reason::Uncovered(format!(
            "the table of {framework:?} does not know the version {version:?}: it has {known}"
        )));
    }
    let rules: Vec<&Rule> = common.rules.iter().chain(&table.rules).filter(|rule| rule.holds(&entry.value)).collect();
    for rule in &rules {
        if let Some(why) = &rule.outside {
            return Err(Reason::Outside(why.clone()));
        }
        if let Some(why) = &rule.refuse {
            return Err(Reason::Uncovered(why.clone()));
        }
    }
    for field in switches(&entry.value) {
        let named = rules.iter().any(|rule| rule.when.contains_key(&field));
        if !named && !table.ignore.contains_key(&field) && !common.ignore.contains_key(&field) {
            let value = word(&entry.value, &field).unwrap_or_default();
            return Err(Reason::Uncovered(format!("the table of {framework:?} does not know {field} = {value:?}")));
        }
    }
    let mut keys = Gathered::default();
    stated(row, &mut keys)?;
    for rule in rules {
        keys.apply(rule, &entry.value);
    }
    measured(row, &mut keys)?;
    for needed in ["runtime", "topology.name", "model.name"] {
        if !keys.0.iter().any(|(key, _, _)| key == needed) {
            let what = match needed {
                "topology.name" => {
                    format!("no topology for the hardware {:?}", row.hardware.name.as_deref().unwrap_or(""))
                }
                "model.name" => format!("no shipped model is called {:?}", row.model.name.as_deref().unwrap_or("")),
                _ => format!("the table of {framework:?} names no runtime"),
            };
            return Err(Reason::Uncovered(what));
        }
    }
    // An id or a path may hold the end of a line, a comment may not.
    let words = format!("{}: {}", row.id, source(row)).replace(char::is_control, " ");
    let comment = format!("# {words}\n# Mapped from {}:{}.", entry.file, entry.line);
    let assumptions = keys.0.iter().filter_map(|(key, value, source)| {
        source.as_ref().map(|source| Assumption { key: key.clone(), value: value.to_string(), source: source.clone() })
    });
    Ok(Mapped { assumptions: assumptions.collect(), text: keys.text(&comment) })
}

/// What the FSDP lanes do not have.
fn beyond(row: &Row, value: &Value) -> Result<(), Reason> {
    let out = |why: String| Err(Reason::Outside(why));
    if row.hardware.vendor.as_deref().is_some_and(|vendor| vendor != "nvidia") {
        return out("not a CUDA machine".to_owned());
    }
    let p = &row.parallel;
    for (name, degree) in [("tensor", p.tp), ("pipeline", p.pp), ("context", p.cp), ("expert", p.ep)] {
        if degree.is_some_and(|degree| degree > 1) {
            return out(format!("{name} parallelism"));
        }
    }
    if row.model.n_experts.is_some_and(|experts| experts > 1) {
        return out("a mixture of experts".to_owned());
    }
    if row.model.mamba_state_dim.is_some() || row.model.hybrid_pattern.is_some() {
        return out("a state-space or hybrid model".to_owned());
    }
    let has = |field: &str, what: &str| word(value, field).is_some_and(|word| word.to_lowercase().contains(what));
    if has("precision.compute", "fp8") || has("precision.recipe", "fp8") {
        return out("fp8".to_owned());
    }
    if word(value, "switches.lora").is_some_and(|word| word == "true")
        || word(value, "switches.lora_rank").is_some()
        || has("switches.task", "lora")
        || has("switches.cumulative_techniques", "lora")
    {
        return out("LoRA".to_owned());
    }
    Ok(())
}

/// What every row states in the same words.
fn stated(row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
    let missing = |what: &str| Reason::Uncovered(format!("states no {what}"));
    let count = row.hardware.count.ok_or_else(|| missing("number of chips"))?;
    let stated_shard = degree(&row.parallel.fsdp).or(degree(&row.parallel.dp));
    let shard = stated_shard.unwrap_or(count);
    let per_node = row.hardware.gpus_per_node.unwrap_or(8);
    let assumed = |yes: bool, why: &str| yes.then(|| why.to_owned());
    let integer = |value: u64| Key::Integer(value as i64);
    let model = row.model.name.as_deref().unwrap_or("a model");
    let (hardware, family) =
        (row.hardware.name.as_deref().unwrap_or("?"), row.framework.name.as_deref().unwrap_or("?"));
    keys.stated("description", format!("{model}, {count} × {hardware}, {family}"));
    if count == 0 || per_node == 0 {
        return Err(Reason::Contradiction(format!("hardware.count = {count} on nodes of gpus_per_node = {per_node}")));
    }
    if count < per_node {
        keys.stated("topology.chips", integer(count));
    } else if count.is_multiple_of(per_node) {
        let source = assumed(row.hardware.gpus_per_node.is_none(), "no size of a node is stated: eight chips");
        keys.put("topology.nodes", integer(count / per_node), source);
    } else {
        return Err(Reason::Uncovered(format!("{count} chips do not fill nodes of {per_node}")));
    }
    if shard == 0 || !count.is_multiple_of(shard) {
        return Err(Reason::Uncovered(format!("shards over {shard} of {count} chips")));
    }
    let source = assumed(stated_shard.is_none() && count > 1, "no degree is stated: shards over all chips");
    keys.put("mesh.dp_shard", integer(shard), source);
    keys.stated("mesh.dp_replicate", integer(count / shard));
    keys.stated("batch.sequence", integer(row.sequence().ok_or_else(|| missing("sequence length"))?));
    keys.stated("batch.micro", integer(row.micro().ok_or_else(|| missing("micro-batch"))?));
    let accumulation = row.accumulation();
    if let (None, Some(global)) = (accumulation, row.batch.global_batch) {
        return Err(Reason::Contradiction(format!(
            "global_batch = {global} is no multiple of the ranks' micro-batches"
        )));
    }
    let source = assumed(accumulation.is_none(), "neither accumulation nor a global batch is stated");
    keys.put("batch.accumulation", integer(accumulation.unwrap_or(1)), source);
    Ok(())
}

/// What the row measured.
fn measured(row: &Row, keys: &mut Gathered) -> Result<(), Reason> {
    let m = &row.measured;
    let number = |value: f64| Key::Float(value);
    let quantity = |value: f64, unit: &str| Key::String(format!("{value} {unit}"));
    let chips = row.hardware.count.unwrap_or(1) as f64;
    let by_sequence = m.seq_s.zip(row.sequence()).map(|(rate, sequence)| rate * sequence as f64 / chips);
    match (m.step_time_s, m.tok_s_gpu, m.tok_s_total.map(|rate| rate / chips).or(by_sequence)) {
        (Some(step), _, _) => keys.stated("measured.step_time", quantity(step, "s")),
        (None, Some(rate), _) | (None, None, Some(rate)) => {
            keys.stated("measured.tokens_per_second_per_chip", number(rate));
        }
        _ => {}
    }
    let kind = m.peak_mem_kind.as_deref().unwrap_or("").to_lowercase();
    let peak = m.peak_mem_gib.map(|peak| quantity(peak, "GiB"));
    // Printed as "GB" without saying of which size: taken as read, 1e9 bytes.
    let peak = peak.or(m.peak_mem_gb_as_printed.map(|peak| quantity(peak, "GB")));
    if let Some(peak) = peak {
        let key = if kind.contains("reserved") {
            "measured.reserved"
        } else if kind.contains("allocated") || kind.contains("active") {
            "measured.allocated"
        } else {
            "measured.peak_memory"
        };
        keys.stated(key, peak);
    }
    if let Some(reserved) = m.peak_mem_reserved_gib {
        keys.stated("measured.reserved", quantity(reserved, "GiB"));
    }
    if m.oom == Some(true) {
        keys.stated("measured.out_of_memory", true);
    }
    // A rule names the convention; a figure without one says nothing.
    match (m.mfu_pct, keys.0.iter().any(|(key, _, _)| key == "measured.mfu_convention")) {
        (Some(mfu), true) => keys.stated("measured.mfu", number((mfu * 100.0).round() / 10_000.0)),
        (None, true) => keys.0.retain(|(key, _, _)| key != "measured.mfu_convention"),
        _ => {}
    }
    if !keys.0.iter().any(|(key, _, _)| key.starts_with("measured.") && key != "measured.counted_tokens_per_step") {
        return Err(Reason::Uncovered("measured nothing that is predicted".to_owned()));
    }
    keys.stated("measured.source", source(row));
    keys.stated("measured.lane", row.lane.clone());
    keys.stated("measured.hardware", row.family().to_owned());
    keys.stated("measured.grade", row.grade().to_owned());
    Ok(())
}

/// Who printed the row.
fn source(row: &Row) -> String {
    let text = |key: &str| row.source.get(key).and_then(Value::as_str);
    let place = match (text("repo"), text("commit"), text("path")) {
        (Some(repo), Some(commit), Some(path)) => {
            format!("{repo}@{}:{path}", commit.chars().take(9).collect::<String>())
        }
        (Some(repo), None, Some(path)) => format!("{repo}:{path}"),
        _ => text("paper").or(text("repo")).unwrap_or("source not stated").to_owned(),
    };
    match text("table") {
        Some(table) => format!("{place}, {table}"),
        None => place,
    }
}
