//! torchtitan's mixture in eager operators: what its router, its moves of rows and its exchanges allocate and keep.
//!
//! Order of blocks as PyTorch 2.15 takes and gives them under torchtitan itself (`tests/oracles/torchtitan-experts.json`).
//! Rows picked by an index get their gradients by `index_put_`, which sorts; `deterministic_scatter_add` does too.

use super::frame::{Node, Results};
use super::shape::MatmulShape;
use super::storage::Gradient;
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::experts::ExpertOp;
use crate::model::experts::TitanOp;
use crate::model::graph::{Graph, Op};
use crate::program::{Collective, Comm, DType, Dispatch, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

/// Small kernels between an exchange and the experts' rows: sums and starts of segments (`_permute`).
const SEGMENT_KERNELS: u32 = 12;

/// Of so many groups of experts a token chooses from so many.
#[derive(Clone, Copy)]
struct Limit {
    groups: u64,
    chosen: u64,
}

/// Bytes of rows, of their indices, and of the counts of each expert's.
#[derive(Clone, Copy)]
struct Permuted {
    rows: u64,
    indices: u64,
    counts: u64,
}

impl Eager {
    /// A kernel with one result.
    fn makes(&mut self, name: &'static str, kind: MemoryKind, read: u64, written: u64) -> Storage {
        let storage = self.storage(written, name);
        self.pointwise(name, kind, read, written, self.settings.forward);
        storage
    }

    /// Rows between the ranks that experts are distributed over; the default stream waits.
    fn exchange_rows(&mut self, bytes: u64, dtype: DType) {
        let Some(axis) = self.framework.torch().and_then(|torch| torch.experts.as_ref()) else { return };
        let (group, stream) = (axis.group, axis.stream);
        self.program.wait_stream(stream, COMPUTE);
        self.program.collective(stream, Comm { kind: Collective::AllToAll, group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(COMPUTE, stream);
    }

    /// Runs one operator.
    pub(super) fn titan(
        &mut self,
        graph: &Graph,
        op: &Op,
        kind: TitanOp,
        frame: &mut Frame,
        results: Results,
        cached: &[Storage],
    ) {
        let value = |at: usize| &graph.values[op.outputs[at]];
        let bytes = |at: usize| value(at).bytes();
        let read: u64 = op.inputs.iter().map(|&input| graph.values[input].bytes()).sum();
        let slot = |frame: &Frame, at: usize| frame.slots[op.inputs[at]].expect("an operator reads live values");
        let mut saved = vec![];
        let mut made = vec![];
        match kind {
            TitanOp::Gate { inputs, outputs } => {
                let (tokens, narrow) = (graph.dims.tokens(), graph.values[op.inputs[0]].dtype);
                let weight = 4 * inputs * outputs;
                let wide = [(weight, "weight"), (4 * tokens * inputs, "input")].map(|(bytes, _)| {
                    let from = bytes / 4 * narrow.bytes();
                    self.makes("aten._to_copy", MemoryKind::Elementwise, from, bytes)
                });
                made.push(self.storage(bytes(0), "aten.mm"));
                let dispatch = self.settings.forward;
                self.matmul(
                    "aten.mm",
                    MatmulShape { m: tokens, n: outputs, k: inputs },
                    DType::Fp32,
                    MatmulLayout::Forward,
                    dispatch,
                );
                saved = wide.to_vec();
            }
            TitanOp::Sigmoid => {
                made.push(self.makes("aten.sigmoid", MemoryKind::Elementwise, read, bytes(0)));
                saved.push(self.retain(made[0]));
            }
            TitanOp::Bias => made.push(self.makes("aten.add", MemoryKind::Elementwise, read, bytes(0))),
            TitanOp::Limit { groups, chosen } => {
                made = self.limit(read, graph.dims.tokens() * groups, Limit { groups, chosen })
            }
            TitanOp::Choose if !cached.is_empty() => made.extend_from_slice(cached),
            TitanOp::Choose => {
                made.extend([0, 1].map(|at| self.storage(bytes(at), "aten.topk")));
                self.pointwise("aten.topk", MemoryKind::Elementwise, read, bytes(0) + bytes(1), self.settings.forward);
            }
            TitanOp::Gather => {
                made.push(self.makes("aten.gather", MemoryKind::Gather, bytes(0), bytes(0)));
                saved.push(self.retain(slot(frame, 1)));
            }
            TitanOp::Normalise => {
                let rows = 4 * graph.dims.tokens();
                let sum = self.makes("aten.sum", MemoryKind::Elementwise, read, rows);
                let whole = self.makes("aten.add", MemoryKind::Elementwise, rows, rows);
                self.release(sum);
                made.push(self.makes("aten.div", MemoryKind::Elementwise, read + rows, bytes(0)));
                saved = vec![self.retain(slot(frame, 0)), whole];
            }
            TitanOp::Map => {
                made.push(self.makes("aten.zeros_like", MemoryKind::Copy, 0, bytes(0)));
                let dispatch = self.settings.forward;
                self.pointwise("aten.scatter_", MemoryKind::Scatter, read, read / 8, dispatch);
                made.push(self.storage(bytes(1), "aten.sum"));
                // Truth values are made numbers first.
                let numbers = self.makes("aten._to_copy", MemoryKind::Elementwise, bytes(0), 8 * bytes(0));
                self.sum_buffers(graph.dims.tokens(), bytes(1) / 8, 8);
                self.pointwise("aten.sum", MemoryKind::Elementwise, 8 * bytes(0), bytes(1), dispatch);
                self.release(numbers);
                self.pointwise("aten.add_", MemoryKind::Elementwise, bytes(1), bytes(1), dispatch);
            }
            TitanOp::Take => {
                made.push(self.makes("aten.index", MemoryKind::Gather, bytes(0), bytes(0)));
                saved.push(self.retain(slot(frame, 1)));
            }
            TitanOp::Count { .. } if !cached.is_empty() => made.extend_from_slice(cached),
            TitanOp::Count { .. } => {
                made.push(self.storage(bytes(0), "_c10d_functional.all_to_all_single"));
                self.exchange_rows(bytes(0), DType::Int64);
                let dispatch = self.settings.forward;
                for _ in ["sent", "received"] {
                    self.pointwise("aten.sum", MemoryKind::Elementwise, bytes(0), 8, dispatch);
                    let copy = Work::HostCopy { bytes: Bytes(8), to_host: true };
                    self.program.launch(COMPUTE, "aten._to_copy", copy, dispatch);
                }
                self.program.wait_for_host(COMPUTE);
            }
            TitanOp::Exchange if !cached.is_empty() => made.extend_from_slice(cached),
            TitanOp::Exchange => {
                made.push(self.storage(bytes(0), "_c10d_functional.all_to_all_single"));
                self.exchange_rows(read.max(bytes(0)), value(0).dtype);
            }
            TitanOp::Permute => {
                made = self.permute(Permuted { rows: bytes(0), indices: bytes(1), counts: bytes(2) });
                saved.push(self.retain(made[1]));
            }
            TitanOp::Ends => {
                let narrow = self.makes("aten._to_copy", MemoryKind::Elementwise, read, bytes(0));
                made.push(self.makes("aten.cumsum", MemoryKind::Elementwise, bytes(0), bytes(0)));
                // cub's scan keeps its state in a block of its own.
                let scan = self.storage(1023, "aten.cumsum");
                self.release(scan);
                self.release(narrow);
            }
            TitanOp::All { .. } => {
                made.push(self.storage(bytes(0), "aten._grouped_mm"));
                self.grouped(graph, op, ExpertOp::Titan(kind), MatmulLayout::Forward, self.settings.forward);
                saved = [1, 0].map(|at| self.retain(slot(frame, at))).to_vec();
            }
            TitanOp::Unpermute => {
                made.push(self.storage(bytes(0), "aten.new_empty"));
                self.pointwise("aten.index_put_", MemoryKind::Scatter, bytes(0), bytes(0), self.settings.forward);
                saved.push(self.retain(slot(frame, 1)));
            }
            TitanOp::Zeros => made.push(self.makes("aten.zeros", MemoryKind::Copy, 0, bytes(0))),
            TitanOp::Weigh => {
                let wide = if value(0).dtype == DType::Fp32 {
                    self.retain(slot(frame, 0))
                } else {
                    self.makes("aten._to_copy", MemoryKind::Elementwise, bytes(0), 4 * value(0).elements)
                };
                let product =
                    self.makes("aten.mul", MemoryKind::Elementwise, 4 * value(0).elements, 4 * value(0).elements);
                saved.push(self.retain(slot(frame, 1)));
                if results == Results::Save {
                    saved.push(wide);
                } else {
                    self.release(wide);
                }
                made.push(if value(0).dtype == DType::Fp32 {
                    product
                } else {
                    let narrow = self.makes("aten._to_copy", MemoryKind::Elementwise, 4 * value(0).elements, bytes(0));
                    self.release(product);
                    narrow
                });
            }
            TitanOp::Scatter => {
                made.push(self.makes("aten.clone", MemoryKind::Copy, bytes(0), bytes(0)));
                let indices = graph.values[op.inputs[1]].bytes();
                let moved = graph.values[op.inputs[2]].bytes();
                self.index_put(indices, 2 * moved, moved);
                saved.push(self.retain(slot(frame, 1)));
            }
        }
        for (&value, &storage) in op.outputs.iter().zip(&made) {
            frame.slots[value] = Some(storage);
        }
        match results {
            Results::Save => {
                frame.saved.extend(saved);
                frame.saved_end.push(frame.saved.len() as u32);
                return;
            }
            Results::Keep => {
                for storage in made {
                    let kept = self.retain(storage);
                    frame.kept.push(kept);
                }
            }
            Results::Forget => {}
        }
        for storage in saved {
            self.release(storage);
        }
    }

    /// Scores without those of groups that a token may not choose from, and which those are. `all`: tokens times groups.
    fn limit(&mut self, scores: u64, all: u64, limit: Limit) -> Vec<Storage> {
        let Limit { groups, chosen } = limit;
        let dispatch = self.settings.forward;
        let values_and_places =
            |this: &mut Self, count: u64| [4, 8].map(|size| this.storage(count * size, "aten.topk"));
        let [best, places] = values_and_places(self, 2 * all);
        for dispatch in [dispatch, Dispatch::Extra] {
            // The two largest are sorted, too.
            self.pointwise("aten.topk", MemoryKind::Elementwise, scores, 24 * all, dispatch);
        }
        let sums = self.makes("aten.sum", MemoryKind::Elementwise, 8 * all, 4 * all);
        let [most, which] = values_and_places(self, all / groups * chosen);
        self.pointwise("aten.topk", MemoryKind::Elementwise, 4 * all, 12 * all / groups * chosen, dispatch);
        let mask = self.makes("aten.ones_like", MemoryKind::Copy, 0, all);
        self.pointwise(
            "aten.scatter_",
            MemoryKind::Scatter,
            9 * all / groups * chosen,
            all / groups * chosen,
            dispatch,
        );
        let limited = self.makes("aten.clone", MemoryKind::Copy, scores, scores);
        self.pointwise("aten.masked_fill_", MemoryKind::Elementwise, scores + all, scores, dispatch);
        for storage in [best, most, sums, places, which] {
            self.release(storage);
        }
        vec![limited, mask]
    }

    /// Rows in the order of experts: where each segment begins, what row comes from where, the rows.
    fn permute(&mut self, Permuted { rows, indices, counts }: Permuted) -> Vec<Storage> {
        self.program.host(self.settings.forward, SEGMENT_KERNELS);
        let one = |this: &mut Self, name| this.makes(name, MemoryKind::Elementwise, indices, indices);
        let repeated = one(self, "aten.repeat_interleave");
        let segments = one(self, "aten.index_select");
        self.release(repeated);
        let starts = one(self, "aten.index");
        let every = one(self, "aten.arange");
        let sum = one(self, "aten.add");
        self.release(starts);
        self.release(every);
        let offsets = one(self, "aten.index");
        let places = one(self, "aten.sub");
        self.release(sum);
        self.release(offsets);
        let own = self.makes("aten.sum", MemoryKind::Elementwise, counts, counts);
        let sorted = self.makes("aten.index", MemoryKind::Gather, rows, rows);
        self.release(segments);
        vec![sorted, places, own]
    }

    /// The backward of one operator.
    pub(super) fn titan_backward(&mut self, node: Node<'_>, kind: TitanOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let input = op.inputs.first().copied().unwrap_or(op.outputs[0]);
        let (bytes, made) = (graph.values[input].bytes(), graph.values[op.outputs[0]].bytes());
        match kind {
            TitanOp::Bias
            | TitanOp::Limit { .. }
            | TitanOp::Choose
            | TitanOp::Map
            | TitanOp::Count { .. }
            | TitanOp::Ends
            | TitanOp::Zeros => self.release(gradient),
            TitanOp::Gate { inputs, outputs } => self.gate_backward(node, inputs, outputs, frame, gradient),
            TitanOp::Sigmoid => {
                let result = self.pointwise_gradient("aten.sigmoid_backward", bytes, 2 * bytes);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            TitanOp::Gather => {
                let result = self.pointwise_gradient("aten.new_zeros", bytes, 0);
                self.pointwise("aten.scatter_add_", MemoryKind::Scatter, 2 * made, made, self.settings.backward);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            TitanOp::Normalise => self.normalise_backward(node, frame, gradient),
            TitanOp::Take | TitanOp::Permute => {
                let result = self.pointwise_gradient("aten.new_zeros", bytes, 0);
                let indices = graph.values[if kind == TitanOp::Take { op.inputs[1] } else { op.outputs[1] }].bytes();
                self.index_put(indices, 2 * made, made);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, Gradient { storage: result, view: true });
            }
            TitanOp::Exchange => {
                let result = self.temporary(bytes, "_c10d_functional.all_to_all_single");
                self.exchange_rows(bytes.max(made), graph.values[input].dtype);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            TitanOp::All { .. } => {
                self.all_backward(node, ExpertOp::Titan(kind), frame, gradient);
            }
            TitanOp::Unpermute => {
                let result = self.temporary(bytes, "aten.index");
                self.pointwise("aten.index", MemoryKind::Gather, bytes, bytes, self.settings.backward);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, input, result.into());
            }
            TitanOp::Weigh => self.weigh_backward(node, frame, gradient),
            TitanOp::Scatter => {
                let rows = graph.values[op.inputs[2]].bytes();
                let result = self.temporary(rows, "aten.gather");
                self.pointwise("aten.gather", MemoryKind::Gather, rows, rows, self.settings.backward);
                self.let_go(frame, index, gradient);
                self.accumulate(frame, op.inputs[2], result.into());
            }
        }
    }

    /// The gate in fp32: its weight's gradient, its input's, and both cast back.
    fn gate_backward(&mut self, node: Node<'_>, inputs: u64, outputs: u64, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (tokens, value, dispatch) = (graph.dims.tokens(), &graph.values[op.inputs[0]], self.settings.backward);
        let weight = self.temporary(4 * inputs * outputs, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: outputs, n: inputs, k: tokens },
            DType::Fp32,
            MatmulLayout::WeightGradient,
            dispatch,
        );
        let wide = self.temporary(4 * tokens * inputs, "aten.mm");
        self.matmul(
            "aten.mm",
            MatmulShape { m: tokens, n: inputs, k: outputs },
            DType::Fp32,
            MatmulLayout::DataGradient,
            dispatch,
        );
        self.let_go(frame, index, gradient);
        let narrow = |this: &mut Self, storage, elements: u64| {
            if value.dtype == DType::Fp32 {
                return storage;
            }
            let cast = this.pointwise_gradient("aten._to_copy", elements * value.dtype.bytes(), 4 * elements);
            this.release(storage);
            cast
        };
        let of_input = narrow(self, wide, tokens * inputs);
        self.accumulate(frame, op.inputs[0], of_input.into());
        let of_weight = narrow(self, weight, inputs * outputs);
        let (of_weight, dtype) = self.upcast(frame.params.index(op.params[0]), of_weight, value.dtype);
        self.store_leaf(frame.params.index(op.params[0]), of_weight, dtype);
    }

    /// `a / (Σa + ε)`: the gradient of the quotient in both, and of the sum.
    fn normalise_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let (copies, rows) = (graph.values[op.inputs[0]].bytes(), 4 * graph.dims.tokens());
        let of_values = self.pointwise_gradient("aten.div", copies, copies);
        let negative = self.pointwise_gradient("aten.neg", copies, copies);
        let twice = self.pointwise_gradient("aten.div", copies, copies);
        let product = self.pointwise_gradient("aten.mul", copies, 2 * copies);
        let of_sum = self.pointwise_gradient("aten.sum", rows, copies);
        for storage in [negative, twice, product] {
            self.release(storage);
        }
        self.let_go(frame, index, gradient);
        self.pointwise("aten.add_", MemoryKind::Elementwise, copies + rows, copies, self.settings.backward);
        self.release(of_sum);
        self.accumulate(frame, op.inputs[0], of_values.into());
    }

    /// Rows times weights in fp32: both gradients, and that of the rows in their own type.
    fn weigh_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let value = &graph.values[op.inputs[0]];
        let (wide, casts) = (4 * value.elements, value.dtype != DType::Fp32);
        let gradient = if casts {
            let cast = self.pointwise_gradient("aten._to_copy", wide, value.bytes());
            self.release(gradient);
            cast
        } else {
            gradient
        };
        let of_rows = self.pointwise_gradient("aten.mul", wide, wide);
        let products = self.pointwise_gradient("aten.mul", wide, 2 * wide);
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed {
            self.let_go_of_saved(frame, index);
        }
        let of_weights = self.pointwise_gradient("aten.sum", graph.values[op.inputs[1]].bytes(), wide);
        self.release(products);
        if checkpointed {
            self.release(gradient);
        } else {
            self.let_go(frame, index, gradient);
        }
        let of_rows = if casts {
            let cast = self.pointwise_gradient("aten._to_copy", value.bytes(), wide);
            self.release(of_rows);
            cast
        } else {
            of_rows
        };
        self.accumulate(frame, op.inputs[0], of_rows.into());
        self.accumulate(frame, op.inputs[1], of_weights.into());
    }
}
