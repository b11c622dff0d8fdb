//! A scenario: which model, on which machine, trained how. One TOML file, everything in it.
//!
//! The file as *written* ([`written`]) knows only what the user typed; the scenario as *understood* ([`understood`]) has
//! every decision taken, every default named in [`Scenario::assumptions`], and has passed the shard-plan check
//! ([`gate`]). [`mod@predict`] flies it.

mod accumulation;
pub mod advice;
mod as_many;
mod assumption;
mod autocast;
mod batch;
mod builder;
mod change;
mod classes;
mod context;
mod ddp;
mod defaults;
mod documents;
mod dpo;
mod draft;
mod entry;
pub mod error;
mod experts;
mod float8;
mod foreign;
pub mod fresh;
pub mod gate;
mod idle;
mod internevo;
mod interrupted;
mod interruptions;
#[macro_use]
pub mod keys;
mod length;
mod limits;
mod machine;
mod meant;
mod measured;
mod megatron;
mod model;
mod names;
mod nanotron;
mod optimizer;
mod paths;
mod places;
mod plain;
pub mod predict;
mod programs;
mod proofread;
mod ranks;
mod reader;
mod recompute;
mod registry;
mod releases;
pub mod remedy;
pub mod samples;
mod sharding;
mod simulable;
mod source;
mod stages;
mod tensor;
mod train;
mod trained;
mod training;
pub mod understood;
mod wrap;
pub mod written;
mod xla;
mod zero;

pub use assumption::{Assumption, Taken, Written};
pub use builder::Builder;
pub use change::Change;
pub use defaults::flat;
pub use draft::{Draft, reason};
pub use entry::{Rerun, Runtime};
pub use error::ScenarioError;
pub use interrupted::Interruptions;
pub use interruptions::{Every, Spares};
pub use measured::Measured;
pub(crate) use paths::relative;
pub use places::Places;
pub use predict::{Prediction, predict};
pub use ranks::{Ranks, Speed};
pub use reader::Idle;
pub(crate) use reader::MOST_RANKS;
pub use releases::release_defaults;
pub use understood::Scenario;
