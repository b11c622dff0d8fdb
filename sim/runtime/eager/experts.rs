//! A mixture of experts in eager operators: what its router, its moves of rows and its matmuls allocate and keep.
//!
//! Sorting is `aten/src/ATen/native/cuda/Sort.cu` (up to 4,096 keys in place, beyond by cub's radix sort); gradients of
//! picked weights go through `index_put_` with sorted indices (`Indexing.cu`). An expert's weight is a slice of all
//! experts': the gradient of a slice is zeros of the whole size with the slice filled in (`select_backward`), and those of
//! all experts are added up before they are stored.

use super::embedding::radix_sort_workspace;
use super::frame::{Node, Results};
use super::shape::MatmulShape;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::experts::ChoiceOp;
use crate::model::experts::ExpertOp;
use crate::model::experts::TitanOp;
use crate::model::graph::{Graph, Op, OpKind};
use crate::program::{Category, DType, Dispatch, Grouping, MatmulLayout, MemoryKind, Work};

/// Keys up to which a sort needs no workspace.
pub(super) const SORTED_IN_PLACE: u64 = 4096;
/// Arguments of a grouped matmul per group \[B\]: three pointers, three strides, three sizes (`GroupMMCommon.cuh`).
const GROUP_ARGUMENTS: u64 = 60;
/// Workspace of a grouped matmul per SM \[B\] (found with PyTorch 2.15: 67,584 on 132).
const GROUP_WORKSPACE: u64 = 512;

/// Sizes of a mixture \[B\].
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Scores in fp32.
    pub(super) scores: u64,
    /// One fp32 number per token.
    rows: u64,
    /// One fp32 number per copy.
    pub(super) copies: u64,
    /// One index per copy.
    pub(super) indices: u64,
}

pub(super) fn sizes(graph: &Graph) -> Sizes {
    let d = graph.dims;
    let copies = d.tokens() * d.top_k;
    Sizes { scores: 4 * d.tokens() * d.e, rows: 4 * d.tokens(), copies: 4 * copies, indices: 8 * copies }
}

