//! The sections of a profile as text: taken apart, replaced one by one, and put together again to the byte.
//!
//! A profile is edited section by section so that what is kept stays as it was written, comments included, and a
//! `diff` shows exactly what changed. A section is what one measurement makes: `matmul.bf16` with its table and points,
//! one kind of attention kernel, one family of memory-bound kernels.
//!
//! Of two sections of one name the one with the stronger [`Basis`] wins: measured beats published, published beats
//! extrapolated. Among equals the newcomer wins.

use serde::Deserialize;

use super::basis::{Basis, Evidence};
use crate::tables;

/// A section's name and its text, from its first comment to the next section's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Such as `matmul.bf16` or `attention.kernels cudnn backward d128 causal`.
    pub name: String,
    /// TOML, with what stood around it.
    pub text: String,
}

/// A profile's text: what comes before the first section, and sections in the file's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Format, name and summary.
    pub head: String,
    /// The sections.
    pub list: Vec<Section>,
}

/// What became of a section of which there were two.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The section.
    pub name: String,
    /// Whether the newcomer's is used.
    pub taken: bool,
    /// Why, for people.
    pub why: String,
}

impl Sections {
    /// Takes a profile's text apart; putting it together again gives the same bytes.
    pub fn of(text: &str) -> Sections {
        let mut sections = Sections { head: String::new(), list: vec![] };
        // Comments right above a section belong to it.
        let mut pending = String::new();
        // Within an array of several lines, brackets and hashes mean nothing.
        let mut open = false;
        for line in text.split_inclusive('\n') {
            if !open && line.starts_with('#') {
                pending.push_str(line);
                continue;
            }
            if !open && line.starts_with('[') {
                sections.list.push(Section { name: header(line), text: String::new() });
            } else {
                open = if open { !line.starts_with(']') } else { line.trim_end().ends_with('[') };
            }
            let text = sections.list.last_mut().map_or(&mut sections.head, |section| &mut section.text);
            text.push_str(&std::mem::take(&mut pending));
            text.push_str(line);
        }
        let text = sections.list.last_mut().map_or(&mut sections.head, |section| &mut section.text);
        text.push_str(&pending);
        sections.join();
        sections
    }

    /// Puts what belongs together under one name: `matmul.bf16.waves` to `matmul.bf16`.
    fn join(&mut self) {
        let mut joined: Vec<Section> = vec![];
        for mut section in self.list.drain(..) {
            section.name = group(&section);
            match joined.last_mut().filter(|last| last.name == section.name) {
                Some(last) => last.text.push_str(&section.text),
                None => joined.push(section),
            }
        }
        self.list = joined;
    }

    /// The whole text.
    pub fn text(&self) -> String {
        let sections = self.list.iter().map(|section| section.text.as_str());
        std::iter::once(self.head.as_str()).chain(sections).collect()
    }

    /// A section by name.
    pub fn get(&self, name: &str) -> Option<&Section> {
        self.list.iter().find(|section| section.name == name)
    }

    /// Puts a section in the place of the one of its name, or behind the last of its family (`attention.…`).
    pub fn put(&mut self, section: Section) {
        if let Some(same) = self.list.iter_mut().find(|known| known.name == section.name) {
            same.text = ended(&section.text);
            return;
        }
        let family = |name: &str| name.split(['.', ' ']).next().unwrap_or_default().to_owned();
        let own = family(&section.name);
        let last = self.list.iter().rposition(|known| family(&known.name) == own);
        let at = last.map_or(self.list.len(), |last| last + 1);
        if let Some(before) = at.checked_sub(1) {
            self.list[before].text = ended(&self.list[before].text);
        }
        self.list.insert(at, Section { text: ended(&section.text), ..section });
    }

    /// Takes over every section of `newcomer` that has the stronger evidence, and says why for each.
    pub fn merge(&mut self, newcomer: &Sections) -> Vec<Decision> {
        let mut decisions = vec![];
        for section in newcomer.list.iter().filter(|section| section.name != "machine") {
            let (taken, why) = match (self.get(&section.name), section.evidence()) {
                (None, _) => (true, "there was none".to_owned()),
                (Some(own), _) if own.text.trim() == section.text.trim() => continue,
                (Some(own), theirs) => compare(own.evidence().as_ref(), theirs.as_ref()),
            };
            if taken {
                self.put(section.clone());
            }
            decisions.push(Decision { name: section.name.clone(), taken, why });
        }
        decisions
    }
}

/// Whether the newcomer wins, and why.
fn compare(own: Option<&Evidence>, theirs: Option<&Evidence>) -> (bool, String) {
    match (own, theirs) {
        (Some(own), Some(theirs)) => {
            let (a, b) = (words(theirs), words(own));
            match theirs.basis.cmp(&own.basis) {
                std::cmp::Ordering::Less => (true, format!("{a} beats {b}")),
                std::cmp::Ordering::Equal => (true, format!("{a}, the newcomer, replaces {b}")),
                std::cmp::Ordering::Greater => (false, format!("{b} beats {a}")),
            }
        }
        // `attention` and `collectives` have a line or two without evidence of their own.
        _ => (false, "it has no evidence of its own: the one there was stays".to_owned()),
    }
}

