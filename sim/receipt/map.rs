//! From a row to a scenario: what the row states, then what its framework's table adds.

mod effective;
mod keys;
mod mapped;
mod measured;
mod model;
mod own;
mod scope;
mod stages;
mod stated;

pub use mapped::{Assumption, Mapped, Reason};

use effective::effective;
use keys::Gathered;
use measured::{measured, source};
use scope::{adapted, beyond};
use stated::{accumulation, stated};

use super::pattern::matches;
use super::read::Entry;
use super::table::{Rule, Table, Tables, switches, word};
use crate::scenario::Runtime;

/// Maps a row, or says why not.
pub fn map(entry: &Entry, tables: &Tables) -> Result<Mapped, Reason> {
    let (row, whole) = (&entry.row, entry.value());
    let framework = row.framework.name.as_deref().unwrap_or("");
    let known = tables.of(framework, row.framework.version.as_deref(), row.vendor());
    let distrusted = |field: &str| known.is_some_and(|(_, table)| table.distrust.contains_key(field));
    if let Some(what) = row.contradiction(distrusted) {
        return Err(Reason::Contradiction(what));
    }
    if let Some((open, degree)) = row.open().filter(|(open, _)| open.len() > 1) {
        let which = open.join(" nor ");
        return Err(Reason::Uncovered(format!("states neither {which}, which come to {degree} together")));
    }
    let Some((common, table)) = known else {
        beyond(row, &whole, "")?;
        return Err(Reason::Uncovered(format!("no table of defaults for the framework {framework:?}")));
    };
    let seen = effective(row, &whole, [common, table]);
    let row = &seen.row;
    let rules: Vec<&Rule> = common.rules.iter().chain(&table.rules).filter(|rule| rule.holds(&seen.value)).collect();
    let runtime = rules.iter().rev().find_map(|rule| rule.set.get("runtime")?.as_str()).unwrap_or("");
    beyond(row, &whole, runtime)?;
    if let Some(why) = rules.iter().find_map(|rule| rule.outside.clone()) {
        return Err(Reason::Outside(why));
    }
    if adapted(&whole) && !rules.iter().any(|rule| rule.set.contains_key("lora")) {
        return Err(Reason::Outside("LoRA, in a framework whose adapters are not described".to_owned()));
    }
    if let Some(why) = rules.iter().find_map(|rule| rule.refuse.clone()) {
        return Err(Reason::Uncovered(why));
    }
    let mut assumed = seen.assumed;
    let mut keys = Gathered::default();
    if let Some(release) = seen.unknown_release {
        keys.stated("framework.unknown_release", release);
    }
    match own::arguments(table, &whole) {
        Some(own) => {
            for rule in rules.iter().filter(|rule| rule.beside_arguments) {
                keys.apply(rule, &seen.value);
            }
            own.read(row, &mut keys)?;
        }
        None => {
            let unknown = unknown(&whole, &rules, [table, common])?;
            keys.left_out(rules.iter().filter_map(|rule| rule.left_out.clone()).chain(unknown).collect());
            stated(row, runtime, &mut keys)?;
            model::named(&seen.model, &mut keys);
            for rule in rules {
                keys.apply(rule, &seen.value);
            }
            model::sized(row, &seen.model, &mut keys)?;
            if Runtime::find(runtime).is_some_and(Runtime::splits_model) && runtime != "nanotron" {
                stages::uneven(row, &whole, &mut keys)?;
            }
            keys.without_idle();
            accumulation(row, &mut keys)?;
        }
    }
    measured(row, &mut keys)?;
    for needed in ["runtime", "topology.name", "batch.sequence"] {
        if keys.get(needed).is_none() {
            let what = match needed {
                "topology.name" => {
                    format!("no topology for the hardware {:?}", row.hardware.name.as_deref().unwrap_or(""))
                }
                "batch.sequence" => "states no sequence length".to_owned(),
                _ => format!("the table of {framework:?} names no runtime"),
            };
            return Err(Reason::Uncovered(what));
        }
    }
    // An id or a path may hold the end of a line, a comment may not.
    let words = format!("{}: {}", row.id, source(row)).replace(char::is_control, " ");
    let comment = format!("# {words}\n# Mapped from {}:{}.", entry.file, entry.line);
    assumed.extend(keys.assumptions());
    Ok(Mapped { assumptions: assumed, text: keys.text(&comment) })
}

/// Switches of a row that nothing here knows, unless they surely have an effect.
fn unknown(row: &serde_json::Value, rules: &[&Rule], tables: [&Table; 2]) -> Result<Vec<String>, Reason> {
    let mut left = vec![];
    for field in switches(row) {
        if rules.iter().any(|rule| rule.when.contains_key(&field))
            || tables.iter().any(|table| table.ignore.contains_key(&field))
        {
            continue;
        }
        let value = word(row, &field).unwrap_or_default();
        let off = ["false", "none", "0", "off", "no", ""].contains(&value.to_lowercase().as_str());
        let matters =
            tables.iter().flat_map(|table| &table.matters).find(|(pattern, _)| matches(pattern, Some(&field)));
        match matters.filter(|_| !off) {
            Some((_, why)) => return Err(Reason::Uncovered(format!("{field} = {value:?}: {why}"))),
            None if off => {}
            None => left.push(format!("{field} = {value:?}: not known here")),
        }
    }
    Ok(left)
}
