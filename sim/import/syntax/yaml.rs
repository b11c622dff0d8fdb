//! YAML: mappings become dotted keys, each with the line of its value.

use std::collections::BTreeSet;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::Value;

use super::overrides::scalar;
use super::{DEEPEST, MOST};
use crate::import::error::ImportError;
use crate::import::settings::Raw;

/// The keys of a file's first document.
pub fn read(file: &str, text: &str) -> Result<Vec<Raw>, ImportError> {
    let mut walk = Walk { file, parser: Parser::new_from_str(text), out: vec![], values: 0 };
    loop {
        match walk.next()? {
            (Event::MappingStart(..), _) => break,
            (Event::StreamEnd, _) => return Ok(vec![]),
            (Event::Nothing | Event::StreamStart | Event::DocumentStart(_), _) => {}
            (_, line) => return Err(syntax(file, line, "it is no mapping of keys to values")),
        }
    }
    walk.mapping("", 0)?;
    Ok(walk.out)
}

fn syntax(file: &str, line: usize, problem: &str) -> ImportError {
    let remedy = "correct the file, or name the importer of what it is: windtunnel import --help".to_owned();
    ImportError::Syntax {
        place: format!("{file}:{line}"),
        problem: format!("no YAML that is read here: {problem}"),
        remedy,
    }
}

struct Walk<'t> {
    file: &'t str,
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    out: Vec<Raw>,
    values: usize,
}

impl<'t> Walk<'t> {
    fn next(&mut self) -> Result<(Event<'t>, usize), ImportError> {
        match self.parser.next() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, start.line())),
            Some(Err(error)) => Err(syntax(self.file, error.marker().line(), error.info())),
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    fn count(&mut self, line: usize, depth: usize) -> Result<(), ImportError> {
        self.values += 1;
        if depth >= DEEPEST {
            return Err(syntax(self.file, line, &format!("values are nested more than {DEEPEST} deep")));
        }
        match self.values > MOST {
            true => Err(syntax(self.file, line, &format!("the file has more than {MOST} values"))),
            false => Ok(()),
        }
    }

    /// The rest of a mapping that has begun.
    fn mapping(&mut self, prefix: &str, depth: usize) -> Result<(), ImportError> {
        let mut seen = BTreeSet::new();
        loop {
            let (name, line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(()),
                (Event::Scalar(name, ..), line) => (name.into_owned(), line),
                (_, line) => return Err(syntax(self.file, line, "a key is no plain word")),
            };
            if !seen.insert(name.clone()) {
                return Err(syntax(self.file, line, &format!("{name:?} is written twice")));
            }
            let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            let (event, line) = self.next()?;
            self.count(line, depth)?;
            match event {
                Event::MappingStart(..) => self.mapping(&key, depth + 1)?,
                event => {
                    let value = self.value(event, line, depth)?;
                    self.out.push(Raw { key, value, line: Some(line) });
                }
            }
        }
    }

    /// The value that an event begins.
    fn value(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<Value, ImportError> {
        self.count(line, depth)?;
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) => Ok(plain(&text)),
            Event::Scalar(text, ..) => Ok(Value::String(text.into_owned())),
            Event::SequenceStart(..) => {
                let mut list = vec![];
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => return Ok(Value::Array(list)),
                        (event, line) => list.push(self.value(event, line, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut map = serde_json::Map::new();
                loop {
                    match self.next()? {
                        (Event::MappingEnd, _) => return Ok(Value::Object(map)),
                        (Event::Scalar(name, ..), _) => {
                            let (event, line) = self.next()?;
                            let value = self.value(event, line, depth + 1)?;
                            map.insert(name.into_owned(), value);
                        }
                        (_, line) => return Err(syntax(self.file, line, "a key is no plain word")),
                    }
                }
            }
            Event::Alias(_) => Err(syntax(self.file, line, "aliases (*name) are not followed: write the value")),
            _ => Err(syntax(self.file, line, "a value is missing")),
        }
    }
}

/// A plain scalar, by YAML's core schema; words of version 1.1 are flags too.
fn plain(text: &str) -> Value {
    match text {
        "yes" | "Yes" | "on" | "On" | "TRUE" => Value::Bool(true),
        "no" | "No" | "off" | "Off" | "FALSE" => Value::Bool(false),
        "None" | "none" => Value::String(text.to_owned()),
        _ => scalar(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_become_dotted_keys_with_their_lines() {
        let read = read("a.yml", "a:\n  b: 1e-3 # c\n  c: [1, x]\n'd': \"2\"\ne:\n- f: no\n").expect("it is read");
        let shown: Vec<String> =
            read.iter().map(|raw| format!("{}={}@{}", raw.key, raw.value, raw.line.unwrap_or(0))).collect();
        assert_eq!(shown, ["a.b=0.001@2", "a.c=[1,\"x\"]@3", "d=\"2\"@4", "e=[{\"f\":false}]@6"]);
    }

    #[test]
    fn a_broken_file_is_an_error_with_its_line() {
        let deep = format!("a: {}{}", "[".repeat(10_000), "]".repeat(10_000));
        let nested: String = (0..50).map(|at| format!("{}a:\n", " ".repeat(at))).collect();
        for text in ["a: [1\nb: 2", "a: 1\na: 2", "- 1", "a: &x 1\nb: *x", "? [a]\n: 1", "{a: {b", &deep, &nested] {
            let error = read("a.yml", text).expect_err(text).to_string();
            assert!(error.starts_with("a.yml:"), "{error}");
        }
    }
}
