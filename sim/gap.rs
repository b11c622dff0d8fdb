//! Where the difference between a measured step and its prediction comes from: `windtunnel check SCENARIO --trace-in TRACE`.
//!
//! A [`Side`](side::Side) is one step of one rank as a list of what its device ran. A prediction makes one, a trace makes one, and from
//! there on both are treated alike: kernels are lined up ([`align`]), every instant of either step is charged to one kernel or to one
//! reason for which nothing ran ([`charge`]), and the parts ([`parts`]) add up to the gap.

pub mod align;
pub mod bounds;
pub mod charge;
pub mod choose;
pub mod compare;
pub mod idle;
pub mod json;
mod kinds;
pub mod late;
pub mod measured;
pub mod parts;
pub mod predicted;
mod runs;
pub mod side;
#[cfg(test)]
mod tests;
pub mod text;
pub mod tracks;
