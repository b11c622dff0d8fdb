//! Rotary embeddings written in real numbers, operator by operator.
//!
//! - [`Rope::RotateHalf`]: `q·cos + cat(−q₂, q₁)·sin` in the model's type (Hugging Face transformers,
//!   `modeling_llama.py`, `apply_rotary_pos_emb`). Cosines and sines are made once for all blocks, so nothing is kept.
//! - [`Rope::Stacked`]: `x.float()` as pairs, `stack([x₀c − x₁s, x₁c + x₀s])`, back to the type of x (torchtune,
//!   `torchtune/models/llama3_1/_position_embeddings.py`). The table's rows are gathered by position for each call, and
//!   are what backward keeps.
//!
//! Their backward is long: a slice or a selection hands back zeros of the whole with its part copied in, and the parts
//! are added up.

use super::frame::{Moved, Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::style::Rope;
use crate::program::{Category, Dispatch, MemoryKind};

/// Sizes of one rotated value \[B\].
#[derive(Clone, Copy)]
struct Sizes {
    /// The value in its own type.
    narrow: u64,
    /// In fp32.
    wide: u64,
    /// The rows of the table for all tokens: a cosine and a sine for each pair of dimensions, in fp32.
    table: u64,
}

impl Sizes {
    fn elements(self) -> u64 {
        self.wide / 4
    }
}

fn sizes(graph: &Graph, op: &Op) -> Sizes {
    let (value, dims) = (&graph.values[op.inputs[0]], graph.dims);
    Sizes { narrow: value.bytes(), wide: value.elements * 4, table: dims.tokens() * dims.r * 4 }
}

impl Eager {
    /// Rows of a block's own table, gathered by the positions of its tokens.
    pub(super) fn rotary_rows(&mut self, graph: &Graph, moved: Moved, dispatch: Dispatch) {
        // Positions are compared with the table's length, and the answer checked on the device.
        let positions = 8 * graph.dims.tokens();
        self.pointwise("aten.le", MemoryKind::Elementwise, positions, positions / 8, dispatch);
        self.pointwise("aten.all", MemoryKind::Elementwise, positions / 8, 1, dispatch);
        self.pointwise("aten._assert_async", MemoryKind::Elementwise, 1, 0, dispatch);
        self.pointwise(moved.name, MemoryKind::Gather, moved.written + positions, moved.written, dispatch);
    }

    /// Forward; returns what backward keeps, unless it is to be forgotten.
    pub(super) fn rotate(
        &mut self,
        graph: &Graph,
        op: &Op,
        rope: Rope,
        frame: &mut Frame,
        results: Results,
    ) -> Option<Storage> {
        let s = sizes(graph, op);
        let dispatch = self.settings.forward;
        let make = |this: &mut Self, name, kind, bytes, read| {
            let storage = this.storage(bytes, name);
            this.pointwise(name, kind, read, bytes, dispatch);
            storage
        };
        let point = MemoryKind::Elementwise;
        if rope == Rope::RotateHalf {
            let (full, half) = (s.narrow, s.narrow / 2);
            // One row of cosines serves all heads, and halves of rows are turned.
            let elements = s.elements();
            let cosine = self.made_strided("aten.mul", full, elements, dispatch);
            let negative = self.made_strided("aten.neg", half, elements / 2, dispatch);
            let turned = make(self, "aten.cat", MemoryKind::Copy, full, full);
            self.release(negative);
            let sine = self.made_strided("aten.mul", full, elements, dispatch);
            self.release(turned);
            let output = make(self, "aten.add", point, full, 2 * full);
            self.release(sine);
            self.release(cosine);
            frame.slots[op.outputs[0]] = Some(output);
            return None;
        }
        let half = s.wide / 2;
        let pairs = make(self, "aten._to_copy", point, s.wide, s.narrow);
        let table = make(self, "aten.index", MemoryKind::Gather, s.table, s.table);
        let parts = ["aten.sub", "aten.add"].map(|name| {
            // One of each pair, times a column of the table.
            let first = self.made_strided("aten.mul", half, s.elements() / 2, dispatch);
            let second = self.made_strided("aten.mul", half, s.elements() / 2, dispatch);
            let part = make(self, name, point, half, 2 * half);
            self.release(second);
            self.release(first);
            part
        });
        let stacked = make(self, "aten.stack", MemoryKind::Copy, s.wide, s.wide);
        for part in parts {
            self.release(part);
        }
        let output = make(self, "aten._to_copy", point, s.narrow, s.wide);
        self.release(pairs);
        let kept = (results != Results::Forget).then_some(table);
        if kept.is_none() {
            self.release(table);
        }
        self.release(stacked);
        frame.slots[op.outputs[0]] = Some(output);
        kept
    }

    /// Backward.
    pub(super) fn rotate_backward(&mut self, node: Node<'_>, rope: Rope, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let s = sizes(graph, op);
        let input = op.inputs[0];
        if rope == Rope::RotateHalf {
            let (full, half) = (s.narrow, s.narrow / 2);
            let elements = s.elements();
            let of_turned = self.strided_gradient("aten.mul", full, elements);
            let negative = self.strided_gradient("aten.neg", half, elements / 2);
            let second = self.padded("aten.slice_backward", full, elements / 2);
            self.release(negative);
            let first = self.padded("aten.slice_backward", full, elements / 2);
            self.release(of_turned);
            self.accumulate(frame, input, second.into());
            self.accumulate(frame, input, first.into());
            let of_cosine = self.strided_gradient("aten.mul", full, elements);
            self.let_go(frame, index, gradient);
            self.accumulate(frame, input, of_cosine.into());
            return;
        }
        let half = s.wide / 2;
        let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
        self.release(gradient);
        let mut total = None;
        let mut negative = None;
        // The second row of the rotation, then the first: of each, its second product first.
        for at in 0..4 {
            if at == 2 {
                negative = Some(self.pointwise_gradient("aten.neg", half, half));
            }
            let product = self.strided_gradient("aten.mul", half, s.elements() / 2);
            if let Some(negative) = negative.take() {
                self.release(negative);
            }
            if at == 3 && frame.checkpoint.is_some() {
                self.let_go_of_table(frame, index);
                self.release(wide);
            } else if at == 3 {
                self.release(wide);
                self.let_go_of_table(frame, index);
            }
            let part = self.padded("aten.select_backward", s.wide, half / 4);
            self.release(product);
            match total {
                None => total = Some(part),
                Some(_) => {
                    self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * s.wide, s.wide, self.settings.backward);
                    self.release(part);
                }
            }
        }
        let result = self.storage_as(s.narrow, Category::BackwardTemporary, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, s.wide, s.narrow, self.settings.backward);
        total.into_iter().for_each(|total| self.release(total));
        self.accumulate(frame, input, result.into());
    }

    /// Zeros of `whole` bytes, with `part` of their elements copied over.
    pub(super) fn padded(&mut self, name: &'static str, whole: u64, part: u64) -> Storage {
        let storage = self.temporary(whole, name);
        let dispatch = self.settings.backward;
        self.pointwise("aten.zero_", MemoryKind::Copy, 0, whole, dispatch);
        self.strided("aten.copy_", part, dispatch);
        storage
    }

    fn let_go_of_table(&mut self, frame: &Frame, index: usize) {
        let (start, end) = Self::saved(frame, index);
        for at in start..end {
            self.release(frame.saved[at]);
        }
    }
}
