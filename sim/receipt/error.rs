//! Why receipts could not be read.

/// A file of receipts, or a specification, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// Path as given.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// A scenario that is no receipt.
    #[error(
        "{file} has no [measured] table, so there is nothing to check: write what the run measured, such as\n[measured]\nstep_time = \"1.23 s\"\nreserved = \"70.1 GiB\""
    )]
    NothingMeasured {
        /// The scenario.
        file: String,
    },
    /// A scenario that cannot be understood.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// No row has the id asked for.
    #[error("no receipt has the id {id:?}; the nearest are {near}")]
    NoSuchRow {
        /// The id.
        id: String,
        /// Ids that come near.
        near: String,
    },
    /// A choice that no receipt meets.
    #[error("no receipt is of the {what} {name:?}{hint}: there are {known}")]
    NoneChosen {
        /// `lane` or `hardware`.
        what: &'static str,
        /// As asked for.
        name: String,
        /// Which of them is near, in words.
        hint: String,
        /// What receipts have.
        known: String,
    },
    /// A specification of thresholds that cannot be read.
    #[error("{0}")]
    Threshold(String),
}
