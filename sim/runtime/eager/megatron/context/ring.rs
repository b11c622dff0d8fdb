//! Keys and values go round a ring of the ranks while each attends with its own queries to those that have arrived
//! (`AttnFuncWithCPAndKVP2P`).
//!
//! Forward takes c steps: in step 0 a rank's queries meet its own keys under the mask, in step i ≤ r those of rank r − i, the
//! earlier half of which they see whole; in steps i > r the later half of the queries sees all keys. Each step's kernel is
//! as much work as any other's. Backward takes c steps the other way round, and the gradients of keys and values travel one
//! step behind them. The last rank holds the most, as its results of a step are never half as long; its kernels have twice
//! as many queries and half as many keys as those of others.
//!
//! A step's message waits for the last kernel of its own stream alone, as theirs do.
//!
//! On two levels ranks of an inner group change hands first and have some heads of all its tokens, and as many rings as
//! heads are split in go round between such groups.

use super::super::super::shape::Exchanged;
use super::super::super::{COMPUTE, Eager, Storage};
use super::heads::To;
use super::kernel::{Kernel, RANDOM, Sizes};
use super::rules::Rules;
use super::way::{Context, Ring};
use crate::model::graph::{Graph, Op};
use crate::program::{Direction, EventId, MemoryKind, StreamId, Transfer, Work};
use crate::units::Bytes;

pub(super) const RULES: Rules = Rules { forward, gradients };

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toward {
    /// To the next rank.
    On,
    /// To the previous one.
    Back,
}

impl Ring {
    /// The stream of a step.
    fn stream(self, step: u32) -> StreamId {
        if step.is_multiple_of(2) { COMPUTE } else { self.second }
    }
}

/// The work of a step: the rank's own keys and values under the mask, or the earlier half of another's without.
fn work(graph: &Graph, op: &Op, context: Context, own: bool, backward: bool) -> Work {
    let tokens = context.tokens(graph);
    let keys = if own { tokens } else { tokens / 2 };
    context.work(graph, op, Kernel { queries: tokens, keys, causal: own, backward })
}

