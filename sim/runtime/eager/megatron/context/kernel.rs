//! Sizes of attention where ranks share a sequence, and the work of its kernels.

use super::way::Context;
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::MegatronOp;
use crate::program::{AttentionShape, DType, Work};

/// Bytes of the random state: seed and offset.
pub(super) const RANDOM: u64 = 16;

/// What the rules read off the operator \[B\]. Whether a rank has tokens or heads, it has as many of these.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// The rank's queries, as its context.
    pub(super) query: u64,
    pub(super) key: u64,
    pub(super) value: u64,
    /// A number for each head and query in fp32.
    pub(super) sums: u64,
    pub(super) dtype: DType,
}

impl Sizes {
    pub(super) fn of(graph: &Graph, op: &Op) -> Sizes {
        let d = graph.dims;
        let [query, key, value] = [0, 1, 2].map(|at| graph.values[op.inputs[at]].bytes());
        let dtype = graph.values[op.inputs[0]].dtype;
        Sizes { query, key, value, sums: d.b * d.n * d.s * DType::Fp32.bytes(), dtype }
    }

    pub(super) fn all(self) -> [u64; 3] {
        [self.query, self.key, self.value]
    }
}

/// A kernel of attention: how many queries and keys, whether a mask hides the keys behind a query (the last of both are of
/// one token), and whether it is the backward.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) queries: u64,
    pub(super) keys: u64,
    pub(super) causal: bool,
    pub(super) backward: bool,
}

impl Context {
    /// Over how many ranks heads are distributed.
    pub(super) fn head_ranks(self) -> u64 {
        self.heads.map_or(1, |heads| u64::from(heads.ranks))
    }

    /// Tokens of a rank while it attends, of all heads or of some.
    pub(super) fn tokens(self, graph: &Graph) -> u64 {
        graph.dims.s * self.head_ranks()
    }

    pub(super) fn window(op: &Op) -> Option<u64> {
        match op.kind {
            OpKind::Megatron(MegatronOp::FlashCore { window, .. }) => window,
            _ => unreachable!("called for flash cores"),
        }
    }

    pub(super) fn work(self, graph: &Graph, op: &Op, kernel: Kernel) -> Work {
        let (d, Kernel { queries, keys, causal, backward }) = (graph.dims, kernel);
        let shape = AttentionShape {
            batch: d.b,
            heads: d.n / self.head_ranks(),
            kv_heads: d.k / self.head_ranks(),
            queries,
            keys,
            head_dim: d.h,
            causal,
            window: Context::window(op),
            squares: None,
        };
        Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
    }
}
