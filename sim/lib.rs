//! Predicts how a training run would use a cluster, from measured parts: see `ARCHITECTURE.md` for the map.

pub mod bug;
pub mod cost;
pub mod engine;
pub mod explore;
pub mod files;
pub mod hardware;
pub mod memory;
pub mod model;
pub mod near;
pub mod network;
pub mod plan;
pub mod program;
pub mod receipt;
pub mod report;
pub mod runtime;
pub mod scenario;
pub mod schedule;
pub mod units;