impl Eager {
    /// Runs one operator of a mixture; what a policy has `cached` of it is not made again.
    pub(super) fn experts(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: ExpertOp,
        frame: &mut Frame,
        results: Results,
        cached: &[Storage],
    ) {
        let dispatch = self.settings.forward;
        let slot = |frame: &Frame, value: usize| frame.slots[value].expect("an operator reads live values");
        let bytes = |at: usize| graph.values[op.outputs[at]].bytes();
        let point = |this: &mut Self, name, memory, read, out: u64| {
            let storage = this.storage(out, name);
            this.pointwise(name, memory, read, out, dispatch);
            storage
        };
        let mut saved = vec![];
        match kind {
            ExpertOp::Titan(kind) => return self.titan(graph, op, kind, frame, results, cached),
            ExpertOp::Choice(ChoiceOp::Choose { count, places }) => {
                saved = self.choose_tokens(graph, op, count, places, frame);
            }
            ExpertOp::Choice(ChoiceOp::All { .. }) => {
                frame.slots[op.outputs[0]] = Some(self.storage(bytes(0), "aten.bmm"));
                self.grouped(graph, op, kind, MatmulLayout::DataGradient, dispatch);
                saved.push(self.retain(slot(frame, op.inputs[0])));
            }
            ExpertOp::Score | ExpertOp::Choice(ChoiceOp::Score) => {
                let out = point(self, "aten._softmax", MemoryKind::Softmax, bytes(0), bytes(0));
                frame.slots[op.outputs[0]] = Some(out);
                saved.push(self.retain(out));
            }
            ExpertOp::Choose => saved = self.choose(graph, op, frame, results),
            ExpertOp::ChooseFirst => saved = self.choose_first(graph, op, frame, results),
            ExpertOp::Sort => self.sort_choices(graph, op, frame),
            ExpertOp::Dispatch => {
                let moved = bytes(0);
                let out = point(self, "aten.index_select", MemoryKind::Gather, moved, moved);
                frame.slots[op.outputs[0]] = Some(out);
                saved.push(self.retain(slot(frame, op.inputs[1])));
            }
            ExpertOp::Offsets => {
                let ends = bytes(0);
                let full = point(self, "aten.full", MemoryKind::Copy, 0, ends);
                let out = point(self, "aten.cumsum", MemoryKind::Elementwise, ends, ends);
                // cub's scan keeps its state in a block of its own.
                let scan = self.storage(1023, "aten.cumsum");
                self.release(scan);
                self.release(full);
                frame.slots[op.outputs[0]] = Some(out);
            }
            ExpertOp::One { inputs, outputs, .. } => {
                let dtype = graph.values[op.inputs[0]].dtype;
                let out = self.storage(bytes(0), "aten.mm");
                frame.slots[op.outputs[0]] = Some(out);
                let rows = graph.values[op.inputs[0]].elements / inputs;
                // `x @ w` without a transposed weight: the layout that a linear's data gradient has.
                self.matmul(
                    "aten.mm",
                    MatmulShape { m: rows, n: outputs, k: inputs },
                    dtype,
                    MatmulLayout::DataGradient,
                    dispatch,
                );
                saved.push(self.retain(slot(frame, op.inputs[0])));
            }
            ExpertOp::All { .. } => {
                let out = self.storage(bytes(0), "aten._grouped_mm");
                frame.slots[op.outputs[0]] = Some(out);
                self.grouped(graph, op, kind, MatmulLayout::DataGradient, dispatch);
                saved = [1, 0].map(|at: usize| self.retain(slot(frame, op.inputs[at]))).to_vec();
            }
            ExpertOp::Pick => {
                let out = point(self, "aten.index", MemoryKind::Gather, bytes(0), bytes(0));
                frame.slots[op.outputs[0]] = Some(out);
                saved.push(self.retain(slot(frame, op.inputs[1])));
            }
            ExpertOp::Weigh => {
                let out = point(self, "aten.mul", MemoryKind::Elementwise, bytes(0), bytes(0));
                frame.slots[op.outputs[0]] = Some(out);
                saved = [1, 0].map(|at: usize| self.retain(slot(frame, op.inputs[at]))).to_vec();
            }
            ExpertOp::Combine => {
                let zeros = point(self, "aten.zeros_like", MemoryKind::Copy, 0, bytes(0));
                let out = point(self, "aten.index_add", MemoryKind::Copy, bytes(0), bytes(0));
                let read = graph.values[op.inputs[0]].bytes();
                self.pointwise("aten.index_add", MemoryKind::Scatter, 2 * read, read, Dispatch::Extra);
                self.release(zeros);
                frame.slots[op.outputs[0]] = Some(out);
                saved = [0, 1].map(|at: usize| self.retain(slot(frame, op.inputs[at]))).to_vec();
            }
        }
        if results == Results::Save {
            frame.saved.extend(saved);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            for storage in saved {
                self.release(storage);
            }
        }
    }

    /// The k largest, their sum, the quotient, the cast; what their nodes save.
    fn choose(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) -> Vec<Storage> {
        let Sizes { scores, rows, copies, indices } = sizes(graph);
        let dispatch = self.settings.forward;
        let point = |this: &mut Self, name, kind, read, written| {
            let storage = this.storage(written, name);
            this.pointwise(name, kind, read, written, dispatch);
            storage
        };
        let values = self.storage(copies, "aten.topk");
        let choices = self.storage(indices, "aten.topk");
        self.pointwise("aten.topk", MemoryKind::Elementwise, scores, copies + indices, dispatch);
        let sum = point(self, "aten.sum", MemoryKind::Elementwise, copies, rows);
        let quotient = point(self, "aten.div", MemoryKind::Elementwise, copies + rows, copies);
        if results != Results::Save {
            self.release(sum);
        }
        let weights = &graph.values[op.outputs[0]];
        let cast = if weights.dtype == DType::Fp32 {
            None
        } else {
            Some(point(self, "aten._to_copy", MemoryKind::Elementwise, copies, weights.bytes()))
        };
        for (&value, storage) in op.outputs.iter().zip([cast.unwrap_or(quotient), choices]) {
            frame.slots[value] = Some(storage);
        }
        if cast.is_some() {
            self.release(quotient);
        }
        let kept = self.retain(choices);
        if results == Results::Save { vec![sum, values, kept] } else { vec![values, kept] }
    }

