//! Streams of a rank.

use crate::program::{Builder, StreamId};

/// The stream of reductions that overlap with the backward.
pub(super) const REDUCE: StreamId = StreamId(1);

/// Names of the streams of ZeRO-1 and 2; reductions have one of their own whether they overlap or not.
pub const STREAMS: [&str; 2] = ["default", "reduction"];

/// Names of the streams of ZeRO-3.
pub(super) const STREAMS_OF_THREE: [&str; 3] = ["default", "all-gather", "reduce"];

/// `torch.cuda.synchronize()`: the host waits for all streams of the device.
pub(super) fn drain(program: &mut Builder) {
    for stream in 0..program.streams().min(STREAMS_OF_THREE.len()) {
        program.wait_for_host(StreamId(stream as u8));
    }
}
