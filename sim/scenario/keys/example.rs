//! A value to write for each key, for the reference and for `windtunnel explain`.
//!
//! A key's declaration has one where it is a number, a name or a list. A flag's is the value that is not its default, and a choice's is the first word
//! that is not its default.

use super::row::{Choice, Key, Kind};

/// A value of a key, in TOML.
pub fn example(key: &Key) -> String {
    if let Some(value) = key.example {
        return value.to_owned();
    }
    let is_default = |value: &str| key.defaults.iter().any(|preset| preset.value == value);
    match key.kind {
        Kind::Flag => (!is_default("true")).to_string(),
        Kind::Quantity(example) => quoted(example),
        Kind::List(words) => format!("[{}]", words.first().copied().map(quoted).unwrap_or_default()),
        Kind::Choice(choices) => {
            let words = choices.iter().filter_map(|choice| match choice {
                Choice::Word(word) => Some(quoted(word)),
                Choice::With(..) => None,
            });
            let mut other = words.clone().filter(|word| !is_default(word) && word != "\"none\"");
            other.next().or_else(|| words.clone().next()).unwrap_or_default()
        }
        Kind::Other(values) => values.split(',').next().unwrap_or_default().to_owned(),
        Kind::Count(least) => least.map_or(1, |(least, _)| least).to_string(),
        Kind::Number => "1.0".to_owned(),
        Kind::Text => "\"\"".to_owned(),
    }
}

fn quoted(word: &str) -> String {
    format!("\"{word}\"")
}

#[cfg(test)]
mod tests {
    use super::super::TABLES;
    use super::Kind;

    #[test]
    fn every_number_and_name_has_an_example_of_its_own() {
        for key in TABLES.iter().flat_map(|table| table.keys) {
            let needs = matches!(key.kind, Kind::Count(_) | Kind::Number | Kind::Text | Kind::List([]));
            assert!(key.example.is_some() || !needs, "{}", key.path);
        }
    }
}
