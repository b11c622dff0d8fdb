//! How large the block of each buffer is, at any moment of a step.
//!
//! A step gives a buffer mostly the block size that it had in the step before, so sizes are held as of the step's begin, with what
//! changes after it.

use crate::units::Bytes;

/// Sizes of blocks, by buffer.
#[derive(Clone, Debug, Default)]
pub struct Granted {
    now: Vec<u64>,
    at_begin: Vec<u64>,
    /// After which instruction of the step which buffer's block had which size.
    changes: Vec<(usize, u32, u64)>,
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
    pub(super) fn set(&mut self, at: usize, buffer: usize, size: Bytes) {
        if self.now[buffer] != size.0 {
            self.now[buffer] = size.0;
            self.changes.push((at, buffer as u32, size.0));
        }
    }

    /// The sizes once so many instructions of the step have run; nothing where a compiler gave memory out.
    pub(super) fn after(&self, instructions: usize) -> Vec<u64> {
        let mut sizes = self.at_begin.clone();
        for &(_, buffer, size) in self.changes.iter().take_while(|&&(at, ..)| at < instructions) {
            sizes[buffer as usize] = size;
        }
        sizes
    }
}
