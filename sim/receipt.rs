//! Receipts: predictions held against runs that somebody measured.
//!
//! ```text
//! runs.jsonl ─► Row ─► contradictions? ─► table of the framework's defaults ─► scenario with [measured] ─┐
//! my-run.toml (a scenario with [measured]) ───────────────────────────────────────────────────────────────┤
//!                                                              predict ─► errors ─► summary, thresholds ◄─┘
//! ```
//!
//! A row of a file of receipts states some of its run. Its machine and its model are known by their names in any spelling
//! ([`machines`], [`names`]), and sizes that it states win. What it leaves out comes from one table per framework
//! (`frameworks/*.toml`), by the release that the row names or the nearest one, each entry with its source: never chosen for a row. A
//! row that cannot be mapped says why. What a row maps to is a scenario, which can be written out, edited and simulated.
//!
//! To add a framework: a file in `frameworks/` and a line in [`table`].

pub mod case;
pub mod check;
mod error;
pub mod flops;
pub mod history;
pub mod html;
pub mod json;
pub mod machines;
pub mod map;
pub mod names;
mod pattern;
pub mod picks;
pub mod question;
pub mod read;
pub mod row;
pub mod runs;
pub mod summary;
pub mod table;
pub mod text;
pub mod threshold;

pub use case::{Case, Judged};
pub use check::{Outcome, check};
pub use error::ReceiptError;
pub use map::{Mapped, Reason};
pub use row::Row;
