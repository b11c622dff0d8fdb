//! How replicas of a model share its gradients, its optimizer and its parameters: what Megatron's data-parallel wrappers do at
//! each point of a step. There are two: buckets (`data.rs`, `DistributedDataParallel`) and Megatron-FSDP (`fsdp.rs`).

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

use super::buckets::Slot;
use crate::program::Builder;
use crate::runtime::eager::main_gradients::{Moment, Takes};

/// A data-parallel wrapper, as a step calls it.
pub(super) trait Replicas: Debug {
    /// Takes parameters and main gradients, once.
    fn take_buffers(&self, program: &mut Builder);
    /// For each parameter of which the first replica steps a part: the parameter and the part's elements.
    fn shards(&self, slots: &[Slot]) -> Vec<(usize, u64)>;
    /// The optimizer has stepped.
    fn stepped(&mut self, _program: &mut Builder) {}
    /// At the start of a step: gradients are zero, nothing has been reduced.
    fn zero(&mut self, program: &mut Builder);
    /// Whether a chunk's operators find everything gathered, and reduce nothing.
    fn is_quiet(&self, chunk: usize) -> bool;
    /// Before an operator of the forward reads a parameter.
    fn needed(&mut self, program: &mut Builder, param: usize);
    /// A chunk's run has come to a point.
    fn reached(&mut self, _program: &mut Builder, _at: Moment) {}
    /// Before a gradient goes to the main gradients.
    fn takes(&mut self, _program: &mut Builder, _param: usize) -> Takes {
        Takes::Sum
    }
    /// When a parameter's gradient has been put to the main gradients.
    fn arrived(&mut self, program: &mut Builder, param: usize);
    /// Starts the gathering of all of a chunk's parameters.
    fn prefetch(&mut self, _program: &mut Builder, _chunk: usize) {}
    /// Whether gradients are reduced beside the last backward.
    fn overlaps_reduce(&self) -> bool;
    /// The chunk whose last micro-batch is in backward, if it is reduced meanwhile.
    fn reduces(&mut self, chunk: Option<usize>);
    /// Starts the reduction of all of a chunk's gradients.
    fn start(&mut self, _program: &mut Builder, _chunk: usize) {}
    /// After the last backward: a chunk's gradients are reduced and waited for.
    fn finish(&mut self, program: &mut Builder, chunk: usize);
    /// Gradients are with the optimizer.
    fn attached(&mut self, _program: &mut Builder) {}
    /// After the optimizer's step: a chunk's parameters are gathered, unless the next forward does it.
    fn gather_all(&mut self, _program: &mut Builder, _chunk: usize) {}
}

/// One wrapper, which the eager run's hooks use too.
pub(super) type Shared = Rc<RefCell<dyn Replicas>>;
