//! A router that takes the softmax of the chosen experts' logits alone: `topk`, softmax, a cast (GPT-OSS, Granite 4).

use super::experts::{Sizes, sizes};
use super::frame::{Node, Results};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{DType, MemoryKind};

impl Eager {
    /// The k largest, their softmax, the cast; what their nodes save.
    pub(super) fn choose_first(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) -> Vec<Storage> {
        let (Sizes { scores, copies, indices, .. }, dispatch) = (sizes(graph), self.settings.forward);
        let values = self.storage(copies, "aten.topk");
        let choices = self.storage(indices, "aten.topk");
        self.pointwise("aten.topk", MemoryKind::Elementwise, scores, copies + indices, dispatch);
        let soft = self.storage(copies, "aten._softmax");
        self.pointwise("aten._softmax", MemoryKind::Softmax, copies, copies, dispatch);
        let weights = &graph.values[op.outputs[0]];
        let cast = (weights.dtype != DType::Fp32).then(|| {
            let cast = self.storage(weights.bytes(), "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, copies, weights.bytes(), dispatch);
            cast
        });
        let kept = if cast.is_some() { soft } else { self.retain(soft) };
        for (&value, storage) in op.outputs.iter().zip([cast.unwrap_or(soft), choices]) {
            frame.slots[value] = Some(storage);
        }
        let chosen = self.retain(choices);
        // Python lets go of the softmax before the name of the largest passes on.
        let saved = if results == Results::Save {
            vec![kept, chosen]
        } else {
            self.release(kept);
            vec![chosen]
        };
        self.release(values);
        saved
    }

    /// Cast, softmax, the k largest.
    pub(super) fn choose_first_backward(&mut self, node: Node<'_>, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let Sizes { scores, copies, .. } = sizes(graph);
        let [soft, choices] = Self::saved_by(frame, index);
        let again = frame.checkpoint.is_some();
        let wide = match graph.values[op.outputs[0]].dtype {
            DType::Fp32 => gradient,
            _ => {
                let wide = self.pointwise_gradient("aten._to_copy", copies, copies);
                self.release(gradient);
                wide
            }
        };
        let of_largest = self.temporary(copies, "aten._softmax_backward_data");
        let weighed = self.pointwise_gradient("aten.mul", copies, 2 * copies);
        self.pointwise("aten._softmax_backward_data", MemoryKind::Softmax, 2 * copies, copies, self.settings.backward);
        self.release(weighed);
        self.let_go_of(again, wide, soft);
        let of_scores = self.pointwise_gradient("aten.scatter_", scores, copies);
        self.let_go_of(again, of_largest, choices);
        self.accumulate(frame, op.inputs[0], of_scores.into());
    }
}
