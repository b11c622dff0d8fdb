//! Parameters that a micro-batch uses several times: autograd adds their gradients up before it stores them
//! (`torch/csrc/autograd/input_buffer.cpp`).

use super::storage::Gradient;
use super::{Eager, Shared};
use crate::program::{Category, MemoryKind};

impl Eager {
    /// How a parameter is used, if several times.
    pub(super) fn shared_as(&self, param: usize) -> Option<Shared> {
        self.shared.iter().find(|shared| shared.param == param).copied()
    }

    /// Adds one more gradient of a shared parameter: in place, unless the sum so far is a view.
    pub(super) fn add_shared(&mut self, param: usize, gradient: Gradient) -> Option<(Gradient, u32)> {
        let Some(at) = self.shared_sums.iter().position(|&(known, ..)| known == param) else {
            self.shared_sums.push((param, gradient, 1));
            return None;
        };
        let (_, sum, count) = self.shared_sums.swap_remove(at);
        let gradient = gradient.storage;
        let bytes = self.bytes(gradient);
        let mut total = sum.storage;
        if sum.view {
            total = self.storage_as(bytes, Category::BackwardTemporary, "aten.add");
            self.release(sum.storage);
        }
        self.pointwise("aten.add", MemoryKind::Elementwise, 2 * bytes, bytes, self.settings.backward);
        self.release(gradient);
        Some((total.into(), count + 1))
    }
}
