//! Values of a key as a command line writes them: `1,2,4`, `none,full`, `{every=2},full`, `unset`.

use toml::Value;

use crate::scenario::keys::{Kind, row};

/// What stands for a key that is left to its default.
pub(in crate::explore) const UNSET: &str = "unset";

/// The pieces between commas that stand in no quotes, brackets or braces, without the spaces around them.
pub(in crate::explore) fn split(text: &str) -> Vec<&str> {
    let (mut pieces, mut from, mut depth) = (vec![], 0, 0_i32);
    // The quote that is open, and whether the letter after it is escaped.
    let (mut quote, mut escaped) = (None, false);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some('"'), '\\') if !escaped => {
                escaped = true;
                continue;
            }
            (Some(open), _) if open == letter && !escaped => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, ',') if depth <= 0 => {
                pieces.push(text[from..at].trim());
                from = at + 1;
            }
            (None, _) => {}
        }
        escaped = false;
    }
    pieces.push(text[from..].trim());
    pieces
}

/// A value of a key; none leaves it to its default. What is no TOML is a word, unless it begins as only TOML does.
pub(in crate::explore) fn value(key: &str, text: &str) -> Result<Option<Value>, toml::de::Error> {
    if text == UNSET {
        return Ok(None);
    }
    match text.parse::<Value>() {
        // Of a key that takes text, `12.8` is text too.
        Ok(Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_)) if takes_text(key) => {
            Ok(Some(text.into()))
        }
        Ok(value) => Ok(Some(value)),
        Err(why) if text.starts_with(['"', '\'', '[', '{']) => Err(why),
        Err(_) => Ok(Some(text.into())),
    }
}

fn takes_text(key: &str) -> bool {
    matches!(row(key).map(|row| row.kind), Some(Kind::Text | Kind::Quantity(_)))
}

/// The values of a key that a command line lists with commas between; none of them stands for its default.
pub fn listed(key: &str, text: &str) -> Result<Vec<Option<Value>>, toml::de::Error> {
    split(text).into_iter().map(|piece| value(key, piece)).collect()
}

/// A `KEY=VALUE` of a command line that sets one key of a scenario; no value leaves the key to its default.
///
/// # Errors
/// What is wrong with the word, and what to write.
pub fn assignment(word: &str) -> Result<(&str, Option<Value>), String> {
    let Some((key, text)) = word.split_once('=') else {
        return Err(format!("{word:?} sets no key: write KEY=VALUE, such as batch.micro=2"));
    };
    let wrong = |why: toml::de::Error| format!("{word}: {}", why.message().trim_end());
    Ok((key.trim(), value(key.trim(), text.trim()).map_err(wrong)?))
}

/// Whether a text is a range such as `1..8`, which nobody but its author knows the steps of.
pub(in crate::explore) fn is_range(text: &str) -> bool {
    let number = |text: &str| text.trim().parse::<i64>().is_ok();
    text.split_once("..").is_some_and(|(from, to)| number(from) && number(to.trim_start_matches(['=', '.'])))
}

/// A value as JSON has it. A key that is left to its default is null; what JSON has no number for is text.
pub(in crate::explore) fn json(value: Option<&Value>) -> serde_json::Value {
    match value {
        None => serde_json::Value::Null,
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Integer(number)) => (*number).into(),
        Some(Value::Boolean(flag)) => (*flag).into(),
        Some(Value::Float(number)) if number.is_finite() => (*number).into(),
        Some(other @ (Value::Float(_) | Value::Datetime(_))) => other.to_string().into(),
        Some(Value::Array(items)) => items.iter().map(|item| json(Some(item))).collect(),
        Some(Value::Table(keys)) => {
            serde_json::Value::Object(keys.iter().map(|(key, value)| (key.clone(), json(Some(value)))).collect())
        }
    }
}

/// A value as a table shows it: a word without its quotes.
pub(in crate::explore) fn shown(value: Option<&Value>) -> String {
    match value {
        None => UNSET.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_brackets_and_braces_part_nothing() {
        assert_eq!(split("1, 2,4"), ["1", "2", "4"]);
        assert_eq!(split("none,{every=2},full"), ["none", "{every=2}", "full"]);
        assert_eq!(split("[1, [2, 3]],{a=1,b=2}"), ["[1, [2, 3]]", "{a=1,b=2}"]);
        assert_eq!(split(r#""a,b",'c,d',"e\",f""#), [r#""a,b""#, "'c,d'", r#""e\",f""#]);
        assert_eq!(split("a,,b"), ["a", "", "b"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn a_bare_word_is_text_and_all_else_is_toml() {
        let read = |text: &str| value("megatron.recompute", text).expect(text);
        assert_eq!(read("core_attn"), Some("core_attn".into()));
        assert_eq!(read("4"), Some(4.into()));
        assert_eq!(read("true"), Some(true.into()));
        assert_eq!(read("\"true\""), Some("true".into()));
        assert_eq!(read("25 GB/s"), Some("25 GB/s".into()));
        assert_eq!(shown(read("{uniform=1}").as_ref()), "{ uniform = 1 }");
        assert_eq!(read("unset"), None);
        assert_eq!(read("\"unset\""), Some("unset".into()));
        assert_eq!(value("framework.cublas", "12.8").expect("text"), Some("12.8".into()));
        for broken in ["{uniform=1", "[1,2", "\"open", "{uniform=1}x"] {
            assert!(value("megatron.recompute", broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_range_is_told_from_a_word() {
        assert!(is_range("1..8") && is_range("1..=8") && is_range("1 .. 8"));
        assert!(!is_range("../x") && !is_range("a..b") && !is_range("1.5"));
    }
}
