//! The section of a whole training: what `run --for` adds to the report.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

/// A whole training with its interruptions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Training {
    /// A line for each key of `[failures]` and `[checkpoint]` that the file leaves out, with the value taken for it.
    pub assumptions: Vec<String>,
    /// Training between two checkpoints with the best expected goodput, in seconds.
    pub best_every_s: f64,
    /// The same in steps.
    pub best_every_steps: u64,
    /// A checkpoint, and what saving and loading it takes.
    pub checkpoint: SavedState,
    /// Days that the training takes, start to end.
    pub days: Percentiles,
    /// Days that it would take without interruptions and checkpoints.
    pub days_without_interruptions: f64,
    /// Trainings that were drawn.
    pub draws: u64,
    /// Share of wall-clock time in steps that count.
    pub goodput: Percentiles,
    /// Interruptions by component, in the order of the rates.
    pub interruptions: Vec<Interrupted>,
    /// Intervals between checkpoints that were simulated, the shortest first.
    pub intervals: Vec<TriedInterval>,
    /// Whether a time was asked for, and not a number of tokens.
    pub is_fixed_time: bool,
    /// Mean hours between two unexpected interruptions while the job is up.
    pub mean_hours_between: f64,
    /// What the training costs; null where the machine has no price.
    pub money: Option<Money>,
    /// Planned interruptions.
    pub planned: Percentiles,
    /// The rates of interruptions.
    pub rates: String,
    /// The seed of the draws.
    pub seed: u64,
    /// Where the rates come from.
    pub sources: Vec<String>,
    /// What wall-clock time went to.
    pub time: Vec<SpentOn>,
    /// Tokens that count at the end.
    pub tokens: Percentiles,
    /// Tokens in the same time without interruptions and checkpoints; with tokens asked for, those.
    pub tokens_without_interruptions: f64,
    /// Unexpected interruptions.
    pub unexpected: Percentiles,
}

/// Percentiles over the trainings that were drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Percentiles {
    /// Nineteen in twenty are above.
    pub p5: f64,
    /// Half are above.
    pub p50: f64,
    /// One in twenty is above.
    pub p95: f64,
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct SavedState {
    /// Training stands still for so long, in seconds.
    pub blocked_s: f64,
    /// All of it, in bytes.
    pub bytes: u64,
    /// What the rank that keeps most copies to its host's memory, in bytes.
    pub bytes_of_rank: u64,
    /// Whether the interval was left to the search.
    pub every_is_best: bool,
    /// Training between two checkpoints, in seconds.
    pub every_s: f64,
    /// The same in steps.
    pub every_steps: u64,
    /// What loading takes, in seconds.
    pub load_s: f64,
    /// From where training goes on until the checkpoint counts, in seconds.
    pub written_after_s: f64,
}

/// What a part of wall-clock time went to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct SpentOn {
    /// What it is.
    pub kind: &'static str,
    /// Its mean, in seconds.
    pub mean_s: f64,
}

/// Interruptions by one component.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Interrupted {
    /// The component.
    pub component: String,
    /// Mean number of interruptions.
    pub mean: f64,
    /// Percentiles of it.
    pub percentiles: Percentiles,
}

/// An interval between checkpoints that was simulated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct TriedInterval {
    /// Training between two checkpoints, in seconds.
    pub every_s: f64,
    /// The same in steps.
    pub every_steps: u64,
    /// Goodput by the closed form, which leaves out waiting for repairs.
    pub expected_goodput: f64,
    /// Mean goodput of the trainings that were drawn.
    pub goodput: f64,
}

/// What a training costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Money {
    /// The currency.
    pub currency: String,
    /// One chip for one hour.
    pub per_chip_hour: f64,
    /// Where the price comes from.
    pub source: String,
    /// The whole training.
    pub total: Percentiles,
    /// The same without interruptions and checkpoints.
    pub without_interruptions: f64,
}
