//! Exchanges between tensor-parallel ranks, as DTensor redistributes
//! (`torch/distributed/tensor/placement_types.py`, `torch/distributed/_functional_collectives.py`, PyTorch 2.15).
//!
//! A functional collective runs on its communicator's own stream and the default stream waits for it at once. NCCL
//! gathers and scatters rows: parts that do not lie side by side (the sequence of more than one sample, the vocabulary)
//! are copied into place after a gather; before a reduce-scatter they always are.

use super::{COMPUTE, Eager, Frame, Storage, TensorGroup};
use crate::model::graph::{Graph, Op};
use crate::model::tensor::Redistribution;
use crate::program::{Category, Collective, Comm, DType, MemoryKind};
use crate::units::Bytes;

const ALL_GATHER: &str = "_c10d_functional.all_gather_into_tensor";
const REDUCE_SCATTER: &str = "_c10d_functional.reduce_scatter_tensor";
const ALL_REDUCE: &str = "_c10d_functional.all_reduce";

impl Eager {
    /// A collective of the tensor-parallel ranks that the default stream waits for. `bytes`: the whole buffer.
    pub(in crate::runtime) fn exchange(&mut self, kind: Collective, bytes: u64, dtype: DType) {
        let TensorGroup { group, stream, .. } =
            self.framework.tensor().expect("a model that is split has a tensor-parallel group");
        self.program.wait_stream(stream, COMPUTE);
        self.program.collective(stream, Comm { kind, group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(COMPUTE, stream);
    }

    /// All-reduces a block into a new one, and lets go of the old.
    pub(in crate::runtime) fn all_reduce(&mut self, partial: Storage, dtype: DType, category: Category) -> Storage {
        let bytes = self.bytes(partial);
        let sum = self.storage_as(bytes, category, ALL_REDUCE);
        self.exchange(Collective::AllReduce, bytes, dtype);
        self.release(partial);
        sum
    }

    /// Copies the rank's part out of a block, and lets go of the whole.
    pub(in crate::runtime) fn part(&mut self, whole: Storage, parts: u64) -> Storage {
        let bytes = self.bytes(whole) / parts;
        let part = self.storage_as(bytes, Category::UnshardedGradient, "aten.clone");
        self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        self.release(whole);
        part
    }

    /// A copy of a gradient with its parts one after the other.
    pub(in crate::runtime) fn cut(&mut self, whole: Storage) -> Storage {
        let bytes = self.bytes(whole);
        let copy = self.storage_as(bytes, Category::UnshardedGradient, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.backward);
        copy
    }

    /// The type in which gradients of norms are summed over ranks, where they are partial sums.
    pub(super) fn sums_norms_in(&self) -> Option<DType> {
        self.framework.torch().and_then(|torch| torch.tensor)?.norms
    }

    /// A norm's gradient in the type it is summed over ranks in, where it is a partial sum.
    pub(super) fn partial(&mut self, gradient: Storage, dtype: DType) -> (Storage, DType) {
        let Some(to) = self.sums_norms_in().filter(|&to| to != dtype) else { return (gradient, dtype) };
        let bytes = self.bytes(gradient);
        let wide = bytes / dtype.bytes() * to.bytes();
        let cast = self.pointwise_gradient("aten._to_copy", wide, bytes);
        self.release(gradient);
        (cast, to)
    }

    /// Gathers parts into `bytes`; with `copies`, into their places.
    fn gather(&mut self, bytes: u64, dtype: DType, copies: bool, category: Category) -> Storage {
        let rows = self.storage_as(bytes, category, ALL_GATHER);
        self.exchange(Collective::AllGather, bytes, dtype);
        if !copies {
            return rows;
        }
        let whole = self.storage_as(bytes, category, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.forward);
        self.release(rows);
        whole
    }

    /// Lays the parts of `bytes` side by side, reduces them and keeps the rank's `part`.
    fn reduce_scatter(&mut self, bytes: u64, part: u64, dtype: DType, category: Category) -> Storage {
        let parts = self.side_by_side(bytes, category);
        let sum = self.storage_as(part, category, REDUCE_SCATTER);
        self.exchange(Collective::ReduceScatter, bytes, dtype);
        self.release(parts);
        sum
    }

    fn side_by_side(&mut self, bytes: u64, category: Category) -> Storage {
        let parts = self.storage_as(bytes, category, "aten.cat");
        self.pointwise("aten.cat", MemoryKind::Copy, bytes, bytes, self.settings.forward);
        parts
    }

    /// Forward. `cached`: what a checkpointing policy kept of it.
    pub(super) fn redistribute(
        &mut self,
        graph: &Graph,
        op: &Op,
        how: Redistribution,
        frame: &mut Frame,
        cached: &[Storage],
    ) {
        let (from, to) = (&graph.values[op.inputs[0]], &graph.values[op.outputs[0]]);
        let input = frame.slots[op.inputs[0]].expect("an operator reads live values");
        let category = self.category;
        let out = match how {
            Redistribution::Gather => self.gather(to.bytes(), to.dtype, graph.dims.b > 1, category),
            Redistribution::GatherVocabulary => self.gather(to.bytes(), to.dtype, true, category),
            Redistribution::ReduceScatter => match cached.first() {
                Some(&kept) => {
                    let parts = self.side_by_side(from.bytes(), category);
                    self.release(parts);
                    kept
                }
                None => self.reduce_scatter(from.bytes(), to.bytes(), to.dtype, category),
            },
            Redistribution::AllReduce => {
                self.retain(input);
                self.all_reduce(input, to.dtype, category)
            }
            Redistribution::Copy => self.retain(input),
        };
        frame.slots[op.outputs[0]] = Some(out);
    }

    /// Backward.
    pub(super) fn redistribute_backward(
        &mut self,
        graph: &Graph,
        op: &Op,
        how: Redistribution,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let value = &graph.values[op.inputs[0]];
        let (bytes, dtype, whole) = (value.bytes(), value.dtype, self.bytes(gradient));
        let category = Category::BackwardTemporary;
        let result = match how {
            Redistribution::Gather => self.reduce_scatter(whole, bytes, dtype, category),
            Redistribution::ReduceScatter => self.gather(bytes, dtype, graph.dims.b > 1, category),
            Redistribution::GatherVocabulary => {
                let part = self.storage_as(bytes, category, "aten.clone");
                self.pointwise("aten.clone", MemoryKind::Copy, bytes, bytes, self.settings.backward);
                part
            }
            Redistribution::AllReduce => self.retain(gradient),
            Redistribution::Copy => {
                self.retain(gradient);
                self.all_reduce(gradient, dtype, category)
            }
        };
        self.release(gradient);
        self.accumulate(frame, op.inputs[0], result.into());
    }
}
