//! The tables of framework defaults: what a run that a row describes does where the row does not say.
//!
//! A table is a list of rules, read from the top; a later rule wins. A rule's `when` names fields of the row
//! (`"framework.version"`, `"switches.trainer"`, …) with a [pattern](super::pattern) or a list of them. Besides the row's own fields
//! there are `model.shipped` (the shipped model that the name means), `sizes.*` (stated, or that model's) and `framework.date` (year and
//! month of the release). A rule's `set` names keys of a scenario; a value `"$field"` is what the row has in that field. `fill` names
//! fields that the row leaves out. `stated = true` marks a rule that only translates the row's own words; anything else is an
//! assumption, is printed with its `source`, and is the same for every row of which the condition holds. `outside` takes a row out of
//! scope, `refuse` says that it cannot be mapped. A word of a row that switches something and that no rule names is taken as without
//! effect and said, unless it is listed under `matters`; `ignore` lists those that are known to have none, with the reason.
//!
//! Rules that match one model, size or release alone are counted (`table/tests.rs`): each says why.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toml::Table as Keys;

use super::pattern::matches;
use crate::tables;

#[cfg(test)]
mod tests;

/// The shipped tables; `common` holds for every framework.
const COMMON: &str = include_str!("frameworks/common.toml");
const SHIPPED: [(&str, &str); 27] = [
    ("maxtext", include_str!("frameworks/maxtext.toml")),
    ("maxtext-gpu", include_str!("frameworks/maxtext-gpu.toml")),
    ("paxml", include_str!("frameworks/paxml.toml")),
    ("llm-foundry", include_str!("frameworks/llm-foundry.toml")),
    ("torchtitan", include_str!("frameworks/torchtitan.toml")),
    ("automodel", include_str!("frameworks/automodel.toml")),
    ("torchtitan-experts", include_str!("frameworks/torchtitan-experts.toml")),
    ("torchtune", include_str!("frameworks/torchtune.toml")),
    ("prime-rl", include_str!("frameworks/prime-rl.toml")),
    ("fms-fsdp", include_str!("frameworks/fms-fsdp.toml")),
    ("tinyllama", include_str!("frameworks/tinyllama.toml")),
    ("receipt-maker", include_str!("frameworks/receipt-maker.toml")),
    ("megatron-lm", include_str!("frameworks/megatron-lm.toml")),
    ("megatron-deepspeed", include_str!("frameworks/megatron-deepspeed.toml")),
    ("nemo", include_str!("frameworks/nemo.toml")),
    ("nemo-container", include_str!("frameworks/nemo-container.toml")),
    ("megatron-bridge", include_str!("frameworks/megatron-bridge.toml")),
    ("zero-bubble", include_str!("frameworks/zero-bubble.toml")),
    ("vocabulary-parallelism", include_str!("frameworks/vocabulary-parallelism.toml")),
    ("nanotron", include_str!("frameworks/nanotron.toml")),
    ("internevo", include_str!("frameworks/internevo.toml")),
    ("vtrain", include_str!("frameworks/vtrain.toml")),
    ("litgpt", include_str!("frameworks/litgpt.toml")),
    ("simumax", include_str!("frameworks/simumax.toml")),
    // For frameworks that none of those above is for.
    ("megatron-any", include_str!("frameworks/megatron-any.toml")),
    ("zero-any", include_str!("frameworks/zero-any.toml")),
    ("fsdp-any", include_str!("frameworks/fsdp-any.toml")),
];

/// What names of tables end with that are for any framework on a runtime.
const ANY: &str = "-any";

/// One rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Fields of the row and what they must be.
    #[serde(default)]
    pub when: BTreeMap<String, Patterns>,
    /// Keys of the scenario (`"table.key"`) and their values.
    #[serde(default)]
    pub set: Keys,
    /// Fields of the row that it leaves out, and what they are: read as if it stated them, and listed as assumptions.
    #[serde(default)]
    pub fill: BTreeMap<String, toml::Value>,
    /// The row states this in its own words.
    #[serde(default)]
    pub stated: bool,
    /// Where it is known from.
    #[serde(default)]
    pub source: String,
    /// It holds beside a row's own arguments, too: it says what they do not.
    #[serde(default)]
    pub beside_arguments: bool,
    /// What of the run the rule leaves out of the simulation.
    pub left_out: Option<String>,
    /// The row is not what the FSDP lanes are about, and why.
    pub outside: Option<String>,
    /// The row cannot be mapped, and why.
    pub refuse: Option<String>,
}

/// One pattern or several, any of which may match.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a pattern or a list of patterns")]
pub enum Patterns {
    /// One.
    One(String),
    /// Several.
    Any(Vec<String>),
}

