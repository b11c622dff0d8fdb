//! Opens an export that anybody may have written: nothing but plain tables is read of it, in bounded steps and rows.
//!
//! A file of SQLite carries a schema, and a schema is a program: a view or a virtual table of an expected name would run whatever it says
//! when it is read (the SQLite project's "Defense against the dark arts" has the list of what to switch off).

use std::fmt::Write as _;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use super::super::error::Stop;

/// What to try where the export is broken.
pub(super) const REMEDY: &str = "Export it again: nsys export --type sqlite FILE.nsys-rep";

/// An error of SQLite's at a place in the file.
pub(super) fn broken(place: &str, error: &rusqlite::Error) -> Stop {
    Stop::Broken { place: place.to_owned(), what: error.to_string(), remedy: REMEDY }
}

/// The longest row, text or blob \[B\]: names of kernels come to some kilobytes.
const ROW: i32 = 1 << 22;
/// The longest statement, the schema's own among them \[B\].
const STATEMENT: i32 = 1 << 16;
/// Steps of SQLite's machine between two looks at how many there were.
const STEPS: i32 = 1 << 16;
/// Steps for each byte of the file: a row of a hundred bytes takes some dozens.
const PER_BYTE: u64 = 16;

/// Opens a file to be read in place.
pub(super) fn open(path: &Path) -> Result<Connection, Stop> {
    let wrong = |error: rusqlite::Error| broken("the file", &error);
    let size = std::fs::metadata(path)?.len();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let file = Connection::open_with_flags(uri(path), flags).map_err(wrong)?;
    for (limit, most) in [
        (Limit::SQLITE_LIMIT_LENGTH, ROW),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, STATEMENT),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 0),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        file.set_limit(limit, most).map_err(wrong)?;
    }
    for (config, on) in [
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ] {
        file.set_db_config(config, on).map_err(wrong)?;
    }
    let mut left = 256 + size.saturating_mul(PER_BYTE) / STEPS as u64;
    let spent = move || {
        left = left.saturating_sub(1);
        left == 0
    };
    file.progress_handler(STEPS, Some(spent));
    Ok(file)
}

/// The file as SQLite names it where it may look for no journal beside it.
fn uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => uri.push(byte.into()),
            _ => drop(write!(uri, "%{byte:02x}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

/// Whether a file has a table; what has its name and is none is refused.
pub(super) fn has(file: &Connection, table: &str) -> Result<bool, Stop> {
    let wrong = |error: rusqlite::Error| broken("the list of tables", &error);
    let mut statement = file.prepare_cached("select type, sql from sqlite_schema where name = ?1").map_err(wrong)?;
    let mut rows = statement.query([table]).map_err(wrong)?;
    let Some(row) = rows.next().map_err(wrong)? else { return Ok(false) };
    let (kind, sql): (String, Option<String>) = (row.get(0).map_err(wrong)?, row.get(1).map_err(wrong)?);
    let is_virtual =
        sql.is_some_and(|sql| sql.get(..14).is_some_and(|begin| begin.eq_ignore_ascii_case("create virtual")));
    match (kind.as_str(), is_virtual) {
        ("table", false) => Ok(true),
        (other, _) => {
            let what = format!("expected a plain table, found a {}", if is_virtual { "virtual table" } else { other });
            Err(Stop::Broken { place: table.to_owned(), what, remedy: REMEDY })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_path_whatever_it_is_spelled_with() {
        assert_eq!(
            uri(Path::new("a?mode=rwc#b %41.sqlite")),
            "file:a%3fmode%3drwc%23b%20%2541.sqlite?mode=ro&immutable=1"
        );
    }
}
