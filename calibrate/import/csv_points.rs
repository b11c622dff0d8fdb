//! Tables in the schema of the published ones, into points.
//!
//! A table is known by its columns; one that no schema has is an error with its place, and so is a cell that is not what
//! its column holds. Rows that no cost model could use, and those
//! that the table itself doubts ([`quality`]), are left out, with a remark that counts them. A table gives one time
//! a row, so a point's median and both percentiles are that time. To add a table: an entry in [`schema::SCHEMAS`].

mod quality;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::tables::{Row, Table, Tables};
use super::{ImportError, Imported};
use crate::points::{Line, Machine};
use schema::{Origin, Outcome, Schema};

/// Why a table gives no points.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// It cannot be read.
    #[error(transparent)]
    Table(#[from] ImportError),
    /// A column or a cell is not what it should be.
    #[error("{path}:{line}: column `{column}`: {why}")]
    Cell {
        /// The file.
        path: String,
        /// Its line, from 1.
        line: u64,
        /// The column.
        column: String,
        /// What is wrong, and what to try.
        why: String,
    },
}

/// Reads tables; all that is wrong with any of them, if anything is. `chip` is for tables without a column that says it.
pub fn import(files: &[PathBuf], chip: Option<&str>) -> Result<Imported, Vec<CsvError>> {
    let mut imported = Imported::default();
    let mut errors = Vec::new();
    for path in files {
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let read = Tables::new(&folder).get(&name).map_err(CsvError::from);
        let shown = path.display().to_string();
        if let Err(why) = read.and_then(|table| one(&shown, &table, chip, &mut imported)) {
            errors.push(why);
        }
    }
    if errors.is_empty() { Ok(imported) } else { Err(errors) }
}

/// The points of one table.
pub fn understand(path: &str, table: &Table, chip: Option<&str>) -> Result<Imported, CsvError> {
    let mut imported = Imported::default();
    one(path, table, chip, &mut imported).map(|()| imported)
}

/// Adds the points of one table.
fn one(path: &str, table: &Table, chip: Option<&str>, imported: &mut Imported) -> Result<(), CsvError> {
    let schema = known(path, table)?;
    // Machines in the order in which they first appear, with the lines of their points.
    let mut machines: Vec<(Origin, String)> = Vec::new();
    let mut places: BTreeMap<Origin, usize> = BTreeMap::new();
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    let before = imported.points;
    for row in table.rows() {
        let cell = |(column, why): schema::Wrong| CsvError::Cell {
            path: path.to_owned(),
            line: row.line(),
            column: column.to_owned(),
            why,
        };
        match (schema.read)(&Cells(row), chip).map_err(cell)? {
            Outcome::LeftOut(why) => *left_out.entry(why).or_default() += 1,
            Outcome::Points(origin, points) => {
                let at = *places.entry(origin.clone()).or_insert_with(|| {
                    machines.push((origin, String::new()));
                    machines.len() - 1
                });
                for point in points {
                    machines[at].1.push_str(&Line::Point(point).text());
                    imported.points += 1;
                }
                table.affords(imported.points - before)?;
            }
        }
    }
    for (origin, points) in machines {
        imported.text.push_str(&Line::Machine(machine(origin)).text());
        imported.text.push_str(&points);
    }
    let remarks = left_out.into_iter().map(|(why, rows)| format!("{path}: {rows} rows are left out: {why}"));
    imported.remarks.extend(remarks);
    Ok(())
}

/// The schema that a table's columns are of.
fn known(path: &str, table: &Table) -> Result<&'static Schema, CsvError> {
    let wrong =
        |column: &str, why: String| CsvError::Cell { path: path.to_owned(), line: 1, column: column.to_owned(), why };
    let has = |column: &str| table.columns().iter().any(|own| own == column);
    let shared = |schema: &Schema| schema.columns.iter().filter(|column| has(column)).count();
    // The one that shares most; of equals, the one that asks for least.
    let closest = schema::SCHEMAS.iter().max_by_key(|schema| (shared(schema), usize::MAX - schema.columns.len()));
    let Some(schema) = closest.filter(|schema| 2 * shared(schema) > schema.columns.len()) else {
        let names: Vec<&str> = schema::SCHEMAS.iter().map(|schema| schema.name).collect();
        let first = table.columns().first().map_or("", String::as_str);
        let why = format!("no published table whose rows are times has these columns: expected {}", names.join(", "));
        return Err(wrong(first, why));
    };
    let expected = || schema.columns.join(", ");
    for column in table.columns() {
        if !(schema.columns.contains(&column.as_str()) || schema.may_have.contains(&column.as_str())) {
            return Err(wrong(column, format!("{} has no such column: expected {}", schema.name, expected())));
        }
    }
    match schema.columns.iter().find(|column| !has(column)) {
        Some(missing) => Err(wrong(missing, format!("is missing: {} has {}", schema.name, expected()))),
        None => Ok(schema),
    }
}

/// A row's cells, understood.
pub struct Cells<'t>(Row<'t>);

impl<'t> Cells<'t> {
    /// A cell's text; empty where the table has no such column.
    pub fn text(&self, column: &str) -> &'t str {
        self.0.text(column).trim()
    }

    /// A whole number; some tables write it with a decimal point.
    pub fn whole(&self, column: &'static str) -> Result<u64, schema::Wrong> {
        let text = self.text(column);
        let digits = text.strip_suffix(".0").unwrap_or(text);
        digits.parse().map_err(|_| (column, format!("`{text}` is no whole number")))
    }

    /// A number above zero.
    pub fn positive(&self, column: &'static str) -> Result<f64, schema::Wrong> {
        let text = self.text(column);
        let number = text.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
        number.ok_or_else(|| (column, format!("`{text}` is no number above zero")))
    }

    /// Yes or no.
    pub fn truth(&self, column: &'static str) -> Result<bool, schema::Wrong> {
        match self.text(column) {
            "True" | "true" => Ok(true),
            "False" | "false" => Ok(false),
            other => Err((column, format!("`{other}` is neither True nor False"))),
        }
    }
}

fn machine(origin: Origin) -> Machine {
    let Origin { chip, gpus, versions, source } = origin;
    Machine::published(&chip, gpus, versions, "import csv", &source)
}
