//! RMSNorm and LayerNorm as one kernel each way: whose, and the backward.

use super::frame::Node;
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::plan::eager::LayerNorm;
use crate::program::{Dispatch, MemoryKind};

/// Rows above which a narrow norm's parameter gradients are summed in two steps, and the rows of one first sum
/// (`aten/src/ATen/native/cuda/layer_norm_kernel.cu`, `LaunchGammaBetaBackwardCUDAKernel`).
const NORM_SPLIT_ROWS: u64 = 64 * 1024;
const NORM_ROWS_PER_BLOCK: u64 = 32;

/// Parts of a norm's backward, of five, that its input's gradient and its parameters' take: where they come in two kernels, the
/// first moves three tensors and the second reads two, and the time of both together is theirs in that proportion.
const NORM_PARTS: [u64; 2] = [3, 2];

/// A part of a norm's bytes, read and written.
pub(super) fn norm_bytes(bytes: u64, of_input: bool) -> (u64, u64) {
    let part = NORM_PARTS[usize::from(!of_input)];
    (2 * bytes * part / 5, bytes * part / 5)
}

impl LayerNorm {
    /// Family and name of the kernel of a row so many numbers wide, forward and backward.
    fn kernels(self, width: u64) -> [(MemoryKind, &'static str); 2] {
        match self {
            LayerNorm::Torch => [
                (MemoryKind::LayerNorm, "aten.native_layer_norm"),
                (MemoryKind::LayerNormBackward, "aten.native_layer_norm_backward"),
            ],
            LayerNorm::Persistent if PERSISTENT_WIDTHS.contains(&width) => [
                (MemoryKind::PersistentNorm, "apex.fast_layer_norm"),
                (MemoryKind::PersistentNormBackward, "apex.fast_layer_norm_backward"),
            ],
            LayerNorm::Apex | LayerNorm::Persistent => [
                (MemoryKind::ApexNorm, "apex.fused_layer_norm"),
                (MemoryKind::ApexNormBackward, "apex.fused_layer_norm_backward"),
            ],
        }
    }
}

/// Widths that `FastLayerNorm` is compiled for (`persist_ln_hidden_sizes`, Megatron-LM@bbab79f8:
/// `megatron/model/fused_layer_norm.py`).
const PERSISTENT_WIDTHS: [u64; 24] = [
    1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192, 10240, 12288, 12800, 15360, 16384, 18432, 20480, 24576,
    25600, 30720, 32768, 40960, 49152, 65536,
];

impl Eager {
    /// Whether an operator is a norm that PyTorch composes of others.
    pub(super) fn in_parts(&self, op: &Op) -> bool {
        matches!(op.kind, OpKind::RmsNorm { .. }) && !self.settings.fused_rms_norm
    }

    /// A norm in one kernel; what it makes besides its output: so many numbers for each row.
    pub(super) fn norm_forward(
        &mut self,
        graph: &Graph,
        op: &Op,
        rows: u64,
        numbers: usize,
        frame: &mut Frame,
        dispatch: Dispatch,
    ) -> [Option<Storage>; 4] {
        let copy = self.contiguous_for_norm(graph, op, frame.slots[op.inputs[0]]);
        let moved = self.result(graph, op, frame);
        let mut aux = [None; 4];
        for slot in aux.iter_mut().take(numbers) {
            *slot = Some(self.storage(rows * 4, moved.name));
        }
        let [(family, name), _] = self.norm_kernels(op, graph.values[op.inputs[0]].elements / rows);
        self.pointwise(name, family, moved.read, moved.written, dispatch);
        if let Some(copy) = copy {
            self.release(copy);
        }
        aux
    }

    /// A norm whose input is a part of a larger storage reads a copy of it, rows side by side.
    fn contiguous_for_norm(&mut self, graph: &Graph, op: &Op, input: Option<Storage>) -> Option<Storage> {
        let bytes = graph.values[op.inputs[0]].bytes();
        (self.bytes(input?) > bytes).then(|| {
            let copy = self.storage(bytes, "aten.contiguous");
            self.pointwise("aten.contiguous", MemoryKind::Copy, bytes, bytes, self.settings.forward);
            copy
        })
    }

