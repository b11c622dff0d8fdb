//! How logits of experts become weights of the chosen (`topk_routing_with_score_function`, `group_limited_topk`,
//! `core/transformer/moe/moe_utils.py`, 0.16.1): softmax or sigmoid, a correction that the choice alone sees, a choice among
//! groups, a factor.

use super::super::{Eager, Storage};
use super::router::{INDEX, Largest, NUMBER, Sizes};
use crate::model::megatron::experts::{Capacity, Scores};
use crate::program::{Dispatch, MemoryKind};

impl Eager {
    /// The k largest of each row, and where they are: a selection and a sort.
    pub(super) fn top_k(&mut self, read: u64, Largest { bytes, count }: Largest) -> [Storage; 2] {
        let made = [self.storage(bytes, "aten.topk"), self.storage(count * INDEX, "aten.topk")];
        self.pointwise("aten.topk", MemoryKind::Elementwise, read, bytes + count * INDEX, self.settings.forward);
        self.pointwise("aten.topk", MemoryKind::Elementwise, bytes, bytes + count * INDEX, Dispatch::Extra);
        made
    }

    /// The k largest of scores of `all` bytes, of all experts or of the best groups only; what backward needs of the latter.
    fn best(&mut self, sizes: Sizes, all: u64) -> ([Storage; 2], Vec<Storage>) {
        let each = all / sizes.every;
        let chosen = Largest { bytes: sizes.some * each, count: sizes.some };
        let Some((groups, best)) = sizes.choice.groups else { return (self.top_k(all, chosen), vec![]) };
        let tokens = sizes.routed.tokens;
        let per_group = tokens * groups * (sizes.routed.top_k / best).max(1);
        let [values, places] = self.top_k(all, Largest { bytes: per_group * each, count: per_group });
        let sums = self.few("aten.sum", tokens * groups * each, per_group * each);
        [values, places].into_iter().for_each(|storage| self.release(storage));
        let [values, places] =
            self.top_k(tokens * groups * each, Largest { bytes: tokens * best * each, count: tokens * best });
        self.release(values);
        let marked = self.few("aten.zeros_like", tokens * groups * each, 0);
        self.pointwise(
            "aten.scatter_",
            MemoryKind::Scatter,
            tokens * best * INDEX,
            tokens * best * each,
            self.settings.forward,
        );
        let wide = self.few("aten.clone", all, tokens * groups * each);
        let mask = self.few("aten._to_copy", sizes.every, all);
        let others = self.few("aten.bitwise_not", sizes.every, sizes.every);
        self.release(mask);
        let masked = self.few("aten.masked_fill", all, all + sizes.every);
        let made = self.top_k(all, chosen);
        [masked, wide, marked, places, sums].into_iter().for_each(|storage| self.release(storage));
        (made, vec![others])
    }

    /// Weights of the chosen from logits, and what backward needs, indices first.
    pub(super) fn weights(&mut self, sizes: Sizes) -> (Storage, Vec<Storage>) {
        let (mut weights, saved) = match sizes.scores {
            Scores::Chosen => {
                let ([values, indices], masks) = self.best(sizes, sizes.all);
                let soft = self.wide_softmax(sizes.some, sizes.narrow);
                let weights = self.narrowed(soft, sizes.chosen, sizes.narrow);
                self.release(values);
                (weights, [vec![indices, soft], masks].concat())
            }
            Scores::All => {
                let soft = self.wide_softmax(sizes.every, sizes.narrow);
                let scores = self.narrowed(soft, sizes.all, sizes.narrow);
                let ([values, indices], masks) = self.best(sizes, sizes.all);
                self.release(scores);
                (values, [vec![indices, soft], masks].concat())
            }
            Scores::Sigmoid => self.sigmoid_weights(sizes),
            Scores::Sinkhorn => unreachable!("weights of all experts are made at once"),
        };
        if sizes.choice.scales {
            let scaled = self.few("aten.mul", sizes.chosen, sizes.chosen);
            self.release(weights);
            weights = scaled;
        }
        (weights, saved)
    }

    /// Numbers in fp32 in the router's type.
    fn narrowed(&mut self, wide: Storage, bytes: u64, narrow: bool) -> Storage {
        if narrow { self.few("aten._to_copy", bytes, 2 * bytes) } else { self.retain(wide) }
    }

