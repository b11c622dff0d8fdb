//! The core of attention where ranks share a sequence: keys and values go round a ring of the ranks while each attends
//! with its own queries to those that have arrived (`--cp-comm-type p2p`; Transformer Engine 2.4,
//! `pytorch/attention/dot_product_attention/context_parallel.py`, `AttnFuncWithCPAndKVP2P`; causal, layout `sbhd`).
//!
//! With c ranks a sequence is cut into 2c parts, and rank r has parts r and 2c − 1 − r, so that under a causal mask all have
//! as much to do. Forward takes c steps: in step 0 a rank's queries meet its own keys under the mask, in step i ≤ r those of
//! rank r − i, the earlier half of which they see whole; in steps i > r the later half of the queries sees all keys. Each
//! step's kernel is as much work as any other's. Backward takes c steps the other way round, and the gradients of keys and
//! values travel one step behind them.
//!
//! All ranks of a stage run one program: that of the last of the ring, which holds the most, as its results of a step are
//! never half as long. Its kernels have twice as many queries and half as many keys as those of others.
//!
//! Transformer Engine runs odd steps on a second stream to fill the chip where a kernel leaves it. Two kernels share the
//! chip here at no gain, so all run on the default stream; what odd steps take is the second stream's, and a step's message
//! waits for the last kernel of its own stream alone, as theirs do. Assumed, then: every step's kernel has a tail of its own.

use super::super::{COMPUTE, Eager, Storage};
use crate::model::graph::{Graph, Op};
use crate::program::{
    AttentionShape, Category, DType, Direction, EventId, GroupId, MemoryKind, StreamId, Transfer, Work,
};
use crate::units::Bytes;

/// The ranks that share a sequence, as one of them sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The communicator.
    pub group: GroupId,
    /// How many ranks; 2 or more.
    pub ranks: u32,
    /// The streams of messages with the next rank and with the previous one. Two ranks batch what they exchange, on the
    /// first.
    pub messages: [StreamId; 2],
    /// The stream whose pool odd steps take memory from.
    pub second: StreamId,
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To the next rank.
    On,
    /// To the previous one.
    Back,
}

/// Bytes of the random state: seed and offset.
const RANDOM: u64 = 16;

/// What the rules read off the operator.
#[derive(Clone, Copy)]
struct Sizes {
    /// Bytes of the rank's queries, as of a step's context.
    query: u64,
    /// Bytes of its keys and values together.
    pair: u64,
    /// Bytes of a number for each head and query in fp32.
    sums: u64,
    dtype: DType,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op) -> Sizes {
        let d = graph.dims;
        let [query, key, value] = [0, 1, 2].map(|at| graph.values[op.inputs[at]].bytes());
        let dtype = graph.values[op.inputs[0]].dtype;
        Sizes { query, pair: key + value, sums: d.b * d.n * d.s * DType::Fp32.bytes(), dtype }
    }
}

impl Ring {
    /// The stream of a step.
    fn stream(self, step: u32) -> StreamId {
        if step.is_multiple_of(2) { COMPUTE } else { self.second }
    }

    /// The work of a step: the rank's own keys and values under the mask, or the earlier half of another's without.
    fn work(graph: &Graph, op: &Op, own: bool, backward: bool) -> Work {
        let d = graph.dims;
        let shape = AttentionShape {
            batch: d.b,
            heads: d.n,
            kv_heads: d.k,
            queries: d.s,
            keys: if own { d.s } else { d.s / 2 },
            head_dim: d.h,
            causal: own,
            window: None,
        };
        Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
    }
}

impl Eager {
    /// Sends to one neighbour as much as it receives from the other, after `after` (`flash_attn_p2p_communicate`). Returns
    /// when both have ended.
    fn pass_round(&mut self, ring: Ring, way: Way, (bytes, dtype): (u64, DType), after: &[EventId]) -> Vec<EventId> {
        let (next, previous) = (1, ring.ranks - 1);
        let [to, from] = if way == Way::On { [next, previous] } else { [previous, next] };
        let end = |direction, ahead| Transfer { direction, group: ring.group, ahead, bytes: Bytes(bytes), dtype };
        let (send, receive) = (end(Direction::Send, to), end(Direction::Receive, from));
        let [toward, fromward] = if way == Way::On { ring.messages } else { [ring.messages[1], ring.messages[0]] };
        // Two ranks have one communicator, and batch both calls.
        let calls = if ring.ranks == 2 {
            vec![(ring.messages[0], vec![send, receive])]
        } else {
            vec![(toward, vec![send]), (fromward, vec![receive])]
        };
        let mut ended = vec![];
        for (stream, ends) in calls {
            for &event in after {
                self.program.wait(stream, event);
            }
            self.program.exchange(stream, &ends);
            ended.push(self.program.record(stream));
        }
        ended
    }

