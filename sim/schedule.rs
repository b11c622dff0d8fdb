//! Pipeline schedules: who runs which part of which micro-batch, in which order.
//!
//! A schedule is a pure function of its [`Shape`] (ranks, virtual stages, micro-batches). It is written down as one list
//! of [`Action`]s for each rank, in the notation of `torch.distributed.pipelining` (`schedules.py`, PyTorch 2.15):
//! `0F1` is stage 0's forward of micro-batch 1, `2B0` a whole backward, `2I0` and `2W0` its halves (gradients of inputs
//! and of weights), `(0F4;7B1)OVERLAP_F_B` two that run side by side.
//!
//! ```text
//! Entry::build(shape) ─► Schedule ─► lower() ─► Lists with sends, receives, unshards, reductions  (what a runtime issues)
//! csv::read(file) ────────────▲ └──► replay() ─► Timeline: who idles when                        (what it costs at best)
//! ```
//!
//! To add a schedule: one file in `order/` with an [`Entry`], and its line in [`order::ENTRIES`].

mod action;
mod batching;
mod check;
pub mod csv;
mod error;
mod even;
mod lists;
mod lower;
pub mod order;
pub mod picture;
mod replay;
mod shape;

pub use action::{Action, Kind};
pub use batching::Batching;
pub use check::Schedule;
pub use error::ScheduleError;
pub use even::most_even;
pub use lists::{Lists, notation};
pub use lower::{Lookahead, Lowering, lower};
pub use order::{Entry, build, find};
pub use replay::{Costs, RankTime, Timeline, in_flight, peak_memory, replay};
pub use shape::{Placement, Shape};
