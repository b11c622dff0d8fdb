//! Point-to-point messages, as frameworks issue them: several sends and receives in one NCCL group.
//!
//! `torch.distributed.batch_isend_irecv` and Megatron's `p2p_communication` wrap their calls in `ncclGroupStart` and
//! `ncclGroupEnd`, which makes one operation on one stream. A peer is named by its place relative to the rank's own, so
//! one program serves all ranks of a stage.

use super::{DType, GroupId};
use crate::units::Bytes;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Receive,
}

impl Direction {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Send => "send",
            Direction::Receive => "receive",
        }
    }
}

/// One end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transfer {
    /// Which way it goes.
    pub direction: Direction,
    /// The communicator. Messages between two of its ranks match in the order in which their hosts issue them.
    pub group: GroupId,
    /// The peer: the member so many places after this rank, counted round from the last to the first
    /// ([`super::Group::ahead`]).
    pub ahead: u32,
    /// Size, the same at both ends \[B\].
    pub bytes: Bytes,
    /// Element type.
    pub dtype: DType,
}
