//! Keys and values of all ranks are gathered before attention, and nothing hides it (`AttnFuncWithCPAndKVAllGather`; section
//! 3.3.2 of arXiv:2407.21783).
//!
//! What arrives is put in order. Each of a rank's two parts then attends to the keys up to its last token, or to those of
//! them that its window reaches, in a kernel of its own; both together have as many keys on every rank. Backward gathers
//! again, adds both kernels' gradients up for all tokens, and scatters the sums.

use super::super::super::{COMPUTE, Eager, Storage};
use super::heads::Pass;
use super::kernel::{Kernel, RANDOM, Sizes};
use super::rules::Rules;
use super::way::{Context, Ring};
use crate::model::graph::{Graph, Op};
use crate::program::{Collective, Comm, DType, MemoryKind};
use crate::units::Bytes;

pub(super) const RULES: Rules = Rules { forward, gradients };

/// Bytes of a sequence's end in a list of those (`cu_seqlens`).
const END: u64 = 4;

/// The kernels of the last rank's parts (`get_kv_seq_info_after_all_gather`).
fn kernels(graph: &Graph, op: &Op, ring: Ring, backward: bool) -> [Kernel; 2] {
    let (queries, ranks) = (graph.dims.s / 2, u64::from(ring.ranks));
    [ranks, ranks + 1].map(|parts| {
        let keys = Context::window(op).map_or(u64::MAX, |window| queries + window).min(parts * queries);
        Kernel { queries, keys, causal: true, backward }
    })
}

impl Eager {
    /// A collective that compute waits for; `bytes`: the whole buffer.
    fn between(&mut self, ring: Ring, kind: Collective, bytes: u64, dtype: DType) {
        let stream = ring.messages[0];
        self.program.wait_stream(stream, COMPUTE);
        self.program.collective(stream, Comm { kind, group: ring.group, bytes: Bytes(bytes), dtype });
        self.program.wait_stream(COMPUTE, stream);
    }

    /// The same tokens in another order; the given block goes.
    fn in_order(&mut self, block: Storage, bytes: u64, pass: Pass) -> Storage {
        const NAME: &str = "aten.index_select";
        let ordered = self.storage_as(bytes, pass.category, NAME);
        self.pointwise(NAME, MemoryKind::Gather, bytes, bytes, pass.dispatch);
        self.release(block);
        ordered
    }

    /// Keys and values of all ranks, in order.
    fn all_pairs(&mut self, ring: Ring, sizes: Sizes, pass: Pass) -> [Storage; 2] {
        let all = [sizes.key, sizes.value].map(|bytes| bytes * u64::from(ring.ranks));
        let blocks = all.map(|bytes| {
            let block = self.storage_as(bytes, pass.category, "all_gather_into_tensor");
            self.between(ring, Collective::AllGather, bytes, sizes.dtype);
            block
        });
        [0, 1].map(|at| self.in_order(blocks[at], all[at], pass))
    }
}

fn forward(
    eager: &mut Eager,
    graph: &Graph,
    op: &Op,
    context: Context,
    inputs: [Storage; 3],
) -> (Storage, Vec<Storage>) {
    const NAME: &str = "te.fused_attn_fwd";
    let (ring, sizes, pass) = (context.ring, Sizes::of(graph, op), eager.forward_pass());
    let bytes = (graph.dims.b + 1) * END;
    let ends = eager.made("aten.floor_divide", bytes, bytes, pass.dispatch);
    let all = eager.all_pairs(ring, sizes, pass);
    let out = eager.storage(sizes.query, "aten.empty_like");
    let kernels = kernels(graph, op, ring, false);
    let made = [(kernels[0], COMPUTE), (kernels[1], ring.second)].map(|(kernel, stream)| {
        let parts = [sizes.query / 2, RANDOM, sizes.sums / 2];
        let made = parts.map(|bytes| eager.storage_on(stream, bytes, pass.category, NAME));
        eager.launch(NAME, context.work(graph, op, kernel), pass.dispatch);
        made
    });
    for _ in made {
        eager.pointwise("aten.copy_", MemoryKind::Copy, sizes.query / 2, sizes.query / 2, pass.dispatch);
    }
    for storage in all {
        eager.release(storage);
    }
    let [[early, early_random, early_sums], [late, late_random, late_sums]] = made;
    let inputs = inputs.map(|storage| eager.retain(storage));
    let kept = [ends, early, late, early_sums, late_sums, early_random, late_random];
    (out, inputs.into_iter().chain(kept).collect())
}

fn gradients(eager: &mut Eager, graph: &Graph, op: &Op, context: Context) -> [Storage; 3] {
    const NAME: &str = "te.fused_attn_bwd";
    let (ring, sizes, pass) = (context.ring, Sizes::of(graph, op), eager.backward_pass());
    let ranks = u64::from(ring.ranks);
    let query = eager.temporary(sizes.query, "aten.empty_like");
    let sums = [sizes.key, sizes.value].map(|bytes| {
        let sum = eager.temporary(bytes * ranks, "aten.zeros");
        eager.pointwise("aten.fill_", MemoryKind::Copy, 0, bytes * ranks, pass.dispatch);
        sum
    });
    let all = eager.all_pairs(ring, sizes, pass);
    let kernels = kernels(graph, op, ring, true);
    let mut made = vec![];
    for (kernel, stream) in [(kernels[0], COMPUTE), (kernels[1], ring.second)] {
        // Keys and values of as many tokens.
        let seen = |bytes: u64| bytes / graph.dims.s * kernel.keys;
        let parts = [sizes.query / 2, seen(sizes.key), seen(sizes.value)];
        made.push((parts, parts.map(|bytes| eager.storage_on(stream, bytes, pass.category, NAME))));
        eager.launch(NAME, context.work(graph, op, kernel), pass.dispatch);
    }
    for &([query, keys, values], _) in &made {
        eager.pointwise("aten.copy_", MemoryKind::Copy, query, query, pass.dispatch);
        for bytes in [keys, values] {
            eager.pointwise("aten.add_", MemoryKind::Elementwise, 2 * bytes, bytes, pass.dispatch);
        }
    }
    let sizes_of = [sizes.key, sizes.value];
    let sums = [0, 1].map(|at| eager.in_order(sums[at], sizes_of[at] * ranks, pass));
    let [key, value] = [0, 1].map(|at| {
        let part = eager.temporary(sizes_of[at], "reduce_scatter_tensor");
        eager.between(ring, Collective::ReduceScatter, sizes_of[at] * ranks, sizes.dtype);
        eager.release(sums[at]);
        part
    });
    // Lists of each kernel's gradients go, the later first.
    for at in 0..3 {
        for (_, parts) in made.iter().rev() {
            eager.release(parts[at]);
        }
    }
    for storage in all {
        eager.release(storage);
    }
    [query, key, value]
}