    fn wait_for(&mut self, events: &[EventId]) {
        for &event in events {
            self.program.wait(COMPUTE, event);
        }
    }

    /// The context, and what backward needs besides the queries: the keys and values that arrived last, which are the next
    /// rank's, the context, the log-sum-exps, and a random state for each step. The rank's own keys and values are not kept.
    pub(super) fn ring_forward(&mut self, graph: &Graph, op: &Op, ring: Ring) -> (Storage, Vec<Storage>) {
        const NAME: &str = "te.fused_attn_fwd";
        let (sizes, category, dispatch) = (Sizes::of(graph, op), self.category, self.settings.forward);
        let Sizes { query, pair, sums, dtype } = sizes;
        let mut pairs = vec![self.storage(pair, "aten.cat")];
        self.pointwise("aten.cat", MemoryKind::Copy, pair, pair, dispatch);
        let ready = self.program.record(COMPUTE);
        let (mut contexts, mut numbers, mut randoms) = (vec![], vec![], vec![]);
        let (mut merged, mut arrived, mut ended) = (None, vec![], vec![]);
        for step in 0..ring.ranks {
            let stream = ring.stream(step);
            let here = std::mem::take(&mut arrived);
            if step + 1 < ring.ranks {
                pairs.push(self.storage_on(stream, pair, category, "recv_kv"));
                // What has arrived is passed on; of the kernels, only those of the step's stream come before.
                let before = step.checked_sub(2).map_or(ready, |before| ended[before as usize]);
                let after = [here.as_slice(), &[before]].concat();
                arrived = self.pass_round(ring, Way::On, (pair, dtype), &after);
            }
            self.wait_for(&here);
            contexts.push(self.storage_on(stream, query, category, NAME));
            randoms.push(self.storage_on(stream, RANDOM, category, NAME));
            let number = self.storage_on(stream, sums, category, NAME);
            self.launch(NAME, Ring::work(graph, op, step == 0, false), dispatch);
            if merged.is_none() {
                merged = Some(self.storage(sums, "aten.clone"));
                self.pointwise("aten.clone", MemoryKind::Copy, sums, sums, dispatch);
            } else {
                self.pointwise("te.lse_correction", MemoryKind::Elementwise, 2 * sums, sums, dispatch);
            }
            numbers.push(number);
            ended.push(self.program.record(COMPUTE));
        }
        let out = self.storage(query, "te.out_correction");
        for step in 0..u64::from(ring.ranks) {
            let read = query * (step + 1).min(2) + 2 * sums;
            self.pointwise("te.out_correction", MemoryKind::Elementwise, read, query, dispatch);
        }
        let mut kept: Vec<Storage> = pairs.pop().into_iter().chain([self.retain(out)]).chain(merged).collect();
        kept.extend(randoms);
        for storage in pairs.into_iter().chain(contexts).chain(numbers) {
            self.release(storage);
        }
        (out, kept)
    }

    /// A step's gradient is the first, and copied, or is added to those before.
    fn add_up(&mut self, step: u32, bytes: u64) {
        let dispatch = self.settings.backward;
        if step == 0 {
            self.pointwise("aten.copy_", MemoryKind::Copy, bytes, bytes, dispatch);
        } else {
            self.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
        }
    }

    /// Gradients of queries, keys and values; the last two are parts of one block.
    pub(super) fn ring_gradients(&mut self, graph: &Graph, op: &Op, ring: Ring) -> [Storage; 3] {
        const NAME: &str = "te.fused_attn_bwd";
        let (Sizes { query, pair, dtype, .. }, dispatch) = (Sizes::of(graph, op), self.settings.backward);
        let result = self.temporary(query, "aten.empty_like");
        // Keys and values, and their gradients, as they are and as they arrive.
        let buffers = [(); 2].map(|()| self.temporary(2 * pair, "aten.empty"));
        self.pointwise("aten.copy_", MemoryKind::Copy, pair, pair, dispatch);
        let last = ring.ranks - 1;
        for step in 0..ring.ranks {
            let own = step == last;
            // First keys and values alone, in the end their gradients alone, in between both in one message.
            let bytes = if step == 0 || own { pair } else { 2 * pair };
            let now = self.program.record(COMPUTE);
            let arrived = self.pass_round(ring, Way::Back, (bytes, dtype), &[now]);
            let seen = if own { pair } else { pair / 2 };
            let made = [query, seen].map(|bytes| self.storage_as(bytes, Category::BackwardTemporary, NAME));
            self.launch(NAME, Ring::work(graph, op, own, true), dispatch);
            self.add_up(step, query);
            self.wait_for(&arrived);
            self.add_up(step, seen);
            for storage in made {
                self.release(storage);
            }
        }
        let (home, other) = if ring.ranks.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        self.release(buffers[other]);
        [result, buffers[home], self.retain(buffers[home])]
    }
}
