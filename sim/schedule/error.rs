//! What can be wrong with a schedule.

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No schedule of that name.
    #[error("no schedule is called {name:?}{hint}: expected one of {known}, or a file that ends in .csv")]
    Unknown {
        /// The name as written.
        name: String,
        /// Which of them is near, in words.
        hint: String,
        /// The names there are.
        known: String,
    },
    /// A count of nothing, or too many stages.
    #[error("{what} is {found}: expected 1 to {most}")]
    Count {
        /// What was counted.
        what: &'static str,
        /// How many.
        found: u64,
        /// The most there may be.
        most: u64,
    },
    /// More computations than can be held.
    #[error(
        "{stages} stages × {microbatches} micro-batches are {cells} forwards, and at most {most} are scheduled: take {remedy}"
    )]
    TooLong {
        /// Stages on all ranks.
        stages: u32,
        /// Micro-batches of a step.
        microbatches: u32,
        /// Their product.
        cells: u64,
        /// The most there may be.
        most: u64,
        /// What to take instead.
        remedy: String,
    },
    /// Fewer than it takes.
    #[error("{what} is {found}: expected {least} or more")]
    Few {
        /// What was counted.
        what: &'static str,
        /// How many.
        found: u32,
        /// How many it takes.
        least: u32,
    },
    /// Neighbours take turns in pairs.
    #[error(
        "Interlaced lets one of two neighbours go forward while the other goes back, and {found} ranks are odd: \
             take an even number, or Vocab1"
    )]
    OddRanks {
        /// Ranks asked for.
        found: u32,
    },
    /// It is made for another number of stages on each rank.
    #[error("{schedule} runs {expected} on each rank, not {found}: give it virtual = {remedy}")]
    VirtualStages {
        /// The schedule's name.
        schedule: &'static str,
        /// In words.
        expected: &'static str,
        /// Virtual stages asked for.
        found: u32,
        /// What would be accepted.
        remedy: u32,
    },
    /// Too much to search.
    #[error(
        "{schedule} is searched turn by turn, and {ranks} ranks × {microbatches} micro-batches are too many: \
         take {most} micro-batches or fewer, or ZB-H1, which is written down"
    )]
    Search {
        /// The schedule's name.
        schedule: &'static str,
        /// Ranks asked for.
        ranks: u64,
        /// Micro-batches asked for.
        microbatches: u64,
        /// Micro-batches that are searched on so many ranks.
        most: u64,
    },
    /// It needs more micro-batches.
    #[error("{schedule} needs at least {least} micro-batches ({why}), not {found}: {remedy}")]
    FewMicrobatches {
        /// The schedule's name.
        schedule: &'static str,
        /// How many it needs.
        least: u32,
        /// Whence that number.
        why: &'static str,
        /// Micro-batches asked for.
        found: u32,
        /// What helps.
        remedy: &'static str,
    },
    /// Micro-batches cannot be dealt out in rounds.
    #[error("{schedule} deals micro-batches out in rounds, and {found} are no multiple of {rounds}: {remedy}")]
    Rounds {
        /// The schedule's name.
        schedule: &'static str,
        /// Micro-batches asked for.
        found: u32,
        /// What they should be a multiple of.
        rounds: u32,
        /// What helps.
        remedy: String,
    },
    /// A file that is not there.
    #[error("cannot read the schedule {file}: {reason}")]
    Unreadable {
        /// Path as given.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// A cell of a CSV file that is no action, or contradicts others.
    #[error("{file}:{line}:{column}: {problem}")]
    Cell {
        /// The file's name.
        file: String,
        /// From 1.
        line: usize,
        /// Of its first letter, from 1.
        column: usize,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The lists contradict themselves.
    #[error("rank {rank}, entry {entry} ({action}): {problem}")]
    Order {
        /// Whose list.
        rank: usize,
        /// From 1.
        entry: usize,
        /// The action there.
        action: String,
        /// What is wrong.
        problem: String,
    },
    /// Something is missing from all lists.
    #[error("stage {stage}: {problem}")]
    Incomplete {
        /// Which.
        stage: usize,
        /// What is missing.
        problem: String,
    },
    /// Every rank waits for another.
    #[error("the schedule never ends: {waits}")]
    Deadlock {
        /// Who waits for what.
        waits: String,
        /// The first of them.
        rank: usize,
        /// Where it waits, among its computations, from 1.
        entry: usize,
    },
    /// The way of lowering does not go with the schedule.
    #[error("{problem}")]
    Lowering {
        /// What is wrong, and what to do.
        problem: String,
    },
}
