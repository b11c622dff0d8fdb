//! Questions that take many predictions: how long a sequence fits ([`mod@ceiling`], and [`variants`] of it side by side),
//! and what makes two runs differ ([`mod@compare`]).
//!
//! Every answer is made of real predictions of an edited file ([`Draft`](crate::scenario::Draft)), so that `windtunnel run` on
//! that file says the same. Predictions may run side by side; what comes out does not depend on how many do. To ask another question: a
//! file here, and a subcommand in `sim/cli/`.

pub mod ceiling;
pub mod compare;
mod plot;
mod point;
pub mod variants;
mod words;

pub use ceiling::{Ceiling, ceiling};
pub use compare::{Comparison, Side, compare};
pub use point::Point;

/// Called after each prediction, from any thread: what a progress bar counts.
pub type Tick<'t> = dyn Fn() + Sync + 't;
