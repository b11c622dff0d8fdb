//! Names of the conventions of model FLOPs utilisation.

/// Model FLOPs with attention inside documents alone: the last convention, where sequences are packed documents.
pub(crate) const WITHIN_DOCUMENTS: &str = "6N + 6LHS, within documents";

/// Names of the conventions, in the order of [`Mfu`](super::Mfu)'s in a prediction.
pub(crate) fn mfu_conventions() -> [&'static str; 5] {
    ["6N + 12LHS", "6N + 6LHS", "6N(all) + 12LHS", "6N", "hardware"]
}
