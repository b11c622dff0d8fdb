//! Keys that another runtime reads, refused with what to write instead. Nothing in a file is read over.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys;
use super::reader::Reader;

/// Refuses a table that is named after another framework, and that this one does not read.
pub(super) fn own_tables(reader: &Reader<'_>, runtime: Runtime) -> Result<(), ScenarioError> {
    // The text has been read once, so it is TOML.
    let Ok(file) = DeTable::parse(reader.text) else { return Ok(()) };
    let owner = |name: &str| {
        let table = keys::table(name).filter(|table| !table.is_read_by(runtime.written()))?;
        table.owner
    };
    match file.get_ref().keys().find_map(|key| Some((key, owner(key.get_ref())?))) {
        None => Ok(()),
        Some((key, owner)) => {
            let problem = format!("[{}] belongs to runtime = {owner:?}", key.get_ref());
            let remedy = format!("remove the table, or write runtime = {owner:?}");
            Err(reader.plan(&Spanned::new(key.span(), ()), problem, remedy))
        }
    }
}

/// Refuses the first key of the file that the runtime does not read, or the first table of which it reads nothing.
pub(super) fn check(reader: &Reader<'_>, runtime: Runtime) -> Result<(), ScenarioError> {
    own_tables(reader, runtime)?;
    let Ok(file) = DeTable::parse(reader.text) else { return Ok(()) };
    let framework = runtime.written();
    for (name, value) in file.get_ref() {
        // A file with a table that nobody knows has not been read.
        let Some(table) = keys::table(name.get_ref()) else { continue };
        let of_table = keys::instead(table.instead, framework);
        if !table.is_read_by(framework) {
            let instead = of_table.unwrap_or("remove the table");
            return Err(refuse(reader, runtime, name.span(), (&format!("[{}]", table.name), instead)));
        }
        for written in value.get_ref().as_table().into_iter().flat_map(DeTable::keys) {
            let own = |key: &&keys::Key| key.name.split('.').next() == Some(written.get_ref().as_ref());
            let rows = || table.keys.iter().filter(own);
            if rows().any(|key| key.is_read_by(framework)) {
                continue;
            }
            let of_key = rows().find_map(|key| keys::instead(key.instead, framework));
            let instead = of_key.or(of_table).unwrap_or("remove the key");
            let full = format!("{}.{}", table.name, written.get_ref());
            return Err(refuse(reader, runtime, written.span(), (&full, instead)));
        }
    }
    Ok(())
}

fn refuse(
    reader: &Reader<'_>,
    runtime: Runtime,
    span: Range<usize>,
    (subject, instead): (&str, &str),
) -> ScenarioError {
    let problem = format!("{subject} means nothing under runtime = {:?}", runtime.written());
    // What stays in the file is refused again.
    let remedy = match instead.contains("write ") && !instead.contains("remove ") {
        true => format!("{instead}, in place of {subject}"),
        false => instead.to_owned(),
    };
    reader.plan(&Spanned::new(span, ()), problem, remedy)
}
