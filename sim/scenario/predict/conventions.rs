//! Names of the conventions of model FLOPs utilisation.

/// Model FLOPs with attention inside documents alone: the last convention, where sequences are packed documents.
pub(crate) const WITHIN_DOCUMENTS: &str = "6N + 6LHS, within documents";

/// Model FLOPs of what the model does: the keys that each token attends to, and no other.
pub(crate) const ATTENDED: &str = "6N + attended";

/// Names of the conventions, in the order of [`Mfu`](super::Mfu)'s in a prediction, but for the one that leads.
pub(crate) fn mfu_conventions() -> [&'static str; 6] {
    ["6N + 12LHS", "6N + 6LHS", "6N(all) + 12LHS", "6N", "hardware", ATTENDED]
}
