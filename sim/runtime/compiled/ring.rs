//! Attention where ranks share a sequence, as PyTorch's context parallelism runs it in a compiled block
//! (`torch/distributed/tensor/experimental/_context_parallel/_attention.py`, `_templated_ring_attention`, PyTorch 2.6 to
//! 2.15; torchtitan's `context_parallel_rotate_method`).
//!
//! With c ranks a sequence is cut into 2c parts, and rank r has parts r and 2c − 1 − r. Forward takes c steps: its own keys and
//! values under the causal mask, then those of the others, each half as much work. Results are merged by their log-sum-exps in
//! fp32. In backward keys and values come again, and their gradients go round the ring in fp32, one message
//! (`all_to_all_single`) after each step. Under a compiler every exchange is waited for at once. A policy of full
//! checkpointing runs the forward's exchanges again.
//!
//! Keys and values are packed, and either gathered from all ranks before the first step or packed again in every step but the
//! last and passed on round the ring ([`Method`]). To add a way: a variant, and an arm in `next_pairs`.
//!
//! All ranks run the program of the ring's last: half the keys a step. Others have half the queries in some of their steps.
//! Without balance (`context_parallel_load_balancer`: torchtitan 0.2.2's, PyTorch's `_cp_options.enable_load_balance`) rank r has
//! the r-th share of the sequence: the last computes c − ½ steps' worth where balanced ones compute c/2, and the others wait.

use super::rotation::Rotation;
use crate::model::graph::{Graph, Op};
use crate::plan::torch::Method;
use crate::program::{
    AttentionShape, Category, Collective, Comm, DType, Direction, Dispatch, MemoryKind, Transfer, Work,
};
use crate::runtime::eager::{COMPUTE, Eager, Exchanged, Ring, Storage};
use crate::units::Bytes;

/// What the rules read off the operator \[B\].
#[derive(Clone, Copy)]
struct Sizes {
    query: u64,
    /// Queries in fp32.
    wide: u64,
    /// Keys and values together.
    pair: u64,
    /// The same in fp32.
    wide_pair: u64,
    /// A number for each head and query in fp32.
    sums: u64,
    dtype: DType,
}

impl Sizes {
    fn of(graph: &Graph, op: &Op) -> Sizes {
        let value = |at: usize| &graph.values[op.inputs[at]];
        let fp32 = DType::Fp32.bytes();
        Sizes {
            query: value(0).bytes(),
            wide: value(0).elements * fp32,
            pair: value(1).bytes() + value(2).bytes(),
            wide_pair: (value(1).elements + value(2).elements) * fp32,
            sums: graph.dims.tokens() * graph.dims.n * fp32,
            dtype: value(0).dtype,
        }
    }
}

/// A step of the ring.
#[derive(Clone, Copy)]
struct Step {
    /// Keys and values are the rank's own.
    own: bool,
    /// Ranks have as much to do as one another.
    balanced: bool,
}

/// The work of a step: the rank's own keys and values under the mask, or half of another's without. Unbalanced, the last rank has
/// the end of the sequence, which sees all that others have.
fn step_work(graph: &Graph, op: &Op, step: Step, backward: bool) -> Work {
    let Step { own, balanced } = step;
    let d = graph.dims;
    let kv_heads = graph.values[op.inputs[1]].elements / (d.tokens() * d.h);
    let keys = if own || !balanced { d.s } else { d.s / 2 };
    let shape = AttentionShape {
        batch: d.b,
        heads: d.n,
        kv_heads,
        queries: d.s,
        keys,
        head_dim: d.h,
        causal: own,
        window: None,
        squares: None,
    };
    Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
}

impl Eager {
    /// Keys and values of all ranks, in a block.
    fn gathered_pairs(&mut self, ring: Ring, sizes: Sizes, dispatch: Dispatch) -> Storage {
        let packed = self.storage(sizes.pair, "aten.cat");
        self.pointwise("triton_cat", MemoryKind::Copy, sizes.pair, sizes.pair, dispatch);
        let all = self.storage(sizes.pair * u64::from(ring.ranks), "_c10d_functional.all_gather_into_tensor");
        let stream = ring.messages[0];
        self.program.wait_stream(stream, COMPUTE);
        let bytes = Bytes(sizes.pair * u64::from(ring.ranks));
        let comm = Comm { kind: Collective::AllGather, group: ring.group, bytes, dtype: sizes.dtype };
        self.program.collective(stream, comm);
        self.program.wait_stream(COMPUTE, stream);
        self.release(packed);
        all
    }

    /// What holds the keys and values of the next step, where a step with those of `held` begins.
    fn next_pairs(&mut self, rotation: Rotation, step: u32, held: Option<Storage>, sizes: Sizes) -> Option<Storage> {
        let ring = rotation.ring;
        match rotation.how.method {
            Method::AllGather if step == 0 => Some(self.gathered_pairs(ring, sizes, Dispatch::Compiled)),
            Method::AllGather => held,
            Method::AllToAll if step + 1 < ring.ranks => {
                let packed = self.storage(sizes.pair, "aten.cat");
                self.pointwise("triton_cat", MemoryKind::Copy, sizes.pair, sizes.pair, Dispatch::Compiled);
                let arrived = self.storage(sizes.pair, "_c10d_functional.all_to_all_single");
                self.send_on(ring, Exchanged { bytes: sizes.pair, dtype: sizes.dtype });
                self.release(packed);
                Some(arrived)
            }
            Method::AllToAll => None,
        }
    }

