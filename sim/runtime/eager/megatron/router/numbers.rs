//! Numbers of a router: how many there are, and small operators on them.

use super::super::super::{Eager, Storage};
use crate::model::graph::{Graph, Op};
use crate::model::megatron::experts::{Choice, Routed, RoutedOp, Scores};
use crate::program::{DType, Dispatch, MemoryKind};

/// Bytes of an index, of a number in fp32.
pub(in crate::runtime::eager::megatron) const INDEX: u64 = 8;
pub(in crate::runtime::eager::megatron) const NUMBER: u64 = 4;

/// The largest of each row.
#[derive(Clone, Copy)]
pub(in crate::runtime::eager::megatron) struct Largest {
    /// Bytes of all values.
    pub(in crate::runtime::eager::megatron) bytes: u64,
    /// How many values.
    pub(in crate::runtime::eager::megatron) count: u64,
}

/// What the rules read off the operator.
#[derive(Clone, Copy)]
pub(in crate::runtime::eager::megatron) struct Sizes {
    pub(in crate::runtime::eager::megatron) routed: Routed,
    pub(in crate::runtime::eager::megatron) scores: Scores,
    pub(in crate::runtime::eager::megatron) choice: Choice,
    pub(in crate::runtime::eager::megatron) auxiliary: bool,
    pub(in crate::runtime::eager::megatron) fused: bool,
    /// Bytes of a matrix of all experts' numbers, and of the chosen's, in the router's type.
    pub(in crate::runtime::eager::megatron) all: u64,
    pub(in crate::runtime::eager::megatron) chosen: u64,
    /// Numbers of both.
    pub(in crate::runtime::eager::megatron) every: u64,
    pub(in crate::runtime::eager::megatron) some: u64,
    /// Whether the router's type is narrower than fp32, in which softmax is taken.
    pub(in crate::runtime::eager::megatron) narrow: bool,
}

impl Sizes {
    pub(in crate::runtime::eager::megatron) fn of(graph: &Graph, op: &Op, kind: RoutedOp) -> Sizes {
        let RoutedOp::Route { routed, scores, choice, auxiliary, fused } = kind else {
            unreachable!("called for routers")
        };
        let dtype = graph.values[op.outputs[0]].dtype;
        let (every, some) = (routed.tokens * routed.experts, routed.tokens * routed.top_k);
        let bytes = dtype.bytes();
        let narrow = dtype != DType::Fp32;
        Sizes {
            routed,
            scores,
            choice,
            auxiliary,
            fused,
            all: every * bytes,
            chosen: some * bytes,
            every,
            some,
            narrow,
        }
    }
}

impl Eager {
    /// A small eager operator of forward, with its result.
    pub(in crate::runtime::eager::megatron) fn few(&mut self, name: &'static str, bytes: u64, read: u64) -> Storage {
        self.made(name, bytes, read, self.settings.forward)
    }

    /// Softmax in fp32 of numbers in the router's type.
    pub(in crate::runtime::eager::megatron) fn wide_softmax(&mut self, numbers: u64, narrow: bool) -> Storage {
        let wide = numbers * NUMBER;
        let cast = narrow.then(|| self.few("aten._to_copy", wide, wide / 2));
        let soft = self.storage(wide, "aten._softmax");
        self.pointwise("aten._softmax", MemoryKind::Softmax, wide, wide, self.settings.forward);
        if let Some(cast) = cast {
            self.release(cast);
        }
        soft
    }

    /// How many copies each expert is sent: the map's columns summed as whole numbers.
    pub(in crate::runtime::eager::megatron) fn count(&mut self, routed: Routed) -> Storage {
        let every = routed.tokens * routed.experts;
        let counts = self.storage(routed.experts * INDEX, "aten.sum");
        let wide = self.storage(every * INDEX, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Elementwise, every, every * INDEX, self.settings.forward);
        self.pointwise("aten.sum", MemoryKind::Elementwise, every * INDEX, routed.experts * INDEX, Dispatch::Extra);
        self.release(wide);
        counts
    }
}
