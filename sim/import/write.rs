//! The scenario of an imported configuration, with a comment on every key.

use std::fmt::Write as _;

use toml::Value;

use super::imported::{Entry, Imported};
use super::why::Why;
use crate::scenario::keys::TABLES;

/// A line that is longer has its comment above it.
const WIDTH: usize = 130;

impl Imported {
    /// The scenario's text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "# {}: imported as a configuration of {} ({}).",
            plain(&self.file),
            self.of,
            plain(&self.basis)
        );
        for note in &self.notes {
            let _ = writeln!(out, "# {}", plain(note));
        }
        let left = self.left_out();
        let left = (!left.is_empty()).then(|| Entry {
            key: "framework.not_simulated".to_owned(),
            value: Value::from(left),
            why: Why::code("keys of the file that matter and are not modelled, or that nobody knows"),
        });
        for table in TABLES.map(|table| table.name) {
            let mut keys: Vec<&Entry> =
                self.entries.iter().chain(&left).filter(|entry| split(&entry.key).0 == table).collect();
            keys.sort_by_key(|entry| rank(&entry.key));
            if keys.is_empty() {
                continue;
            }
            if !table.is_empty() {
                let _ = write!(out, "\n[{table}]");
            }
            out.push('\n');
            for entry in keys {
                let line = format!("{} = {}", split(&entry.key).1, entry.value);
                let why = plain(&entry.why.to_string());
                if line.contains('\n') || line.chars().count() + why.chars().count() > WIDTH {
                    let _ = writeln!(out, "# {why}\n{line}");
                } else {
                    let _ = writeln!(out, "{line} # {why}");
                }
            }
        }
        self.aside(&mut out);
        out
    }

    /// What was left aside.
    fn aside(&self, out: &mut String) {
        if !self.idle.is_empty() {
            out.push_str("\n# Without effect on time or memory:\n");
            let list = self.idle.iter().map(|key| plain(key)).collect::<Vec<_>>().join(", ");
            for line in textwrap::wrap(&list, WIDTH - 10) {
                let _ = writeln!(out, "#   {line}");
            }
        }
    }

    /// What a user should know before trusting the scenario, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let unmodelled = self
            .unmodelled
            .iter()
            .map(|left| format!("{} = {} ({}) is not modelled: {}", left.key, left.value, left.place, left.changes));
        let unknown = self.unknown.iter().map(|key| format!("{key} is no key of {}: it was passed over", self.of));
        unmodelled.chain(unknown).map(|line| plain(&line)).collect()
    }
}

/// Text that fits into one line of a comment.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

/// Keys of the first tables come in the order that people write them.
fn rank(key: &str) -> usize {
    let first = ["description", "runtime", "topology.name", "model.name", "batch.sequence", "batch.micro"];
    first.iter().position(|known| *known == key).unwrap_or(first.len())
}
