//! Reads the published tables: CSV, plain or gzipped, columns by name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use windtunnel::budget;

use super::ImportError;

/// A folder of tables, each read once.
#[derive(Debug)]
pub struct Tables {
    folder: PathBuf,
    read: RefCell<BTreeMap<String, Rc<Table>>>,
}

/// One table.
#[derive(Debug)]
pub struct Table {
    path: String,
    /// How long its text is \[B\].
    bytes: u64,
    columns: Vec<String>,
    rows: Vec<csv::StringRecord>,
}

/// One row with its columns' names.
#[derive(Clone, Copy, Debug)]
pub struct Row<'t> {
    table: &'t Table,
    record: &'t csv::StringRecord,
}

impl Tables {
    /// Tables of a folder.
    pub fn new(folder: &Path) -> Self {
        Tables { folder: folder.to_owned(), read: RefCell::default() }
    }

    /// A table by file name.
    pub fn get(&self, name: &str) -> Result<Rc<Table>, ImportError> {
        if let Some(table) = self.read.borrow().get(name) {
            return Ok(Rc::clone(table));
        }
        let path = self.folder.join(name);
        let shown = path.display().to_string();
        let file = windtunnel::files::bytes(&path).map_err(|why| ImportError::File { path: shown.clone(), why })?;
        // What a small file unpacks to has the same limit as a file that is not packed.
        let text = match name.ends_with(".gz") {
            true => windtunnel::files::all(flate2::read::GzDecoder::new(file.as_slice()))
                .map_err(|why| ImportError::File { path: shown.clone(), why })?,
            false => file,
        };
        let table = Rc::new(Table::parse(&shown, &text)?);
        self.read.borrow_mut().insert(name.to_owned(), Rc::clone(&table));
        Ok(table)
    }
}

impl Table {
    /// The table that a file's text holds; `path` is for messages.
    pub fn parse(path: &str, text: &[u8]) -> Result<Table, ImportError> {
        let bad = |why: csv::Error| ImportError::Table { path: path.to_owned(), why: why.to_string() };
        budget::csv(text).map_err(|why| ImportError::Table { path: path.to_owned(), why })?;
        let mut reader = csv::Reader::from_reader(text);
        let columns = reader.headers().map_err(bad)?.iter().map(str::to_owned).collect();
        let rows = reader.records().collect::<Result<_, _>>().map_err(bad)?;
        Ok(Table { path: path.to_owned(), bytes: text.len() as u64, columns, rows })
    }

    /// Whether so many points may be made of it.
    pub fn affords(&self, points: usize) -> Result<(), ImportError> {
        budget::within(self.bytes, points as u64 * budget::POINT).map_err(|why| self.error(&why))
    }

    /// Its columns, in the file's order.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Its rows, in the file's order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|record| Row { table: self, record })
    }

    /// An error about this table.
    pub fn error(&self, why: &str) -> ImportError {
        ImportError::Table { path: self.path.clone(), why: why.to_owned() }
    }
}

impl<'t> Row<'t> {
    /// Its line in the file, from 1.
    pub fn line(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// A column's text; empty where the table has no such column.
    pub fn text(&self, column: &str) -> &'t str {
        let at = self.table.columns.iter().position(|name| name == column);
        at.and_then(|at| self.record.get(at)).unwrap_or("")
    }

    /// A column's number, where it holds one.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|v: &f64| v.is_finite())
    }
}
