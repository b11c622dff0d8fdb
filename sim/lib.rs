//! Predicts how a training run would use a cluster, from measured parts: see `ARCHITECTURE.md` for the map.

pub mod cost;
pub mod model;
pub mod program;
pub mod units;
