//! A topology file that names another: `base = "h100-sxm-80gb"`, and only what differs.
//!
//! Tables are laid over those of the base key by key; a number with its source is replaced as a whole, so that no new value keeps
//! an old source. A level of `[[fabric]]` is laid over the base's level of the same name, or comes outside all of them. Slices
//! are replaced as a list.
//!
//! Places of errors: the base is read as if it stood below the file, so that one number says in which of the two a value is.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{HardwareError, Place, shipped, written};
use crate::tables::{self, Node, Unread};

/// A base, found.
pub(super) struct Base {
    /// What errors call the file, and its text.
    file: String,
    text: String,
    /// Bytes of the file above it.
    above: usize,
    /// The base with as many blanks before it as there is text above.
    below: String,
    /// The file, and behind it the base.
    pub both: String,
}

/// A file and its base, laid over one another.
pub(super) struct Extended {
    pub written: written::File,
    /// The same as one file without a base.
    pub text: String,
}

impl Base {
    /// The base that a file names, if it names one.
    pub fn of(file: &str, text: &str) -> Result<Option<Base>, HardwareError> {
        // A file that is not TOML is told so by whoever reads it.
        let Some((name, span)) = named(text) else { return Ok(None) };
        let wrong = |problem: String| HardwareError::Written { problem, place: Place::of(file, text, span.clone()) };
        let beside = Path::new(file).parent().map(|folder| folder.join(&name)).filter(|path| path.is_file());
        let path = beside.map_or_else(|| name.clone(), |path| path.display().to_string());
        let (base_file, base) = shipped::find(&path).map_err(|why| wrong(format!("base = {name:?}: {why}")))?;
        if named(&base).is_some() {
            return Err(wrong(format!("base = {name:?} has a base itself: name that one, and repeat what differs")));
        }
        let below = " ".repeat(text.len() + 1) + &base;
        let both = format!("{text}\n{base}");
        Ok(Some(Base { file: base_file, text: base, above: text.len(), below, both }))
    }

    /// Where bytes of both lie.
    pub fn place(&self, file: &str, text: &str, span: Range<usize>) -> Place {
        match span.start.checked_sub(self.above + 1) {
            Some(start) => Place::of(&self.file, &self.text, start..span.end.saturating_sub(self.above + 1)),
            None => Place::of(file, text, span),
        }
    }

    /// Lays a file over its base.
    pub fn extend(&self, text: &str) -> Result<Extended, Unread> {
        let own = tables::document(text)?;
        let mut base = tables::document(&self.below)?;
        if own.get_ref().contains_key("name") {
            lay_over(base.get_mut(), own.into_inner());
        } else {
            // A machine has a name of its own: without one, the file is read alone, and refused.
            base = own;
        }
        let written = written::File::deserialize(&Node::from(&base))?;
        base.get_mut().remove("base");
        let whole = Node::from(&base).table().expect("its numbers have been read");
        Ok(Extended { written, text: whole.to_string() })
    }
}

/// What `base` of a file says, and where.
fn named(text: &str) -> Option<(String, Range<usize>)> {
    if !text.contains("base") {
        return None;
    }
    let table = tables::document(text).ok()?;
    let base = table.get_ref().get("base")?;
    Some((base.get_ref().as_str()?.to_owned(), base.span()))
}

/// Lays one table over another.
fn lay_over<'t>(base: &mut DeTable<'t>, own: DeTable<'t>) {
    for (key, value) in own {
        match (base.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(inner)), DeValue::Table(table)) if !is_a_number(table) => {
                let DeValue::Table(table) = value.into_inner() else { continue };
                lay_over(inner, table);
            }
            (Some(DeValue::Array(levels)), DeValue::Array(_)) if key.get_ref() == "fabric" => {
                let DeValue::Array(own) = value.into_inner() else { continue };
                for level in own {
                    let name = name_of(level.get_ref());
                    let known = levels.iter_mut().find(|known| name.is_some() && name_of(known.get_ref()) == name);
                    match (known.map(Spanned::get_mut), level) {
                        (Some(DeValue::Table(known)), level) => {
                            if let DeValue::Table(level) = level.into_inner() {
                                lay_over(known, level);
                            }
                        }
                        (_, level) => levels.push(level),
                    }
                }
            }
            _ => {
                base.insert(key, value);
            }
        }
    }
}

/// Whether a table is a value with its source, or part of one.
fn is_a_number(table: &DeTable<'_>) -> bool {
    table.contains_key("value") || table.contains_key("source")
}

/// The name of a level.
fn name_of(level: &DeValue<'_>) -> Option<String> {
    match level {
        DeValue::Table(table) => table.get("name")?.get_ref().as_str().map(str::to_owned),
        _ => None,
    }
}
