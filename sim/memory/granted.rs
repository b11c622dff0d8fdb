//! How large the block of each buffer is at a step's peak.
//!
//! A step gives a buffer mostly the block size that it had in the step before. So sizes are held as of the step's begin, with what
//! changes after it. When the peak is known, they are settled as they were then.

use crate::units::Bytes;

/// Sizes of blocks, by buffer.
#[derive(Clone, Debug, Default)]
pub struct Granted {
    now: Vec<u64>,
    at_begin: Vec<u64>,
    /// Which buffer's block had another size from then on, in turn.
    changes: Vec<(u32, u64)>,
}

impl Granted {
    pub(super) fn new(buffers: usize) -> Granted {
        Granted { now: vec![0; buffers], ..Granted::default() }
    }

    /// A step begins.
    pub(super) fn begin(&mut self) {
        self.at_begin.clone_from(&self.now);
        self.changes.clear();
    }

    pub(super) fn size(&self, buffer: usize) -> Bytes {
        Bytes(self.now[buffer])
    }

    #[inline]
    pub(super) fn set(&mut self, buffer: usize, size: Bytes) {
        if self.now[buffer] != size.0 {
            self.now[buffer] = size.0;
            self.changes.push((buffer as u32, size.0));
        }
    }

    /// How many changes there were since the step began.
    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Leaves the sizes as they were after so many changes.
    pub(super) fn settle(&mut self, changes: usize) {
        self.now.clone_from(&self.at_begin);
        for &(buffer, size) in self.changes.iter().take(changes) {
            self.now[buffer as usize] = size;
        }
        (self.at_begin, self.changes) = (vec![], vec![]);
    }

    /// The size of each buffer's block; nothing where a compiler gave memory out.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.now
    }
}
