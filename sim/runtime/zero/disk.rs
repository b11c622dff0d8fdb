//! Files on a node's disks (`deepspeed/runtime/swap_tensor/`, `csrc/aio`): what is read and written by threads of handles, each a
//! queue of its own, beside the host that asked.

use crate::program::{Builder, Dispatch, StreamId, Work};
use crate::units::Bytes;

/// Names of the handles, after the device's streams.
pub(super) const HANDLES: [&str; 4] = ["parameters read", "parameters written", "states written", "states read ahead"];
/// Parameters' files are read.
pub(super) const PARAMETERS: StreamId = StreamId(3);
/// And written.
pub(super) const PARAMETERS_BACK: StreamId = StreamId(4);
/// The optimizer's files are written, and without a pipeline read.
pub(super) const STATES: StreamId = StreamId(5);
/// The optimizer's files are read in a pipeline.
pub(super) const STATES_AHEAD: StreamId = StreamId(6);

/// A handle is asked for a file, or given one.
pub(super) fn file(program: &mut Builder, handle: StreamId, bytes: u64, write: bool) {
    let name = if write { "async_pwrite" } else { "async_pread" };
    program.launch(handle, name, Work::Disk { bytes: Bytes(bytes), write }, Dispatch::EagerForward);
}
