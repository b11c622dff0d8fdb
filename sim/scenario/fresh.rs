//! A scenario to begin with: the few things that somebody must say, and every default that was taken, as a comment beside its meaning.

use std::fmt::Write as _;

use super::assumption::Taken;
use super::error::ScenarioError;
use super::keys::words::about;
use super::keys::{self, TABLES, Table};
use super::understood::Scenario;
use crate::hardware::{Size, Topology};

/// What somebody must say of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fresh {
    /// The framework, as scenarios name it.
    pub runtime: String,
    /// The model: a shipped one's name, or a path.
    pub model: String,
    /// The topology: a shipped one's name, or a path.
    pub topology: String,
    /// Its nodes, of GPUs.
    pub nodes: Option<u32>,
    /// Some chips of a node.
    pub chips: Option<u32>,
    /// A slice of a TPU pod.
    pub slice: Option<String>,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences of a micro-batch.
    pub micro: u64,
}

impl Fresh {
    /// Keys that are said, by table.
    fn said(&self, chips: u32) -> Vec<(&'static str, &'static str, String)> {
        let text = |text: &str| toml::Value::from(text).to_string();
        let mut said = vec![("", "runtime", text(&self.runtime)), ("topology", "name", text(&self.topology))];
        said.extend(self.nodes.map(|nodes| ("topology", "nodes", nodes.to_string())));
        said.extend(self.chips.map(|chips| ("topology", "chips", chips.to_string())));
        said.extend(self.slice.as_ref().map(|slice| ("topology", "slice", text(slice))));
        let is_file = self.model.to_lowercase().ends_with(".json") || self.model.contains(['/', '\\']);
        said.push(("model", if is_file { "huggingface" } else { "name" }, text(&self.model)));
        // All chips share the parameters where the framework shards them; where it splits the model, nothing is split yet.
        let reads = |key: &str| {
            keys::table("mesh").is_some_and(|mesh| {
                mesh.keys.iter().any(|known| known.name() == key && known.is_read_by(&self.runtime))
            })
        };
        let mesh = [("dp_shard", chips), ("fsdp", chips), ("tp", 1), ("dp", chips), ("dp_replicate", chips)]
            .into_iter()
            .find(|(key, _)| reads(key));
        said.extend(mesh.map(|(key, ranks)| ("mesh", key, ranks.to_string())));
        // ZeRO's stage is what its users say first: parameters, gradients and optimizer states are sharded.
        let zero = keys::table("zero").is_some_and(|zero| zero.is_read_by(&self.runtime));
        said.extend(zero.then(|| ("zero", "stage", "3".to_owned())));
        said.push(("batch", "sequence", self.sequence.to_string()));
        said.push(("batch", "micro", self.micro.to_string()));
        said
    }

    /// The scenario's text, for a file of this name; it has been understood once, so it can be run.
    ///
    /// # Errors
    /// What does not fit together, as for any scenario.
    pub fn text(&self, file: &str) -> Result<(String, Scenario), ScenarioError> {
        let size = match &self.slice {
            Some(slice) => Size::Slice(slice.clone()),
            None => Size::Nodes(self.nodes.unwrap_or(1)),
        };
        // A machine that is not known is refused as the scenario's own.
        let all = || Topology::load(&self.topology, &size).map_or(1, |topology| topology.chips());
        let chips = self.chips.unwrap_or_else(all);
        let bare = self.write(chips, &[]);
        let scenario = Scenario::parse(file, &bare)?;
        let taken: Vec<&Taken> = scenario.assumptions.iter().filter_map(|line| line.taken()).collect();
        let text = self.write(chips, &taken);
        let scenario = Scenario::parse(file, &text)?;
        Ok((text, scenario))
    }

    fn write(&self, chips: u32, taken: &[&Taken]) -> String {
        let said = self.said(chips);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "# Predict it: windtunnel run FILE. Every line can be changed; a line behind # is the default that is taken."
        );
        let _ = writeln!(out, "# What a key means: windtunnel explain KEY.\n");
        let tables = TABLES.into_iter().filter(|table| table.is_read_by(&self.runtime) || table.name.is_empty());
        for table in tables {
            self.table(&mut out, table, &said, taken);
        }
        out.trim_end().to_owned() + "\n"
    }

    fn table(&self, out: &mut String, table: &Table, said: &[(&str, &str, String)], taken: &[&Taken]) {
        let own: Vec<_> = said.iter().filter(|(name, ..)| *name == table.name).collect();
        let defaults: Vec<(&str, &Taken)> = taken
            .iter()
            .filter_map(|taken| {
                let key = if table.name.is_empty() {
                    Some(taken.key.as_str()).filter(|key| !key.contains('.'))
                } else {
                    taken.key.strip_prefix(table.name).and_then(|rest| rest.strip_prefix('.'))
                };
                Some((key?, *taken))
            })
            .collect();
        if own.is_empty() && defaults.is_empty() {
            return;
        }
        if !table.name.is_empty() {
            let mark = if own.is_empty() { "# " } else { "" };
            let _ = writeln!(out, "{mark}[{}] # {}", table.name, table.help);
        }
        let help = |name: &str| table.keys.iter().find(|key| key.name() == name).map(about).unwrap_or_default();
        for (_, key, value) in own {
            let _ = writeln!(out, "{key} = {value} # {}", help(key));
        }
        for (key, taken) in defaults {
            let why = taken.why.as_ref().map(|why| format!(" Taken: {why}.")).unwrap_or_default();
            let line = format!("# {key} = {} # {}{why}", taken.value, help(key)).replace('\n', " ");
            let _ = writeln!(out, "{}", line.trim_end().trim_end_matches(" #"));
        }
        out.push('\n');
    }
}
