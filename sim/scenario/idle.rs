//! Keys that a plan never reads, each with why. Frameworks take most of them in silence; the report names them.
//!
//! A rule says when keys go unread. Of its keys, those in the file are named in [`super::Scenario::idle`], and of the others no
//! default is listed. To add one: a line in the table of its framework. `tests/every_key.rs` finds keys that no rule names, and
//! rules that name a key which has an effect.

mod megatron;
mod rule;
mod train;
mod xla;

use rule::{Plan, Rule};

use toml::{Table, Value};

use super::entry::Runtime;
use super::reader::Reader;
use crate::hardware::Topology;
use crate::runtime::{Job, Parts};

/// Rules for every runtime.
const SHARED: &[Rule<Job>] =
    &[Rule(&["topology.nic_bandwidth"], |plan| plan.topology.nodes <= 1, "one node, and nothing crosses the network")];

/// The keys of rules that hold, and why.
fn holding<J>(rules: &'static [Rule<J>], plan: &Plan<'_, J>) -> Vec<(&'static str, &'static str)> {
    let hold = rules.iter().filter(|Rule(_, unread, _)| unread(plan));
    hold.flat_map(|Rule(keys, _, why)| keys.iter().map(|key| (*key, *why))).collect()
}

/// Whether a file has a key.
fn has(file: &Table, key: &str) -> bool {
    let (tables, key) = key.rsplit_once('.').unwrap_or(("", key));
    let mut parts = tables.split('.').filter(|part| !part.is_empty());
    parts
        .try_fold(file, |table, part| table.get(part).and_then(Value::as_table))
        .is_some_and(|table| table.contains_key(key))
}

/// Notes the keys of the file that its plan does not read, and drops the defaults of others that it does not read either.
pub(super) fn find(reader: &mut Reader<'_>, (runtime, topology): (Runtime, &Topology), job: &Job) {
    let mut unread = holding(SHARED, &Plan { runtime, topology, job });
    unread.extend(match job.parts() {
        Parts::Whole(job) => holding(train::RULES, &Plan { runtime, topology, job }),
        Parts::Split(job) => holding(megatron::RULES, &Plan { runtime, topology, job }),
        Parts::Compiled(job) => holding(xla::RULES, &Plan { runtime, topology, job }),
    });
    for (key, why) in unread {
        reader.assumptions.retain(|assumption| assumption.key() != Some(key));
        if has(reader.table, key) && !reader.idle.iter().any(|idle| idle.key == key) {
            reader.idle(key, why);
        }
    }
}
