//! Messages between pipeline ranks (`core/pipeline_parallel/p2p_communication.py`, 0.16.1).
//!
//! Batched, the sends and receives of a call are one NCCL operation, which everyone waits for, the host too
//! (`batch_p2p_sync`). Else each is one of its own on its pair's communicator, even ranks sending first, and is waited
//! for where it is used. So it is where the backward comes in halves: that the fork of sail-sg has one communicator for
//! both neighbours is neglected.

use crate::plan::megatron::{Engine, MegatronPlan};
use crate::program::{Builder, DType, Direction, EventId, Group, GroupId, StreamId, Transfer};
use crate::runtime::eager::COMPUTE;
use crate::schedule::{Action, Kind};
use crate::units::Bytes;

/// Whom a rank talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The rank before, in the ring of pipeline ranks.
    Previous,
    /// The rank after.
    Next,
}

/// One end of a message.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// What it is for.
    pub action: Action,
    /// Whom it goes to or comes from.
    pub peer: Peer,
}

impl End {
    fn sends(self) -> bool {
        matches!(self.action.kind, Kind::SendForward | Kind::SendBackward)
    }

    /// Whether it is the receiving one.
    pub fn receives(self) -> bool {
        !self.sends()
    }
}

/// A rank's side of the pipeline's communicators.
#[derive(Debug)]
pub struct P2p {
    group: GroupId,
    ahead: [u32; 2],
    streams: [StreamId; 2],
    bytes: Bytes,
    /// Tensor-parallel ranks that each send a part of it.
    parts: u64,
    dtype: DType,
    /// Whether the calls of a portion are one operation.
    batched: bool,
    /// Whether both directions between two ranks share a communicator.
    shared: bool,
    two: bool,
    even: bool,
}

impl P2p {
    /// `streams`: the communicator's, or those of the pairs with the next and the previous rank. `halves`: whether the
    /// backward comes in halves.
    pub fn new(
        job: &MegatronPlan,
        (rank, halves): (u32, bool),
        pipeline: (&Group, GroupId),
        streams: [StreamId; 2],
    ) -> P2p {
        let (pipeline, group) = pipeline;
        let mut tokens = job.split.seq / u64::from(job.split.mesh.cp);
        if job.split.sequence_parallel {
            tokens /= u64::from(job.split.mesh.tp);
        }
        let elements = tokens * job.split.batch * job.split.model.width;
        P2p {
            group,
            ahead: [pipeline.ahead(1), pipeline.ahead(-1)],
            streams,
            bytes: Bytes(elements * job.split.dtype.bytes()),
            // What does not divide is sent whole.
            parts: if job.split.pipeline.scatter_gather && elements.is_multiple_of(u64::from(job.split.mesh.tp)) {
                u64::from(job.split.mesh.tp)
            } else {
                1
            },
            dtype: job.split.dtype,
            batched: !job.split.pipeline.overlap_p2p && !halves && job.engine == Engine::Core,
            shared: job.engine == Engine::DeepSpeed,
            two: job.split.mesh.pp == 2,
            even: rank.is_multiple_of(2),
        }
    }

    /// Size of what a stage passes on, of all tensor-parallel ranks' parts where they share it out.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Size of a rank's message.
    pub fn message(&self) -> Bytes {
        Bytes(self.bytes.0 / self.parts)
    }

    /// Whether what is received is gathered over tensor-parallel ranks.
    pub fn gathers(&self) -> bool {
        self.parts > 1
    }

    /// Whether calls are batched, and waited for at once.
    pub fn is_batched(&self) -> bool {
        self.batched
    }

    fn transfer(&self, end: End) -> Transfer {
        let direction = if end.sends() { Direction::Send } else { Direction::Receive };
        let ahead = self.ahead[usize::from(end.peer == Peer::Previous)];
        Transfer { direction, group: self.group, ahead, bytes: self.message(), dtype: self.dtype }
    }

    /// Issues one message of a size and type of its own, which the computation waits for.
    pub fn call(&self, program: &mut Builder, end: End, (bytes, dtype): (Bytes, DType)) {
        let stream = self.stream(end);
        program.wait_stream(stream, COMPUTE);
        program.exchange(stream, &[Transfer { bytes, dtype, ..self.transfer(end) }]);
        program.wait_stream(COMPUTE, stream);
    }

    /// The stream of a message that is an operation of its own. Two ranks would have both directions on one
    /// communicator, and take another for one of them.
    fn stream(&self, end: End) -> StreamId {
        let second = if self.two && !self.shared { !end.sends() } else { end.peer == Peer::Previous };
        self.streams[usize::from(second)]
    }

    /// Issues the ends of one call behind what is on the stream `from`; for each, in the order given, when it will have
    /// happened.
    pub fn issue(&self, program: &mut Builder, ends: &[End], from: StreamId) -> Vec<EventId> {
        if self.batched {
            let stream = self.streams[0];
            program.wait_stream(stream, from);
            // `_batched_p2p_ops`: to and from the previous rank, then to and from the next.
            let mut ordered = ends.to_vec();
            ordered.sort_by_key(|end| (end.peer == Peer::Next, !end.sends()));
            let transfers: Vec<Transfer> = ordered.into_iter().map(|end| self.transfer(end)).collect();
            program.exchange(stream, &transfers);
            return vec![program.record(stream); ends.len()];
        }
        // `_p2p_ops`: even ranks send first, odd ranks receive first.
        let mut order: Vec<usize> = (0..ends.len()).collect();
        order.sort_by_key(|&at| ends[at].sends() != self.even);
        let mut done = vec![EventId(0); ends.len()];
        for at in order {
            let stream = self.stream(ends[at]);
            program.wait_stream(stream, from);
            program.exchange(stream, &[self.transfer(ends[at])]);
            done[at] = program.record(stream);
        }
        done
    }
}
