//! Keys that another runtime reads, refused with what to write instead. Nothing in a file is read over.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::keys;
use super::reader::Reader;
use super::source::Named;

/// Refuses a table that is named after another framework, and that this one does not read.
pub(super) fn own_tables(reader: &Reader<'_>, runtime: Runtime) -> Result<(), ScenarioError> {
    let owner = |name: &str| {
        let table = keys::table(name).filter(|table| !table.is_read_by(runtime.written()))?;
        table.owner
    };
    let named = reader.source.named();
    match named.iter().find_map(|Named { table, .. }| Some((table, owner(table.get_ref())?))) {
        None => Ok(()),
        Some((table, owner)) => {
            let problem = format!("[{}] belongs to runtime = {owner:?}", table.get_ref());
            let remedy = format!("remove the table, or write runtime = {owner:?}");
            Err(reader.plan(table, problem, remedy))
        }
    }
}

/// Refuses the first key of the file that the runtime does not read, or the first table of which it reads nothing.
pub(super) fn check(reader: &Reader<'_>, runtime: Runtime) -> Result<(), ScenarioError> {
    own_tables(reader, runtime)?;
    let framework = runtime.written();
    for Named { table: name, keys: written } in reader.source.named() {
        // A file with a table that nobody knows has not been read.
        let Some(table) = keys::table(name.get_ref()) else { continue };
        let of_table = keys::instead(table.instead, framework);
        if !table.is_read_by(framework) {
            let instead = of_table.unwrap_or("remove the table");
            return Err(refuse(reader, runtime, &name, (&format!("[{}]", table.name), instead)));
        }
        for written in written {
            let own = |key: &&keys::Key| key.name().split('.').next() == Some(written.get_ref());
            let rows = || table.keys.iter().filter(own);
            if rows().any(|key| key.is_read_by(framework)) {
                continue;
            }
            let of_key = rows().find_map(|key| keys::instead(key.instead, framework));
            let instead = of_key.or(of_table).unwrap_or("remove the key");
            let full = format!("{}.{}", table.name, written.get_ref());
            return Err(refuse(reader, runtime, &written, (&full, instead)));
        }
    }
    Ok(())
}

fn refuse(
    reader: &Reader<'_>,
    runtime: Runtime,
    at: &Spanned<String>,
    (subject, instead): (&str, &str),
) -> ScenarioError {
    let problem = format!("{subject} means nothing under runtime = {:?}", runtime.written());
    // What stays in the file is refused again.
    let remedy = match instead.contains("write ") && !instead.contains("remove ") {
        true => format!("{instead}, in place of {subject}"),
        false => instead.to_owned(),
    };
    reader.plan(at, problem, remedy)
}
