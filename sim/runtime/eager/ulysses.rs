//! Ranks that share a sequence under DeepSpeed: each attends with some heads to all tokens (Ulysses, arXiv:2309.14509).
//!
//! DeepSpeed (0.19.6) has it twice. `deepspeed/sequence/layer.py` is for Megatron-DeepSpeed, whose models call it themselves. This
//! is the other, to which its tutorial sends users of Hugging Face's models: `UlyssesSPAttentionHF`
//! (`deepspeed/runtime/sequence_parallel/ulysses_sp.py`) around `sdpa`.
//!
//! ```text
//! positions gathered ─► q, k, v: packed by rank, all-to-all, heads before tokens ─► sdpa ─► tokens before heads, all-to-all, joined
//! ```
//!
//! All of it waits its turn on the default stream. Where there are fewer key-value heads than ranks each is repeated first. The
//! gradient of an exchange is an exchange: of parts that lie apart it makes a block of their shape, one in order, which it copies
//! for nothing, and a packed copy to send. What comes back lies apart where a rank has one head or several sequences, and is
//! copied by whoever needs it whole.

use super::frame::{Node, Results};
use super::shape::Exchanged;
use super::{COMPUTE, Eager, Frame, Storage, Ulysses};
use crate::model::graph::{Axis, Dims, Graph, GraphBuilder, Op, ValueId};
use crate::model::operators::Strides;
use crate::program::{Collective, Comm, DType, GroupId, MemoryKind};
use crate::units::Bytes;

const BSNH: &[Axis] = &[Axis::B, Axis::S, Axis::N, Axis::H];
const BSKH: &[Axis] = &[Axis::B, Axis::S, Axis::K, Axis::H];

/// A tensor of heads that changes hands.
#[derive(Clone, Copy)]
struct Heads {
    /// Bytes of the rank's own tokens, and what is sent of them: more where heads are repeated.
    own: u64,
    sent: u64,
    /// Heads that the rank gets.
    heads: u64,
    dtype: DType,
}

impl Heads {
    fn of(graph: &Graph, value: ValueId, ranks: u64) -> Heads {
        let (d, value) = (graph.dims, &graph.values[value]);
        let all = value.elements / (d.b * d.s * d.h);
        let repeats = (ranks / all).max(1);
        let (own, dtype) = (value.bytes(), value.dtype);
        Heads { own, sent: own * repeats, heads: all * repeats / ranks, dtype }
    }

    fn repeated(self) -> bool {
        self.sent > self.own
    }
}

/// Attention as a rank runs it once heads have changed hands, as a graph of its own: its heads, all tokens.
fn inside(graph: &Graph, op: &Op, ranks: u64) -> Graph {
    let outside = graph.dims;
    let dims = Dims { s: outside.s * ranks, n: outside.n / ranks, k: (outside.k / ranks).max(1), ..outside };
    let dtype = graph.values[op.inputs[0]].dtype;
    let (mut inner, query) = GraphBuilder::new("attention", dims, dtype, ("xq_BSNH", BSNH, dtype));
    inner.belong(op.owner);
    let [key, value] = ["xk_BSKH", "xv_BSKH"].map(|name| inner.input(name, BSKH, dtype));
    let out = inner.op(op.module, op.kind, &[query, key, value], &[], ("xo_BSNH", BSNH));
    Graph { causal: graph.causal, ..inner.finish(out) }
}

impl Eager {
    fn shared_by(&self) -> (GroupId, u64) {
        let ulysses = self.framework.deepspeed().and_then(|deepspeed| deepspeed.ulysses.as_ref());
        ulysses.map(|ulysses| (ulysses.group, ulysses.ranks)).expect("called where ranks share a sequence")
    }

    /// Whether ranks share a sequence, and exchange heads for it around attention.
    pub(super) fn shares_sequence(&self) -> bool {
        self.framework.deepspeed().is_some_and(|deepspeed| deepspeed.ulysses.is_some())
    }

    fn ulysses_mut(&mut self) -> Option<&mut Ulysses> {
        self.framework.deepspeed_mut().and_then(|deepspeed| deepspeed.ulysses.as_mut())
    }

    /// A copy in place of a block.
    fn put_in_order(&mut self, storage: Storage, bytes: u64, backward: bool) -> Storage {
        let copy = self.copy_of("aten.clone", bytes, backward);
        self.release(storage);
        copy
    }

    fn send_heads(&mut self, bytes: u64, dtype: DType) {
        let comm = Comm { kind: Collective::AllToAll, group: self.shared_by().0, bytes: Bytes(bytes), dtype };
        self.program.collective(COMPUTE, comm);
    }

