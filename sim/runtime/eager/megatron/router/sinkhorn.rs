//! The router that evens loads out by scaling (`sinkhorn_load_balancing` of `core/transformer/moe/router.py`, `sinkhorn` of
//! `moe_utils.py`, 0.16.1): exponentials in fp32, whose rows and columns are divided by their sums in turn until nothing changes
//! much. The host reads after each round whether it has.

use super::super::super::{COMPUTE, Eager, Storage};
use super::numbers::{Largest, NUMBER, Sizes};
use crate::program::{MemoryKind, Work};
use crate::units::Bytes;

/// Rounds until columns change by less than 0.0001 on average: how many, the logits decide. With those of a fresh router of width
/// 512 (deviation 0.02) over some thousand tokens it is three.
const ROUNDS: u32 = 3;

impl Eager {
    /// Weights of all experts, zero where not chosen; the map of the chosen; and what backward needs.
    pub(super) fn evened(&mut self, sizes: Sizes) -> ([Storage; 2], Vec<Storage>) {
        let (all, every) = (sizes.all, sizes.every);
        let values = self.scaled_costs(sizes);
        let [best, indices] = self.top_k(every * NUMBER, Largest { bytes: sizes.some * NUMBER, count: sizes.some });
        self.release(best);
        let scores = if sizes.routed.top_k == 1 {
            self.few("aten.sigmoid", all, all)
        } else {
            self.wide_softmax(every, sizes.narrow)
        };
        let narrowed = sizes.routed.top_k > 1 && sizes.narrow;
        let narrow = narrowed.then(|| self.few("aten._to_copy", all, every * NUMBER));
        let map = self.chosen_map(sizes);
        let probs = self.few("aten.mul", all, all + every);
        let saved = vec![scores, self.retain(map)];
        narrow.into_iter().chain([values, indices]).for_each(|storage| self.release(storage));
        ([probs, map], saved)
    }

    /// The scaled exponentials.
    fn scaled_costs(&mut self, sizes: Sizes) -> Storage {
        let wide = sizes.every * NUMBER;
        let [rows, columns] = [sizes.routed.tokens, sizes.routed.experts].map(|count| count * NUMBER);
        let cast = sizes.narrow.then(|| self.few("aten._to_copy", wide, sizes.all));
        let costs = self.few("aten.exp", wide, wide);
        cast.into_iter().for_each(|storage| self.release(storage));
        let [mut of_rows, mut of_columns] = [rows, columns].map(|bytes| self.few("aten.ones", bytes, 0));
        for _ in 0..ROUNDS {
            let new = self.over_sums(wide, rows);
            self.release(std::mem::replace(&mut of_rows, new));
            let new = self.over_sums(wide, columns);
            let difference = self.few("aten.sub", columns, 2 * columns);
            let absolute = self.few("aten.abs", columns, columns);
            let error = self.few("aten.mean", NUMBER, columns);
            self.pointwise("aten.gt", MemoryKind::Elementwise, NUMBER, 1, self.settings.forward);
            let work = Work::HostCopy { bytes: Bytes(1), to_host: true };
            self.program.launch(COMPUTE, "aten._local_scalar_dense", work, self.settings.forward);
            self.program.wait_for_host(COMPUTE);
            [difference, absolute, error, std::mem::replace(&mut of_columns, new)]
                .into_iter()
                .for_each(|storage| self.release(storage));
        }
        let half = self.few("aten.mul", wide, wide + columns);
        let scaled = self.few("aten.mul", wide, wide + rows);
        [half, costs, of_rows, of_columns].into_iter().for_each(|storage| self.release(storage));
        scaled
    }

    /// One over the sums of a matrix that is scaled along its other axis.
    fn over_sums(&mut self, wide: u64, sums: u64) -> Storage {
        let product = self.few("aten.mul", wide, wide);
        let mut made = self.few("aten.sum", sums, wide);
        self.release(product);
        for name in ["aten.add", "aten.reciprocal", "aten.mul"] {
            let new = self.few(name, sums, sums);
            self.release(std::mem::replace(&mut made, new));
        }
        made
    }

    /// The gradient of the logits.
    pub(super) fn evened_gradient(&mut self, sizes: Sizes, [scores, map]: [Storage; 2], gradient: Storage) -> Storage {
        let masked = self.pointwise_gradient("aten.mul", sizes.all, sizes.all + sizes.every);
        [gradient, map].into_iter().for_each(|storage| self.release(storage));
        let made = if sizes.routed.top_k == 1 {
            self.pointwise_gradient("aten.sigmoid_backward", sizes.all, 2 * sizes.all)
        } else {
            self.softmax_gradient(sizes.every, sizes.narrow)
        };
        [masked, scores].into_iter().for_each(|storage| self.release(storage));
        made
    }
}
