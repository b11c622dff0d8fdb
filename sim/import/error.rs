//! Why a configuration could not be imported, with its place and what to try.

use crate::model::huggingface::ModelError;
use crate::scenario::ScenarioError;

/// A configuration that makes no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// No importer has that name.
    #[error("there is no importer {name:?}{near}\nwrite one of {known}")]
    Framework {
        /// As written.
        name: String,
        /// What may be meant.
        near: String,
        /// All names.
        known: String,
    },
    /// No importer takes the file for its framework's, and it is no scenario.
    #[error(
        "{file} is {kind}, and neither a scenario (TOML with runtime and [topology]) nor a configuration that an importer knows by its marks:\n{tried}\nname the framework: windtunnel import NAME {file} --on h100-sxm-80gb --nodes 1, or begin with a model: windtunnel run llama-3.1-8b --on h100-sxm-80gb:1"
    )]
    Nobody {
        /// The file.
        file: String,
        /// What it looks like.
        kind: &'static str,
        /// Importers, each with what its files have.
        tried: String,
    },
    /// Two importers take the file for theirs.
    #[error(
        "{file} may be a configuration of {names}\nsay which: windtunnel import {first} {file} --on h100-sxm-80gb --nodes 1"
    )]
    Ambiguous {
        /// The file.
        file: String,
        /// Candidates.
        names: String,
        /// One of them.
        first: &'static str,
    },
    /// The file cannot be read as what it should be.
    #[error("{place}: {problem}\n{remedy}")]
    Syntax {
        /// `file:line`.
        place: String,
        /// What is wrong.
        problem: String,
        /// What to try.
        remedy: String,
    },
    /// A key has a value that it cannot have.
    #[error("{place}: {key} is {found}, and must be {expected}\nwrite {remedy}")]
    Value {
        /// `file:line`.
        place: String,
        /// The source key.
        key: String,
        /// The value.
        found: String,
        /// What it should be.
        expected: String,
        /// What to write.
        remedy: String,
    },
    /// A key that must be there is not.
    #[error("{file} has no {key}: it must be {expected}\n{remedy}")]
    Missing {
        /// The file.
        file: String,
        /// The source key.
        key: String,
        /// What it should be.
        expected: String,
        /// What to try.
        remedy: String,
    },
    /// Something that makes another program than any that is simulated.
    #[error("{place}: {what} is not simulated\n{remedy}")]
    Unsupported {
        /// `file:line`.
        place: String,
        /// What it is.
        what: String,
        /// What to try.
        remedy: String,
    },
    /// The model's configuration is none.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// The machine is not named, or not in full.
    #[error("{problem}\nsuch as: windtunnel import {framework} {file} {example}")]
    Machine {
        /// What is missing.
        problem: String,
        /// The importer.
        framework: &'static str,
        /// The file.
        file: String,
        /// Flags that would do.
        example: String,
    },
    /// The scenario that comes of it is refused.
    #[error(
        "{file} was read, and the scenario that it makes is refused (its lines say where each key comes from):\n{why}"
    )]
    Refused {
        /// The file.
        file: String,
        /// Why.
        why: Box<ScenarioError>,
    },
}