    /// `argsort(choices)` and `// k`: positions in the order of experts, and their tokens.
    fn sort_choices(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let dispatch = self.settings.forward;
        let indices = sizes(graph).indices;
        let keys = indices / 8;
        let sorted = [0; 3].map(|_| self.storage(indices, "aten.sort"));
        if keys > SORTED_IN_PLACE {
            let workspace = self.storage(radix_sort_workspace(keys, u64::MAX), "aten.sort");
            self.release(workspace);
        }
        self.pointwise("aten.sort", MemoryKind::Elementwise, 4 * indices, 4 * indices, dispatch);
        self.release(sorted[0]);
        self.release(sorted[2]);
        let rows = self.storage(indices, "aten.floor_divide");
        self.pointwise("aten.floor_divide", MemoryKind::Elementwise, indices, indices, dispatch);
        frame.slots[op.outputs[0]] = Some(sorted[1]);
        frame.slots[op.outputs[1]] = Some(rows);
    }

    /// Launches a grouped matmul with its arguments and workspace.
    pub(super) fn grouped(&mut self, graph: &Graph, op: &Op, kind: ExpertOp, layout: MatmulLayout, dispatch: Dispatch) {
        const NAME: &str = "aten._grouped_mm";
        if let ExpertOp::Choice(ChoiceOp::All { count, inputs, outputs }) = kind {
            return self.batched_experts(&graph.values[op.inputs[0]], count, inputs, outputs, layout, dispatch);
        }
        let (ExpertOp::All { count, inputs, outputs } | ExpertOp::Titan(TitanOp::All { count, inputs, outputs })) =
            kind
        else {
            unreachable!("{kind:?} is no grouped matmul")
        };
        let value = &graph.values[op.inputs[0]];
        let arguments = self.storage_as(GROUP_ARGUMENTS * count, Category::Workspace, NAME);
        let bytes = GROUP_WORKSPACE * u64::from(self.settings.sms);
        let workspace = self.storage_as(bytes, Category::Workspace, NAME);
        let (groups, rows) = (count, value.elements / inputs);
        let work = Work::GroupedMatmul {
            groups,
            rows,
            inputs,
            outputs,
            dtype: value.dtype,
            layout,
            kernels: Grouping::OneKernel,
        };
        self.program.launch(COMPUTE, NAME, work, dispatch);
        self.release(workspace);
        self.release(arguments);
    }

