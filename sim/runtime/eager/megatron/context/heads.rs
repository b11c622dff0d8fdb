//! Each rank attends with some heads to all tokens, as in DeepSpeed-Ulysses (arXiv:2309.14509): queries, keys and values
//! change hands before attention, the context after (`flash_attn_a2a_communicate`, `AttnFuncWithCPAndQKVOA2A`).
//!
//! A tensor is packed by rank, sent, and put in order, and the next one is packed meanwhile. The second stream puts in
//! order. Under a causal mask the tokens arrive as pairs of parts, which are sorted before attention and back after it, by
//! kernels that a compiler makes (`reorder_seq_chunks_for_a2a_before_attn`).

use super::super::super::{COMPUTE, Eager, Storage};
use super::kernel::{Kernel, RANDOM, Sizes};
use super::rules::Rules;
use super::way::{Context, Heads};
use crate::model::graph::{Graph, Op};
use crate::program::{Category, Collective, Comm, DType, Dispatch, EventId, MemoryKind, StreamId};
use crate::units::Bytes;

pub(super) const RULES: Rules = Rules { forward, gradients };

/// What tensors become parts of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Some heads of all tokens.
    Heads,
    /// All heads of some tokens.
    Tokens,
}

impl To {
    /// The kernels that pack and that put in order.
    fn kernels(self) -> [&'static str; 2] {
        let (plain, sorts) = ("aten.clone", "te.reorder_seq_chunks");
        if self == To::Heads { [plain, sorts] } else { [sorts, plain] }
    }
}

/// Where an exchange runs: forward or backward.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) category: Category,
    pub(super) dispatch: Dispatch,
}

impl Eager {
    pub(super) fn forward_pass(&self) -> Pass {
        Pass { category: self.category, dispatch: self.settings.forward }
    }

    pub(super) fn backward_pass(&self) -> Pass {
        Pass { category: Category::BackwardTemporary, dispatch: self.settings.backward }
    }

    fn moved(&mut self, stream: StreamId, name: &'static str, bytes: u64, pass: Pass) -> Storage {
        let before = std::mem::replace(&mut self.stream, stream);
        let copy = self.storage_as(bytes, pass.category, name);
        self.pointwise(name, MemoryKind::Copy, bytes, bytes, pass.dispatch);
        self.stream = before;
        copy
    }

    fn sent(&mut self, heads: Heads, bytes: u64, dtype: DType) -> EventId {
        self.program.wait_stream(heads.stream, COMPUTE);
        let comm = Comm { kind: Collective::AllToAll, group: heads.group, bytes: Bytes(bytes), dtype };
        self.program.collective(heads.stream, comm);
        self.program.record(heads.stream)
    }

    /// Tensors of so many bytes, as parts of the other kind. The given ones stay the caller's.
    pub(super) fn change_hands<const N: usize>(
        &mut self,
        heads: Heads,
        to: To,
        sizes: [u64; N],
        dtype: DType,
        pass: Pass,
    ) -> [Storage; N] {
        let [pack, order] = to.kernels();
        let (mut packed, mut arrived, mut ordered) = (vec![], vec![], vec![]);
        for at in 0..N + 2 {
            if (1..=N).contains(&at) {
                let bytes = sizes[at - 1];
                let block = self.storage_as(bytes, pass.category, "all_to_all_single");
                arrived.push((block, self.sent(heads, bytes, dtype)));
            }
            if at < N && to == To::Tokens {
                packed.push(self.moved(COMPUTE, pack, sizes[at], pass));
            }
            if at > 1 {
                let (block, ended) = arrived[at - 2];
                self.program.wait(heads.second, ended);
                ordered.push(self.moved(heads.second, order, sizes[at - 2], pass));
                self.release(block);
            }
            if at < N && to == To::Heads {
                packed.push(self.moved(COMPUTE, pack, sizes[at], pass));
            }
        }
        self.program.wait_stream(COMPUTE, heads.second);
        for storage in packed.into_iter().rev() {
            self.release(storage);
        }
        std::array::from_fn(|at| ordered[at])
    }
}

fn forward(eager: &mut Eager, graph: &Graph, op: &Op, context: Context, _: [Storage; 3]) -> (Storage, Vec<Storage>) {
    const NAME: &str = "te.fused_attn_fwd";
    let Some(heads) = context.heads else { unreachable!("heads are distributed over some ranks") };
    let (sizes, pass) = (Sizes::of(graph, op), eager.forward_pass());
    let [query, key, value] = eager.change_hands(heads, To::Heads, sizes.all(), sizes.dtype, pass);
    let [part, random, sums] = [sizes.query, RANDOM, sizes.sums].map(|bytes| eager.storage(bytes, NAME));
    eager.launch(NAME, whole(graph, op, context, false), pass.dispatch);
    let [out] = eager.change_hands(heads, To::Tokens, [sizes.query], sizes.dtype, pass);
    (out, vec![query, key, value, part, sums, random])
}

fn gradients(eager: &mut Eager, graph: &Graph, op: &Op, context: Context) -> [Storage; 3] {
    const NAME: &str = "te.fused_attn_bwd";
    let Some(heads) = context.heads else { unreachable!("heads are distributed over some ranks") };
    let (sizes, pass) = (Sizes::of(graph, op), eager.backward_pass());
    let [given] = eager.change_hands(heads, To::Heads, [sizes.query], sizes.dtype, pass);
    let parts = sizes.all().map(|bytes| eager.temporary(bytes, NAME));
    eager.launch(NAME, whole(graph, op, context, true), pass.dispatch);
    let results = eager.change_hands(heads, To::Tokens, sizes.all(), sizes.dtype, pass);
    for storage in parts.into_iter().chain([given]) {
        eager.release(storage);
    }
    results
}

/// All tokens under the mask.
fn whole(graph: &Graph, op: &Op, context: Context, backward: bool) -> crate::program::Work {
    let tokens = context.tokens(graph);
    context.work(graph, op, Kernel { queries: tokens, keys: tokens, causal: true, backward })
}
