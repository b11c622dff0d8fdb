//! Weight gradients that Transformer Engine's modules leave for later (`--delay-wgrad-compute`; `module/base.py`,
//! `WeightGradStore`, 2.7): a module's backward makes the gradient of its input and keeps what the other matmul reads;
//! its `backward_dw` multiplies that.

use super::super::{Eager, Storage};
use super::grouped;
use crate::program::DType;

/// What a weight's gradient is made by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left {
    /// One matmul of a shape.
    Linear((u64, u64, u64), DType),
    /// Those of a rank's experts.
    Grouped(grouped::Sizes),
}

/// A module's weight gradients yet to be made.
#[derive(Debug)]
pub struct Later {
    left: Left,
    /// What is multiplied.
    held: Vec<Storage>,
    params: Vec<usize>,
}

impl Eager {
    /// Leaves a module's weight gradients for later, if that is asked for, and holds what they are made of.
    pub(super) fn leaves(&mut self, left: Left, held: &[Storage]) -> bool {
        if self.later.is_none() {
            return false;
        }
        let held = held.iter().map(|&storage| self.retain(storage)).collect();
        let later = Later { left, held, params: vec![] };
        self.later.get_or_insert_default().push(later);
        true
    }

    /// Says whose gradient was left last; none left: it is there.
    pub(super) fn left_for(&mut self, param: usize) -> bool {
        let Some(later) = self.later.as_mut().and_then(|list| list.last_mut()) else { return false };
        later.params.push(param);
        true
    }

    /// Makes what has been left, in order; main gradients take it.
    pub fn run_later(&mut self, list: Vec<Later>) {
        let (dispatch, layout) = (self.settings.backward, self.weight_layout());
        for Later { left, held, params } in list {
            match left {
                Left::Linear(shape, dtype) => self.engine_matmul(shape, dtype, layout, dispatch),
                Left::Grouped(sizes) => self.grouped_matmul(&sizes, layout, dispatch),
            }
            held.into_iter().for_each(|storage| self.release(storage));
            params.into_iter().for_each(|param| self.gradient_arrived(param));
        }
    }
}