    fn all_gathered(&mut self, bytes: u64, dtype: DType) {
        let comm = Comm { kind: Collective::AllGather, group: self.shared_by().0, bytes: Bytes(bytes), dtype };
        self.program.collective(COMPUTE, comm);
    }

    /// Positions of all tokens: a block of each rank's, NCCL's of all for as long as it gathers, and all in a row.
    fn gather_positions(&mut self, tokens: u64) -> Vec<Storage> {
        let (ranks, part) = (self.shared_by().1, tokens * DType::Int64.bytes());
        let mut held: Vec<Storage> = (0..ranks).map(|_| self.storage(part, "aten.empty_like")).collect();
        let flat = self.storage(part * ranks, "all_gather");
        self.all_gathered(part * ranks, DType::Int64);
        self.pointwise("aten.copy_", MemoryKind::Copy, part * ranks, part * ranks, self.settings.forward);
        self.release(flat);
        held.insert(0, self.copy_of("aten.cat", part * ranks, false));
        held
    }

    /// `combine_sequence`; the given tensor stays the caller's.
    fn handed_over(&mut self, heads: Heads) -> Storage {
        let repeated = heads.repeated().then(|| self.copy_of("aten.repeat_interleave", heads.sent, false));
        let packed = self.copy_of("aten.clone", heads.sent, false);
        repeated.into_iter().for_each(|repeated| self.release(repeated));
        let arrived = self.storage(heads.sent, "aten.empty_like");
        self.send_heads(heads.sent, heads.dtype);
        self.release(packed);
        arrived
    }

    /// Attention among ranks that share a sequence.
    pub(super) fn ulysses(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results) {
        let (ranks, batch) = (self.shared_by().1, graph.dims.b);
        let held = self.gather_positions(graph.dims.tokens());
        let all = [0, 1, 2].map(|at| Heads::of(graph, op.inputs[at], ranks));
        let mut inputs = all.map(|heads| self.handed_over(heads));
        for (storage, heads) in inputs.iter_mut().zip(all) {
            if batch * heads.heads > 1 {
                *storage = self.put_in_order(*storage, heads.sent, false);
            }
        }
        let inner = inside(graph, op, ranks);
        let mut core = Frame::empty(&inner, inputs[0], frame.params);
        for (slot, storage) in core.slots.iter_mut().zip(inputs) {
            *slot = Some(storage);
        }
        let dispatch = self.settings.forward;
        // Of the inner attention each rank has all tokens.
        let ulysses = self.framework.deepspeed_mut().and_then(|deepspeed| deepspeed.ulysses.take());
        self.run(&inner, &inner.ops[0], &mut core, results, dispatch, &[]);
        if let Some(deepspeed) = self.framework.deepspeed_mut() {
            deepspeed.ulysses = ulysses;
        }
        let mut context = core.slots[inner.output].take().expect("attention makes a context");
        let (bytes, dtype) = (all[0].own, all[0].dtype);
        if all[0].heads > 1 {
            context = self.put_in_order(context, bytes, false);
        }
        let packed = (batch > 1).then(|| self.copy_of("aten.clone", bytes, false));
        let arrived = self.storage(bytes, "aten.empty_like");
        self.send_heads(bytes, dtype);
        let mut joined = self.put_in_order(arrived, bytes, false);
        for storage in packed.into_iter().chain(held).chain(inputs).chain([context]) {
            self.release(storage);
        }
        if batch > 1 {
            joined = self.put_in_order(joined, bytes, false);
        }
        frame.slots[op.outputs[0]] = Some(joined);
        if results == Results::Save {
            frame.saved.append(&mut core.saved);
            frame.saved_end.push(frame.saved.len() as u32);
        }
    }

    /// `_DimZeroAllToAll.backward`.
    fn exchange_back(&mut self, gradient: Storage, Exchanged { bytes, dtype }: Exchanged, apart: bool) -> Storage {
        let mut arrived = self.temporary(bytes, "aten.empty_like");
        let mut packed = None;
        if apart {
            arrived = self.put_in_order(arrived, bytes, true);
            packed = Some(self.copy_of("aten.clone", bytes, true));
        }
        self.send_heads(bytes, dtype);
        packed.into_iter().for_each(|packed| self.release(packed));
        self.release(gradient);
        arrived
    }

