//! Messages between stages (`parallel/pipeline_parallel/{p2p,state}.py`).
//!
//! Each tensor is a message of its own, announced by two others: seven numbers, then its shape and strides. Both hosts read
//! them back from the device, so each has drained it before the tensor goes. Small messages lie in NCCL's buffers until
//! somebody asks for them; here both ends of a message meet, and a stage asks for the mask before it sends a gradient, not
//! after.

use crate::plan::nanotron::NanotronPlan;
use crate::program::{Builder, DType, Direction, Dispatch, Group, GroupId, StreamId, Transfer, Work};
use crate::runtime::eager::COMPUTE;
use crate::units::Bytes;

/// Bytes of the first announcement, and of one number.
const FIRST: u64 = 7 * NUMBER;
const NUMBER: u64 = 8;

/// Which neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Previous,
    Next,
}

/// A tensor that goes between stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    bytes: Bytes,
    dtype: DType,
    axes: u64,
}

/// A stage's side of the pipeline's communicators, one with each neighbour.
#[derive(Debug)]
pub(super) struct Messages {
    group: GroupId,
    ahead: [u32; 2],
    /// Streams of the pairs with the previous and the next stage.
    streams: [StreamId; 2],
    /// The hidden state, or its gradient: the rank's part of the sequence.
    pub(super) hidden: Message,
    /// Which tokens there are, which nobody takes a gradient of.
    pub(super) mask: Message,
}

impl Messages {
    pub(super) fn new(job: &NanotronPlan, (pipeline, group): (&Group, GroupId), streams: [StreamId; 2]) -> Messages {
        let split = &job.split;
        let tokens = split.batch * split.seq;
        let part = tokens / u64::from(split.mesh.tp);
        Messages {
            group,
            ahead: [pipeline.ahead(-1), pipeline.ahead(1)],
            streams,
            hidden: Message {
                bytes: Bytes(part * split.model.width * split.dtype.bytes()),
                dtype: split.dtype,
                axes: 3,
            },
            mask: Message { bytes: Bytes(tokens), dtype: DType::Fp8, axes: 2 },
        }
    }

    fn transfer(&self, program: &mut Builder, peer: Peer, direction: Direction, (bytes, dtype): (Bytes, DType)) {
        let at = usize::from(peer == Peer::Next);
        let stream = self.streams[at];
        program.wait_stream(stream, COMPUTE);
        program.exchange(stream, &[Transfer { direction, group: self.group, ahead: self.ahead[at], bytes, dtype }]);
        program.wait_stream(COMPUTE, stream);
    }

    /// Announces a tensor and sends it. The announcements are copied from the host, which then compares what arrived.
    pub(super) fn send(&self, program: &mut Builder, peer: Peer, message: Message) {
        let shape = 2 * message.axes * NUMBER;
        copy(program, FIRST, false);
        self.transfer(program, peer, Direction::Send, (Bytes(FIRST), DType::Int64));
        for _ in 0..2 {
            copy(program, NUMBER, true);
        }
        copy(program, shape, false);
        self.transfer(program, peer, Direction::Send, (Bytes(shape), DType::Int64));
        self.transfer(program, peer, Direction::Send, (message.bytes, message.dtype));
    }

    /// Is told of a tensor and receives it. Numbers are read one by one where Python uses them: two to know how long the
    /// second announcement is, three to cut it, four of the first, and every length and stride.
    pub(super) fn receive(&self, program: &mut Builder, peer: Peer, message: Message) {
        let shape = 2 * message.axes * NUMBER;
        self.transfer(program, peer, Direction::Receive, (Bytes(FIRST), DType::Int64));
        for _ in 0..2 {
            copy(program, NUMBER, true);
        }
        self.transfer(program, peer, Direction::Receive, (Bytes(shape), DType::Int64));
        for _ in 0..3 + 4 + 2 * message.axes {
            copy(program, NUMBER, true);
        }
        self.transfer(program, peer, Direction::Receive, (message.bytes, message.dtype));
    }
}

/// A copy between host and device that the host waits for.
fn copy(program: &mut Builder, bytes: u64, to_host: bool) {
    let name = if to_host { "aten._local_scalar_dense" } else { "aten.copy_" };
    let work = Work::HostCopy { bytes: Bytes(bytes), to_host };
    program.launch(COMPUTE, name, work, Dispatch::EagerForward);
    program.wait_for_host(COMPUTE);
}
