//! RMSNorm written with pointwise operators, as PyTorch composed it before it had a fused kernel.
//!
//! `u = float(x); r = rsqrt(mean(u²) + ε); y = type_as(u·r, x)·w` (`aten/src/ATen/native/layer_norm.cpp`,
//! `rms_norm_symint`, PyTorch 2.4 to 2.6). Autograd keeps `u` in fp32, `r`, and `type_as(u·r, x)`: for bf16 inputs that
//! is 6 bytes per element where the fused kernel keeps the input's 2.

use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::style::NormCode;
use crate::program::{Category, DType, MemoryKind};

/// Sizes of one norm \[B\].
struct Sizes {
    /// The input, in its own type.
    narrow: u64,
    /// The input in fp32.
    wide: u64,
    /// One fp32 number per row.
    rows: u64,
    /// Rows of the input.
    height: u64,
    /// Elements of a row.
    width: u64,
    dtype: DType,
}

fn sizes(graph: &Graph, op: &Op, rows: u64) -> Sizes {
    let value = &graph.values[op.inputs[0]];
    Sizes {
        narrow: value.bytes(),
        wide: value.elements * 4,
        rows: rows * 4,
        height: rows,
        width: value.elements / rows,
        dtype: value.dtype,
    }
}

/// What came of a norm before its weight, and what that was multiplied by where it is no parameter.
#[derive(Clone, Copy)]
struct Product {
    product: Storage,
    weight: Option<Storage>,
}

/// What a norm keeps: the input in fp32, the root, the product of the two (before the weight), and the weight plus one.
type Kept = [Option<Storage>; 4];

impl Eager {
    /// Forward; returns what backward needs (`u` unless it is the input itself, `r`, the product before the weight, what that
    /// is multiplied by where it is no parameter).
    pub(super) fn composite_norm(
        &mut self,
        graph: &Graph,
        op: &Op,
        rows: u64,
        frame: &mut Frame,
        results: Results,
    ) -> Kept {
        let s = sizes(graph, op, rows);
        let dispatch = self.settings.forward;
        let code = self.settings.norm_code;
        let make = |this: &mut Self, name, kind, bytes, read| {
            let storage = this.storage(bytes, name);
            this.pointwise(name, kind, read, bytes, dispatch);
            storage
        };
        let point = MemoryKind::Elementwise;
        let input = frame.slots[op.inputs[0]].expect("an operator reads live values");
        let fp32 = s.dtype == DType::Fp32;
        let up = if fp32 { self.retain(input) } else { make(self, "aten._to_copy", point, s.wide, s.narrow) };
        let square = make(self, "aten.pow", point, s.wide, s.wide);
        let mut mean = make(self, "aten.mean", MemoryKind::Norm, s.rows, s.wide);
        let root = if code == NormCode::Torch {
            self.pointwise("aten.add_", point, s.rows, s.rows, dispatch);
            let root = make(self, "aten.rsqrt", point, s.rows, s.rows);
            self.release(mean);
            self.release(square);
            root
        } else {
            self.release(square);
            let sum = make(self, "aten.add", point, s.rows, s.rows);
            if code == NormCode::OnePlus {
                self.release(std::mem::replace(&mut mean, sum));
            }
            let root = make(self, "aten.rsqrt", point, s.rows, s.rows);
            self.release(if code == NormCode::OnePlus { mean } else { sum });
            root
        };
        let product = make(self, "aten.mul", point, s.wide, s.wide);
        let forgets = code != NormCode::Torch && results == Results::Forget;
        if forgets {
            self.release(root);
            self.release(up);
        }
        let (output, mut kept) = self.scaled(&s, code, product);
        frame.slots[op.outputs[0]] = Some(output);
        if !forgets && graph.trains(op, 0) && !graph.needs(op.inputs[0]) {
            // The weight's gradient is all that is asked for, which takes what it was multiplied by.
            let gone = [Some(root), Some(up)];
            gone.into_iter().flatten().for_each(|unread| self.release(unread));
            if matches!(code, NormCode::Llama | NormCode::Wide) {
                self.release(mean);
            }
            kept[1].take().into_iter().for_each(|unread| self.release(unread));
            return [kept[0], None, None, None];
        }
        if !forgets && !graph.trains(op, 0) {
            // What a frozen weight is multiplied by is kept for the weight's gradient alone.
            kept[0].take().into_iter().for_each(|unread| self.release(unread));
        }
        if matches!(code, NormCode::Llama | NormCode::Wide) {
            self.release(mean);
        }
        if !forgets {
            return [Some(up), Some(root), kept[0], kept[1]];
        }
        for storage in kept.iter_mut().filter_map(Option::take) {
            self.release(storage);
        }
        [None; 4]
    }

