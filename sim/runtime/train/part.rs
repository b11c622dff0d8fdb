//! What of the model a rank has as one root.

/// What of the model is one root: all of it, or a stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct Part {
    pub embedding: bool,
    pub blocks: std::ops::Range<usize>,
    pub head: bool,
}