    fn sigmoid_weights(&mut self, sizes: Sizes) -> (Storage, Vec<Storage>) {
        let (wide, rows) = (sizes.every * NUMBER, sizes.routed.tokens * sizes.chosen / sizes.some);
        let cast = sizes.narrow.then(|| self.few("aten._to_copy", wide, wide / 2));
        let soft = self.few("aten.sigmoid", wide, wide);
        cast.into_iter().for_each(|storage| self.release(storage));
        let scores = self.narrowed(soft, sizes.all, sizes.narrow);
        let (picked, indices, masks) = if sizes.choice.correction {
            let moved = self.few("aten.add", wide, sizes.all);
            // Nothing goes back through the choice.
            let ([values, indices], masks) = self.best(sizes, wide);
            let picked = self.few("aten.gather", sizes.chosen, sizes.chosen + sizes.some * INDEX);
            masks.into_iter().chain([values, moved]).for_each(|storage| self.release(storage));
            (picked, indices, vec![])
        } else {
            let ([values, indices], masks) = self.best(sizes, sizes.all);
            (values, indices, masks)
        };
        self.release(scores);
        let sum = self.few("aten.sum", rows, sizes.chosen);
        let divisor = self.few("aten.add", rows, rows);
        self.release(sum);
        let weights = self.few("aten.div", sizes.chosen, sizes.chosen + rows);
        (weights, [vec![indices, soft, picked, divisor], masks].concat())
    }

    /// Of each expert's tokens no more than it takes, those of the largest weights (`apply_router_token_dropping`).
    pub(super) fn dropped(&mut self, sizes: Sizes, capacity: Capacity, [probs, map]: [Storage; 2]) -> [Storage; 2] {
        let (all, every, forward) = (sizes.all, sizes.every, self.settings.forward);
        let kept = if capacity.rows > sizes.routed.tokens {
            let ones = self.few("aten.ones_like", all, 0);
            let kept = self.few("aten._to_copy", every, all);
            self.release(ones);
            kept
        } else {
            let most = capacity.rows * sizes.routed.experts;
            let best = self.top_k(all, Largest { bytes: most * (all / every), count: most });
            let zeros = self.few("aten.zeros_like", all, 0);
            let marked = self.few("aten.scatter", all, all + most * INDEX);
            self.release(zeros);
            let kept = self.few("aten._to_copy", every, all);
            [marked, best[0], best[1]].into_iter().for_each(|storage| self.release(storage));
            kept
        };
        let kept = if capacity.pads {
            kept
        } else {
            let both = self.made("aten.logical_and", every, 2 * every, forward);
            self.release(kept);
            both
        };
        let weights = self.few("aten.mul", all, all + every);
        [probs, map].into_iter().for_each(|storage| self.release(storage));
        [weights, kept]
    }

    /// Softmax's gradient through the sum over the chosen, and through the choice: that of the scores of all.
    pub(super) fn sigmoid_gradient(&mut self, sizes: Sizes, [indices, soft, picked, divisor]: [Storage; 4]) -> Storage {
        let (chosen, wide) = (sizes.chosen, sizes.every * NUMBER);
        let rows = sizes.routed.tokens * chosen / sizes.some;
        let first = self.pointwise_gradient("aten.div", chosen, chosen + rows);
        let product = self.pointwise_gradient("aten.mul", chosen, 2 * chosen);
        let sums = self.pointwise_gradient("aten.sum", rows, chosen);
        self.release(product);
        [picked, divisor].into_iter().for_each(|storage| self.release(storage));
        self.pointwise("aten.add_", MemoryKind::Elementwise, chosen + rows, chosen, self.settings.backward);
        self.release(sums);
        let scattered = self.pointwise_gradient("aten.scatter_add", sizes.all, chosen + sizes.some * INDEX);
        [first, indices].into_iter().for_each(|storage| self.release(storage));
        let mut made = scattered;
        for (bytes, cast) in [(wide, sizes.narrow), (wide, true), (sizes.all, sizes.narrow)] {
            if cast {
                let next = self.pointwise_gradient("aten.sigmoid_backward", bytes, wide);
                self.release(made);
                made = next;
            }
        }
        self.release(soft);
        made
    }
}
