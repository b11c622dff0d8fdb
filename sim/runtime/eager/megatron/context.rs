//! Ways in which ranks share a sequence (`--cp-comm-type`; Transformer Engine 2.9,
//! `pytorch/attention/dot_product_attention/context_parallel.py`; causal, layout `sbhd`). Each is two rules for the core of
//! attention.
//!
//! With c ranks a sequence is cut into 2c parts, and rank r has parts r and 2c − 1 − r, so that under a causal mask all have
//! as much to do. All ranks of a stage run one program, that of the last.
//!
//! Two kernels of attention share the chip here at no gain. Where Transformer Engine runs them on two streams, to fill the
//! chip at their ends, all run on the default stream; what they take is its or the second's, as theirs is. Assumed, then:
//! every kernel has a tail of its own.
//!
//! To add one: a file in `context/` and a line in [`WAYS`].

mod all_gather;
mod heads;
mod ring;

use super::super::{Eager, Storage};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::MegatronOp;
use crate::program::{AttentionShape, DType, GroupId, StreamId, Work};

/// The ways there are.
pub static WAYS: [Way; 4] = [ring::P2P, all_gather::ALL_GATHER, heads::A2A, ring::A2A_P2P];

/// What ranks have parts of while they attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Of the tokens.
    Tokens,
    /// Of the heads.
    Heads,
    /// Those of an inner group of the heads, and such groups of the tokens.
    Both,
}

/// The context, and what backward needs, in the order in which it lets go of it. Queries, keys and values are the caller's.
type Forward = fn(&mut Eager, &Graph, &Op, Context, [Storage; 3]) -> (Storage, Vec<Storage>);
/// Gradients of queries, keys and values.
type Gradients = fn(&mut Eager, &Graph, &Op, Context) -> [Storage; 3];

/// A way of the table.
#[derive(Clone, Copy)]
pub struct Way {
    /// `--cp-comm-type`.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What each rank has parts of.
    pub parts: Parts,
    /// Whether it knows sliding windows (`attn_forward_func_with_cp`).
    pub windows: bool,
    pub(super) forward: Forward,
    pub(super) gradients: Gradients,
}

impl PartialEq for Way {
    fn eq(&self, other: &Way) -> bool {
        self.name == other.name
    }
}

impl Eq for Way {}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Way {
    /// The way of a name, if there is one.
    pub fn find(name: &str) -> Option<&'static Way> {
        WAYS.iter().find(|one| one.name == name)
    }
}

/// Ranks that have parts of the tokens, as one of them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The communicator.
    pub group: GroupId,
    /// How many ranks; where heads are spread over all, 1.
    pub ranks: u32,
    /// The streams of messages with the next rank and with the previous one. Two ranks batch what they exchange, on the
    /// first, as are collectives.
    pub messages: [StreamId; 2],
    /// The stream whose pool odd steps take memory from.
    pub second: StreamId,
}

/// Ranks that have parts of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The communicator.
    pub group: GroupId,
    /// How many ranks; 2 or more.
    pub ranks: u32,
    /// Its stream.
    pub stream: StreamId,
    /// The stream that puts in order what has arrived.
    pub second: StreamId,
}

/// The ranks that share a sequence under Transformer Engine, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The way.
    pub way: &'static Way,
    /// Those with other tokens.
    pub ring: Ring,
    /// Those with other heads, if any.
    pub heads: Option<Heads>,
}

/// Bytes of the random state: seed and offset.
const RANDOM: u64 = 16;

/// What the rules read off the operator \[B\]. Whether a rank has tokens or heads, it has as many of these.
#[derive(Clone, Copy)]
struct Sizes {
    /// The rank's queries, as its context.
    query: u64,
    key: u64,
    value: u64,
    /// A number for each head and query in fp32.
    sums: u64,
    dtype: DType,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op) -> Sizes {
        let d = graph.dims;
        let [query, key, value] = [0, 1, 2].map(|at| graph.values[op.inputs[at]].bytes());
        let dtype = graph.values[op.inputs[0]].dtype;
        Sizes { query, key, value, sums: d.b * d.n * d.s * DType::Fp32.bytes(), dtype }
    }

    fn all(self) -> [u64; 3] {
        [self.query, self.key, self.value]
    }
}

/// A kernel of attention: how many queries and keys, whether a mask hides the keys behind a query (the last of both are of
/// one token), and whether it is the backward.
#[derive(Clone, Copy)]
struct Kernel {
    queries: u64,
    keys: u64,
    causal: bool,
    backward: bool,
}

impl Context {
    /// Over how many ranks heads are spread.
    fn spread(self) -> u64 {
        self.heads.map_or(1, |heads| u64::from(heads.ranks))
    }

    /// Tokens of a rank while it attends, of all heads or of some.
    fn tokens(self, graph: &Graph) -> u64 {
        graph.dims.s * self.spread()
    }

    fn window(op: &Op) -> Option<u64> {
        match op.kind {
            OpKind::Megatron(MegatronOp::FlashCore { window, .. }) => window,
            _ => unreachable!("called for flash cores"),
        }
    }

    fn work(self, graph: &Graph, op: &Op, kernel: Kernel) -> Work {
        let (d, Kernel { queries, keys, causal, backward }) = (graph.dims, kernel);
        let shape = AttentionShape {
            batch: d.b,
            heads: d.n / self.spread(),
            kv_heads: d.k / self.spread(),
            queries,
            keys,
            head_dim: d.h,
            causal,
            window: Context::window(op),
        };
        Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
    }
}
