//! Who sends to whom on which stream, and what is known of messages under way.

use std::collections::BTreeMap;

use crate::plan::torch::Pipeline;
use crate::program::{DType, Direction, EventId, Group, GroupId, StreamId, Transfer};
use crate::runtime::eager::Storage;
use crate::runtime::train::training::Training;
use crate::schedule::{Action, Kind, Placement};
use crate::units::Bytes;

/// What is known of one micro-batch on one stage.
pub(super) type Key = (u16, u32);

/// A tensor from another stage, and when it will be there; one of the rank's own hands it over at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) storage: Storage,
    pub(super) event: Option<EventId>,
}

/// A rank's side of the pipeline's communicators.
pub(super) struct Messages {
    group: GroupId,
    ranks: u32,
    placement: Placement,
    /// The places of the ranks before and after.
    ahead: [u32; 2],
    /// Of batches, of the pair with the rank before, of the pair with the rank after: one pair of two ranks.
    pub(super) streams: [StreamId; 3],
    pub(super) bytes: Bytes,
    dtype: DType,
}

impl Messages {
    pub(super) fn new(training: &mut Training<'_>, pipeline: &Pipeline) -> Messages {
        let job = training.job;
        let group = Group::new("pp", pipeline.ranks, job.ranks() / pipeline.ranks);
        let ahead = [group.ahead(-1), group.ahead(1)];
        let first = pipeline.messages();
        let stream = |at: u8| StreamId(first.0 + at);
        let after = if pipeline.ranks == 2 { 1 } else { 2 };
        let hidden = &training.graphs.blocks[0].values[0];
        Messages {
            group: training.run.eager.program.add_group(group),
            ranks: pipeline.ranks,
            placement: pipeline.schedule.placement(),
            ahead,
            streams: [stream(0), stream(1), stream(after)],
            bytes: Bytes(hidden.bytes()),
            dtype: hidden.dtype,
        }
    }

    /// The pipeline's communicator.
    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    /// Which neighbour an action is about, as an index: the one before, or the one after. Where stages go there and back, the
    /// next stage on the way back is of the rank before.
    pub(super) fn neighbour(&self, action: &Action) -> usize {
        let next = matches!(action.kind, Kind::SendForward | Kind::RecvBackward);
        let back = self.placement == Placement::V && u32::from(action.stage) / self.ranks % 2 == 1;
        usize::from(next != back)
    }

    pub(super) fn transfer(&self, action: &Action) -> Transfer {
        let direction = if sends(action) { Direction::Send } else { Direction::Receive };
        let ahead = self.ahead[self.neighbour(action)];
        Transfer { direction, group: self.group, ahead, bytes: self.bytes, dtype: self.dtype }
    }
}

pub(super) fn sends(action: &Action) -> bool {
    matches!(action.kind, Kind::SendForward | Kind::SendBackward)
}

/// A send that nobody has waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) key: Key,
    pub(super) forward: bool,
    /// What it holds of what it sends; a variable of the loop may hold it instead.
    pub(super) storage: Option<Storage>,
    pub(super) event: EventId,
}

/// What the loop around the messages still names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Sends under way, in order.
    pub(super) sent: Vec<Sent>,
    /// The operations last received and sent, by variable.
    pub(super) variables: BTreeMap<Variable, Storage>,
}

/// A variable of the loops, in the order in which they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Variable {
    /// GPipe's `ops`.
    Operations,
    /// 1F1B's `fwd_recvs`.
    ForwardReceives,
    /// Its `bwd_recvs`.
    BackwardReceives,
    /// Its `bwd_sends`.
    BackwardSends,
}