    /// Its backward: queries', keys' and values' gradients come back last to first.
    pub(super) fn ulysses_backward(
        &mut self,
        node: Node<'_>,
        window: Option<u64>,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let dispatch = self.settings.backward;
        let (ranks, batch) = (self.shared_by().1, graph.dims.b);
        let all = [0, 1, 2].map(|at| Heads::of(graph, op.inputs[at], ranks));
        let inner = inside(graph, op, ranks);
        let given = self.exchange_back(gradient, Exchanged { bytes: all[0].own, dtype: all[0].dtype }, true);
        // The kernel wants both in one order (`attention_backward.cu`).
        let copies = [batch > 1, all[0].heads > 1];
        let copies = copies.map(|apart| apart.then(|| self.copy_of("aten.clone", all[0].own, true)));
        let results = self.attention_gradients(&inner, &inner.ops[0], window, dispatch);
        copies.into_iter().rev().flatten().for_each(|copy| self.release(copy));
        self.let_go(frame, index, given);
        for at in [2, 1, 0] {
            let (heads, value) = (all[at], op.inputs[at]);
            let sent = Exchanged { bytes: heads.sent, dtype: heads.dtype };
            let mut result = self.exchange_back(results[at], sent, batch * heads.heads > 1);
            if heads.repeated() {
                let sum = self.temporary(heads.own, "aten.sum");
                self.pointwise("aten.sum", MemoryKind::Elementwise, heads.sent, heads.own, dispatch);
                self.release(std::mem::replace(&mut result, sum));
            } else if heads.heads > 1 {
                result = self.put_in_order(result, heads.sent, true);
            }
            let apart = batch > 1 || (heads.heads == 1 && !heads.repeated());
            if let Some(ulysses) = self.ulysses_mut().filter(|_| apart) {
                ulysses.apart.push(value);
            }
            self.accumulate(frame, value, result.into());
        }
    }

    /// Before a node runs: a gradient that lies apart is copied. Casts, and what only hands views on, take it as it is.
    pub(super) fn lay_together(&mut self, graph: &Graph, op: &Op, frame: &mut Frame) {
        let Some(ulysses) = self.ulysses_mut() else { return };
        let before = ulysses.apart.len();
        ulysses.apart.retain(|value| !op.outputs.contains(value));
        if ulysses.apart.len() == before {
            return;
        }
        match op.row().strides {
            Strides::Kept => ulysses.apart.extend(&op.inputs),
            Strides::Joined => {}
            Strides::Together => {
                let value = op.outputs[0];
                if let Some(gradient) = frame.gradients[value].take() {
                    let copy = self.put_in_order(gradient.storage, graph.values[value].bytes(), true);
                    frame.gradients[value] = Some(copy.into());
                }
            }
        }
    }

    /// The loss of all tokens from those of the ranks that share them, as DeepSpeed's tutorial weighs it
    /// (`docs/_tutorials/ulysses-alst-sequence-parallelism.md`): losses and counts of labels are gathered, and the host asks whether
    /// there are any.
    pub fn weigh_loss(&mut self, labels: u64) {
        let (ranks, dispatch) = (self.shared_by().1, self.settings.forward);
        let (number, count) = (DType::Fp32.bytes(), DType::Int64.bytes());
        self.all_gathered(number * ranks, DType::Fp32);
        let kept = self.storage(labels, "aten.ne");
        self.pointwise("aten.ne", MemoryKind::Elementwise, labels * count, labels, dispatch);
        let wide = self.storage(labels * count, "aten.sum");
        self.pointwise("aten.sum", MemoryKind::Elementwise, labels * (1 + count), labels * count, dispatch);
        self.release(wide);
        self.release(kept);
        self.all_gathered(count * ranks, DType::Int64);
        for _ in 0..ranks {
            for name in ["aten.mul", "aten.add", "aten.add"] {
                self.pointwise(name, MemoryKind::Elementwise, number + count, count, dispatch);
            }
        }
        self.pointwise("aten.lt", MemoryKind::Elementwise, count, 1, dispatch);
        self.program.wait_for_host(COMPUTE);
        self.pointwise("aten.div", MemoryKind::Elementwise, number + count, number, dispatch);
    }

    /// Its backward.
    pub fn weigh_loss_backward(&mut self) {
        let ((group, ranks), dispatch) = (self.shared_by(), self.settings.backward);
        let number = DType::Fp32.bytes();
        for name in std::iter::once("aten.div").chain((0..ranks).map(|_| "aten.mul")) {
            self.pointwise(name, MemoryKind::Elementwise, 2 * number, number, dispatch);
        }
        let bytes = Bytes(number * ranks);
        self.program.collective(COMPUTE, Comm { kind: Collective::ReduceScatter, group, bytes, dtype: DType::Fp32 });
    }
}
