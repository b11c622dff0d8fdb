//! What hears of each prediction.

/// Called after each prediction, from any thread: what a progress bar counts.
pub type Tick<'t> = dyn Fn() + Sync + 't;
