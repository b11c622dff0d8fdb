//! Reads files of receipts line by line: a bad line is noted with its number, the rest is read.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::row;
use super::{ReceiptError, Row};
use crate::files::one_line;
use crate::near;

/// A row, where it stands, and its text for a table's conditions.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The row.
    pub row: Row,
    /// The row as it is written: as values of JSON it would take ten times the room.
    text: Box<str>,
}

impl Entry {
    /// The row as it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The row as JSON, without the keys that nobody reads.
    pub fn value(&self) -> Value {
        let mut value = serde_json::from_str(&self.text).expect("a row was JSON when it was read");
        let _ = row::unread(&mut value);
        value
    }
}

/// A line that is no receipt, or has a key that nobody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
    /// Whether the line is a receipt none the less, of which a key is not read.
    pub read: bool,
}

/// What files held.
#[derive(Clone, Debug, Default)]
pub struct Receipts {
    /// Rows, in order.
    pub entries: Vec<Entry>,
    /// Lines that are none, and keys that are not read, in order.
    pub faults: Vec<Fault>,
    /// First place of each id.
    seen: BTreeMap<String, (String, usize)>,
}

/// The longest line that is read: far above any receipt.
const LONGEST: usize = 1 << 20;
/// So many faults are told.
const MOST_FAULTS: usize = 10_000;

impl Receipts {
    /// Adds a file of JSON lines.
    pub fn add(&mut self, path: &Path) -> Result<(), ReceiptError> {
        let file = path.display().to_string();
        let failed = |error: std::io::Error| ReceiptError::Unreadable { path: file.clone(), reason: error.to_string() };
        self.read(&file, &crate::files::bytes(path).map_err(failed)?);
        Ok(())
    }

    /// Adds the JSON lines of a file that is called `file`.
    pub fn read(&mut self, file: &str, bytes: &[u8]) {
        for (at, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if self.faults.len() >= MOST_FAULTS {
                let problem = "there are too many faults: the rest of the file is not read".to_owned();
                self.faults.push(Fault { file: file.to_owned(), line: at + 1, problem, read: false });
                return;
            }
            if text.len() >= LONGEST {
                let problem = format!("longer than {LONGEST} bytes, so it is no receipt");
                self.faults.push(Fault { file: file.to_owned(), line: at + 1, problem, read: false });
            } else if !text.iter().all(u8::is_ascii_whitespace) {
                self.line(file, at + 1, text);
            }
        }
    }

    fn line(&mut self, file: &str, line: usize, text: &[u8]) {
        let mut said =
            |problem: String, read: bool| self.faults.push(Fault { file: file.to_owned(), line, problem, read });
        let mut fault = |problem: String| said(problem, false);
        let mut value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => return fault(format!("not JSON: {}", plain(&error))),
        };
        // The text itself, for its columns; without the keys that nobody needs only if it has such.
        let unread = row::unread(&mut value);
        let read = if unread.is_empty() { serde_json::from_slice(text) } else { Row::deserialize(&value) };
        let mut row: Row = match read {
            Ok(row) => row,
            Err(error) => return fault(plain(&error)),
        };
        row.id = one_line(&row.id);
        if let Some((first, at)) = self.seen.get(&row.id) {
            return fault(format!("the id {:?} was used before, at {first}:{at}: this line is left out", row.id));
        }
        unread.into_iter().for_each(|problem| said(problem, true));
        self.seen.insert(row.id.clone(), (file.to_owned(), line));
        let text = std::str::from_utf8(text).expect("JSON is UTF-8").into();
        self.entries.push(Entry { file: file.to_owned(), line, row, text });
    }

    /// The row with an id.
    pub fn find(&self, id: &str) -> Result<&Entry, ReceiptError> {
        self.entries.iter().find(|entry| entry.row.id == id).ok_or_else(|| {
            let ids = near::sorted(id, self.entries.iter().map(|entry| entry.row.id.as_str()));
            let near: Vec<String> = ids.into_iter().take(3).map(|known| format!("{known:?}")).collect();
            ReceiptError::NoSuchRow { id: id.to_owned(), near: near.join(", ") }
        })
    }
}

/// serde's words without its own line number, which is always 1 here.
fn plain(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}
