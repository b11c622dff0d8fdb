//! Weight gradients that Transformer Engine's modules leave for later (`--delay-wgrad-compute`; `module/base.py`,
//! `WeightGradStore`, 2.7): a module's backward makes the gradient of its input and keeps what the other matmul reads;
//! its `backward_dw` multiplies that.

use super::super::framework::WeightGradients;
use super::super::{Eager, Storage};
use super::left::{Later, Left};

impl Eager {
    /// What modules have left so far, if they leave something.
    fn delayed(&mut self) -> Option<&mut Vec<Later>> {
        match &mut self.framework.megatron_mut()?.weights {
            WeightGradients::Delayed(list) => Some(list),
            WeightGradients::AtOnce | WeightGradients::Deferred(_) => None,
        }
    }

    /// Leaves a module's weight gradients for later, if that is asked for, and holds what they are made of.
    pub(super) fn leave_for_later(&mut self, left: Left, held: &[Storage]) -> bool {
        if self.delayed().is_none() {
            return false;
        }
        let held = held.iter().map(|&storage| self.retain(storage)).collect();
        let later = Later { left, held, params: vec![], owner: self.program.scope().owner() };
        if let Some(list) = self.delayed() {
            list.push(later);
        }
        true
    }

    /// Says whose gradient was left last; none left: it is there.
    pub(super) fn left_for(&mut self, param: usize) -> bool {
        let Some(later) = self.delayed().and_then(|list| list.last_mut()) else { return false };
        later.params.push(param);
        true
    }
}
