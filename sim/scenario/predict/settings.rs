//! Settings of a prediction.

/// Settings of a prediction that do not change its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Simulate one rank for all identical ones.
    pub fold: bool,
    /// Keep every span, for a trace.
    pub record: bool,
    /// Predict again with single changes: those that would make a plan fit that does not, and what a machine of one's own would
    /// do with the shipped machine's numbers.
    pub remedies: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { fold: true, record: false, remedies: true }
    }
}
