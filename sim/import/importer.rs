//! What an importer is, and what it is asked: a configuration and the machine that the command line names.

use serde_json::{Map, Value};

use super::error::ImportError;
use super::imported::Imported;

/// Reads arguments and variables of the environment that stand in tables, such as those of a measured run.
pub type Tables = fn(&Request<'_>, &Map<String, Value>, &Map<String, Value>) -> Result<Imported, ImportError>;

/// Reads the configurations of one framework.
#[derive(Debug)]
pub struct Importer {
    /// The name that a user writes.
    pub name: &'static str,
    /// What it reads, in a few words.
    pub reads: &'static str,
    /// By what its files are told from others', in a few words.
    pub marks: &'static str,
    /// Whether a text looks like such a configuration. It must not take another framework's for its own.
    pub sniff: fn(&str) -> bool,
    /// Reads one.
    pub read: fn(&Request<'_>) -> Result<Imported, ImportError>,
    /// Reads what stands in tables; none where nobody has written that.
    pub tables: Option<Tables>,
}

/// Flags that name a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// `--on`: a shipped topology, or the path of a file.
    pub on: Option<String>,
    /// `--nodes`.
    pub nodes: Option<u32>,
    /// `--chips`: some chips of one node, or of each of `--nodes`.
    pub chips: Option<u32>,
    /// `--slice`: of a TPU pod.
    pub slice: Option<String>,
    /// `--slices`.
    pub slices: Option<u32>,
}

/// A configuration and what stands beside it on the command line.
#[derive(Clone, Debug, Default)]
pub struct Request<'r> {
    /// What errors and comments call the file.
    pub file: &'r str,
    /// Its text.
    pub text: &'r str,
    /// Words of the command line that change it, as the framework writes them.
    pub overrides: &'r [String],
    /// The machine, which configurations do not name.
    pub machine: Machine,
    /// The framework's release, if the user names it.
    pub version: Option<&'r str>,
    /// The path of a Hugging Face `config.json`, for configurations that name no model.
    pub model: Option<&'r str>,
}
