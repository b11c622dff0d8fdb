//! RMSNorm written with pointwise operators, as PyTorch composed it before it had a fused kernel.
//!
//! `u = float(x); r = rsqrt(mean(u²) + ε); y = type_as(u·r, x)·w` (`aten/src/ATen/native/layer_norm.cpp`,
//! `rms_norm_symint`, PyTorch 2.4 to 2.6). Autograd keeps `u` in fp32, `r`, and `type_as(u·r, x)`: for bf16 inputs that
//! is 6 bytes per element where the fused kernel keeps the input's 2.

use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, DType, MemoryKind};

/// Sizes of one norm \[B\].
struct Sizes {
    /// The input, in its own type.
    narrow: u64,
    /// The input in fp32.
    wide: u64,
    /// One fp32 number per row.
    rows: u64,
    /// Rows and columns, in elements.
    shape: (u64, u64),
    dtype: DType,
}

fn sizes(graph: &Graph, op: &Op, rows: u64) -> Sizes {
    let value = &graph.values[op.inputs[0]];
    Sizes {
        narrow: value.bytes(),
        wide: value.elements * 4,
        rows: rows * 4,
        shape: (rows, value.elements / rows),
        dtype: value.dtype,
    }
}

impl Eager {
    /// Forward; returns what backward needs (`u` unless it is the input itself, `r`, the product before the weight).
    pub(super) fn composite_norm(&mut self, graph: &Graph, op: &Op, rows: u64, frame: &mut Frame) -> [Storage; 3] {
        let s = sizes(graph, op, rows);
        let dispatch = self.settings.forward;
        let make = |this: &mut Self, name, kind, bytes, read| {
            let storage = this.storage(bytes, name);
            this.pointwise(name, kind, read, bytes, dispatch);
            storage
        };
        let input = frame.slots[op.inputs[0]].expect("an operator reads live values");
        let fp32 = s.dtype == DType::Fp32;
        let up = if fp32 {
            self.retain(input)
        } else {
            make(self, "aten._to_copy", MemoryKind::Elementwise, s.wide, s.narrow)
        };
        let square = make(self, "aten.pow", MemoryKind::Elementwise, s.wide, s.wide);
        let mean = make(self, "aten.mean", MemoryKind::Norm, s.rows, s.wide);
        self.pointwise("aten.add_", MemoryKind::Elementwise, s.rows, s.rows, dispatch);
        let root = make(self, "aten.rsqrt", MemoryKind::Elementwise, s.rows, s.rows);
        self.release(mean);
        self.release(square);
        let mut product = make(self, "aten.mul", MemoryKind::Elementwise, s.wide, s.wide);
        if !fp32 {
            let narrow = make(self, "aten._to_copy", MemoryKind::Elementwise, s.narrow, s.wide);
            self.release(product);
            product = narrow;
        }
        let output = make(self, "aten.mul", MemoryKind::Elementwise, s.narrow, s.narrow);
        frame.slots[op.outputs[0]] = Some(output);
        [up, root, product]
    }

    /// Backward: the product with the weight, the cast, the product with the root, the root, the mean, the square, the
    /// cast; the two gradients of `u` are added up. The `first` norm of a recomputed block lets go of its input.
    pub(super) fn composite_norm_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        (rows, first): (u64, bool),
        frame: &mut Frame,
        (saved, gradient): ([Storage; 3], Storage),
    ) {
        let s = sizes(graph, op, rows);
        let [up, root, product] = saved;
        let fp32 = s.dtype == DType::Fp32;
        let checkpointed = frame.checkpoint.is_some();
        let make = |this: &mut Self, name, bytes, read| this.pointwise_gradient(name, bytes, read);
        let weighted = make(self, "aten.mul", s.narrow, 2 * s.narrow);
        let inner = make(self, "aten.mul", s.narrow, s.narrow);
        if checkpointed {
            self.release(product);
        }
        let weight = self.sum_rows(s.shape.0, s.shape.1, s.dtype);
        self.release(weighted);
        let param = frame.params.index(op.params[0]);
        let (weight, dtype) = self.upcast(param, weight, s.dtype);
        self.release(gradient);
        if !checkpointed {
            self.release(product);
        }
        self.store_leaf(param, weight, dtype);
        let mut wide = inner;
        if !fp32 {
            wide = make(self, "aten._to_copy", s.wide, s.narrow);
            self.release(inner);
        }
        let by_root = make(self, "aten.mul", s.wide, 2 * s.wide);
        let by_input = make(self, "aten.mul", s.wide, s.wide);
        let of_root = make(self, "aten.sum", s.rows, s.wide);
        self.release(by_root);
        self.release(wide);
        if fp32 {
            self.accumulate(frame, op.inputs[0], by_input.into());
        }
        let cube = make(self, "aten.pow", s.rows, s.rows);
        let half = make(self, "aten.mul", s.rows, s.rows);
        let of_mean = make(self, "aten.mul", s.rows, 2 * s.rows);
        self.release(half);
        self.release(cube);
        self.let_go_of(checkpointed, of_root, root);
        let spread = make(self, "aten.div", s.wide, s.rows);
        self.release(of_mean);
        let power = make(self, "aten.pow", s.wide, s.wide);
        let double = make(self, "aten.mul", s.wide, s.wide);
        let of_square = make(self, "aten.mul", s.wide, 2 * s.wide);
        self.release(double);
        self.release(power);
        self.let_go_of(checkpointed, spread, up);
        if checkpointed && first && frame.holds_input {
            self.release(frame.input);
        }
        if fp32 {
            self.accumulate(frame, op.inputs[0], of_square.into());
            return;
        }
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * s.wide, s.wide, self.settings.backward);
        self.release(of_square);
        let result = self.storage_as(s.narrow, Category::BackwardTemporary, "aten._to_copy");
        self.pointwise("aten._to_copy", MemoryKind::Elementwise, s.wide, s.narrow, self.settings.backward);
        self.release(by_input);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// A node's gradient and its saved tensor go, in the order that checkpointing decides.
    pub(super) fn let_go_of(&mut self, checkpointed: bool, gradient: Storage, saved: Storage) {
        let order = if checkpointed { [saved, gradient] } else { [gradient, saved] };
        for storage in order {
            self.release(storage);
        }
    }
}
