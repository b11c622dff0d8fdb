//! A row as rules see it: with the model, the release and the flags that its words come to.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Assumption;
use crate::model::ModelConfig;
use crate::model::huggingface::shipped;
use crate::receipt::names::{self, Fit};
use crate::receipt::pattern::matches;
use crate::receipt::row::Row;
use crate::receipt::table::{Table, word};

/// What rules are asked about, and what was assumed on the way.
pub(super) struct Effective {
    /// The row, with the fields that rules fill in.
    pub row: Row,
    /// The row, with `model.shipped`, `framework.date`, and flags of a test's whole command among its switches.
    pub value: Value,
    /// The shipped model that the row's name means.
    pub model: Fit,
    /// The release that ran, where the rules are those of another one.
    pub unknown_release: Option<String>,
    /// Assumptions that no key of a scenario shows.
    pub assumed: Vec<Assumption>,
}

/// A row as a table's rules see it.
pub(super) fn effective(row: &Row, stated: &Value, [common, table]: [&Table; 2]) -> Effective {
    let mut value = stated.clone();
    let mut assumed = vec![];
    let model = row.model.name.as_deref().map_or(Fit::Unknown, |name| names::model_of(table.models.as_deref(), name));
    if let Fit::One(shipped) = model {
        put(&mut value, "model", "shipped", json!(shipped));
    }
    sizes(row, &model, &mut value);
    let version = row.framework.version.as_deref();
    // A commit has the date of the page that names it.
    let paged = row.source.get("date").and_then(Value::as_str).and_then(date);
    let dated = version.and_then(date).or(paged);
    let known = table.versions.iter().find(|known| matches(known, version));
    let unknown_release = version.filter(|_| known.is_none()).map(str::to_owned);
    let release = match known {
        Some(known) => Some(known.clone()),
        None => nearest(table, dated).inspect(|taken| {
            let source = match version {
                Some(version) => format!("the release {version:?} is not known: taken as the nearest that is"),
                None => "no release is stated: taken as the last that is known".to_owned(),
            };
            assumed.push(Assumption { key: "framework.version".to_owned(), value: taken.as_str().into(), source });
            put(&mut value, "framework", "version", json!(taken.replace('*', "")));
        }),
    };
    if let Some(date) = release.and_then(|release| table.releases.get(&release).copied()).or(dated) {
        put(&mut value, "framework", "date", json!(date));
    }
    // A test's whole command, flag by flag.
    if let Some(Value::Object(flags)) = value.pointer("/switches/full_model_args").cloned() {
        for (flag, argument) in flags {
            if value["switches"].get(&flag).is_none() {
                put(&mut value, "switches", &flag, argument);
            }
        }
    }
    let mut stated = stated.clone();
    if let Some(([axis], degree)) = row.open().as_ref().map(|(open, degree)| (&open[..], *degree)) {
        put(&mut value, "parallel", axis, json!(degree));
        put(&mut stated, "parallel", axis, json!(degree));
        let source = "not stated: what the other degrees leave of the chips".to_owned();
        let (key, taken) = (format!("parallel.{axis}"), i64::try_from(degree).unwrap_or(i64::MAX));
        assumed.push(Assumption { key, value: taken.into(), source });
    }
    for rule in common.rules.iter().chain(&table.rules) {
        if rule.fill.is_empty() || !rule.holds(&value) {
            continue;
        }
        for (field, filled) in &rule.fill {
            let Some((group, key)) = field.split_once('.') else { continue };
            let absent = value.get(group).and_then(|group| group.get(key)).is_none_or(Value::is_null);
            let new = match filled.as_str().and_then(|text| text.strip_prefix('$')) {
                Some(field) => word(&value, field).map(|word| word.parse::<f64>().map_or_else(|_| json!(word), number)),
                None => serde_json::to_value(filled).ok(),
            };
            if let Some(new) = new.filter(|_| absent) {
                put(&mut value, group, key, new.clone());
                put(&mut stated, group, key, new);
                assumed.push(Assumption { key: field.clone(), value: filled.clone(), source: rule.source.clone() });
            }
        }
    }
    // A table that fills in what no row can hold is found by the tests.
    let row = Row::deserialize(&stated).unwrap_or_else(|_| row.clone());
    Effective { row, value, model, unknown_release, assumed }
}

