//! What a framework's keys are to a prediction: a file of `tables/`, with its defaults and where they are written.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// A file of `tables/`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The framework's name.
    pub framework: String,
    /// Releases that are known, oldest first. Defaults are those of the newest.
    pub versions: Vec<String>,
    /// Keys that only one release has, by release: they tell which one a file was written for.
    #[serde(default)]
    pub marks: BTreeMap<String, Vec<String>>,
    /// Keys of older releases and what the newest calls them; a `*` at the end stands for the rest.
    #[serde(default)]
    pub renamed: BTreeMap<String, String>,
    /// Flags that set another key to false.
    #[serde(default)]
    pub negated: BTreeMap<String, String>,
    /// Defaults, each with where it is written.
    pub defaults: BTreeMap<String, Default>,
    /// Defaults of older releases, where they differ.
    #[serde(default)]
    pub older: BTreeMap<String, BTreeMap<String, Default>>,
    /// Keys without effect on time or memory.
    #[serde(default)]
    pub idle: Vec<String>,
    /// The same, by why.
    #[serde(default)]
    pub without_effect: Vec<WithoutEffect>,
    /// Keys that matter and are not modelled.
    #[serde(default)]
    pub unmodelled: BTreeMap<String, Unmodelled>,
    /// Keys that may matter and are not read.
    #[serde(default)]
    pub unread: Vec<Unread>,
}

/// Keys without effect on time or memory, and why.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithoutEffect {
    /// What they are about.
    pub why: String,
    /// The keys.
    pub keys: Vec<String>,
}

/// Keys that may matter and are not read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    /// What they may change.
    pub changes: String,
    /// The keys, each with the value with which it changes nothing.
    pub keys: BTreeMap<String, Value>,
}

/// A default: the value (`"none"` in a table of TOML is written as an empty list) and where it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Default {
    /// The value; absent: there is none, and the framework works without.
    #[serde(default)]
    pub value: Value,
    /// Where it is written.
    pub at: String,
}

/// A key that matters and is not modelled.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unmodelled {
    /// The value with which it changes nothing; absent: none.
    #[serde(default)]
    pub off: Value,
    /// What it would change.
    pub changes: String,
}

impl Table {
    /// The newest release that is known.
    pub fn newest(&self) -> &str {
        self.versions.last().map_or("", String::as_str)
    }

    /// The default of a key in a release.
    pub fn default(&self, version: &str, key: &str) -> Option<&Default> {
        self.older.get(version).and_then(|older| older.get(key)).or_else(|| self.defaults.get(key))
    }

    /// What the newest release calls a key.
    pub fn name<'k>(&self, key: &'k str) -> std::borrow::Cow<'k, str> {
        if let Some(name) = self.renamed.get(key) {
            return name.clone().into();
        }
        for (from, to) in &self.renamed {
            let rest = from.strip_suffix('*').and_then(|from| key.strip_prefix(from));
            if let (Some(rest), Some(to)) = (rest, to.strip_suffix('*')) {
                return format!("{to}{rest}").into();
            }
        }
        key.into()
    }

    /// Whether a key has no effect.
    pub fn is_idle(&self, key: &str) -> bool {
        self.idle.iter().any(|pattern| matches(pattern, key)) || self.why_idle(key).is_some()
    }

    /// Why a key has no effect, where that is said.
    pub fn why_idle(&self, key: &str) -> Option<&str> {
        let of = self.without_effect.iter().find(|of| of.keys.iter().any(|known| known == key))?;
        Some(&of.why)
    }

    /// Of a key that matters, or may matter, and is not modelled: the value with which it changes nothing, and what it changes.
    pub fn not_modelled(&self, key: &str) -> Option<(&Value, &str)> {
        if let Some(known) = self.unmodelled.get(key) {
            return Some((&known.off, &known.changes));
        }
        self.unread.iter().find_map(|of| Some((of.keys.get(key)?, of.changes.as_str())))
    }

    /// All keys that have a name here.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own =
            self.defaults.keys().chain(self.unmodelled.keys()).chain(self.renamed.keys()).chain(self.negated.keys());
        let idle = self.idle.iter().chain(self.without_effect.iter().flat_map(|of| &of.keys));
        let own = own.chain(self.unread.iter().flat_map(|of| of.keys.keys())).chain(idle);
        own.map(String::as_str).filter(|name| !name.ends_with('*'))
    }

    /// The release that the keys are of, and how that is known.
    pub fn version<'k>(&self, asked: Option<&str>, keys: impl Iterator<Item = &'k str>) -> (String, String) {
        if let Some(asked) = asked {
            if self.versions.iter().any(|known| known == asked) {
                return (asked.to_owned(), "by --version".to_owned());
            }
            let near = self.nearest(asked);
            let basis = format!("the nearest that is known to {asked} of --version, whose own defaults may differ");
            return (near, basis);
        }
        let mut hits: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in keys {
            for (version, patterns) in &self.marks {
                if patterns.iter().any(|pattern| matches(pattern, key)) {
                    hits.entry(version).or_default().push(key);
                }
            }
        }
        let most = hits.iter().max_by_key(|(_, found)| found.len());
        match most {
            Some((version, found)) => ((*version).to_owned(), format!("by its key {}", found[0])),
            None => (self.newest().to_owned(), "the newest that is known; name another with --version".to_owned()),
        }
    }

    /// The newest known release that is not newer, else the oldest.
    fn nearest(&self, asked: &str) -> String {
        let older = self.versions.iter().rfind(|known| parts(known) <= parts(asked));
        older.or(self.versions.first()).cloned().unwrap_or_default()
    }
}

/// Numbers of a release.
fn parts(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Whether a key is what a pattern says; a `*` at its end stands for the rest.
pub fn matches(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => pattern == key,
    }
}
