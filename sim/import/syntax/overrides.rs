//! Words of a command line that set keys: `key=value`, `--key=value`, `--key value`, `--flag`, `--no-flag`.

use serde_json::Value;

use crate::import::settings::Raw;

/// A scalar as it is written on a command line.
pub fn scalar(word: &str) -> Value {
    let word = word.trim();
    let quoted = ['"', '\''].iter().find_map(|&mark| word.strip_prefix(mark)?.strip_suffix(mark));
    if let Some(inner) = quoted {
        return Value::String(inner.to_owned());
    }
    match word {
        "true" | "True" => Value::Bool(true),
        "false" | "False" => Value::Bool(false),
        "null" | "None" | "none" | "~" | "" => Value::Null,
        _ => {
            let number = word.parse::<i64>().map(Value::from).ok();
            let number = number.or_else(|| word.parse::<f64>().ok().filter(|n| n.is_finite()).map(Value::from));
            number.unwrap_or_else(|| Value::String(word.to_owned()))
        }
    }
}

/// Whether a word is an option and not its value: a negative number is a value.
pub fn is_option(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err()
}

/// Keys that words set.
pub fn read(words: &[String]) -> Vec<Raw> {
    let mut out = vec![];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let key = word.trim_start_matches('-');
        let (key, value) = if let Some((key, value)) = key.split_once('=') {
            (key.to_owned(), scalar(value))
        } else if let Some(value) = words.next_if(|next| is_option(word) && !is_option(next) && !next.contains('=')) {
            (key.to_owned(), scalar(value))
        } else {
            let (table, name) = key.rsplit_once('.').map_or(("", key), |(table, name)| (table, name));
            let (name, set) =
                name.strip_prefix("no-").or(name.strip_prefix("no_")).map_or((name, true), |name| (name, false));
            (if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }, Value::Bool(set))
        };
        out.push(Raw { key, value, line: None });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_in_each_way_that_frameworks_write_it() {
        let words =
            ["--training.steps=5", "a.b=x,y", "--lr", "-3.5", "--compile.enable", "--compile.no-loss", "n=None"];
        let words: Vec<String> = words.map(str::to_owned).to_vec();
        let read: Vec<String> = read(&words).iter().map(|raw| format!("{}={}", raw.key, raw.value)).collect();
        let expected =
            ["training.steps=5", "a.b=\"x,y\"", "lr=-3.5", "compile.enable=true", "compile.loss=false", "n=null"];
        assert_eq!(read, expected);
    }
}
