//! Packing tokens without their padding and putting them back (`flash_attn/bert_padding.py`).
//!
//! A mask of ones is made once for q, k and v, which the host then counts for each of the three: the number of rows and
//! the longest sequence are read back, so that the host waits twice. The rows are copied one by one by their indices
//! (int64, kept for backward); all of them, since none is padding. Backward scatters into zeros. Copies by index that
//! add nothing up count as [`MemoryKind::Gather`]. Left out: the mask's own block, 1 B a token. Blocks in the order in
//! which PyTorch 2.15 takes them for the same Python.

use super::frame::Node;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Dispatch, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    /// `unpad_input`: returns the indices. The mask is made before the `first` of three.
    pub(super) fn unpad(&mut self, graph: &Graph, op: &Op, first: bool, frame: &mut Frame) -> Storage {
        let (value, tokens, dispatch) = (&graph.values[op.inputs[0]], graph.dims.tokens(), self.settings.forward);
        let small = |this: &mut Self, name, read, written, dispatch| {
            this.pointwise(name, MemoryKind::Elementwise, read, written, dispatch);
        };
        let lengths = 4 * graph.dims.b;
        if first {
            self.pointwise("aten.ones_like", MemoryKind::Copy, 0, tokens, dispatch);
        }
        let wide = self.storage(4 * tokens, "aten.sum");
        small(self, "aten.sum", tokens, 4 * tokens, dispatch);
        small(self, "aten.sum", 4 * tokens, lengths, Dispatch::Extra);
        self.release(wide);
        small(self, "aten.nonzero", tokens, 4, dispatch);
        self.read_number(Dispatch::Extra);
        let indices = self.storage(8 * tokens, "aten.nonzero");
        small(self, "aten.nonzero", tokens, 8 * tokens, Dispatch::Extra);
        small(self, "aten.max", lengths, 4, dispatch);
        self.read_number(dispatch);
        small(self, "aten.cumsum", lengths, lengths, dispatch);
        small(self, "aten.constant_pad_nd", 0, lengths + 4, dispatch);
        small(self, "aten.constant_pad_nd", lengths, lengths, Dispatch::Extra);
        let packed = self.storage(value.bytes(), "aten.gather");
        let read = value.bytes() + 8 * tokens;
        self.pointwise("aten.gather", MemoryKind::Gather, read, value.bytes(), dispatch);
        frame.slots[op.outputs[0]] = Some(packed);
        indices
    }

    /// What a wrapper of attention asks the device before it calls the kernel, if it does.
    pub(in crate::runtime) fn ask_before_attention(&mut self, dispatch: Dispatch) {
        if self.settings.attention_reads_back {
            self.read_number(dispatch);
        }
    }

    /// A number comes to the host, which waits for it.
    fn read_number(&mut self, dispatch: Dispatch) {
        let copy = Work::HostCopy { bytes: Bytes(4), to_host: true };
        self.program.launch(COMPUTE, "aten._local_scalar_dense", copy, dispatch);
        self.program.wait_for_host(COMPUTE);
    }

    /// `pad_input`.
    pub(super) fn pad(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let dispatch = self.settings.forward;
        let padded = self.scatter(graph, op.inputs[0], "aten.index_put_", dispatch);
        frame.slots[op.outputs[0]] = Some(padded);
    }

    /// Zeros, and rows put among them.
    fn scatter(&mut self, graph: &Graph, value: usize, name: &'static str, dispatch: Dispatch) -> Storage {
        let (bytes, tokens) = (graph.values[value].bytes(), graph.dims.tokens());
        let made = self.storage(bytes, "aten.zeros");
        self.pointwise("aten.zeros", MemoryKind::Copy, 0, bytes, dispatch);
        self.pointwise(name, MemoryKind::Gather, bytes + 8 * tokens, bytes, dispatch);
        made
    }

    /// Backward of [`Eager::unpad`], whose indices it has saved: the gradient among zeros.
    pub(super) fn unpad_backward(&mut self, node: Node<'_>, frame: &mut Frame, from: Storage) {
        let Node { graph, op, index } = node;
        let category = std::mem::replace(&mut self.category, crate::program::Category::BackwardTemporary);
        let result = self.scatter(graph, op.inputs[0], "aten.scatter_", self.settings.backward);
        self.category = category;
        self.let_go(frame, index, from);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Backward of [`Eager::pad`]: rows of the gradient.
    pub(super) fn pad_backward(&mut self, node: Node<'_>, frame: &mut Frame, from: Storage) {
        let Node { graph, op, index } = node;
        let bytes = graph.values[op.inputs[0]].bytes();
        let result = self.temporary(bytes, "aten.index");
        let read = bytes + 8 * graph.dims.tokens();
        self.pointwise("aten.index", MemoryKind::Gather, read, bytes, self.settings.backward);
        self.let_go(frame, index, from);
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
