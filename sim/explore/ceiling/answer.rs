//! What a search for the ceiling is asked, and what it answers.

use super::super::point::Point;
use crate::units::Bytes;

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Distance between lengths tried \[tokens\].
    pub step: u64,
    /// Longest length to try \[tokens\].
    pub max: Option<u64>,
}

/// A multiple of 1,024 tokens fills every tile of every kernel, and is what people train on.
pub const STEP: u64 = 1024;

impl Default for Options {
    fn default() -> Self {
        Options { step: STEP, max: None }
    }
}

/// Why the ceiling is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// One step more does not fit in memory.
    Memory,
    /// The model has no more positions; memory would hold more.
    Positions(u64),
    /// No more was asked for; memory would hold more.
    Asked(u64),
    /// One step more is no scenario.
    Refused {
        /// Its length \[tokens\].
        sequence: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// The longest sequence that fits.
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// How it was searched for.
    pub options: Options,
    /// The scenario's own length \[tokens\].
    pub own: u64,
    /// The ceiling; none where not even the shortest length fits.
    pub longest: Option<Point>,
    /// The longest that fits however far the memory outside the allocator is off.
    pub sure: Option<Point>,
    /// One step more than the ceiling, where that is a scenario: it does not fit.
    pub beyond: Option<Point>,
    /// Why it ends there.
    pub end: End,
    /// From short to the ceiling: powers of two, the scenario's own length, the ceiling beyond doubt, the ceiling.
    pub ladder: Vec<Point>,
    /// Changes with which a longer sequence fits, and the longest \[tokens\].
    pub longer: Vec<(String, u64)>,
    /// Lengths below the ceiling that are no scenario, and why.
    pub refused: Vec<(u64, String)>,
    /// Lengths flown to find the edges.
    pub flown: usize,
    /// The longest length to try \[tokens\].
    pub most: u64,
    /// Whether a compiler decides what fits, so that a length may be more than predicted.
    pub compiles: bool,
    /// Lengths that one was asked about.
    #[doc(hidden)]
    pub checked: Vec<Checked>,
}

/// What a compiler says of a length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The length \[tokens\].
    pub sequence: u64,
    /// The compiler, and its version.
    pub compiler: String,
    /// Whether the step fits.
    pub fits: bool,
    /// What it takes at most \[B\] if it fits, what it would need if not and the compiler says so.
    pub bytes: Option<Bytes>,
}