    /// The product with the weight, in the input's type; and what of it backward needs.
    fn scaled(&mut self, s: &Sizes, code: NormCode, product: Storage) -> (Storage, [Option<Storage>; 2]) {
        let dispatch = self.settings.forward;
        let make = |this: &mut Self, name, bytes, read| {
            let storage = this.storage(bytes, name);
            this.pointwise(name, MemoryKind::Elementwise, read, bytes, dispatch);
            storage
        };
        let fp32 = s.dtype == DType::Fp32;
        let columns = 4 * s.width;
        match code {
            NormCode::Torch | NormCode::Llama if fp32 => {
                (make(self, "aten.mul", s.narrow, s.narrow), [Some(product), None])
            }
            NormCode::Torch | NormCode::Llama => {
                let narrow = make(self, "aten._to_copy", s.narrow, s.wide);
                if code == NormCode::Torch {
                    self.release(product);
                }
                let output = make(self, "aten.mul", s.narrow, s.narrow);
                if code == NormCode::Llama {
                    self.release(product);
                }
                (output, [Some(narrow), None])
            }
            NormCode::Wide | NormCode::OnePlus => {
                let weight = (code == NormCode::OnePlus).then(|| {
                    let wide = (!fp32).then(|| make(self, "aten._to_copy", columns, columns / 2));
                    let sum = make(self, "aten.add", columns, columns);
                    wide.into_iter().for_each(|wide| self.release(wide));
                    sum
                });
                let scaled = make(self, "aten.mul", s.wide, s.wide);
                if fp32 {
                    return (scaled, [Some(product), weight]);
                }
                let output = make(self, "aten._to_copy", s.narrow, s.wide);
                self.release(scaled);
                (output, [Some(product), weight])
            }
        }
    }

    /// Backward: the product with the weight, the cast, the product with the root, the root, the mean, the square, the
    /// cast; the two gradients of `u` are added up. The `first` norm of a recomputed block lets go of its input.
    pub(super) fn composite_norm_backward(&mut self, node: Node<'_>, rows: u64, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        if !graph.needs(op.inputs[0]) {
            return self.composite_norm_weight(node, rows, frame, gradient);
        }
        let (start, end) = Self::saved(frame, index);
        let saved = &frame.saved[start..end];
        let (up, root, first) = (saved[0], saved[1], start == 0);
        let rest = saved[2..].to_vec();
        let s = sizes(graph, op, rows);
        let fp32 = s.dtype == DType::Fp32;
        let checkpointed = frame.checkpoint.is_some();
        let make = |this: &mut Self, name, bytes, read| this.pointwise_gradient(name, bytes, read);
        let wide = match self.settings.norm_code {
            _ if !graph.trains(op, 0) => self.unscaled_frozen(&s, rest.first().copied(), frame, gradient),
            NormCode::Torch | NormCode::Llama => self.unscaled(op, &s, frame, rest[0], gradient),
            NormCode::Wide | NormCode::OnePlus => {
                let product = Product { product: rest[0], weight: rest.get(1).copied() };
                self.unscaled_wide(op, &s, frame, product, gradient)
            }
        };
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
        let broadcast = make(self, "aten.div", s.wide, s.rows);
        self.release(of_mean);
        let power = make(self, "aten.pow", s.wide, s.wide);
        let double = make(self, "aten.mul", s.wide, s.wide);
        let of_square = make(self, "aten.mul", s.wide, 2 * s.wide);
        self.release(double);
        self.release(power);
        self.let_go_of(checkpointed, broadcast, up);
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

    /// Gradients of the weight and, in fp32, of the product before it, where they were multiplied in the input's type.
    fn unscaled(&mut self, op: &Op, s: &Sizes, frame: &Frame, product: Storage, gradient: Storage) -> Storage {
        let checkpointed = frame.checkpoint.is_some();
        let weighted = self.pointwise_gradient("aten.mul", s.narrow, 2 * s.narrow);
        let inner = self.pointwise_gradient("aten.mul", s.narrow, s.narrow);
        if checkpointed {
            self.release(product);
        }
        let weight = self.sum_rows(s.height, s.width, s.dtype);
        self.release(weighted);
        let param = frame.params.index(op.params[0]);
        let (weight, dtype) = self.upcast(param, weight, s.dtype);
        self.release(gradient);
        if !checkpointed {
            self.release(product);
        }
        self.store_leaf(param, weight, dtype);
        if s.dtype == DType::Fp32 {
            return inner;
        }
        let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
        self.release(inner);
        wide
    }

