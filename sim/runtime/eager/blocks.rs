//! Results that hold blocks, and can show which.

use super::frame::{Frame, Held};
use super::storage::Storage;

/// A result that names blocks.
pub trait Blocks: Clone {
    /// Shows each block that it holds, in an order of its own; one may come several times.
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage));
}

impl Blocks for Storage {
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        show(self);
    }
}

impl<B: Blocks> Blocks for Option<B> {
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.iter_mut().for_each(|held| held.blocks(show));
    }
}

impl<A: Blocks, B: Blocks> Blocks for (A, B) {
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.0.blocks(show);
        self.1.blocks(show);
    }
}

impl Blocks for Frame {
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.slots.iter_mut().flatten().for_each(&mut *show);
        self.gradients.iter_mut().flatten().for_each(|gradient| show(&mut gradient.storage));
        self.saved.iter_mut().chain(&mut self.kept).for_each(&mut *show);
        self.slices.iter_mut().for_each(|(_, storage)| show(storage));
        self.held.iter_mut().for_each(|held| held.blocks(show));
        // Of any other forward the input is its caller's.
        if self.checkpoint.is_some() && self.holds_input {
            show(&mut self.input);
        }
    }
}

impl Blocks for Held {
    fn blocks(&mut self, show: &mut dyn FnMut(&mut Storage)) {
        self.inputs.iter_mut().for_each(|(_, storage)| show(storage));
        self.results.iter_mut().for_each(&mut *show);
        self.frame.iter_mut().for_each(|frame| frame.blocks(show));
    }
}