    /// The keys and values of a step go, if the next one does not look into the same block.
    fn step_on(&mut self, held: &mut Option<Storage>, next: Option<Storage>) {
        let before = std::mem::replace(held, next);
        if let Some(storage) = before.filter(|_| before != next) {
            self.release(storage);
        }
    }

    /// The context, whose block is the caller's.
    pub(super) fn ring_attention(&mut self, graph: &Graph, op: &Op, rotation: Rotation, name: &'static str) {
        let (ring, sizes, dispatch) = (rotation.ring, Sizes::of(graph, op), Dispatch::Compiled);
        let mut held = None;
        let mut next = self.next_pairs(rotation, 0, held, sizes);
        let merged = self.storage(sizes.wide, "merged context");
        let numbers = self.storage(sizes.sums, "merged log-sum-exps");
        for step in 0..ring.ranks {
            if step > 0 {
                next = self.next_pairs(rotation, step, held, sizes);
            }
            let context = self.storage(sizes.query, name);
            let sums = self.storage(sizes.sums, name);
            self.program.launch(
                COMPUTE,
                name,
                step_work(graph, op, Step { own: step == 0, balanced: rotation.how.balanced }, false),
                dispatch,
            );
            let before = if step == 0 { 0 } else { sizes.wide + sizes.sums };
            let (read, written) = (sizes.query + sizes.sums + before, sizes.wide + sizes.sums);
            self.pointwise("triton_merge", MemoryKind::Elementwise, read, written, dispatch);
            self.release(sums);
            self.release(context);
            self.step_on(&mut held, next);
        }
        self.pointwise("triton_to_copy", MemoryKind::Elementwise, sizes.wide, sizes.query, dispatch);
        for storage in [numbers, merged].into_iter().chain(held) {
            self.release(storage);
        }
    }

    /// Gradients of queries, keys and values.
    pub(super) fn ring_attention_gradients(
        &mut self,
        graph: &Graph,
        op: &Op,
        rotation: Rotation,
        name: &'static str,
    ) -> [Storage; 3] {
        let (ring, sizes, dispatch) = (rotation.ring, Sizes::of(graph, op), Dispatch::Compiled);
        let mut held = None;
        let mut next = self.next_pairs(rotation, 0, held, sizes);
        let (query, mut pair) = (self.storage(sizes.wide, "gradient"), self.storage(sizes.wide_pair, "gradient"));
        self.pointwise("triton_zeros", MemoryKind::Copy, 0, sizes.wide + sizes.wide_pair, dispatch);
        for step in 0..ring.ranks {
            let own = step == 0;
            if !own {
                next = self.next_pairs(rotation, step, held, sizes);
            }
            let made = [sizes.query, if own || !rotation.how.balanced { sizes.pair } else { sizes.pair / 2 }];
            let parts = made.map(|bytes| self.storage_as(bytes, Category::BackwardTemporary, name));
            self.program.launch(
                COMPUTE,
                name,
                step_work(graph, op, Step { own, balanced: rotation.how.balanced }, true),
                dispatch,
            );
            let wide = sizes.wide + sizes.wide_pair;
            let read = made.iter().sum::<u64>() + wide;
            self.pointwise("triton_add", MemoryKind::Elementwise, read, wide, dispatch);
            let arrived = self.storage(sizes.wide_pair, "_c10d_functional.all_to_all_single");
            self.send_on(ring, Exchanged { bytes: sizes.wide_pair, dtype: DType::Fp32 });
            for storage in parts.into_iter().chain([std::mem::replace(&mut pair, arrived)]) {
                self.release(storage);
            }
            self.step_on(&mut held, next);
        }
        let results = [0, 1, 2].map(|at| self.storage(graph.values[op.inputs[at]].bytes(), "triton_to_copy"));
        let (read, written) = (sizes.wide + sizes.wide_pair, sizes.query + sizes.pair);
        self.pointwise("triton_to_copy", MemoryKind::Elementwise, read, written, dispatch);
        for storage in [query, pair].into_iter().chain(held) {
            self.release(storage);
        }
        results
    }

    /// Sends to the next rank as much as arrives from the previous one.
    fn send_on(&mut self, ring: Ring, Exchanged { bytes, dtype }: Exchanged) {
        let stream = ring.messages[0];
        let end = |direction, ahead| Transfer { direction, group: ring.group, ahead, bytes: Bytes(bytes), dtype };
        self.program.wait_stream(stream, COMPUTE);
        self.program.exchange(stream, &[end(Direction::Send, 1), end(Direction::Receive, ring.ranks - 1)]);
        self.program.wait_stream(COMPUTE, stream);
    }
}