    /// Family and name of a norm's kernels, forward and backward.
    pub(super) fn norm_kernels(&self, op: &Op, width: u64) -> [(MemoryKind, &'static str); 2] {
        match op.kind {
            OpKind::LayerNorm { .. } => self.settings.layer_norm.kernels(width),
            OpKind::RmsNorm { .. } => [
                (MemoryKind::RmsNorm, "aten._fused_rms_norm"),
                (MemoryKind::RmsNormBackward, "aten._fused_rms_norm_backward"),
            ],
            other => unreachable!("{other:?} is no norm"),
        }
    }

    /// The gradients of a norm's input and of its parameters, or of either alone.
    fn norm_halves(
        &mut self,
        node: Node<'_>,
        frame: &Frame,
        [of_input, of_params]: [bool; 2],
    ) -> (Option<Storage>, [Option<Storage>; 2]) {
        let Node { graph, op, index } = node;
        let value = &graph.values[op.inputs[0]];
        let Some(rows) = op.kind.normed_rows() else { unreachable!("{:?} is no norm", op.kind) };
        let [_, (family, name)] = self.norm_kernels(op, value.elements / rows);
        let (start, end) = Self::saved(frame, index);
        let saved = frame.saved[start..end].first().copied();
        let copy = self.contiguous_for_norm(graph, op, saved);
        let result = of_input.then(|| self.temporary(value.bytes(), name));
        let width = value.elements / rows * value.dtype.bytes();
        let mut made = [None; 2];
        for slot in made.iter_mut().take(if of_params { op.params.len() } else { 0 }) {
            *slot = Some(self.temporary(width, name));
        }
        let columns = value.elements / rows;
        if rows > NORM_SPLIT_ROWS && columns / 32 < u64::from(self.settings.sms) / 2 {
            let thread_blocks = rows.div_ceil(NORM_ROWS_PER_BLOCK);
            let partial = made.map(|made| made.map(|_| self.temporary(thread_blocks * width, name)));
            for slot in made.iter_mut().flatten() {
                let sum = self.sum_rows(thread_blocks, columns, value.dtype);
                self.release(*slot);
                *slot = sum;
            }
            for partial in partial.into_iter().rev().flatten() {
                self.release(partial);
            }
        }
        let (read, written) = match (of_input, of_params) {
            (true, true) => (2 * value.bytes(), value.bytes()),
            _ => norm_bytes(value.bytes(), of_input),
        };
        self.pointwise(name, family, read, written, self.settings.backward);
        if let Some(copy) = copy {
            self.release(copy);
        }
        (result, made)
    }

    /// A norm's first half, where backwards come in halves.
    fn norm_input(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { op, index, .. } = node;
        let (made, _) = self.norm_halves(node, frame, [true, false]);
        frame.note(index, gradient);
        if let Some(made) = made {
            self.accumulate(frame, op.inputs[0], made.into());
        }
    }

    /// What its second half makes.
    pub(super) fn norm_weights(&mut self, node: Node<'_>, frame: &Frame) -> Vec<Storage> {
        let (_, made) = self.norm_halves(node, frame, [false, true]);
        made.into_iter().flatten().collect()
    }

    pub(super) fn norm(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        if self.inputs_only() {
            return self.norm_input(node, frame, gradient);
        }
        let value = &graph.values[op.inputs[0]];
        let (result, made) = self.norm_halves(node, frame, [graph.needs(op.inputs[0]), graph.trains(op, 0)]);
        let cast = made.map(|storage| storage.map(|storage| (storage, value.dtype)));
        let mut stored = [None; 2];
        let checkpointed = frame.checkpoint.is_some();
        if checkpointed {
            self.let_go_of_saved(frame, index);
        }
        for (at, made) in cast.into_iter().enumerate() {
            if let Some((storage, dtype)) = made {
                let (storage, dtype) = self.partial(storage, dtype);
                stored[at] = Some(self.upcast(frame.params.index(op.params[at]), storage, dtype));
            }
        }
        if checkpointed {
            self.release(gradient);
            self.let_go_of_input(frame, index);
        } else {
            self.let_go(frame, index, gradient);
        }
        // The gradient of a DTensor takes one more node to its value, before which the engine stores parameters'.
        let later = self.hooks_modules() || self.sums_norms_in().is_some();
        if let Some(result) = result.filter(|_| !later) {
            self.accumulate(frame, op.inputs[0], result.into());
        }
        for (at, made) in stored.into_iter().enumerate() {
            if let Some((storage, dtype)) = made {
                self.store_leaf(frame.params.index(op.params[at]), storage, dtype);
            }
        }
        if later {
            self.module_ended(frame, index);
            if let Some(result) = result {
                self.accumulate(frame, op.inputs[0], result.into());
            }
        }
    }
}