fn words(evidence: &Evidence) -> String {
    match evidence.points {
        0 => evidence.basis.label().to_owned(),
        points => format!("{} ({points} points, error {:.1} %)", evidence.basis.label(), 100.0 * evidence.median),
    }
}

/// A section's text with an empty line behind it.
fn ended(text: &str) -> String {
    format!("{}\n\n", text.trim_end())
}

/// The name between the brackets.
fn header(line: &str) -> String {
    line.trim_start_matches('[').split(']').next().unwrap_or_default().trim().to_owned()
}

/// The name under which a table is merged.
fn group(section: &Section) -> String {
    let parts: Vec<&str> = section.name.split('.').collect();
    match parts.as_slice() {
        ["attention", "kernels"] => kernel(section),
        ["cublas"] => "cublas".to_owned(),
        ["matmul", dtype, ..] => format!("matmul.{dtype}"),
        ["collectives", "node", "pair"] => section.name.clone(),
        [first, second, ..] => format!("{first}.{second}"),
        _ => section.name.clone(),
    }
}

/// An attention kernel is known by library, pass, head dimension and mask.
fn kernel(section: &Section) -> String {
    #[derive(Deserialize)]
    struct Written {
        attention: Kernels,
    }
    #[derive(Deserialize)]
    struct Kernels {
        kernels: Vec<super::attention::Kernel>,
    }
    let written: Option<Written> = tables::read(&section.text).ok();
    match written.as_ref().and_then(|written| written.attention.kernels.first()) {
        Some(k) => {
            let cut = k.blocks.map_or(String::new(), |blocks| {
                let fused = if blocks.fused { "" } else { " not fused" };
                format!(" b{}{fused}", blocks.size)
            });
            format!(
                "attention.kernels {} {} d{} {}{cut}",
                k.backend.name(),
                if k.backward { "backward" } else { "forward" },
                k.head_dim,
                if k.causal { "causal" } else { "full" },
            )
        }
        None => section.name.clone(),
    }
}

impl Section {
    /// What it rests on: the strongest of the evidences in it, if it has any.
    pub fn evidence(&self) -> Option<Evidence> {
        let table: toml::Table = tables::read(&self.text).ok()?;
        let mut found: Vec<Evidence> = vec![];
        collect(&toml::Value::Table(table), &mut found);
        found.into_iter().min_by_key(|evidence| evidence.basis)
    }

    /// The strongest basis in it.
    pub fn basis(&self) -> Option<Basis> {
        self.evidence().map(|evidence| evidence.basis)
    }
}

fn collect(value: &toml::Value, found: &mut Vec<Evidence>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                match key.as_str() {
                    "evidence" => found.extend(value.clone().try_into::<Evidence>().ok()),
                    _ => collect(value, found),
                }
            }
        }
        toml::Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Profile;

    #[test]
    fn a_profile_taken_apart_and_put_together_is_the_same_to_the_byte() {
        for (name, text) in super::super::registry::SHIPPED {
            let sections = Sections::of(text);
            assert_eq!(sections.text(), text, "{name}");
            let names: Vec<&str> = sections.list.iter().map(|section| section.name.as_str()).collect();
            let fabric = if name.starts_with("tpu") { "collectives.torus" } else { "collectives.across" };
            for expected in ["machine", "matmul.bf16", "layout", "memory.stream", "overlap.matmul", fabric] {
                assert!(names.contains(&expected), "{name} has no {expected}: {names:?}");
            }
            let mut sorted = names.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), names.len(), "{name}: a section occurs twice in {names:?}");
        }
    }

    #[test]
    fn what_was_measured_beats_what_was_published_and_the_rest_stays() {
        let (_, text) = super::super::registry::SHIPPED[4];
        let mut base = Sections::of(text);
        let new = "[layout]\ndata_gradient = 1.02\nweight_gradient = 1.03\n\
                   evidence = { basis = \"measured\", points = 7, median = 0.01, p90 = 0.02, source = \"here\" }\n\
                   [memory.gather]\nshare = 0.5\n\
                   evidence = { basis = \"assumed\", points = 0, median = 0.01, p90 = 0.02, source = \"here\" }\n\
                   [memory.copy]\nshare = 0.5\n\
                   evidence = { basis = \"assumed\", points = 0, median = 0.01, p90 = 0.02, source = \"here\" }\n";
        let decisions = base.merge(&Sections::of(new));
        let taken: Vec<(&str, bool)> = decisions.iter().map(|d| (d.name.as_str(), d.taken)).collect();
        assert_eq!(taken, [("layout", true), ("memory.gather", true), ("memory.copy", false)]);
        assert!(decisions[0].why.starts_with("measured (7 points, error 1.0 %) beats published"), "{decisions:?}");
        let merged = Profile::parse("merged", &base.text()).expect("still a profile");
        assert!((merged.layout.data_gradient - 1.02).abs() < 1e-12);
        let changed = base.text().lines().zip(text.lines()).filter(|(a, b)| a != b).count();
        assert!(changed > 0 && base.text().contains("[matmul.bf16.table]"));
    }
}
