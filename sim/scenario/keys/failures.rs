//! `[failures]` and `[checkpoint]`: what `run --for` reads of a training that is interrupted.

use serde::Deserialize;
use toml::Spanned;

use super::readers::ALL;
use super::row::Kind::{Other, Quantity};
use super::row::between;
use crate::units::{Bandwidth, Span};

keys! {
    /// What interrupts the training, and what it takes to go on. Only `windtunnel run --for` reads it.
    #[derive(Debug, Default, Deserialize)]
    ["failures"] Failures in Rest;

    /// How often components interrupt a job: `llama3-h100`, `opt-a100`, `rsc1-a100`, `rsc2-a100`, `tpu-v4`, or the
    /// path of a file.
    rates: Option<Spanned<String>> => ALL.such_as("\"llama3-h100\"");
    /// Mean time between unexpected interruptions of the whole job, in place of `rates`.
    mean_time_between: Option<Spanned<Span>> as Quantity("3 h") => ALL;
    /// Whether the job is also interrupted by plan, as the study of `rates` was.
    planned: Option<Spanned<bool>> => ALL;
    /// From an interruption until it is known which node has failed.
    detection: Option<Spanned<Span>> as Quantity("10 min") => ALL;
    /// From there until all processes are up and connected.
    restart: Option<Spanned<Span>> as Quantity("5 min") => ALL;
    /// What compiling takes after each restart.
    recompile: Option<Spanned<Span>> as Quantity("2 min") => ALL;
    /// Nodes that wait to take the place of a node that fails.
    spares: Option<Spanned<Spares>> as Other("\"enough\", or a number of nodes") => ALL;
    /// How long it takes until a spare node is part of the job.
    replacement: Option<Spanned<Span>> as Quantity("5 min") => ALL;
    /// How long a node is away that has failed. A number of spares needs it.
    repair: Option<Spanned<Span>> as Quantity("2 d") => ALL;
    /// Whether the job goes on with fewer replicas of the model where no spare is left.
    elastic: Option<Spanned<bool>> => ALL;
    /// How many trainings are drawn.
    draws: Option<Spanned<i64>> as between(1, 100_000) => ALL.such_as("400");
    /// Which trainings are drawn: another seed draws others.
    seed: Option<Spanned<i64>> as between(0, i64::MAX) => ALL.such_as("1");
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

keys! {
    /// How checkpoints are saved and loaded. Only `windtunnel run --for` reads it.
    #[derive(Debug, Default, Deserialize)]
    ["checkpoint"] Checkpoint in Rest;

    /// How often a checkpoint is saved. `best` looks for the interval with the best goodput.
    every: Option<Spanned<Every>> as Other("\"best\", a time, or a number of steps") => ALL;
    /// What the storage takes from the whole job while it saves a checkpoint.
    storage_bandwidth: Option<Spanned<Bandwidth>> as Quantity("200 GB/s") => ALL;
    /// What the storage gives to the whole job while it loads a checkpoint.
    load_bandwidth: Option<Spanned<Bandwidth>> as Quantity("200 GB/s") => ALL;
    /// Whether training goes on once the state is copied to host memory. The checkpoint counts once it is written.
    asynchronous: Option<Spanned<bool>> => ALL;
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
