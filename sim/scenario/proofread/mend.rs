//! A file's keys without one that is wrong, or with one that is missing: what it takes to read on.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value stands that is not in the file: beyond any text.
const NOWHERE: Range<usize> = FAR..FAR;
const FAR: usize = usize::MAX / 2;

/// Keys that a file must have, each with a value that is always read, as TOML; a key of a list of tables has the list's name. A test
/// finds those that this lacks.
const REQUIRED: [(&str, &str); 12] = [
    ("runtime", "\"fsdp2\""),
    ("topology", "{}"),
    ("topology.name", "\"\""),
    ("model", "{}"),
    ("mesh", "{}"),
    ("batch", "{}"),
    ("batch.sequence", "1"),
    ("lora.rank", "8"),
    ("lora.modules", "[\"all-linear\"]"),
    ("float8.recipe", "\"tensorwise\""),
    ("fsdp.override.blocks", "[0, 1]"),
    ("fsdp.override.reshard_after_forward", "true"),
];

/// A key in a table.
fn path(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// What stands in for a key that a file must have.
fn stand_in(path: &str) -> Option<Spanned<DeValue<'static>>> {
    let (_, text) = REQUIRED.iter().find(|(required, _)| *required == path)?;
    let mut value = DeValue::parse(text).ok()?.into_inner();
    if let DeValue::Table(table) = &mut value {
        for (required, _) in REQUIRED {
            if let Some((_, key)) = required.rsplit_once('.').filter(|(table, _)| *table == path) {
                table.insert(Spanned::new(NOWHERE, key.into()), stand_in(required)?);
            }
        }
    }
    Some(Spanned::new(NOWHERE, value))
}

/// The tables of a value: itself, or those of a list.
fn tables<'v, 't>(value: &'v mut Spanned<DeValue<'t>>) -> Vec<(Range<usize>, &'v mut DeTable<'t>)> {
    let span = value.span();
    match value.get_mut() {
        DeValue::Table(table) => vec![(span, table)],
        DeValue::Array(list) => list.iter_mut().flat_map(tables).collect(),
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            vec![]
        }
    }
}

/// Takes out the innermost key whose name or value holds a byte of the text, and says which; a key that there must be gets a value that
/// is read.
pub(super) fn without(table: &mut DeTable<'_>, above: &str, at: usize) -> Option<String> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let here = path(above, key.get_ref());
        if key.span().contains(&at) {
            found = Some((key.clone(), here));
            break;
        }
        let span = value.span();
        let inner = tables(value).into_iter().find_map(|(_, table)| without(table, &here, at));
        if let Some(inner) = inner {
            // A choice without its value, `{ every = … }`, is none.
            if above.is_empty() || value.get_ref().as_table().is_none_or(|left| !left.is_empty()) {
                return Some(inner);
            }
            found = Some((key.clone(), inner));
            break;
        }
        if span.contains(&at) {
            found = Some((key.clone(), here));
            break;
        }
    }
    let (key, which) = found?;
    match stand_in(&path(above, key.get_ref())) {
        Some(value) => table.insert(key, value),
        None => table.remove::<str>(key.get_ref()),
    };
    Some(which)
}

/// Adds a key that there must be to the table that lacks it, and says which; `at` is where the table stands.
pub(super) fn with(file: &mut DeTable<'_>, key: &str, at: &Range<usize>) -> Option<String> {
    let ends = |(required, _): &&(&str, &str)| required.rsplit('.').next() == Some(key);
    REQUIRED.iter().filter(ends).find_map(|(required, _)| {
        let lacks = match required.rsplit_once('.') {
            None => (!file.contains_key::<str>(key)).then_some(&mut *file),
            Some((above, _)) => inside(file, above, &|span, table| span == at && !table.contains_key::<str>(key)),
        };
        lacks?.insert(Spanned::new(NOWHERE, key.to_owned().into()), stand_in(required)?);
        Some((*required).to_owned())
    })
}

/// A table by its path, the first such of a list.
fn inside<'v, 't>(
    file: &'v mut DeTable<'t>,
    path: &str,
    is_it: &dyn Fn(&Range<usize>, &DeTable<'t>) -> bool,
) -> Option<&'v mut DeTable<'t>> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let all = tables(file.get_mut::<str>(name)?);
    all.into_iter().find_map(|(span, table)| match rest {
        Some(rest) => inside(table, rest, is_it),
        None => is_it(&span, table).then_some(table),
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::scenario::{keys, written};
    use crate::tables::Node;

    /// Fills in what a file lacks, until it is read.
    fn filled(text: &str) {
        let mut file = DeTable::parse(text).expect("it is TOML");
        for _ in 0..=REQUIRED.len() {
            let Err(error) = written::Scenario::deserialize(&Node::from(&file)) else { return };
            let key = error.message().split('`').nth(1).expect("a key");
            let span = error.span().expect("a place");
            assert!(with(file.get_mut(), key, &span).is_some(), "{}", error.message());
        }
        panic!("{file:?}");
    }

    #[test]
    fn every_key_that_a_file_must_have_has_a_value_that_is_read() {
        filled("");
        let tables = keys::TABLES.iter().skip(1).map(|table| format!("[{}]\n", table.name));
        let inner = "[[fsdp.override]]\n[zero.aio]\n[zero.offload_optimizer]\n[zero.offload_param]\n";
        filled(&(tables.collect::<String>() + inner));
    }
}
