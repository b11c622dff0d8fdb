//! Blocks written out one after the other (`scan_layers = false`), each with parameters of its own.
//!
//! Without a loop the compiler would find that backward computes what forward has computed, and keep it: as JAX does, all that
//! a block's backward reads goes through a barrier, behind which nothing is known to be the same.

use windtunnel::runtime::spmd::{Keep, Policy};

use super::Writer;
use super::blocks::Saved;
use crate::stablehlo::{Memory, Value};

/// What one block saved.
pub type Kept = Vec<(Saved, Keep, Value)>;

impl Writer<'_> {
    /// Runs all blocks; gives the last one's result, and what each has saved.
    pub fn forward_apart(&mut self, input: Value, parameters: &[Value]) -> (Value, Vec<Kept>) {
        let (mut hidden, mut all) = (input, vec![]);
        for layer in 0..self.job.model.layers.count() {
            let weights = self.of_layer(parameters, layer);
            let ran = self.run(&hidden, &weights, &[]);
            let mut kept = vec![];
            for (what, keep) in self.saved(&ran) {
                let value = if what == Saved::Tensor(0) { hidden.clone() } else { ran.get(what).clone() };
                let value = match keep {
                    Keep::Offload => self.main.place(&value, Memory::Host),
                    _ => value,
                };
                kept.push((what, keep, value));
            }
            all.push(kept);
            hidden = ran.values[ran.values.len() - 1].clone();
        }
        (hidden, all)
    }

    /// From the gradient of the last block's result to that of the first one's input, and gradients of parameters.
    pub fn backward_apart(
        &mut self,
        mut gradient: Value,
        saved: &[Kept],
        parameters: &[Value],
    ) -> (Value, Vec<Option<Value>>) {
        let mut gradients: Vec<Option<Value>> = vec![None; self.weights.len()];
        for (layer, kept) in saved.iter().enumerate().rev() {
            let layer = layer as u64;
            let mut weights = self.of_layer(parameters, layer);
            let mut found = vec![];
            for (what, keep, value) in kept {
                let value = match keep {
                    Keep::Offload => self.main.place(value, Memory::Device),
                    _ => value.clone(),
                };
                found.push((*what, value));
            }
            if let Policy::Names(_) = self.job.remat {
                let all: Vec<&Value> =
                    found.iter().map(|(_, value)| value).chain(&weights).chain([&gradient]).collect();
                let behind = self.main.barrier(&all);
                found.iter_mut().zip(&behind).for_each(|((_, value), new)| *value = new.clone());
                weights = behind[found.len()..behind.len() - 1].to_vec();
                gradient = behind[behind.len() - 1].clone();
            }
            let (of_input, of_weights) = self.block_backward(&gradient, &weights, &found);
            let places = (0..self.weights.len()).filter(|&at| self.weights[at].layer == Some(layer));
            for (at, value) in places.collect::<Vec<_>>().into_iter().zip(of_weights) {
                gradients[at] = Some(value);
            }
            gradient = of_input;
        }
        (gradient, gradients)
    }

    /// Parameters of a block.
    fn of_layer(&self, parameters: &[Value], layer: u64) -> Vec<Value> {
        let all = self.weights.iter().zip(parameters);
        all.filter(|(weight, _)| weight.layer == Some(layer)).map(|(_, value)| value.clone()).collect()
    }
}
