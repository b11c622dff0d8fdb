//! JSON: objects become dotted keys, each with the line of its value.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{DEEPEST, Lines, MOST};
use crate::budget;
use crate::import::error::ImportError;
use crate::import::settings::Raw;

/// The keys of a file.
pub fn read(file: &str, text: &str) -> Result<Vec<Raw>, ImportError> {
    budget::json(text).map_err(|why| syntax(file, 1, &why))?;
    let root: &RawValue = serde_json::from_str(text).map_err(|error| syntax(file, error.line(), &error.to_string()))?;
    let mut walk = Walk { file, text, lines: Lines::of(text), out: vec![] };
    walk.object("", root, 0)?;
    Ok(walk.out)
}

fn syntax(file: &str, line: usize, problem: &str) -> ImportError {
    let remedy = "correct the file, or name the importer of what it is: windtunnel import --help".to_owned();
    ImportError::Syntax { place: format!("{file}:{line}"), problem: format!("no JSON: {problem}"), remedy }
}

struct Walk<'t> {
    file: &'t str,
    text: &'t str,
    lines: Lines,
    out: Vec<Raw>,
}

/// An object's pairs as they are written: a key that is written twice comes twice.
struct Pairs<'t>(Vec<(String, &'t RawValue)>);

impl<'de> serde::Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Pairs<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object {…}")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

impl<'t> Walk<'t> {
    fn line(&self, raw: &RawValue) -> usize {
        // The value is a part of the text: where it begins is how far their addresses are apart.
        self.lines.of_byte((raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize))
    }

    fn object(&mut self, prefix: &str, raw: &'t RawValue, depth: usize) -> Result<(), ImportError> {
        let line = self.line(raw);
        let pairs: Pairs<'t> =
            serde_json::from_str(raw.get()).map_err(|error| syntax(self.file, line, &error.to_string()))?;
        if depth >= DEEPEST {
            return Err(syntax(self.file, line, &format!("objects are nested more than {DEEPEST} deep")));
        }
        let mut seen = std::collections::BTreeSet::new();
        for (name, value) in pairs.0 {
            let line = self.line(value);
            if !seen.insert(name.clone()) {
                return Err(syntax(self.file, line, &format!("{name:?} is written twice")));
            }
            if self.out.len() >= MOST {
                return Err(syntax(self.file, line, &format!("the file has more than {MOST} keys")));
            }
            let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            if value.get().starts_with('{') {
                self.object(&key, value, depth + 1)?;
            } else {
                let read: Result<Value, _> = serde_json::from_str(value.get());
                let value = read.map_err(|error| syntax(self.file, line, &error.to_string()))?;
                self.out.push(Raw { key, value, line: Some(line) });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_become_dotted_keys_with_their_lines() {
        let read =
            read("a.json", "{\n \"a\": {\"b\": 1,\n \"c\": [1, {\"d\": 2}]},\n \"e\": null}").expect("it is read");
        let shown: Vec<String> =
            read.iter().map(|raw| format!("{}={}@{}", raw.key, raw.value, raw.line.unwrap_or(0))).collect();
        assert_eq!(shown, ["a.b=1@2", "a.c=[1,{\"d\":2}]@3", "e=null@4"]);
    }

    #[test]
    fn a_broken_file_is_an_error_with_its_line() {
        let deep = format!("{}1{}", "{\"a\":".repeat(40), "}".repeat(40));
        let lists = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for text in ["{\"a\": 1,\n", "[1]", "{\"a\": 1,\n\"a\": 2}", "", &deep, &lists] {
            let error = read("a.json", text).expect_err("it is broken").to_string();
            assert!(error.starts_with("a.json:"), "{error}");
        }
    }
}
