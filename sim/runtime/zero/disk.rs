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

/// What is at least so large is a file (`MIN_AIO_BYTES`).
const LEAST: u64 = 1 << 20;
/// What each thread reads and writes is a multiple of so many bytes (`AIO_ALIGNED_BYTES`).
const ALIGNED: u64 = 1024;

/// `aio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Aio {
    /// `block_size` \[B\].
    pub block: u64,
    /// `intra_op_parallelism`: threads of a handle.
    pub threads: u64,
}

impl Default for Aio {
    /// DeepSpeed's own (`swap_tensor/constants.py`).
    fn default() -> Self {
        Aio { block: 1 << 20, threads: 1 }
    }
}

impl Aio {
    /// Whether so many bytes are kept in a file.
    pub fn swappable(self, bytes: u64) -> bool {
        bytes >= LEAST.max(self.block)
    }

    /// Bytes of a file of so many.
    pub fn aligned(self, bytes: u64) -> u64 {
        bytes.next_multiple_of(ALIGNED * self.threads)
    }

    /// Of so many bytes those that need no filling up.
    pub(super) fn whole(self, bytes: u64) -> u64 {
        bytes - bytes % (ALIGNED * self.threads)
    }
}

/// A handle is asked for a file, or given one.
pub(super) fn file(program: &mut Builder, handle: StreamId, bytes: u64, write: bool) {
    let name = if write { "async_pwrite" } else { "async_pread" };
    program.launch(handle, name, Work::Disk { bytes: Bytes(bytes), write }, Dispatch::EagerForward);
}
