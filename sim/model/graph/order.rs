//! The order in which autograd comes to operators in backward (`torch/csrc/autograd/engine.cpp`, `CompareNodeTaskTime`): of
//! those whose results' gradients are all there the one that ran last, and before it any that was told to come early.

use super::{Graph, Op};
use std::ops::Range;

/// All operators in the order of backward, of which `early` come as soon as they can.
pub(super) fn backward(ops: &[Op], early: &[usize]) -> Vec<usize> {
    let reads = |reader: &Op, op: &Op| reader.inputs.iter().any(|input| op.outputs.contains(input));
    let mut order = Vec::with_capacity(ops.len());
    let mut left: Vec<usize> = (0..ops.len()).collect();
    while !left.is_empty() {
        let ready = |&&at: &&usize| left.iter().all(|&reader| !reads(&ops[reader], &ops[at]));
        let next = left.iter().filter(ready).max_by_key(|&at| (early.contains(at), *at));
        let Some(&next) = next else { unreachable!("an operator reads what earlier ones have made") };
        left.retain(|&at| at != next);
        order.push(next);
    }
    order
}

impl Graph {
    /// The `step`th operator of a range in the order of backward.
    pub fn back(&self, range: &Range<usize>, step: usize) -> usize {
        let inside = |at: &&usize| range.contains(*at);
        self.order.iter().filter(inside).nth(step).copied().unwrap_or_else(|| range.end - 1 - step)
    }

    /// Whether an operator reads a value that was made on another stream than its own.
    pub fn comes_from_elsewhere(&self, op: &Op, value: usize) -> bool {
        !self.order.is_empty()
            && self.ops.iter().any(|maker| maker.outputs.contains(&value) && maker.side_stream != op.side_stream)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind};
    use crate::model::tensor::TensorParallel;
    use crate::program::DType;

    const B: &[Axis] = &[Axis::B];
    const DIMS: Dims = Dims {
        b: 1,
        s: 1,
        d: 1,
        n: 1,
        k: 1,
        h: 1,
        r: 0,
        f: 1,
        v: 1,
        e: 0,
        top_k: 0,
        x: 0,
        latent: (0, 0, 0),
        documents: None,
        tensor: TensorParallel::NONE,
    };

    #[test]
    fn an_early_operator_comes_before_later_ones_as_soon_as_its_gradient_is_there() {
        let order = |early: bool| {
            let (mut g, x) = GraphBuilder::new("block", DIMS, DType::Bf16, ("x_B", B, DType::Bf16));
            let op = |g: &mut GraphBuilder, inputs: &[usize]| g.op("block", OpKind::ADD, inputs, &[], ("y_B", B));
            let first = op(&mut g, &[x]);
            if early {
                g.comes_early();
            }
            let other = op(&mut g, &[x]);
            let behind_other = op(&mut g, &[other]);
            let behind_first = op(&mut g, &[first]);
            let sum = op(&mut g, &[behind_first, behind_other]);
            let graph = g.finish(sum);
            (0..5).map(|step| graph.back(&(0..5), step)).collect::<Vec<_>>()
        };
        assert_eq!(order(false), [4, 3, 2, 1, 0]);
        assert_eq!(order(true), [4, 3, 0, 2, 1]);
    }
}
