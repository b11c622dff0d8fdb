//! Takes storages, counts references to them, and lets go; adds gradients up on their way.

use super::storage::{Counted, Gradient};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Op, ValueId};
use crate::program::{BufferId, Category, MemoryKind, StreamId};
use crate::units::Bytes;

impl Eager {
    /// Takes a storage with one reference.
    pub fn storage(&mut self, bytes: u64, name: &'static str) -> Storage {
        self.storage_as(bytes, self.category, name)
    }

    /// Takes a storage of a stated category with one reference.
    pub fn storage_as(&mut self, bytes: u64, category: Category, name: &'static str) -> Storage {
        self.storage_on(self.stream, bytes, category, name)
    }

    /// Takes a storage from a stream's pool with one reference.
    pub(super) fn storage_on(
        &mut self,
        stream: StreamId,
        bytes: u64,
        category: Category,
        name: &'static str,
    ) -> Storage {
        let buffer = self.program.alloc(Bytes(bytes), stream, category, name);
        self.number(Counted { buffer, references: 1, bytes })
    }

    /// Finds a place for a storage's references.
    pub(super) fn number(&mut self, counted: Counted) -> Storage {
        match self.storages.idle.pop() {
            Some(index) => {
                self.storages.counted[index as usize] = counted;
                Storage(index)
            }
            None => {
                self.storages.counted.push(counted);
                Storage(self.storages.counted.len() as u32 - 1)
            }
        }
    }

    /// A stand-in for a storage that is not counted (the token ids, which live for the whole run).
    pub fn borrowed(&mut self) -> Storage {
        self.storages.stand_ins += 1;
        self.storages.counted.push(Counted { buffer: BufferId(0), references: u32::MAX / 2, bytes: 0 });
        Storage(self.storages.counted.len() as u32 - 1)
    }

    /// One more reference.
    pub fn retain(&mut self, storage: Storage) -> Storage {
        self.storages.counted[storage.0 as usize].references += 1;
        storage
    }

    /// One reference fewer; the last gives the storage back.
    pub fn release(&mut self, storage: Storage) {
        let counted = &mut self.storages.counted[storage.0 as usize];
        counted.references -= 1;
        if counted.references == 0 {
            let buffer = counted.buffer;
            while let Some(at) = self.storages.lingers_with.iter().position(|&(with, _)| with == storage) {
                let (_, lingering) = self.storages.lingers_with.remove(at);
                self.release(lingering);
            }
            self.storages.idle.push(storage.0);
            self.program.free(buffer);
        }
    }

    /// One more reference to a value of a running frame.
    pub fn hold(&mut self, frame: &Frame, value: ValueId) -> Storage {
        let storage = frame.slots[value].expect("a value just made is live");
        self.retain(storage)
    }

    /// Hands a storage over to a buffer that outlives the step; nobody else may hold it.
    pub fn hand_over(&mut self, storage: Storage, to: BufferId) {
        let counted = &mut self.storages.counted[storage.0 as usize];
        assert_eq!(counted.references, 1, "a block is handed over by its only holder");
        counted.references = 0;
        let from = counted.buffer;
        self.storages.idle.push(storage.0);
        self.program.rename(from, to);
    }

    /// Bytes of a storage.
    pub(in crate::runtime) fn bytes(&self, storage: Storage) -> u64 {
        self.storages.counted[storage.0 as usize].bytes
    }

    /// A copy of a storage of so many bytes.
    pub(super) fn copy_of(&mut self, name: &'static str, bytes: u64, backward: bool) -> Storage {
        if backward {
            let copy = self.temporary(bytes, name);
            self.pointwise(name, MemoryKind::Copy, bytes, bytes, self.settings.backward);
            return copy;
        }
        let copy = self.storage(bytes, name);
        self.pointwise(name, MemoryKind::Copy, bytes, bytes, self.settings.forward);
        copy
    }

    /// Adds up two gradients of one value: in place if nobody else holds the earlier one and it is no view, else out of
    /// place (`torch/csrc/autograd/input_buffer.cpp`).
    pub(super) fn accumulate(&mut self, frame: &mut Frame, value: ValueId, gradient: Gradient) {
        if frame.needs.get(value) == Some(&false) {
            return self.release(gradient.storage);
        }
        let Some(earlier) = frame.gradients[value].replace(gradient) else { return };
        let bytes = self.bytes(gradient.storage);
        let dispatch = self.settings.backward;
        let alone = self.storages.counted[earlier.storage.0 as usize].references == 1;
        let sum = if alone && !earlier.view {
            self.retain(earlier.storage)
        } else {
            self.storage_as(bytes, Category::BackwardTemporary, "aten.add")
        };
        self.pointwise("aten.add", MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
        self.release(earlier.storage);
        self.release(gradient.storage);
        frame.gradients[value] = Some(sum.into());
    }

    /// Takes a storage for the time of a node's backward.
    pub(super) fn temporary(&mut self, bytes: u64, name: &'static str) -> Storage {
        self.storage_as(bytes, Category::BackwardTemporary, name)
    }

    /// Storages taken in order and given back in the opposite one.
    pub(super) fn nested(&mut self, sizes: &[u64], name: &'static str) {
        let Some((&bytes, rest)) = sizes.split_first() else { return };
        let storage = self.temporary(bytes, name);
        self.nested(rest, name);
        self.release(storage);
    }

    /// Lets go of what Python names no longer once an operator has run.
    pub(super) fn drop_python_references(&mut self, op: &Op, frame: &mut Frame) {
        for &value in &op.drops {
            if let Some(storage) = frame.slots[value].take() {
                self.release(storage);
            }
        }
    }
}
