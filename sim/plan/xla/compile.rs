//! What it takes until a step runs: it is compiled whole, once for every shape.
//!
//! Two figures are known, and they bound the time from both sides. MaxText's log of DeepSeek-V2-Lite, 27 blocks in one scan, on
//! one v5p host: the first step took 44.9 s, a later one 5.7 (AI-Hypercomputer/maxtext@e591f30cb,
//! `docs/guides/monitoring_and_debugging/understand_logs_and_metrics.md`). Compiling the steps of
//! `tests/oracles/xla_steps.json` for slices of v6e took 177 to 270 s of processor time, with two to eight blocks alike: what
//! one processor would take. Blocks in a scan are compiled once, so their number hardly counts. What a persistent cache
//! takes to find a program again and load it is not known.

use crate::units::Time;

/// A run, as far as compiling is spread over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Run {
    /// Its steps, where the file has them.
    pub steps: Option<u64>,
    /// Shapes of batches, each of which is compiled.
    pub shapes: u64,
    /// Whether programs are kept in a persistent cache (`jax_cache_dir`): the first run compiles and fills it, later ones read it.
    pub cached: bool,
}

/// How long one shape takes to compile, from and to.
pub fn compiled_in() -> (Time, Time) {
    (Time::from_seconds(39.0), Time::from_seconds(270.0))
}

impl Run {
    /// What all shapes take to compile, from and to. With a persistent cache that is what the first run takes.
    pub fn compiling(&self) -> (Time, Time) {
        let (least, most) = compiled_in();
        let all = |each: Time| Time::from_seconds(each.seconds() * self.shapes as f64);
        (all(least), all(most))
    }
}
