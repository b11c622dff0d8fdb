//! Results that hold storages, and can show which.

use super::frame::{Frame, Held};
use super::storage::Storage;

/// A result that holds storages.
pub trait HoldsStorages: Clone {
    /// Shows each storage that it holds, in an order of its own; one may come several times.
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage));
}

impl HoldsStorages for Storage {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        show(self);
    }
}

impl<B: HoldsStorages> HoldsStorages for Option<B> {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.iter_mut().for_each(|held| held.storages(show));
    }
}

impl<A: HoldsStorages, B: HoldsStorages> HoldsStorages for (A, B) {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.0.storages(show);
        self.1.storages(show);
    }
}

impl HoldsStorages for Frame {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.slots.iter_mut().flatten().for_each(&mut *show);
        self.gradients.iter_mut().flatten().for_each(|gradient| show(&mut gradient.storage));
        self.saved.iter_mut().chain(&mut self.kept).for_each(&mut *show);
        self.slices.iter_mut().for_each(|(_, storage)| show(storage));
        self.held.iter_mut().for_each(|held| held.storages(show));
        // Of any other forward the input is its caller's.
        if self.checkpoint.is_some() && self.holds_input {
            show(&mut self.input);
        }
    }
}

impl HoldsStorages for Held {
    fn storages(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.inputs.iter_mut().for_each(|(_, storage)| show(storage));
        self.results.iter_mut().for_each(&mut *show);
        self.frame.iter_mut().for_each(|frame| frame.storages(show));
    }
}
