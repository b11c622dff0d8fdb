//! Rows of a SQLite table whose columns may be missing.

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::super::draft::ZERO;
use super::super::error::Stop;
use super::open::{REMEDY, broken, has};

/// A table of which some columns are read.
pub(super) struct Table<'a> {
    name: &'static str,
    statement: rusqlite::Statement<'a>,
}

/// A row; columns are numbered as they were asked for.
pub(super) struct Row<'a> {
    row: &'a rusqlite::Row<'a>,
    table: &'static str,
    number: u64,
}

impl<'a> Table<'a> {
    /// How many rows there are, about.
    pub(super) fn rows(file: &Connection, table: &str) -> Result<u64, Stop> {
        if !has(file, table)? {
            return Ok(0);
        }
        let rows: Option<i64> = file
            .query_row(&format!("select max(rowid) from {table}"), [], |row| row.get(0))
            .map_err(|error| broken(table, &error))?;
        Ok(rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0))
    }

    /// The table, if it exists. Columns that it lacks are null.
    pub(super) fn open(file: &'a Connection, name: &'static str, columns: &[&str]) -> Result<Option<Table<'a>>, Stop> {
        if !has(file, name)? {
            return Ok(None);
        }
        let wrong = |error: rusqlite::Error| broken(name, &error);
        let mut known: Vec<String> = vec![];
        let mut info = file.prepare(&format!("select name from pragma_table_info('{name}')")).map_err(wrong)?;
        let mut rows = info.query([]).map_err(wrong)?;
        while let Some(row) = rows.next().map_err(wrong)? {
            known.push(row.get(0).map_err(wrong)?);
        }
        let column = |name: &&str| {
            if known.iter().any(|known| known == name) { format!("\"{name}\"") } else { "null".to_owned() }
        };
        let columns: Vec<String> = columns.iter().map(column).collect();
        let statement = file.prepare(&format!("select {} from {name}", columns.join(", "))).map_err(wrong)?;
        Ok(Some(Table { name, statement }))
    }

    /// Hands each row over.
    pub(super) fn for_each(&mut self, mut each: impl FnMut(&Row<'_>) -> Result<(), Stop>) -> Result<(), Stop> {
        let table = self.name;
        let mut rows = self.statement.query([]).map_err(|error| broken(table, &error))?;
        let mut number = 0;
        loop {
            number += 1;
            match rows.next() {
                Ok(Some(row)) => each(&Row { row, table, number })?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(broken(&format!("{table}, row {number}"), &error)),
            }
        }
    }
}

impl Row<'_> {
    fn wrong(&self, what: String) -> Stop {
        Stop::Broken { place: format!("{}, row {}", self.table, self.number), what, remedy: REMEDY }
    }

    fn value(&self, column: usize) -> Result<ValueRef<'_>, Stop> {
        self.row.get_ref(column).map_err(|error| self.wrong(error.to_string()))
    }

    /// An integer, or null.
    pub(super) fn integer(&self, column: usize) -> Result<Option<i64>, Stop> {
        match self.value(column)? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(number)),
            other => Err(self.wrong(format!(
                "column {}: expected an integer, found {}",
                self.name(column),
                other.data_type()
            ))),
        }
    }

    /// Text, or null.
    pub(super) fn text(&self, column: usize) -> Result<Option<String>, Stop> {
        match self.value(column)? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(text) => Ok(Some(String::from_utf8_lossy(text).into_owned())),
            other => {
                Err(self.wrong(format!("column {}: expected text, found {}", self.name(column), other.data_type())))
            }
        }
    }

    /// Begin and length of what two columns say.
    pub(super) fn span(&self, start: usize, end: usize) -> Result<(u64, u64), Stop> {
        let time = |column: usize| {
            let ns = self.integer(column)?.and_then(|ns| u64::try_from(i128::from(ns) + i128::from(ZERO)).ok());
            ns.filter(|ns| (ZERO / 2..3 * ZERO).contains(ns))
                .ok_or_else(|| self.wrong(format!("column {}: expected a time in nanoseconds", self.name(column))))
        };
        let (start, end) = (time(start)?, time(end)?);
        let what = || self.wrong("it ends before it begins".to_owned());
        end.checked_sub(start).map(|duration| (start, duration)).ok_or_else(what)
    }

    fn name(&self, column: usize) -> String {
        self.row.as_ref().column_name(column).unwrap_or("?").to_owned()
    }
}

/// A string of the file's table of strings; empty where it is not there.
pub(super) fn string(file: &Connection, id: i64) -> Result<String, Stop> {
    let wrong = |error: rusqlite::Error| broken("StringIds", &error);
    if !has(file, "StringIds")? {
        return Ok(String::new());
    }
    let mut statement = file.prepare_cached("select value from StringIds where id = ?1").map_err(wrong)?;
    let mut rows = statement.query([id]).map_err(wrong)?;
    let Some(row) = rows.next().map_err(wrong)? else { return Ok(String::new()) };
    match row.get_ref(0).map_err(wrong)? {
        ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Ok(String::new()),
    }
}
