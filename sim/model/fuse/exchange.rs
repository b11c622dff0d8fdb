//! Exchanges between tensor-parallel ranks inside a compiled module.
//!
//! Under a compiler DTensor's collectives are operators of the graph, and `wait_tensor` follows each at once
//! (`torch/distributed/_functional_collectives.py`, `_maybe_wrap_tensor`); inductor leaves both where they are
//! (`reorder_for_compute_comm_overlap` is off), so nothing runs beside them. The copies that bring parts into their places
//! are generated kernels. With fp8 linears of one scale a tensor, what is gathered is cast before.

use super::compiled::{Launch, TensorId};
use super::float8::Side;
use super::nodes::{Joint, Kind};
use crate::model::graph::{Graph, ValueId};
use crate::model::tensor::Redistribution;
use crate::program::{Collective, DType, MemoryKind};

/// The kernel that brings parts into their places.
pub(super) const COPY: &str = "triton_cat";

impl Joint {
    fn exchange(&mut self, side: Side, kind: Collective, (from, to): (TensorId, TensorId), dtype: DType, at: usize) {
        let (name, bytes) = match kind {
            Collective::AllGather => ("_c10d_functional.all_gather_into_tensor", self.tensors[to].bytes),
            Collective::ReduceScatter => ("_c10d_functional.reduce_scatter_tensor", self.tensors[from].bytes),
            _ => ("_c10d_functional.all_reduce", self.tensors[from].bytes),
        };
        let space = self.tensors[from].elements;
        let kind = Kind::Extern(Launch::Exchange { kind, bytes, dtype });
        self.push_over(side, name, kind, (&[from], &[to]), (at, space));
    }

    /// The same numbers in another order.
    fn in_place_of(&mut self, side: Side, from: TensorId, at: usize) -> TensorId {
        let (elements, bytes) = (self.tensors[from].elements, self.tensors[from].bytes);
        let to = self.tensor("cat", elements, bytes);
        self.push_over(side, COPY, Kind::Point(MemoryKind::Copy), (&[from], &[to]), (at, elements));
        to
    }

    /// Parts of the sequence become the whole, of a value's size.
    fn gather(&mut self, side: Side, graph: &Graph, (part, whole): (TensorId, ValueId), at: usize) -> TensorId {
        let value = &graph.values[whole];
        let narrow = self.casts_before_gather();
        let (part, dtype) =
            if narrow { (self.cast_to_gather(side, graph, part, at), DType::Fp8) } else { (part, value.dtype) };
        let mut gathered = self.tensor("all_gather", value.elements, value.elements * dtype.bytes());
        self.exchange(side, Collective::AllGather, (part, gathered), dtype, at);
        if graph.dims.b > 1 {
            gathered = self.in_place_of(side, gathered, at);
        }
        if narrow {
            self.is_narrow(gathered);
        }
        gathered
    }

    /// Partial sums become parts of the sequence, of a value's size.
    fn scatter(&mut self, side: Side, graph: &Graph, (partial, part): (TensorId, ValueId), at: usize) -> TensorId {
        let parts = self.in_place_of(side, partial, at);
        let out = self.value(graph, part);
        self.exchange(side, Collective::ReduceScatter, (parts, out), graph.values[part].dtype, at);
        out
    }

    fn sum(&mut self, side: Side, graph: &Graph, (partial, value): (TensorId, ValueId), at: usize) -> TensorId {
        let out = self.value(graph, value);
        self.exchange(side, Collective::AllReduce, (partial, out), graph.values[value].dtype, at);
        out
    }

    /// Forward of an exchange: what comes of `input`.
    pub(super) fn redistribute(&mut self, graph: &Graph, at: usize, how: Redistribution, input: TensorId) -> TensorId {
        let (side, to) = (Side::Forward, graph.ops[at].outputs[0]);
        match how {
            Redistribution::Gather | Redistribution::GatherVocabulary => self.gather(side, graph, (input, to), at),
            Redistribution::ReduceScatter => self.scatter(side, graph, (input, to), at),
            Redistribution::AllReduce => self.sum(side, graph, (input, to), at),
            Redistribution::Copy => input,
        }
    }

    /// Backward: the gradient of what was exchanged.
    pub(super) fn redistribute_backward(
        &mut self,
        graph: &Graph,
        at: usize,
        how: Redistribution,
        gradient: TensorId,
    ) -> TensorId {
        let (side, to) = (Side::Backward, graph.ops[at].inputs[0]);
        match how {
            Redistribution::Gather | Redistribution::GatherVocabulary => self.scatter(side, graph, (gradient, to), at),
            Redistribution::ReduceScatter => self.gather(side, graph, (gradient, to), at),
            Redistribution::AllReduce => gradient,
            Redistribution::Copy => self.sum(side, graph, (gradient, to), at),
        }
    }
}
