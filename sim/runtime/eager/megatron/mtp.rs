//! What multi-token prediction does besides ordinary modules (`core/transformer/multi_token_prediction.py`, `roll_tensor`,
//! `MTPLossAutoScaler`; `core/tensor_parallel/mappings.py`, 0.16.1).

use super::super::frame::{Node, Results};
use super::super::storage::Gradient;
use super::super::{Eager, Frame, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::MtpOp;
use crate::program::{Collective, DType, MemoryKind};

/// Bytes of a number in fp32.
const NUMBER: u64 = 4;

impl Eager {
    pub(super) fn mtp(&mut self, graph: &Graph, op: &Op, kind: MtpOp, frame: &mut Frame, results: Results) {
        let out = &graph.values[op.outputs[0]];
        let (bytes, dispatch) = (out.bytes(), self.settings.forward);
        let mut saved = vec![];
        let made = match kind {
            MtpOp::Roll => {
                let rolled = self.made("aten.roll", bytes, bytes, dispatch);
                let row = bytes / graph.dims.s;
                self.pointwise("aten.fill_", MemoryKind::Elementwise, 0, row, dispatch);
                let sum = self.made("aten.sum", 2 * NUMBER, bytes, dispatch);
                self.release(sum);
                rolled
            }
            MtpOp::GatherWidth => {
                let gathered = self.storage(bytes, "all_gather_into_tensor");
                self.exchange_now(Collective::AllGather, bytes, out.dtype);
                let side_by_side = self.made("aten.cat", bytes, bytes, dispatch);
                self.release(gathered);
                side_by_side
            }
            MtpOp::Scales { ends } => {
                if ends {
                    self.reduce_maxima();
                }
                self.retain(Self::value(frame, op.inputs[0]))
            }
            MtpOp::OwnRows => self.retain(Self::value(frame, op.inputs[0])),
            MtpOp::Ride => {
                let losses = graph.dims.tokens() * NUMBER;
                let shown = self.made("aten.mul", losses, 2 * losses, dispatch);
                // For the log: their mean, added to that of the other micro-batches.
                for name in ["aten.sum", "aten.div", "aten.add_"] {
                    self.pointwise(name, MemoryKind::Elementwise, NUMBER, NUMBER, dispatch);
                }
                let scaled = self.made("aten.mul", losses, losses, dispatch);
                self.release(shown);
                let mean = self.made("aten.div", losses, losses, dispatch);
                self.release(scaled);
                saved.extend([self.retain(Self::value(frame, op.inputs[2])), mean]);
                self.retain(Self::value(frame, op.inputs[0]))
            }
        };
        frame.slots[op.outputs[0]] = Some(made);
        self.keep(frame, results, &saved);
    }

    pub(super) fn mtp_backward(&mut self, node: Node<'_>, kind: MtpOp, frame: &mut Frame, gradient: Storage) {
        let Node { graph, op, index } = node;
        let input = &graph.values[op.inputs[0]];
        let (bytes, dtype) = (input.bytes(), input.dtype);
        let result = match kind {
            // Whole numbers and masks have no gradients.
            MtpOp::Roll => return self.release(gradient),
            MtpOp::GatherWidth => self.pointwise_gradient("aten.clone", bytes, bytes),
            MtpOp::OwnRows => {
                let whole = self.temporary(bytes, "all_gather_into_tensor");
                self.exchange_now(Collective::AllGather, bytes, dtype);
                whole
            }
            MtpOp::Scales { ends } => {
                if !ends {
                    self.reduce_maxima();
                }
                self.retain(gradient)
            }
            MtpOp::Ride => {
                let losses = graph.dims.tokens() * DType::Fp32.bytes();
                let mut made = self.pointwise_gradient("aten.ones_like", losses, 0);
                // The loss scale, the number of tokens, the scaling factor, the mask.
                for name in ["aten.mul", "aten.div", "aten.mul", "aten.mul"] {
                    let next = self.pointwise_gradient(name, losses, losses);
                    self.release(made);
                    made = next;
                }
                self.accumulate(frame, op.inputs[1], made.into());
                self.retain(gradient)
            }
        };
        self.let_go(frame, index, gradient);
        self.accumulate(frame, op.inputs[0], Gradient { storage: result, view: kind == MtpOp::Ride });
    }
}
