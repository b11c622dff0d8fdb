//! How gradients get to the main gradients, and what the training step is told on the way.

use super::main_gradients::{Moment, Takes};
use super::{Eager, Frame, Storage};
use crate::model::graph::{Op, OpKind};
use crate::program::{DType, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

impl Eager {
    /// Tells the step that parameters are about to be read.
    pub(super) fn about_to_read(&mut self, op: &Op, frame: &Frame) {
        let count = match op.kind {
            OpKind::Megatron(kind) => kind.module_params(op.params.len()),
            _ => op.params.len(),
        };
        op.params.iter().take(count).for_each(|&param| self.is_reading(param, frame));
    }

    /// Tells the step that a parameter is about to be read.
    pub(super) fn is_reading(&mut self, param: usize, frame: &Frame) {
        // Hooks are no part of a CUDA graph.
        if self.in_graph() {
            return;
        }
        if let Some(megatron) = self.framework.megatron_mut() {
            megatron.main.hooks.read(&mut self.program, frame.params.index(param));
        }
    }

    /// Adds a gradient to the main gradients and lets go of it.
    pub(super) fn add_to_main(&mut self, param: usize, gradient: Storage, dtype: DType) {
        if self.arrives_in_graph(param, Some((gradient, dtype))) {
            return;
        }
        let bytes = self.bytes(gradient);
        let megatron = self.framework.megatron_mut().expect("called where there are main gradients");
        let main = &mut megatron.main;
        let wide = bytes / dtype.bytes() * main.dtype.bytes();
        let (name, read) = match main.hooks.takes(&mut self.program, param) {
            Takes::Sum => ("aten.add_", bytes + wide),
            Takes::Copy => ("aten.copy_", bytes),
        };
        let work = Work::Memory { kind: MemoryKind::Elementwise, read: Bytes(read), written: Bytes(wide) };
        self.program.launch(self.stream, name, work, self.settings.backward);
        self.let_go_of_taken(gradient);
        self.gradient_arrived(param);
    }

    /// Tells the step how far a chunk's run has come.
    pub fn reached(&mut self, at: Moment) {
        if let Some(megatron) = self.framework.megatron_mut() {
            megatron.main.hooks.reached(&mut self.program, at);
        }
    }

    /// The gradient is in the main gradients.
    pub(super) fn gradient_arrived(&mut self, param: usize) {
        if self.arrives_in_graph(param, None) {
            return;
        }
        if let Some(megatron) = self.framework.megatron_mut() {
            megatron.main.hooks.arrived(&mut self.program, param);
        }
    }

    /// Whether matmuls add weight gradients themselves.
    pub(super) fn fuses_accumulation(&self) -> bool {
        self.framework.megatron().is_some_and(|megatron| megatron.main.fused)
    }

    /// The matmul that makes a weight's gradient: one that adds it to the main gradient, where that is fused.
    pub(super) fn weight_layout(&self) -> MatmulLayout {
        match self.framework.megatron() {
            Some(megatron) if megatron.main.fused => MatmulLayout::MainGradient(megatron.main.dtype),
            _ => MatmulLayout::WeightGradient,
        }
    }
}
