//! Predicts what a training run does to a cluster before the cluster is rented: peak memory, step time, pipeline bubble and MFU, from
//! measured parts.
//!
//! A [`Scenario`] says which model is trained on which machine, and how. It is a file:
//!
//! ```
//! let scenario = windtunnel::Scenario::load("scenarios/llama3.1-8b-fsdp2-8xh100.toml")?;
//! # Ok::<(), windtunnel::ScenarioError>(())
//! ```
//!
//! or it is built in Rust, with the same keys and the same checks. A [`Prediction`] then says where memory and time go:
//!
//! ```
//! use windtunnel::{CeilingOptions, Scenario, Settings, predict};
//!
//! let scenario = Scenario::builder("four layers of Llama-3.1-8B on a node")
//!     .runtime("fsdp2")
//!     .topology("h100-sxm-80gb")
//!     .nodes(1)
//!     .model("llama-3.1-8b")
//!     .set("model.layers", 4)
//!     .mesh([("dp_shard", 8)])
//!     .sequence(4096)
//!     .build()?;
//! let prediction = predict(&scenario, Settings { record: true, ..Settings::default() })?;
//!
//! // Memory at the peak, by category.
//! let memory = &prediction.memory;
//! println!("{} of {}: fits? {}", memory.device_total(), memory.capacity, memory.verdict());
//! for (category, bytes) in memory.report.breakdown.sorted() {
//!     println!("  {:24} {bytes}", category.label());
//! }
//!
//! // The step, where it went, and how well the chips were used.
//! println!("{} ({} to {})", prediction.step, prediction.interval.0, prediction.interval.1);
//! println!("{}, {:.1} % MFU", prediction.breakdown, 100.0 * prediction.mfu[0].utilisation);
//!
//! // The timeline: what ran on which stream, from when to when.
//! for ran in prediction.ran().filter(|ran| ran.rank == 0 && ran.group == "collective") {
//!     println!("{:16} {} to {}: {}", ran.stream, ran.start, ran.end, ran.name);
//! }
//!
//! // The JSON that `windtunnel run --json` writes, as plain data or as text.
//! let report = prediction.report(&scenario);
//! println!("{} s: {:#}", report.step_time_s, report.json());
//!
//! // The longest sequence that fits, and what another plan would change.
//! let ceiling = scenario.ceiling(CeilingOptions { step: 16_384, max: Some(32_768) })?;
//! println!("up to {:?} tokens", ceiling.longest.map(|point| point.sequence));
//! let recomputed = scenario.to_builder().set("activation_checkpointing.policy", "full").build()?;
//! println!("{}", scenario.compare(&recomputed)?.text());
//! # Ok::<(), windtunnel::ScenarioError>(())
//! ```
//!
//! `docs/keys.md` lists the keys of a scenario, and [`keys`] is the same as a table. `docs/json.md` describes the report, and [`json`]
//! has its parts. Predictions read no clock, no environment and no random source: the same scenario gives the same answer everywhere.
//!
//! What this page shows is the library. All other modules are internal: the workspace's own tests and tools use them, and they change
//! without notice. `RUSTDOCFLAGS="--cfg internals" cargo doc` shows them, too.

// The library.

#[doc(inline)]
pub use cost::{Basis, Profile, ProfileError};
#[doc(inline)]
pub use engine::{Breakdown, EngineError, Simulated, Timeline};
#[doc(inline)]
pub use explore::ceiling::{End as CeilingEnd, Options as CeilingOptions};
#[doc(inline)]
pub use explore::compare::{Change, Difference, Figures, Row};
#[doc(inline)]
pub use explore::{Ceiling, Comparison, Point};
#[doc(inline)]
pub use hardware::{Place, Topology};
#[doc(inline)]
pub use memory::report::Live;
#[doc(inline)]
pub use memory::{Breakdown as MemoryBreakdown, MemoryReport, Phase};
#[doc(inline)]
pub use model::huggingface::ModelError;
#[doc(inline)]
pub use program::{Category, HostMemory};
#[doc(inline)]
pub use report::{Ran, Report, Trace};
#[doc(inline)]
pub use scenario::predict::{Alike, DeviceMemory, Host, Mfu, Part, Settings, Verdict, predict};
#[doc(inline)]
pub use scenario::remedy::Remedy;
#[doc(inline)]
pub use scenario::{
    Assumption, Builder, Idle, Measured, Prediction, Rerun, Runtime, Scenario, ScenarioError, Taken, Written,
};
#[doc(inline)]
pub use units::{Bandwidth, Bytes, FlopRate, Flops, Frequency, Power, Time, UnitError};

/// The parts of a [`Topology`], and the shipped ones.
pub mod machine {
    #[doc(inline)]
    pub use crate::hardware::registry::{Listed, registry};
    #[doc(inline)]
    pub use crate::hardware::{Axis, Chip, Fact, HardwareError, Level, LevelKind, Node, Peak, Reach, Size, Vendor};
}

/// The parts of a [`Report`], which are the sections of the JSON that `windtunnel run --json` writes. `docs/json.md` describes them.
pub mod json {
    #[doc(inline)]
    pub use crate::report::layout::{
        Breakdown, ByPart, FORMAT, Interrupted, KeyWithoutEffect, Live, Memory, Mfu, Model, Money, Part, Percentiles,
        Phase, Question, Remedy, RunsLikeIt, SCHEMA, SavedState, SpentOn, Stage, StartUp, Topology, Training,
        TriedInterval,
    };
}

/// Every key that a scenario may have: what it takes, and which frameworks read it.
pub mod keys {
    #[doc(inline)]
    pub use crate::scenario::keys::{Choice, Group, Key, Kind, Preset, SCHEMA, TABLES, Table, table};
}

// Internal: public for the workspace's own members alone, hidden from the library's pages, and no promise is kept about them. They
// are hidden from rustdoc and not from the compiler, so that it still asks for a comment on each public item.

#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod budget;
#[doc(hidden)]
pub mod bug;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod cost;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod engine;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod explore;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod failures;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod files;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod gap;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod hardware;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod import;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod log;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod memory;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod model;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod near;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod network;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod plan;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod program;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod receipt;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod report;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod runtime;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod scenario;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod schedule;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod statistics;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod tables;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod trace;
#[cfg_attr(all(doc, not(internals)), doc(hidden))]
pub mod units;