    /// The backward of one operator of a mixture.
    pub(super) fn experts_backward(&mut self, node: Node<'_>, kind: ExpertOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let dispatch = self.settings.backward;
        let input = op.inputs.first().copied().unwrap_or(op.outputs[0]);
        let bytes = graph.values[input].bytes();
        match kind {
            ExpertOp::Titan(kind) => self.titan_backward(node, kind, frame, gradient),
            ExpertOp::Choice(ChoiceOp::Score) => self.transposed_score_backward(node, bytes, frame, gradient),
            ExpertOp::Choice(ChoiceOp::Choose { .. }) => {
                self.choose_tokens_backward(node, frame, gradient);
            }
            ExpertOp::Sort | ExpertOp::Offsets => self.release(gradient),
            ExpertOp::Score => {
                let result = self.temporary(bytes, "aten._softmax_backward_data");
                let weighed = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
                self.pointwise("aten._softmax_backward_data", MemoryKind::Softmax, 2 * bytes, bytes, dispatch);
                self.release(weighed);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            ExpertOp::Choose => self.choose_backward(node, frame, gradient),
            ExpertOp::ChooseFirst => self.choose_first_backward(node, frame, gradient),
            ExpertOp::Dispatch => {
                let moved = graph.values[op.outputs[0]].bytes();
                let result = self.temporary(bytes, "aten.index_add_");
                self.pointwise("aten.zeros", MemoryKind::Copy, 0, bytes, dispatch);
                self.pointwise("aten.index_add_", MemoryKind::Scatter, 2 * moved, moved, dispatch);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            ExpertOp::One { .. } => self.one_backward(node, kind, frame, gradient),
            ExpertOp::All { .. } | ExpertOp::Choice(ChoiceOp::All { .. }) => {
                self.all_backward(node, kind, frame, gradient);
            }
            ExpertOp::Pick => self.pick_backward(node, frame, gradient),
            ExpertOp::Weigh => {
                let second = self.pointwise_gradient("aten.mul", bytes, 2 * bytes);
                let first = self.pointwise_gradient("aten.mul", bytes, bytes);
                let checkpointed = frame.checkpoint.is_some();
                if checkpointed {
                    self.let_go_of_saved(frame, index);
                }
                let sum = self.pointwise_gradient("aten.sum", graph.values[op.inputs[1]].bytes(), bytes);
                self.release(second);
                if checkpointed {
                    self.release(gradient);
                } else {
                    self.let_go(frame, index, gradient);
                }
                self.accumulate(frame, op.inputs[0], first.into());
                self.accumulate(frame, op.inputs[1], sum.into());
            }
            ExpertOp::Combine => {
                let result = self.temporary(bytes, "aten.index_select");
                self.pointwise("aten.index_select", MemoryKind::Gather, bytes, bytes, dispatch);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
        }
    }

    /// Zeros for all weights, to which the picked ones' gradients are added.
    fn pick_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let indices = sizes(graph).indices;
        let result = self.pointwise_gradient("aten.new_zeros", graph.values[op.inputs[0]].bytes(), 0);
        self.index_put(indices, 4 * indices, 2 * indices);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }

    /// Adds to rows in the order of sorted indices \[B\], in place; `moved`: bytes read and written.
    pub(super) fn index_put(&mut self, indices: u64, read: u64, written: u64) {
        const NAME: &str = "aten.index_put_";
        let linear = [0; 2].map(|_| self.temporary(indices, NAME));
        self.release(linear[1]);
        let sorted = [0; 3].map(|_| self.temporary(indices, NAME));
        let sort = self.temporary(radix_sort_workspace(indices / 8, indices / 8), NAME);
        self.release(sort);
        self.pointwise(NAME, MemoryKind::Scatter, read, written, self.settings.backward);
        for storage in sorted.into_iter().rev().chain([linear[0]]) {
            self.release(storage);
        }
    }

    /// Cast, quotient (`-grad · (a/b)/b` summed, `grad/b`), the k largest.
    fn choose_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let Sizes { scores, rows, copies, .. } = sizes(graph);
        let [sum, values, choices] = Self::saved_by(frame, index);
        let checkpointed = frame.checkpoint.is_some();
        let point = |this: &mut Self, name, read, written| this.pointwise_gradient(name, written, read);
        let wide = if graph.values[op.outputs[0]].dtype == DType::Fp32 {
            gradient
        } else {
            let wide = point(self, "aten._to_copy", copies, copies);
            self.release(gradient);
            wide
        };
        let negative = point(self, "aten.neg", copies, copies);
        let once = point(self, "aten.div", copies, copies);
        let twice = point(self, "aten.div", copies, copies);
        let product = point(self, "aten.mul", 2 * copies, copies);
        for storage in [twice, once, negative] {
            self.release(storage);
        }
        let of_values = point(self, "aten.div", copies, copies);
        if checkpointed {
            self.release(values);
            self.release(sum);
        }
        let of_sum = point(self, "aten.sum", copies, rows);
        self.release(product);
        self.release(wide);
        if !checkpointed {
            self.release(sum);
            self.release(values);
        }
        self.pointwise("aten.add_", MemoryKind::Elementwise, copies + rows, copies, self.settings.backward);
        self.release(of_sum);
        let of_scores = point(self, "aten.scatter_", copies, scores);
        self.let_go_of(checkpointed, of_values, choices);
        self.accumulate(frame, op.inputs[0], of_scores.into());
    }

    /// One expert's matmul; its weight's gradient is a slice of the whole parameter's.
    fn one_backward(&mut self, node: Node<'_>, kind: ExpertOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let ExpertOp::One { expert, count, inputs, outputs } = kind else { unreachable!("{kind:?} is no matmul") };
        let dispatch = self.settings.backward;
        let value = &graph.values[op.inputs[0]];
        let (dtype, rows) = (value.dtype, value.elements / inputs);
        let slice = inputs * outputs * dtype.bytes();
        let weight = self.temporary(slice, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: inputs, n: outputs, k: rows },
            dtype,
            MatmulLayout::WeightGradient,
            dispatch,
        );
        let result = self.temporary(value.bytes(), "aten.mm");
        self.matmul("aten.mm", MatmulShape { m: rows, n: inputs, k: outputs }, dtype, MatmulLayout::Forward, dispatch);
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], result.into());
        let whole = self.temporary(count * slice, "aten.select_backward");
        self.pointwise("aten.zeros", MemoryKind::Copy, 0, count * slice, dispatch);
        self.pointwise("aten.copy_", MemoryKind::Copy, slice, slice, Dispatch::Extra);
        let param = frame.params.index(op.params[0]);
        let (whole, dtype) = self.upcast(param, whole, dtype);
        self.release(weight);
        let whole = self.add_slice(frame, op.params[0], whole);
        if expert == 0 {
            frame.slices.retain(|&(known, _)| known != op.params[0]);
            self.store_leaf(param, whole, dtype);
        }
    }

    /// Adds a gradient of a sliced parameter to what has come of it so far, in place.
    fn add_slice(&mut self, frame: &mut Frame, param: usize, gradient: Storage) -> Storage {
        let Some(&(_, sum)) = frame.slices.iter().find(|&&(known, _)| known == param) else {
            frame.slices.push((param, gradient));
            return gradient;
        };
        let bytes = self.bytes(sum);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(gradient);
        sum
    }

    /// All experts' matmul: the gradient of all weights, then of the rows.
    pub(super) fn all_backward(&mut self, node: Node<'_>, kind: ExpertOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let dispatch = self.settings.backward;
        let value = &graph.values[op.inputs[0]];
        let bytes = graph.params[op.params[0]].elements() * value.dtype.bytes();
        let weight = self.temporary(bytes, "aten._grouped_mm");
        self.grouped(graph, op, kind, MatmulLayout::WeightGradient, dispatch);
        let result = self.temporary(value.bytes(), "aten._grouped_mm");
        let transposed = matches!(kind, ExpertOp::Titan(_));
        let layout = if transposed { MatmulLayout::DataGradient } else { MatmulLayout::Forward };
        self.grouped(graph, op, kind, layout, dispatch);
        let (param, dtype) = (frame.params.index(op.params[0]), value.dtype);
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed {
            self.let_go_of_saved(frame, index);
        }
        let stored = if transposed { None } else { Some(self.upcast(param, weight, dtype)) };
        if checkpointed {
            self.release(gradient);
        } else {
            self.let_go(frame, index, gradient);
        }
        self.accumulate(frame, op.inputs[0], result.into());
        if let Some((weight, dtype)) = stored {
            return self.store_leaf(param, weight, dtype);
        }
        // Weights that are distributed over ranks are taken out of their DTensors before anything is computed: their gradients pass those
        // nodes last.
        let all = |op: &Op| matches!(op.kind, OpKind::Experts(ExpertOp::Titan(TitanOp::All { .. })));
        let axis = self.framework.torch_mut().and_then(|torch| torch.experts.as_mut());
        let arrived = match axis {
            Some(axis) => {
                axis.on_their_way.push((param, weight, dtype));
                if graph.ops[..index].iter().any(all) {
                    return;
                }
                std::mem::take(&mut axis.on_their_way)
            }
            None => vec![(param, weight, dtype)],
        };
        for (param, weight, dtype) in arrived {
            let (weight, dtype) = self.upcast(param, weight, dtype);
            self.store_leaf(param, weight, dtype);
        }
    }
}