    /// The gradient of the weight alone.
    fn composite_norm_weight(&mut self, node: Node<'_>, rows: u64, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let s = sizes(graph, op, rows);
        let narrow = matches!(self.settings.norm_code, NormCode::Torch | NormCode::Llama);
        let (bytes, dtype) = if narrow { (s.narrow, s.dtype) } else { (s.wide, DType::Fp32) };
        let wide = (!narrow && s.dtype != DType::Fp32).then(|| {
            let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
            self.release(gradient);
            wide
        });
        let weighted = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
        let mut sum = self.sum_rows(s.height, s.width, dtype);
        self.release(weighted);
        self.let_go(frame, index, wide.unwrap_or(gradient));
        let mut made = dtype;
        if self.settings.norm_code == NormCode::OnePlus && s.dtype != DType::Fp32 {
            let bytes = s.width * s.dtype.bytes();
            let cast = self.pointwise_gradient("aten._to_copy", bytes, 2 * bytes);
            self.release(std::mem::replace(&mut sum, cast));
            made = s.dtype;
        }
        let param = frame.params.index(op.params[0]);
        let (sum, made) = self.upcast(param, sum, made);
        self.store_leaf(param, sum, made);
    }

    /// The gradient of the product before a frozen weight, in fp32; `weight`: what was kept in the weight's place.
    fn unscaled_frozen(&mut self, s: &Sizes, weight: Option<Storage>, frame: &Frame, gradient: Storage) -> Storage {
        if s.dtype == DType::Fp32 {
            let inner = self.pointwise_gradient("aten.mul", s.wide, s.wide);
            self.release(gradient);
            weight.into_iter().for_each(|weight| self.release(weight));
            return inner;
        }
        if matches!(self.settings.norm_code, NormCode::Torch | NormCode::Llama) {
            let inner = self.pointwise_gradient("aten.mul", s.narrow, s.narrow);
            self.release(gradient);
            let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
            self.release(inner);
            return wide;
        }
        let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
        self.release(gradient);
        let inner = self.pointwise_gradient("aten.mul", s.wide, s.wide);
        match weight {
            Some(weight) => self.let_go_of(frame.checkpoint.is_some(), wide, weight),
            None => self.release(wide),
        }
        inner
    }

    /// The same where they were multiplied in fp32, by `weight` plus one or by the parameter, whose gradient is then fp32.
    fn unscaled_wide(
        &mut self,
        op: &Op,
        s: &Sizes,
        frame: &Frame,
        Product { product, weight }: Product,
        gradient: Storage,
    ) -> Storage {
        let checkpointed = frame.checkpoint.is_some();
        let wide = if s.dtype == DType::Fp32 {
            gradient
        } else {
            let wide = self.pointwise_gradient("aten._to_copy", s.wide, s.narrow);
            self.release(gradient);
            wide
        };
        let inner = self.pointwise_gradient("aten.mul", s.wide, s.wide);
        let weighted = self.pointwise_gradient("aten.mul", s.wide, 2 * s.wide);
        let kept = [weight, Some(product)];
        if checkpointed {
            kept.into_iter().flatten().for_each(|kept| self.release(kept));
        }
        let sum = self.sum_rows(s.height, s.width, DType::Fp32);
        self.release(weighted);
        self.release(wide);
        if !checkpointed {
            kept.into_iter().flatten().for_each(|kept| self.release(kept));
        }
        let (mut made, mut dtype) = (sum, DType::Fp32);
        if weight.is_some() && s.dtype != DType::Fp32 {
            // The parameter was cast, and so is its gradient.
            let bytes = s.width * s.dtype.bytes();
            made = self.pointwise_gradient("aten._to_copy", bytes, 2 * bytes);
            dtype = s.dtype;
            self.release(sum);
        }
        let param = frame.params.index(op.params[0]);
        let (made, dtype) = self.upcast(param, made, dtype);
        self.store_leaf(param, made, dtype);
        inner
    }

    /// A node's gradient and its saved tensor go, in the order that checkpointing decides.
    pub(super) fn let_go_of(&mut self, checkpointed: bool, gradient: Storage, saved: Storage) {
        let order = if checkpointed { [saved, gradient] } else { [gradient, saved] };
        for storage in order {
            self.release(storage);
        }
    }
}
