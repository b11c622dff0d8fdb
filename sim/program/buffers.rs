//! Blocks of memory as a program asks for them. Step by step it asks for many, but few differ: each kind is kept once.

use std::ops::Range;

use super::intern::Interned;
use super::{BufferId, Category, ScopeId, StreamId};
use crate::units::Bytes;

/// A block of memory as the program asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Bytes asked for, before the allocator rounds \[B\].
    pub bytes: Bytes,
    /// The stream whose pool serves it.
    pub stream: StreamId,
    /// What it is for.
    pub category: Category,
    /// The operator or parameter that asked.
    pub name: &'static str,
    /// The module or region that asked.
    pub scope: ScopeId,
}

/// All buffers of a program, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    kinds: Vec<Buffer>,
    /// The kind of each.
    of: Vec<u32>,
}

impl Buffers {
    /// Adds a buffer.
    pub(super) fn add(&mut self, buffer: Buffer, kinds: &mut Interned<Buffer>) -> BufferId {
        self.of.push(kinds.id(&mut self.kinds, buffer));
        BufferId(self.of.len() as u32 - 1)
    }

    /// Adds buffers like those of a range. Returns the first.
    pub(super) fn again(&mut self, range: &Range<u32>) -> BufferId {
        let first = BufferId(self.of.len() as u32);
        self.of.extend_from_within(range.start as usize..range.end as usize);
        first
    }

    /// The buffer behind an id.
    #[inline]
    pub fn get(&self, BufferId(id): BufferId) -> &Buffer {
        &self.kinds[self.of[id as usize] as usize]
    }

    /// All of them, in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Buffer> {
        self.of.iter().map(|&kind| &self.kinds[kind as usize])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}