impl Eager {
    /// Sends to one neighbour as much as it receives from the other, after `after` (`flash_attn_p2p_communicate`). Returns
    /// when both have ended.
    fn pass_round(
        &mut self,
        ring: Ring,
        toward: Toward,
        Exchanged { bytes, dtype }: Exchanged,
        after: &[EventId],
    ) -> Vec<EventId> {
        let (next, previous) = (1, ring.ranks - 1);
        let [to, from] = if toward == Toward::On { [next, previous] } else { [previous, next] };
        let end = |direction, ahead| Transfer { direction, group: ring.group, ahead, bytes: Bytes(bytes), dtype };
        let (send, receive) = (end(Direction::Send, to), end(Direction::Receive, from));
        let [toward, fromward] =
            if toward == Toward::On { ring.messages } else { [ring.messages[1], ring.messages[0]] };
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

    fn merge_numbers(&mut self, bytes: u64) {
        let dispatch = self.settings.forward;
        self.pointwise("te.lse_correction", MemoryKind::Elementwise, 2 * bytes, bytes, dispatch);
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
}

/// What is kept: the queries, the keys and values that arrived last, which are the next rank's, the context, the
/// log-sum-exps, and a random state for each step. The rank's own keys and values are not.
fn forward(
    eager: &mut Eager,
    graph: &Graph,
    op: &Op,
    context: Context,
    inputs: [Storage; 3],
) -> (Storage, Vec<Storage>) {
    const NAME: &str = "te.fused_attn_fwd";
    let (ring, sizes, pass) = (context.ring, Sizes::of(graph, op), eager.forward_pass());
    let (Sizes { query, sums, dtype, .. }, dispatch) = (sizes, pass.dispatch);
    let pair = sizes.key + sizes.value;
    let mine = match context.heads {
        Some(heads) => eager.change_hands(heads, To::Heads, sizes.all(), dtype, pass),
        None => inputs.map(|storage| eager.retain(storage)),
    };
    let mut pairs = vec![eager.storage(pair, "aten.cat")];
    eager.pointwise("aten.cat", MemoryKind::Copy, pair, pair, dispatch);
    let ready = eager.program.record(COMPUTE);
    let (mut contexts, mut numbers, mut randoms) = (vec![], vec![], vec![]);
    let (mut merged, mut arrived, mut ended) = (vec![], vec![], vec![]);
    for step in 0..ring.ranks {
        let stream = ring.stream(step);
        let here = std::mem::take(&mut arrived);
        if step + 1 < ring.ranks {
            pairs.push(eager.storage_on(stream, pair, pass.category, "recv_kv"));
            // What has arrived is passed on; of the kernels, only those of the step's stream come before.
            let before = step.checked_sub(2).map_or(ready, |before| ended[before as usize]);
            let after = [here.as_slice(), &[before]].concat();
            arrived = eager.pass_round(ring, Toward::On, Exchanged { bytes: pair, dtype }, &after);
        }
        eager.wait_for(&here);
        contexts.push(eager.storage_on(stream, query, pass.category, NAME));
        randoms.push(eager.storage_on(stream, RANDOM, pass.category, NAME));
        numbers.push(eager.storage_on(stream, sums, pass.category, NAME));
        eager.launch(NAME, work(graph, op, context, step == 0, false), dispatch);
        ended.push(eager.program.record(COMPUTE));
        // The numbers of a step are merged when the next one's kernel has been issued.
        if step == 1 {
            merged.push(eager.storage(sums, "aten.clone"));
            eager.pointwise("aten.clone", MemoryKind::Copy, sums, sums, dispatch);
        } else if step > 1 {
            eager.merge_numbers(sums);
        }
    }
    eager.merge_numbers(sums);
    let mut out = eager.storage(query, "te.out_correction");
    for step in 0..u64::from(ring.ranks) {
        let read = query * (step + 1).min(2) + 2 * sums;
        eager.pointwise("te.out_correction", MemoryKind::Elementwise, read, query, dispatch);
    }
    if let Some(heads) = context.heads {
        let [back] = eager.change_hands(heads, To::Tokens, [query], dtype, pass);
        eager.release(std::mem::replace(&mut out, back));
    }
    let [queries, others @ ..] = mine;
    let mut kept: Vec<Storage> =
        [queries].into_iter().chain(pairs.pop()).chain([eager.retain(out)]).chain(merged).collect();
    kept.extend(randoms);
    for storage in others.into_iter().chain(contexts).chain(numbers).chain(pairs) {
        eager.release(storage);
    }
    (out, kept)
}

/// Without heads to change, the last two gradients are parts of one block.
fn gradients(eager: &mut Eager, graph: &Graph, op: &Op, context: Context) -> [Storage; 3] {
    const NAME: &str = "te.fused_attn_bwd";
    let (ring, sizes, pass) = (context.ring, Sizes::of(graph, op), eager.backward_pass());
    let (Sizes { query, dtype, .. }, dispatch) = (sizes, pass.dispatch);
    let pair = sizes.key + sizes.value;
    let result = eager.temporary(query, "aten.empty_like");
    // Keys and values, and their gradients, as they are and as they arrive.
    let buffers = [(); 2].map(|()| eager.temporary(2 * pair, "aten.empty"));
    eager.pointwise("aten.copy_", MemoryKind::Copy, pair, pair, dispatch);
    // The context and its gradient.
    let given =
        context.heads.map(|heads| eager.change_hands(heads, To::Heads, [query; 2], dtype, pass)).into_iter().flatten();
    let given: Vec<Storage> = given.collect();
    let last = ring.ranks - 1;
    let mut parts: Vec<Storage> = vec![];
    for step in 0..ring.ranks {
        let own = step == last;
        // First keys and values alone, in the end their gradients alone, in between both in one message.
        let bytes = if step == 0 || own { pair } else { 2 * pair };
        let now = eager.program.record(COMPUTE);
        let arrived = eager.pass_round(ring, Toward::Back, Exchanged { bytes, dtype }, &[now]);
        for storage in parts.drain(..) {
            eager.release(storage);
        }
        let seen = [sizes.key, sizes.value].map(|bytes| if own { bytes } else { bytes / 2 });
        parts.extend([query, seen[0], seen[1]].map(|bytes| eager.temporary(bytes, NAME)));
        eager.launch(NAME, work(graph, op, context, own, true), dispatch);
        eager.add_up(step, query);
        eager.wait_for(&arrived);
        for bytes in seen {
            eager.add_up(step, bytes);
        }
    }
    let (home, other) = if ring.ranks.is_multiple_of(2) { (0, 1) } else { (1, 0) };
    let own = [result, buffers[home], eager.retain(buffers[home])];
    let (results, gone) = match context.heads {
        Some(heads) => {
            let results = eager.change_hands(heads, To::Tokens, sizes.all(), dtype, pass);
            eager.release(own[0]);
            (results, &own[1..])
        }
        None => (own, &[][..]),
    };
    for storage in parts.into_iter().chain(given).chain([buffers[other]]).chain(gone.iter().copied()) {
        eager.release(storage);
    }
    results
}
