//! What the caching allocator asks the device for.

use crate::units::Bytes;

/// Calls to the device for memory: `cudaMalloc` and `cudaFree` of segments, or of the granules of expandable ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Segments taken.
    pub takes: u64,
    /// Their bytes.
    pub taken: Bytes,
    /// Segments given back.
    pub returns: u64,
    /// Their bytes.
    pub returned: Bytes,
}

impl DeviceCalls {
    /// The calls since an earlier count.
    pub fn since(self, earlier: DeviceCalls) -> DeviceCalls {
        DeviceCalls {
            takes: self.takes - earlier.takes,
            taken: Bytes(self.taken.0 - earlier.taken.0),
            returns: self.returns - earlier.returns,
            returned: Bytes(self.returned.0 - earlier.returned.0),
        }
    }

    pub(super) fn take(&mut self, segments: u64, bytes: u64) {
        self.takes += segments;
        self.taken.0 += bytes;
    }

    pub(super) fn give_back(&mut self, segments: u64, bytes: u64) {
        self.returns += segments;
        self.returned.0 += bytes;
    }
}
