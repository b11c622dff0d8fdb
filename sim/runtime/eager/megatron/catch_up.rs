//! Makes the weight gradients that modules have left for later.

use super::super::Eager;
use super::left::{Later, Left};

impl Eager {
    /// Makes what has been left, in order; main gradients take it.
    pub fn run_later(&mut self, list: Vec<Later>) {
        let (dispatch, layout) = (self.settings.backward, self.weight_layout());
        for Later { left, held, params, owner } in list {
            let before = self.program.at_work(owner);
            match left {
                Left::Linear(shape, dtype) => self.engine_matmul(shape, dtype, layout, dispatch),
                Left::Grouped(sizes) => self.grouped_matmul(&sizes, layout, dispatch),
            }
            held.into_iter().for_each(|storage| self.release(storage));
            params.into_iter().for_each(|param| self.gradient_arrived(param));
            self.program.enter(before);
        }
    }
}
