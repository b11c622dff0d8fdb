//! A topology file with another value of one number: to ask whether anything depends on it.

use toml::{Table, Value};

use super::Topology;

impl Topology {
    /// The file with a number as `other` has it; if `other` lacks the number, once with half and once with twice as much. None
    /// for what cannot be halved, such as `"unbounded"`.
    pub fn changed(&self, text: &str, fact: &str, other: Option<&Topology>) -> Vec<String> {
        let Ok(file) = text.parse::<Table>() else { return vec![] };
        let theirs = other.and_then(|other| other.text.parse::<Table>().ok()).and_then(|mut theirs| {
            let value = value(&mut theirs, fact)?;
            Some(value.clone())
        });
        let own = value(&mut file.clone(), fact).cloned();
        let values = match (theirs, own) {
            (Some(theirs), _) => vec![theirs],
            (None, Some(own)) => {
                let others = [0.5, 2.0].iter().filter_map(|factor| scaled(&own, *factor));
                others.filter(|other| *other != own).collect()
            }
            (None, None) => vec![],
        };
        let with = |new: Value| {
            let mut file = file.clone();
            *value(&mut file, fact)? = new;
            Some(file.to_string())
        };
        values.into_iter().filter_map(with).collect()
    }
}

/// Where a file has the value of a [`super::Fact`].
fn value<'f>(file: &'f mut Table, fact: &str) -> Option<&'f mut Value> {
    if let Some(shape) = fact.strip_prefix("slice.") {
        let is_it = |slice: &&mut Value| {
            let axes = slice.get("shape").and_then(Value::as_array);
            axes.is_some_and(|axes| axes.iter().map(Value::to_string).collect::<Vec<_>>().join("x") == shape)
        };
        return list(file, "slice")?.find(is_it)?.get_mut("wraps");
    }
    let number = match fact.strip_prefix("fabric.").and_then(|rest| rest.rsplit_once('.')) {
        Some((name, field)) => {
            let level = list(file, "fabric")?.find(|level| level.get("name").and_then(Value::as_str) == Some(name))?;
            if field == "links" {
                level.get_mut("kind")?.get_mut("torus")?.get_mut(field)
            } else {
                level.get_mut(field)
            }
        }
        None => {
            let mut parts = fact.split('.');
            let first = file.get_mut(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get_mut(part))
        }
    };
    number?.get_mut("value")
}

/// The entries of a list of tables.
fn list<'f>(file: &'f mut Table, name: &str) -> Option<std::slice::IterMut<'f, Value>> {
    file.get_mut(name)?.as_array_mut().map(|list| list.iter_mut())
}

/// So many times as much; of axes, those that are rings are none, and the others are.
fn scaled(value: &Value, factor: f64) -> Option<Value> {
    match value {
        Value::Integer(count) => Some(Value::Integer(((*count as f64 * factor) as i64).max(1))),
        Value::Float(number) => Some(Value::Float(number * factor)),
        Value::String(text) => {
            let (number, unit) = text.split_once(' ')?;
            Some(Value::String(format!("{} {unit}", number.parse::<f64>().ok()? * factor)))
        }
        Value::Array(wraps) => {
            let other = |wraps: &Value| wraps.as_bool().map(|wraps| Value::Boolean(!wraps));
            wraps.iter().map(other).collect::<Option<Vec<_>>>().map(Value::Array)
        }
        _ => None,
    }
}
