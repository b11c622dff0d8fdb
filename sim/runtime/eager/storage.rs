//! Blocks of device memory that are counted by reference, and gradients in them.

use crate::program::{BufferId, DType, StreamId};

/// The default stream, on which all eager operators run.
pub const COMPUTE: StreamId = StreamId(0);

/// A reference-counted block of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage(pub(super) u32);

#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) buffer: BufferId,
    pub(super) references: u32,
    pub(super) bytes: u64,
}

/// The gradient of a value, on its way to the node that made the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gradient {
    pub(super) storage: Storage,
    /// A matmul's input gradient, which autograd passes on through a view, or a DTensor: nothing is added to it in place.
    pub(super) view: bool,
}

impl From<Storage> for Gradient {
    fn from(storage: Storage) -> Self {
        Gradient { storage, view: false }
    }
}

/// A parameter's gradient as autograd leaves it.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    pub(super) storage: Storage,
    pub(super) dtype: DType,
}
