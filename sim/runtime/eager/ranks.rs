//! The ranks with which a rank exchanges: communicators, streams, and what they share.

use crate::model::graph::ValueId;
use crate::plan::megatron::TokenDispatcher;
use crate::program::{GroupId, StreamId};

/// The tensor-parallel communicator and the stream of its collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorGroup {
    /// The communicator.
    pub group: GroupId,
    /// Its ranks.
    pub ranks: u64,
    /// The stream.
    pub stream: StreamId,
}

/// The ranks that share a sequence under DeepSpeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ulysses {
    /// Their communicator.
    pub group: GroupId,
    /// How many.
    pub ranks: u64,
    /// Values whose gradients lie apart.
    pub(super) apart: Vec<ValueId>,
}

impl Ulysses {
    /// So many ranks.
    pub fn new(group: GroupId, ranks: u64) -> Ulysses {
        Ulysses { group, ranks, apart: vec![] }
    }
}

/// The maxima of fp8 numbers of all products of a rank, reduced at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maxima {
    /// Over whom, and on which stream; none: there is one rank.
    pub over: Option<(GroupId, StreamId)>,
    /// Products of all chunks of the rank that have scales.
    pub products: u64,
}

/// Streams that parts are multiplied on (`_NUM_MAX_UB_STREAMS`).
pub const BUFFER_STREAMS: usize = 3;

/// Ranks that write into each other's buffers, and on which streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserBuffers {
    /// The ranks.
    pub group: GroupId,
    /// The same where exchanges slow the matmuls that they overlap with, which leave no SMs free.
    pub slowing: GroupId,
    /// Whether matmuls that overlap with whole exchanges leave SMs.
    pub bulk_margin: bool,
    /// How many.
    pub ranks: u32,
    /// Where parts are multiplied.
    pub compute: [StreamId; BUFFER_STREAMS],
    /// Where they are exchanged.
    pub exchange: StreamId,
}

/// Who exchanges what, where there are several: communicator and stream.
#[derive(Clone, Copy, Debug)]
pub struct ExpertRanks {
    /// How they do.
    pub dispatcher: TokenDispatcher,
    /// The ranks that experts are distributed over.
    pub exchange: Option<(GroupId, StreamId)>,
    /// Those that share an expert.
    pub tensor: Option<(GroupId, StreamId)>,
    /// Both, which tell each other how many rows they send.
    pub counts: Option<(GroupId, StreamId)>,
    /// Those that share a sequence, whose load is balanced together.
    pub balance: Option<(GroupId, StreamId)>,
    /// The stream on which numbers go to the host.
    pub copies: StreamId,
}