/// A number, whole where it is.
fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// Sizes under `sizes`, as the row states them, or else those of the model that it names.
fn sizes(row: &Row, model: &Fit, value: &mut Value) {
    let named = match model {
        Fit::One(name) => shipped::named(name).ok(),
        _ => None,
    };
    let own = &row.model;
    let of = |stated: Option<u64>, has: fn(&ModelConfig) -> u64| stated.or(named.as_ref().map(has));
    let experts = own.n_experts.or(named.as_ref().and_then(|model| model.experts()).map(|experts| experts.count));
    for (key, size) in [
        ("layers", of(own.n_layers, |model| model.layers.count())),
        ("hidden", of(own.hidden, |model| model.width)),
        ("heads", of(own.n_heads, |model| model.heads())),
        ("experts", experts),
    ] {
        if let Some(size) = size {
            put(value, "sizes", key, json!(size));
        }
    }
}

fn put(value: &mut Value, group: &str, key: &str, new: Value) {
    if value.get(group).is_none_or(|group| !group.is_object()) {
        value[group] = json!({});
    }
    value[group][key] = new;
}

/// The release nearest by date to one that no table knows; without a date the last.
fn nearest(table: &Table, date: Option<f64>) -> Option<String> {
    let last = || table.versions.iter().rfind(|known| !known.is_empty()).cloned();
    let dated: Vec<(&String, f64)> = table.releases.iter().map(|(name, date)| (name, *date)).collect();
    let newest = dated.iter().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(name, _)| (*name).clone());
    let Some(date) = date else { return newest.or_else(last) };
    let near = dated
        .iter()
        .min_by(|one, other| (months(one.1) - months(date)).abs().total_cmp(&(months(other.1) - months(date)).abs()));
    near.map(|(name, _)| (*name).clone()).or_else(last)
}

/// Months since the year 0 of a date written `202404`.
fn months(date: f64) -> f64 {
    (date / 100.0).floor() * 12.0 + date % 100.0
}

/// The year and month in a version: `2025-06-13`, `April 2024`, `25.09`, `2024`.
fn date(version: &str) -> Option<f64> {
    const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let lower = version.to_lowercase();
    let parts: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let number = |part: &str| part.parse::<f64>().ok();
    let month = |part: Option<&&str>| part.and_then(|part| number(part)).filter(|month| (1.0..=12.0).contains(month));
    for (at, part) in parts.iter().enumerate() {
        let Some(found) = number(part) else { continue };
        if (2015.0..=2099.0).contains(&found) && part.len() == 4 {
            let named = at.checked_sub(1).and_then(|at| MONTHS.iter().position(|name| parts[at].starts_with(name)));
            let month = named.map(|at| at as f64 + 1.0).or(month(parts.get(at + 1))).unwrap_or(6.0);
            return Some(found * 100.0 + month);
        }
        // NVIDIA's containers are called by year and month.
        if part.len() == 2
            && (20.0..=39.0).contains(&found)
            && parts.get(at + 1).is_some_and(|next| next.len() == 2)
            && let Some(month) = month(parts.get(at + 1))
        {
            return Some((2000.0 + found) * 100.0 + month);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_says_when_it_was_released() {
        for (version, expected) in [
            ("commit 820504e (2025-06-13)", Some(202506.0)),
            ("April 2024 (torch nightly)", Some(202404.0)),
            ("25.09 NeMo Container", Some(202509.0)),
            ("nemo:24.12", Some(202412.0)),
            ("2024", Some(202406.0)),
            ("v0.5 (2025-02)", Some(202502.0)),
            ("9dec370", None),
            ("v2.1.0", None),
        ] {
            assert_eq!(date(version), expected, "{version}");
        }
    }

    #[test]
    fn an_unknown_release_is_taken_as_the_nearest_by_date() {
        let table: Table = crate::tables::read(
            "about = \"t\"\nversions = [\"a*\", \"b\", \"c\"]\n[releases]\n\"a*\" = 202404\nb = 202412\nc = 202506\n",
        )
        .expect("a table");
        assert_eq!(nearest(&table, date("2024-03-01")).as_deref(), Some("a*"));
        assert_eq!(nearest(&table, date("25.01")).as_deref(), Some("b"));
        assert_eq!(nearest(&table, date("2d5e3f1")).as_deref(), Some("c"));
        assert_eq!(nearest(&table, None).as_deref(), Some("c"));
    }
}
