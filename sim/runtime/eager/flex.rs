//! FlexAttention (`torch.nn.attention.flex_attention`), compiled on its own as torchtitan 0.3.0 compiles it between eager operators
//! (`torchtitan/models/common/attention.py:244-385`).
//!
//! Forward makes the log-sum-exp and the largest score of each query and the output, and lets go of the scores. Backward makes
//! the row sums of gradient · output, lets go of the output, and makes the gradients of q, k and v. Keys and values are not
//! copied to query heads in either. To a policy of selective recomputation the compiled region is one operator, whose results
//! include q, k and v as backward reads them: the policy keeps them, and a recompute drops those it has made.

use super::attention::attention_shape;
use super::frame::{Node, Results};
use super::{COMPUTE, Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{Dispatch, MemoryKind, Work};

/// The kernel's name.
const FORWARD: &str = "flex_attention";
const BACKWARD: &str = "flex_attention_backward";

impl Eager {
    /// Forward. What a policy has `cached` is taken from there instead: the output, log-sum-exps, q, k and v.
    pub(super) fn flex(
        &mut self,
        graph: &Graph,
        op: &Op,
        window: Option<u64>,
        frame: &mut Frame,
        results: Results,
        cached: &[Storage],
    ) {
        let qkv = [0, 1, 2].map(|at| frame.slots[op.inputs[at]].expect("an operator reads live values"));
        if let &[output, statistics, ..] = cached {
            frame.slots[op.outputs[0]] = Some(output);
            frame.saved.extend([statistics, self.retain(output)]);
            frame.saved.extend(&cached[2..]);
            frame.saved_end.push(frame.saved.len() as u32);
            return;
        }
        let rows = graph.dims.tokens() * graph.dims.n * 4;
        let statistics = self.storage(rows, FORWARD);
        let largest = self.storage(rows, FORWARD);
        let output = self.storage(graph.values[op.outputs[0]].bytes(), FORWARD);
        let (shape, dtype) = (attention_shape(graph, op, window), graph.values[op.inputs[0]].dtype);
        let work = Work::Attention { shape, dtype, backward: false };
        self.program.launch(COMPUTE, FORWARD, work, Dispatch::Compiled);
        self.release(largest);
        frame.slots[op.outputs[0]] = Some(output);
        match results {
            Results::Forget => self.release(statistics),
            Results::Keep => {
                let kept = [self.retain(output), statistics];
                frame.kept.extend(kept);
                frame.kept.extend(qkv.map(|storage| self.retain(storage)));
            }
            Results::Save => {
                let saved = [statistics, self.retain(output)];
                frame.saved.extend(saved);
                frame.saved.extend(qkv.map(|storage| self.retain(storage)));
                frame.saved_end.push(frame.saved.len() as u32);
            }
        }
    }

    /// Backward.
    pub(super) fn flex_backward(&mut self, node: Node<'_>, window: Option<u64>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let [statistics, output, q, k, v] = Self::saved_by(frame, index);
        let (rows, out) = (graph.dims.tokens() * graph.dims.n * 4, graph.values[op.outputs[0]].bytes());
        let sums = self.temporary(rows, BACKWARD);
        let work = (MemoryKind::Elementwise, 2 * out, rows);
        self.pointwise("triton_red_fused_mul_sum", work.0, work.1, work.2, Dispatch::Compiled);
        self.release(output);
        let results = [0, 1, 2].map(|at| self.temporary(graph.values[op.inputs[at]].bytes(), BACKWARD));
        let (shape, dtype) = (attention_shape(graph, op, window), graph.values[op.inputs[0]].dtype);
        self.program.launch(COMPUTE, BACKWARD, Work::Attention { shape, dtype, backward: true }, Dispatch::Compiled);
        for storage in [sums, statistics, q, k, v, gradient] {
            self.release(storage);
        }
        for (&value, result) in op.inputs.iter().zip(results) {
            self.accumulate(frame, value, result.into());
        }
    }
}
