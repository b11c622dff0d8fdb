//! Every integer that a scenario may have, read off the structs that the file is read into.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An integer of a scenario, or some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Tables and key, outermost first.
    pub path: Vec<String>,
    /// The name of the kind that the integer belongs to: `wrap = { every = 2 }`.
    pub kind: Option<String>,
    pub form: Form,
}

/// How integers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    One,
    Pair,
    List,
}

impl Form {
    /// The form of a type.
    fn of(kind: &str) -> Option<Form> {
        match kind {
            "i64" | "u32" => Some(Form::One),
            "(i64, i64)" => Some(Form::Pair),
            "Vec<i64" => Some(Form::List),
            _ => None,
        }
    }

    /// What may be written so that a value stands in it.
    fn written(self, value: i64) -> Vec<toml::Value> {
        let list = |values: &[i64]| toml::Value::from(values.to_vec());
        match self {
            Form::One => vec![value.into()],
            Form::Pair => vec![list(&[0, value]), list(&[value, value])],
            Form::List => {
                vec![list(&[value]), list(&[value, value]), list(&[0, value]), list(&[2, value]), list(&[value; 8])]
            }
        }
    }
}

impl Key {
    pub fn name(&self) -> String {
        let kind = self.kind.as_ref().map_or(String::new(), |kind| format!(" = {{ {kind} }}"));
        self.path.join(".") + &kind
    }

    /// The number of micro-batches.
    pub fn accumulation() -> Key {
        Key { path: vec!["batch".to_owned(), "accumulation".to_owned()], kind: None, form: Form::One }
    }

    /// The scenario with this integer, in every form, and with what has to go with it.
    pub fn set(&self, plan: &toml::Table, value: i64) -> Vec<toml::Table> {
        let with = |written| self.write(plan, written);
        let plans: Vec<toml::Table> = self.form.written(value).into_iter().map(with).collect();
        let beside = |plan: &toml::Table, table: &str, key: &str, value: i64| {
            let path = vec![table.to_owned(), key.to_owned()];
            Key { path, kind: None, form: Form::One }.write(plan, value.into())
        };
        let twice = value.saturating_mul(2);
        let more: Vec<toml::Table> = match self.name().as_str() {
            // Blocks of two stages are those of the model, and levels of a ring are its ranks.
            "pipeline.layers" => plans.iter().map(|plan| beside(plan, "model", "layers", twice)).collect(),
            "megatron.hierarchical_context_parallel_sizes" => {
                plans.iter().map(|plan| beside(plan, "mesh", "cp", twice)).collect()
            }
            _ => vec![],
        };
        plans.into_iter().chain(more).collect()
    }

    fn write(&self, plan: &toml::Table, value: toml::Value) -> toml::Table {
        let mut plan = plan.clone();
        let (key, tables) = self.path.split_last().unwrap();
        let mut table = &mut plan;
        for name in tables {
            let inner = table.entry(name).or_insert_with(|| toml::Table::new().into());
            // What is no table yet becomes one.
            if !inner.is_table() {
                *inner = toml::Table::new().into();
            }
            table = inner.as_table_mut().unwrap();
        }
        let value = match &self.kind {
            Some(kind) => toml::Table::from_iter([(kind.clone(), value)]).into(),
            None => value,
        };
        table.insert(key.clone(), value);
        plan
    }
}

/// Kinds that are written as the integer alone.
const UNTAGGED: [&str; 3] = ["ranks", "steps", "nodes"];

/// Fields of a struct, or variants of an enum: name and type.
type Fields = BTreeMap<String, Vec<(String, String)>>;

pub fn all() -> Vec<Key> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sim/scenario");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root.join("keys")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.push(root.join("written.rs"));
    let mut types = Fields::new();
    for file in files {
        read(&std::fs::read_to_string(file).unwrap(), &mut types);
    }
    let mut keys = vec![];
    collect(&types, "Scenario", &[], &mut keys);
    keys
}

fn collect(types: &Fields, of: &str, path: &[String], keys: &mut Vec<Key>) {
    for (name, kind) in types.get(of).into_iter().flatten() {
        let path = [path, std::slice::from_ref(name)].concat();
        let kind = kind.replace("Option<", "").replace("Spanned<", "").replace("Box<", "").replace('>', "");
        if let Some(form) = Form::of(&kind) {
            keys.push(Key { path, kind: None, form });
            continue;
        }
        let variants = types.get(&format!("enum {kind}"));
        for (variant, inner) in variants.into_iter().flatten() {
            let Some(form) = Form::of(inner.trim_end_matches('>')) else { continue };
            // A kind of its own, or the only integer that may stand in place of words.
            let kind = (!UNTAGGED.contains(&variant.as_str())).then(|| variant.clone());
            keys.push(Key { path: path.clone(), kind, form });
        }
        collect(types, &kind, &path, keys);
    }
}

/// Structs and enums of a source file, those of keys by their declarations.
fn read(source: &str, types: &mut Fields) {
    let mut inside: Option<String> = None;
    let mut renamed = None;
    for line in source.lines().map(str::trim) {
        if let Some(of) = declared(line) {
            inside = Some(of);
        } else if line == "}" {
            inside = None;
        } else if let Some(rest) = line.split_once("rename = \"").map(|(_, rest)| rest) {
            renamed = rest.split_once('"').map(|(name, _)| name.to_owned());
        } else if let Some(of) = &inside {
            let found = if of.starts_with("enum ") { variant(line) } else { field(line) };
            if let Some((name, kind)) = found {
                types.entry(of.clone()).or_default().push((renamed.take().unwrap_or(name), kind));
            }
            if !line.starts_with('#') && !line.starts_with("///") {
                renamed = None;
            }
        }
    }
}

/// The struct or enum that begins on a line.
fn declared(line: &str) -> Option<String> {
    let word = |text: &str| text.split([' ', ';', '.']).next().map(str::to_owned);
    if let Some(rest) = line.strip_prefix("pub enum ") {
        return word(rest).map(|name| format!("enum {name}"));
    }
    let table = line.strip_prefix("[\"").and_then(|rest| rest.split_once("\"] "));
    let within = line.strip_prefix("within ").and_then(|rest| rest.split_once(", "));
    line.strip_prefix("pub struct ").or(table.or(within).map(|(_, rest)| rest)).and_then(word)
}

/// A field with its type: `pub micro: i64,`, or `micro: Option<Spanned<i64>> as between(1, 9) => ALL`.
fn field(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.trim_start_matches("pub ").split_once(": ")?;
    let kind = [" as ", " =>"].iter().fold(rest, |kind, end| kind.split(end).next().unwrap_or(kind));
    let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    is_name.then(|| (name.to_owned(), kind.trim_end_matches([',', ';']).to_owned()))
}

/// A variant with what it holds: `Every(i64),`, or `Every(i64) = "every" of "N",`.
fn variant(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.split_once('(').filter(|_| !line.starts_with(['/', '#']))?;
    let (kind, word) = rest.rsplit_once(')')?;
    let word = word.split('"').nth(1).map_or_else(|| name.to_lowercase(), str::to_owned);
    Some((word, kind.to_owned()))
}
