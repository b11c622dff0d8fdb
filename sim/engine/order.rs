//! One hardware queue for all streams: `CUDA_DEVICE_MAX_CONNECTIONS=1`.
//!
//! The device takes what the host has issued from the front of its only queue. What cannot begin yet, a kernel whose stream
//! is busy or a wait whose event has not happened, holds up all behind it, whatever stream that is for (NVIDIA, Kepler GK110
//! whitepaper, "Hyper-Q": the false dependencies of one work queue; Megatron-Core 0.16.1,
//! `core/distributed/param_and_grad_buffer.py`, on communications back to back). So every operation begins after the one
//! before it has begun. Between two on one stream that says nothing new; between two on different ones it is a wait of
//! the second's stream for a mark in front of the first, and behind it if that is a wait. Waits that a program's own events imply are left out.
//!
//! Copies to and from the host have queues of their own; what the host itself does, with files or in its memory, has none.

use crate::program::StreamId;

/// Two operations next to each other in the queue, on two streams, by instruction: the second waits for the first to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) first: (u32, StreamId),
    pub(super) second: (u32, StreamId),
}

/// An operation at the end of the queue.
#[derive(Clone, Copy)]
struct Last {
    index: u32,
    stream: StreamId,
    /// How many operations its stream has had, with it.
    count: u32,
}

/// Follows a step's operations as the host issues them.
pub(super) struct Order {
    /// Operations of each stream so far.
    counts: Vec<u32>,
    /// By stream, and by another: how many of the other's operations have begun whenever it goes on.
    begun: Vec<u32>,
    last: Option<Last>,
    pairs: Vec<Pair>,
}

impl Order {
    /// Before the first operation.
    pub(super) fn new(streams: usize) -> Order {
        Order { counts: vec![0; streams], begun: vec![0; streams * streams], last: None, pairs: vec![] }
    }

    /// Operations that a stream has been given so far.
    pub(super) fn count(&self, stream: StreamId) -> u32 {
        self.counts[stream.0 as usize]
    }

    /// A stream waits for a record behind so many operations of another.
    pub(super) fn waits(&mut self, stream: StreamId, on: StreamId, count: u32) {
        let known = &mut self.begun[usize::from(stream.0) * self.counts.len() + usize::from(on.0)];
        *known = count.max(*known);
    }

    /// An operation is issued, or a wait.
    #[inline]
    pub(super) fn issue(&mut self, index: usize, stream: StreamId) {
        let index = index as u32;
        if let Some(last) = self.last.filter(|last| last.stream != stream) {
            let known = &mut self.begun[usize::from(stream.0) * self.counts.len() + usize::from(last.stream.0)];
            if *known < last.count {
                *known = last.count;
                self.pairs.push(Pair { first: (last.index, last.stream), second: (index, stream) });
            }
        }
        let count = &mut self.counts[usize::from(stream.0)];
        *count += 1;
        self.last = Some(Last { index, stream, count: *count });
    }

    /// What the queue adds to the step: pairs, in order.
    pub(super) fn pairs(self) -> Vec<Pair> {
        self.pairs
    }
}
