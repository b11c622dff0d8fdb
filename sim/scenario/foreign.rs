//! Keys that another runtime reads, refused with what to write instead. Nothing in a file is read over.

use toml::Spanned;
use toml::de::DeTable;

use super::error::ScenarioError;
use super::understood::Reader;

/// Tables that one runtime alone reads, and its name.
const OWN: [(&str, &str); 5] = [
    ("megatron", "megatron"),
    ("internevo", "internevo"),
    ("nanotron", "nanotron"),
    ("xla", "xla"),
    ("zero", "deepspeed-zero"),
];

/// Tables that every runtime reads, each key of them.
const SHARED: [&str; 7] = ["topology", "model", "mesh", "batch", "precision", "memory", "measured"];

/// Keys of those that FSDP2 alone reads, and what to do about them.
const FSDP2: [(&str, &str); 2] = [
    ("batch.all_reduce_every_micro_batch", "it is a switch of fully_shard's replicas: remove the key"),
    ("memory.initialisation", "it is of parameters that fully_shard has sharded: remove the key"),
];

/// What a runtime does not read.
pub(super) struct Foreign {
    /// Its name.
    pub runtime: &'static str,
    /// The table that it reads of those that one runtime alone has.
    pub own: &'static str,
    /// Tables that it reads whole, beside its own and those that every runtime reads.
    pub reads: &'static [&'static str],
    /// Tables that others read, the keys of each that it reads too, and what to write instead of the rest.
    pub tables: &'static [(&'static str, &'static [&'static str], &'static str)],
    /// Where a key itself says more than its table.
    pub keys: &'static [(&'static str, &'static str)],
}

/// Refuses the table of another runtime than the one that reads `own`.
pub(super) fn own_tables(reader: &Reader<'_>, own: &str) -> Result<(), ScenarioError> {
    // The text has been read once, so it is TOML.
    let Ok(file) = DeTable::parse(reader.text) else { return Ok(()) };
    let other = |key: &str| OWN.iter().find(|&&(table, _)| table == key && table != own).map(|&(_, runtime)| runtime);
    match file.get_ref().keys().find_map(|key| Some((key, other(key.get_ref())?))) {
        None => Ok(()),
        Some((key, runtime)) => {
            let problem = format!("[{}] belongs to runtime = {runtime:?}", key.get_ref());
            let remedy = format!("remove the table, or write runtime = {runtime:?}");
            Err(reader.plan(&Spanned::new(key.span(), ()), problem, remedy))
        }
    }
}

impl Foreign {
    /// Refuses the first that the file has.
    pub(super) fn check(&self, reader: &Reader<'_>) -> Result<(), ScenarioError> {
        own_tables(reader, self.own)?;
        let Ok(file) = DeTable::parse(reader.text) else { return Ok(()) };
        for (table, value) in file.get_ref() {
            let name = table.get_ref().as_ref();
            let rule = self.tables.iter().find(|(known, ..)| *known == name);
            if let Some((.., instead)) = rule.filter(|(_, keys, _)| keys.is_empty()) {
                return Err(self.refuse(reader, table.span(), &format!("[{name}]"), instead));
            }
            // A table that nobody thought of here is not read either.
            if rule.is_none()
                && value.get_ref().as_table().is_some()
                && ![SHARED.as_slice(), self.reads, &[self.own]].concat().contains(&name)
            {
                return Err(self.refuse(reader, table.span(), &format!("[{name}] means"), "remove the table"));
            }
            for key in value.get_ref().as_table().into_iter().flat_map(DeTable::keys) {
                let full = format!("{name}.{}", key.get_ref());
                let own = self.keys.iter().chain(&FSDP2).find(|(known, _)| *known == full).map(|(_, instead)| instead);
                let other = rule.filter(|(_, keys, _)| !keys.contains(&key.get_ref().as_ref()));
                if let Some(instead) = own.or(other.map(|(.., instead)| instead)) {
                    return Err(self.refuse(reader, key.span(), &full, instead));
                }
            }
        }
        Ok(())
    }

    fn refuse(&self, reader: &Reader<'_>, span: std::ops::Range<usize>, subject: &str, instead: &str) -> ScenarioError {
        let problem = format!("{subject} means nothing under runtime = {:?}", self.runtime);
        // What stays in the file is refused again.
        let remedy = match instead.contains("write ") && !instead.contains("remove ") {
            true => format!("{instead}, in place of {subject}"),
            false => instead.to_owned(),
        };
        reader.plan(&Spanned::new(span, ()), problem, remedy)
    }
}
