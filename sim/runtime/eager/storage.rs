//! Storages, which are device memory that is counted by reference, and gradients in them.

use super::params::Shared;
use crate::program::{BufferId, DType, StreamId};

/// The default stream, on which all eager operators run.
pub const COMPUTE: StreamId = StreamId(0);

/// Reference-counted device memory, as PyTorch calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage(pub(super) u32);

#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) buffer: BufferId,
    pub(super) references: u32,
    pub(super) bytes: u64,
}

/// All storages by their number, and who goes with whom.
#[derive(Debug, Default)]
pub(super) struct Storages {
    pub(super) counted: Vec<Counted>,
    /// Numbers whose storage has gone.
    pub(super) idle: Vec<u32>,
    /// Stand-ins for storages that are not counted.
    pub(super) stand_ins: usize,
    /// Pairs: when the first goes, the second loses a reference.
    pub(super) lingers_with: Vec<(Storage, Storage)>,
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

/// Gradients of parameters, as autograd leaves them and on their way there.
#[derive(Debug)]
pub struct Leaves {
    /// By parameter, its gradient, where there is one.
    pub(super) stored: Vec<Option<Leaf>>,
    /// Gradients are stored in this type when no gradient exists yet (`param.grad_dtype`); none: as they arrive.
    pub dtype: Option<DType>,
    /// Parameters that are used several times: their gradients are added up before they are stored.
    pub shared: Vec<Shared>,
    /// Of such parameters, the sums so far.
    pub(super) sums: Vec<SharedSum>,
}

impl Leaves {
    /// So many parameters without gradients.
    pub(super) fn new(params: usize) -> Leaves {
        Leaves { stored: vec![None; params], dtype: None, shared: vec![], sums: vec![] }
    }
}

/// The sum so far of the gradients of a parameter that is used several times.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedSum {
    pub(super) param: usize,
    pub(super) gradient: Gradient,
    /// How many gradients are in it.
    pub(super) count: u32,
}

/// A parameter's gradient as autograd leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub(super) storage: Storage,
    pub(super) dtype: DType,
    /// Its bytes, where it is a part of its storage.
    pub(super) part: Option<u64>,
}
