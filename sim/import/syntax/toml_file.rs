//! TOML: tables become dotted keys, each with the line of its value.

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{DEEPEST, Lines, MOST};
use crate::import::error::ImportError;
use crate::import::settings::Raw;
use crate::tables;

/// The keys of a file.
pub fn read(file: &str, text: &str) -> Result<Vec<Raw>, ImportError> {
    let lines = Lines::of(text);
    let table = tables::document(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.of_byte(span.start));
        syntax(file, line, format!("no TOML: {}", error.message()))
    })?;
    let mut walk = Walk { file, lines, out: vec![] };
    walk.table("", table.get_ref(), 0)?;
    Ok(walk.out)
}

fn syntax(file: &str, line: usize, problem: String) -> ImportError {
    let remedy = "correct the file, or name the importer of what it is: windtunnel import --help".to_owned();
    ImportError::Syntax { place: format!("{file}:{line}"), problem, remedy }
}

struct Walk<'w> {
    file: &'w str,
    lines: Lines,
    out: Vec<Raw>,
}

impl Walk<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>, depth: usize) -> Result<(), ImportError> {
        for (name, value) in table {
            let line = self.lines.of_byte(value.span().start);
            if depth >= DEEPEST {
                return Err(syntax(self.file, line, format!("tables are nested more than {DEEPEST} deep")));
            }
            if self.out.len() >= MOST {
                return Err(syntax(self.file, line, format!("the file has more than {MOST} keys")));
            }
            let key =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            match value.get_ref() {
                DeValue::Table(inner) => self.table(&key, inner, depth + 1)?,
                _ => {
                    let value = self.value(value, depth)?;
                    self.out.push(Raw { key, value, line: Some(line) });
                }
            }
        }
        Ok(())
    }

    fn value(&self, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Value, ImportError> {
        let line = || self.lines.of_byte(value.span().start);
        if depth >= DEEPEST {
            return Err(syntax(self.file, line(), format!("values are nested more than {DEEPEST} deep")));
        }
        Ok(match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => {
                let read = i64::from_str_radix(number.as_str(), number.radix());
                let wide = || syntax(self.file, line(), format!("{} is too large a number", number.as_str()));
                Value::from(read.map_err(|_| wide())?)
            }
            DeValue::Float(number) => Value::from(number.as_str().parse::<f64>().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(list) => {
                Value::Array(list.iter().map(|value| self.value(value, depth + 1)).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => {
                let pair = |(name, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                    Ok((name.get_ref().to_string(), self.value(value, depth + 1)?))
                };
                Value::Object(table.iter().map(pair).collect::<Result<_, ImportError>>()?)
            }
        })
    }
}