/// A table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Values of `framework.name` it is for; none for the common one.
    #[serde(default)]
    pub frameworks: Vec<String>,
    /// Values of `framework.version` it knows; another may differ in anything. None for the common one.
    #[serde(default)]
    pub versions: Vec<String>,
    /// Whose chips it is for, where a framework does otherwise on others (`hardware.vendor`).
    pub vendor: Option<String>,
    /// When each of the versions was released, as year and month (`202404`): what a version that is not known is nearest to.
    #[serde(default)]
    pub releases: BTreeMap<String, f64>,
    /// What names of models that are this framework's own begin with, among the shipped ones.
    pub models: Option<String>,
    /// The importer that reads a row's own arguments (`switches.full_model_args`), where it has them: rules then say only what runs that
    /// they do not state.
    pub arguments: Option<String>,
    /// What it is.
    pub about: String,
    /// Fields that say nothing about time or memory, with the reason.
    #[serde(default)]
    pub ignore: BTreeMap<String, String>,
    /// Patterns of fields that surely matter and that nothing here simulates, with the reason: a row with one is not covered.
    #[serde(default)]
    pub matters: BTreeMap<String, String>,
    /// Fields that this framework prints in another sense than the schema's, with the reason.
    #[serde(default)]
    pub distrust: BTreeMap<String, String>,
    /// Rules, from the top.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// All tables.
#[derive(Clone, Debug)]
pub struct Tables {
    common: Table,
    named: Vec<(&'static str, Table)>,
}

fn parse(name: &str, text: &str) -> Table {
    tables::read(text).unwrap_or_else(|error| panic!("the shipped table {name} does not parse: {error}"))
}

impl Tables {
    /// The shipped ones.
    pub fn shipped() -> Tables {
        Tables::read(COMMON, &SHIPPED)
    }

    /// Tables as texts: the common one, and each with its name.
    ///
    /// # Panics
    /// If one does not parse: tables ship with the program.
    pub fn read(common: &str, named: &[(&'static str, &str)]) -> Tables {
        let named = named.iter().map(|(name, text)| (*name, parse(name, text))).collect();
        Tables { common: parse("common", common), named }
    }

    /// The common table and that of the framework a row names, on chips of a vendor: of several the one that knows the version. Capitals
    /// do not matter.
    pub fn of(&self, framework: &str, version: Option<&str>, vendor: &str) -> Option<(&Table, &Table)> {
        let framework = framework.to_lowercase();
        let named = |table: &&Table| {
            table.vendor.as_deref().is_none_or(|known| known == vendor)
                && table.frameworks.iter().any(|name| matches(&name.to_lowercase(), Some(&framework)))
        };
        let knows = |table: &&Table| table.versions.iter().any(|known| matches(known, version));
        // Tables for any framework on a runtime come after those of one framework, whatever version it is.
        let tables = |any: bool| {
            let of_kind = move |(name, _): &&(&str, Table)| name.ends_with(ANY) == any;
            self.named.iter().filter(of_kind).map(|(_, table)| table).filter(|table| named(table))
        };
        let own = tables(false).find(knows).or_else(|| tables(false).next());
        own.or_else(|| tables(true).next()).map(|table| (&self.common, table))
    }

    /// The common table.
    pub fn common(&self) -> &Table {
        &self.common
    }

    /// The tables by name.
    pub fn named(&self) -> impl Iterator<Item = (&str, &Table)> {
        std::iter::once(("common", &self.common)).chain(self.named.iter().map(|(name, table)| (*name, table)))
    }
}

impl Patterns {
    /// Each pattern.
    pub fn list(&self) -> &[String] {
        match self {
            Patterns::One(one) => std::slice::from_ref(one),
            Patterns::Any(any) => any,
        }
    }
}

impl Rule {
    /// Whether the rule holds for a row.
    pub fn holds(&self, row: &Value) -> bool {
        self.when.iter().all(|(field, patterns)| {
            let value = word(row, field);
            patterns.list().iter().any(|pattern| matches(pattern, value.as_deref()))
        })
    }
}

/// A field of a row in words; `None` if it is absent.
pub fn word(row: &Value, field: &str) -> Option<String> {
    let mut value = row;
    for part in field.split('.') {
        value = value.get(part)?;
    }
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => Some(list.iter().map(|v| v.as_str().unwrap_or("…")).collect::<Vec<_>>().join("; ")),
        other => Some(other.to_string()),
    }
}

/// Fields of a row that switch something: each must be named by a rule or ignored.
pub fn switches(row: &Value) -> Vec<String> {
    let mut fields = vec![];
    for field in [
        "recompute",
        "compile",
        "optimizer",
        "precision.compute",
        "precision.mp_mode",
        "precision.params",
        "precision.grads",
        "precision.optimizer",
        "parallel.sharding_strategy",
    ] {
        if word(row, field).is_some() {
            fields.push(field.to_owned());
        }
    }
    if let Some(Value::Object(switches)) = row.get("switches") {
        for (name, value) in switches.iter().filter(|(_, value)| !value.is_null()) {
            // A recipe has its switches in a table of its own.
            match value.get("config").and_then(Value::as_object).filter(|_| name == "recipe") {
                Some(config) => {
                    let set = config.iter().filter(|(_, value)| !value.is_null());
                    fields.extend(set.map(|(key, _)| format!("switches.recipe.config.{key}")));
                }
                None => fields.push(format!("switches.{name}")),
            }
        }
    }
    fields
}
