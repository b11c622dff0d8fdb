//! What a node's backward is put together from: what it saved, small kernels, sums over rows.

use super::frame::Node;
use super::{Eager, Frame, Storage};
use crate::program::{DType, MemoryKind};

const SUM: &str = "aten.sum";

fn last_power_of_2(value: u64) -> u64 {
    1 << value.max(1).ilog2()
}

pub(super) fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

impl Eager {
    pub(super) fn saved(frame: &Frame, index: usize) -> (usize, usize) {
        // Of a block that has yet to be recomputed nothing is saved.
        let Some(&end) = frame.saved_end.get(index) else { return (0, 0) };
        let start = if index == 0 { 0 } else { frame.saved_end[index - 1] as usize };
        (start, end as usize)
    }

    /// What a node saved, all of it.
    pub(super) fn saved_by<const COUNT: usize>(frame: &Frame, index: usize) -> [Storage; COUNT] {
        let (start, end) = Self::saved(frame, index);
        frame.saved[start..end].try_into().expect("a node has saved what its kind saves")
    }

    /// Lets go of what a node received and saved.
    pub(super) fn let_go(&mut self, frame: &Frame, index: usize, gradient: Storage) {
        let (start, end) = Self::saved(frame, index);
        if frame.checkpoint.is_some() {
            self.let_go_of_saved(frame, index);
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.release(gradient);
            for at in start..end {
                self.release(frame.saved[at]);
            }
        }
    }

    /// Lets go of the block's input, which the checkpoint holds, after the last node that saved something.
    pub(super) fn let_go_of_input(&mut self, frame: &Frame, index: usize) {
        if frame.holds_input && matches!(Self::saved(frame, index), (0, 1..)) {
            self.release(frame.input);
        }
    }

    /// Lets go of what a node of a recomputed block saved.
    pub(super) fn let_go_of_saved(&mut self, frame: &Frame, index: usize) {
        let (start, end) = Self::saved(frame, index);
        for at in (start..end).rev() {
            self.release(frame.saved[at]);
        }
    }

    /// A pointwise backward kernel with one result.
    pub(super) fn pointwise_gradient(&mut self, name: &'static str, bytes: u64, read: u64) -> Storage {
        let storage = self.temporary(bytes, name);
        let dispatch = self.settings.backward;
        self.pointwise(name, MemoryKind::Elementwise, read, bytes, dispatch);
        storage
    }

    /// The same of operands whose dimensions do not merge.
    pub(super) fn strided_gradient(&mut self, name: &'static str, bytes: u64, elements: u64) -> Storage {
        let storage = self.temporary(bytes, name);
        self.strided(name, elements, self.settings.backward);
        storage
    }

    /// Sum over the rows of a matrix. Thread blocks that share a column leave partial sums in a buffer, with a
    /// semaphore each (`aten/src/ATen/native/cuda/Reduce.cuh`: 512 threads over up to 4 columns a thread).
    pub(super) fn sum_rows(&mut self, rows: u64, columns: u64, dtype: DType) -> Storage {
        let sum = self.temporary(columns * dtype.bytes(), SUM);
        self.sum_buffers(rows, columns, 4);
        let read = rows * columns * dtype.bytes();
        self.pointwise(SUM, MemoryKind::Elementwise, read, columns * dtype.bytes(), self.settings.backward);
        sum
    }

    /// The partial sums and semaphores of such a sum, whose numbers are so many bytes while they are added up.
    pub(super) fn sum_buffers(&mut self, rows: u64, columns: u64, number: u64) {
        let vector = [4, 2, 1].into_iter().find(|&vector| columns.is_multiple_of(vector)).unwrap_or(1);
        let threads = 512 / vector;
        let width = last_power_of_2(columns / vector).min(32);
        let height = last_power_of_2(rows).min(threads / width);
        let per_thread = rows.div_ceil(height);
        let grid = (columns / vector).div_ceil(width);
        // 2,048 threads per SM.
        let target = u64::from(self.settings.sms) * 2048 / (width * height);
        if per_thread >= 256 && grid <= target {
            let shared = target.div_ceil(grid).min(per_thread.div_ceil(16)).max(per_thread.div_ceil(256));
            if shared > 1 {
                self.nested(&[number * columns * shared * width * vector, 4 * grid], SUM);
            }
        }
    }

    /// Keeps what an operator without parameters has saved, in the first half.
    pub(super) fn keep_saved(&mut self, node: Node<'_>, frame: &mut Frame) {
        let Node { op, index, .. } = node;
        let (start, end) = Self::saved(frame, index);
        if !op.params.is_empty() || start == end {
            return;
        }
        for at in start..end {
            self.retain(frame.saved[at]);
        }
        frame.halved.nodes.push(index);
    }
}
