//! `[failures]` and `[checkpoint]`: what `run --for` reads of a training that is interrupted.

use serde::Deserialize;
use toml::Spanned;

use crate::units::{Bandwidth, Span};

/// `[failures]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failures {
    /// Shipped rates, or the path of a file.
    pub rates: Option<Spanned<String>>,
    /// Mean time between unexpected interruptions of the whole job, in place of rates.
    pub mean_time_between: Option<Spanned<Span>>,
    /// Whether what the rates' study planned interrupts the job, too.
    pub planned: Option<Spanned<bool>>,
    /// From an interruption until it is known what has failed.
    pub detection: Option<Spanned<Span>>,
    /// From there until processes are up and connected.
    pub restart: Option<Spanned<Span>>,
    /// What compiling takes after a restart.
    pub recompile: Option<Spanned<Span>>,
    /// Nodes that wait to take the place of others.
    pub spares: Option<Spanned<Spares>>,
    /// How long it takes until a spare node is part of the job.
    pub replacement: Option<Spanned<Span>>,
    /// How long a node is away that has failed.
    pub repair: Option<Spanned<Span>>,
    /// Whether the job goes on with fewer replicas where no spare is left.
    pub elastic: Option<Spanned<bool>>,
    /// How many trainings are drawn.
    pub draws: Option<Spanned<i64>>,
    /// Which trainings are drawn.
    pub seed: Option<Spanned<i64>>,
}

/// Spare nodes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged, expecting = "expected \"enough\", or a number of nodes such as 4")]
pub enum Spares {
    /// So many.
    Nodes(i64),
    /// `enough`.
    Text(String),
}

/// `[checkpoint]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// How often one is saved.
    pub every: Option<Spanned<Every>>,
    /// What storage takes from the whole job.
    pub storage_bandwidth: Option<Spanned<Bandwidth>>,
    /// What storage gives to the whole job.
    pub load_bandwidth: Option<Spanned<Bandwidth>>,
    /// Whether training goes on once the state is in host memory.
    pub asynchronous: Option<Spanned<bool>>,
}

/// How often a checkpoint is saved.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged, expecting = "expected \"best\", a time such as \"30 min\", or a number of steps such as 500")]
pub enum Every {
    /// Every so many steps.
    Steps(i64),
    /// `best`, or a time.
    Text(String),
}
