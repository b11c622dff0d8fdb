//! Where micro-batches come from.

/// Where micro-batches come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Loader {
    /// They are on the device.
    There,
    /// A loader of each rank's own.
    EachRank {
        /// Whether there is a mask.
        mask: bool,
    },
    /// The first tensor-parallel rank's, whose parts are broadcast.
    Broadcast {
        /// Whether there is a mask.
        mask: bool,
        /// Whether lengths of packed sequences are broadcast, too.
        lengths: bool,
    },
    /// The same rank's, whose text is broadcast, sizes first.
    SizesFirst {
        /// Whether all stages read.
        everywhere: bool,
    },
}
