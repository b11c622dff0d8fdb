//! The router in Transformer Engine's kernels (`moe_router_fusion`; `transformer_engine/pytorch/router.py`, 2.9): one for
//! choice and weights, one for the scores that the balancing loss is of, one for that loss.

use super::super::super::frame::Results;
use super::super::super::{Eager, Frame, Storage};
use super::numbers::{INDEX, NUMBER, Sizes};
use crate::model::graph::Op;
use crate::program::{Collective, DType, MemoryKind};

/// Things that the balancing loss keeps.
const BALANCE: usize = 3;

impl Eager {
    /// Choice and weights in one kernel, which keeps the scores in fp32.
    pub(super) fn route_at_once(
        &mut self,
        op: &Op,
        sizes: Sizes,
        frame: &mut Frame,
        results: Results,
        mut saved: Vec<Storage>,
        logits: Storage,
    ) {
        const NAME: &str = "te.fused_topk_with_score_function";
        let wide = sizes.every * NUMBER;
        let [mut probs, mut map, scores] = [sizes.all, sizes.every, wide].map(|bytes| self.storage(bytes, NAME));
        let written = sizes.all + sizes.every + wide;
        self.pointwise(NAME, MemoryKind::Elementwise, sizes.all, written, self.settings.forward);
        saved.extend([self.retain(map), scores]);
        if let Some(capacity) = sizes.routed.capacity {
            [probs, map] = self.dropped(sizes, capacity, [probs, map]);
            saved.push(self.retain(map));
        }
        // Under a checkpoint's `no_grad` the loss is left to the recompute.
        if sizes.auxiliary && results == Results::Save {
            saved.extend(self.balance_at_once(sizes));
        }
        self.release(logits);
        frame.slots[op.outputs[0]] = Some(probs);
        frame.slots[op.outputs[1]] = Some(map);
        self.keep(frame, results, &saved);
    }

    /// Scores and a map for the loss, how many copies each expert got, and the loss.
    fn balance_at_once(&mut self, sizes: Sizes) -> [Storage; BALANCE] {
        const SCORES: &str = "te.fused_score_for_moe_aux_loss";
        const LOSS: &str = "te.fused_moe_aux_loss";
        let (experts, forward) = (sizes.routed.experts, self.settings.forward);
        let [scores, map, kept] = [sizes.all, sizes.every, sizes.all].map(|bytes| self.storage(bytes, SCORES));
        self.pointwise(SCORES, MemoryKind::Elementwise, sizes.all, 2 * sizes.all + sizes.every, forward);
        let counts = self.count(sizes.routed);
        self.expert_exchange(|ranks| ranks.balance, Collective::AllReduce, experts * INDEX, DType::Int64);
        let loss = self.made(LOSS, NUMBER, sizes.all + experts * INDEX, forward);
        let logged = self.few("aten.div", NUMBER, NUMBER);
        self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * NUMBER, NUMBER, forward);
        [logged, scores, map].into_iter().for_each(|storage| self.release(storage));
        [kept, counts, loss]
    }

    /// The gradient of the logits through those kernels.
    pub(super) fn route_at_once_backward(&mut self, sizes: Sizes, saved: &[Storage], gradient: Storage) -> Storage {
        const NAME: &str = "te.fused_topk_with_score_function_bwd";
        let masked = usize::from(sizes.routed.capacity.is_some());
        let (own, of_balance) = saved.split_at(2 + masked);
        let balanced = (!of_balance.is_empty()).then(|| {
            self.pointwise("aten.mul", MemoryKind::Elementwise, NUMBER, NUMBER, self.settings.backward);
            let of_scores = self.pointwise_gradient("te.fused_moe_aux_loss_bwd", sizes.all, NUMBER);
            let made = self.pointwise_gradient("te.fused_score_for_moe_aux_loss_bwd", sizes.all, 2 * sizes.all);
            self.release(of_scores);
            of_balance.iter().for_each(|&storage| self.release(storage));
            made
        });
        let mut gradient = gradient;
        if masked > 0 {
            let kept = self.pointwise_gradient("aten.mul", sizes.all, sizes.all + sizes.every);
            self.release(gradient);
            gradient = kept;
        }
        let read = sizes.all + sizes.every * (1 + NUMBER);
        let mut of_logits = self.pointwise_gradient(NAME, sizes.all, read);
        self.release(gradient);
        own.iter().for_each(|&storage| self.release(storage));
        if let Some(other) = balanced {
            let sum = self.pointwise_gradient("aten.add", sizes.all, 2 * sizes.all);
            [other, of_logits].into_iter().for_each(|storage| self.release(storage));
            of_logits = sum;
        }
        of_logits
    }
}
