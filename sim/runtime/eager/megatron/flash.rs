//! The core of attention in one kernel each way, as Transformer Engine calls cuDNN
//! (`transformer_engine/pytorch/csrc/extensions/attention.cpp`, 2.9, `fused_attn_fwd`, `fused_attn_bwd`).
//!
//! Kept: queries, keys, values, the context, a number for each head and query, and the random state. Assumed: cuDNN's
//! workspace is not counted. Where ranks share a sequence it is several such kernels (`context`).

use super::super::frame::{Node, Results};
use super::super::{Eager, Frame, Storage};
use super::context::{self, Context};
use crate::model::graph::{Graph, Op, OpKind};
use crate::model::megatron::MegatronOp;
use crate::program::{AttentionShape, Category, Pass, Work};

/// Bytes of the random state: seed and offset.
const RANDOM: u64 = 16;

impl Eager {
    fn flash_work(graph: &Graph, op: &Op, backward: bool) -> Work {
        let (d, OpKind::Megatron(MegatronOp::FlashCore { window, .. })) = (graph.dims, op.kind) else {
            unreachable!("called for flash cores")
        };
        // Where values are narrower than keys, both products do the work of a head between them.
        let head_dim = if d.latent.0 > 0 { (d.h + d.latent.0) / 2 } else { d.h };
        let shape = AttentionShape {
            batch: d.b,
            heads: d.n,
            kv_heads: d.k,
            queries: d.s,
            keys: d.s,
            head_dim,
            causal: true,
            window,
            squares: d.documents.map(|documents| documents.squares),
        };
        Work::Attention { shape, dtype: graph.values[op.inputs[0]].dtype, backward }
    }

    /// The context, the random state and the log-sum-exps.
    fn flash_forward(&mut self, graph: &Graph, op: &Op) -> [Storage; 3] {
        const NAME: &str = "te.fused_attn_fwd";
        let d = graph.dims;
        let out = self.storage(graph.values[op.outputs[0]].bytes(), NAME);
        let random = self.storage(RANDOM, NAME);
        let sums = self.storage(d.b * d.n * d.s * 4, NAME);
        self.launch(NAME, Self::flash_work(graph, op, false), self.settings.forward);
        [out, random, sums]
    }

    /// The ranks that share a sequence, where some do.
    fn context(&self) -> Option<Context> {
        self.framework.megatron()?.context
    }

    /// Queries, keys and values as the kernel reads them, with a reference each: parts of one product as they are where
    /// all three are that, else copied side by side (`get_qkv_layout`). Where ranks share a sequence each lies by itself.
    fn flash_inputs(&mut self, graph: &Graph, op: &Op, inputs: [Storage; 3]) -> [Storage; 3] {
        let together = inputs[0] == inputs[1] && self.context().is_none();
        let mut at = 0;
        inputs.map(|storage| {
            let (bytes, elements) = (graph.values[op.inputs[at]].bytes(), graph.values[op.inputs[at]].elements);
            at += 1;
            if together || self.bytes(storage) == bytes {
                return self.retain(storage);
            }
            let copy = self.storage(bytes, "aten.clone");
            self.strided("aten.clone", elements, self.settings.forward);
            copy
        })
    }

    /// The context, and what backward needs, in the order in which it lets go of it.
    fn flash_results(&mut self, graph: &Graph, op: &Op, inputs: [Storage; 3]) -> (Storage, Vec<Storage>) {
        if let Some(context) = self.context() {
            return (context::rules(context.way).forward)(self, graph, op, context, inputs);
        }
        let [out, random, sums] = self.flash_forward(graph, op);
        let kept = inputs.into_iter().chain([out]).map(|storage| self.retain(storage));
        (out, kept.collect::<Vec<_>>().into_iter().chain([sums, random]).collect())
    }

    fn flash_input_gradients(&mut self, graph: &Graph, op: &Op, together: bool) -> [Storage; 3] {
        match self.context() {
            Some(context) => (context::rules(context.way).gradients)(self, graph, op, context),
            None => self.flash_gradients(graph, op, together),
        }
    }

    pub(super) fn flash_core(&mut self, graph: &Graph, op: &Op, recompute: bool, frame: &mut Frame, results: Results) {
        let [query, key, value, mask] = [0, 1, 2, 3].map(|at| Self::value(frame, op.inputs[at]));
        let read = self.flash_inputs(graph, op, [query, key, value]);
        let (out, kept) = self.flash_results(graph, op, read);
        frame.slots[op.outputs[0]] = Some(out);
        if results == Results::Save && !recompute {
            for storage in read {
                self.release(storage);
            }
            return self.keep(frame, results, &kept);
        }
        for storage in kept.into_iter().rev().chain(read) {
            self.release(storage);
        }
        let held = [query, key, value, mask].map(|storage| self.retain(storage));
        self.keep(frame, results, &held);
    }

    pub(super) fn flash_core_backward(
        &mut self,
        node: Node<'_>,
        recompute: bool,
        frame: &mut Frame,
        gradient: Storage,
    ) {
        let Node { graph, op, index } = node;
        let results = if recompute {
            let [query, key, value, mask] = Self::saved_by(frame, index);
            let before = (self.program.set_pass(Pass::Recompute), self.category);
            self.category = Category::Recompute;
            let read = self.flash_inputs(graph, op, [query, key, value]);
            let (out, kept) = self.flash_results(graph, op, read);
            for storage in read {
                self.release(storage);
            }
            self.program.set_pass(before.0);
            self.category = before.1;
            let results = self.flash_input_gradients(graph, op, query == key);
            for storage in kept.into_iter().chain([out, gradient, query, key, value, mask]) {
                self.release(storage);
            }
            results
        } else {
            let (start, end) = Self::saved(frame, index);
            let saved = frame.saved[start..end].to_vec();
            let whole = graph.values[op.inputs[0]].bytes();
            let results = self.flash_input_gradients(graph, op, self.bytes(saved[0]) > whole);
            for storage in [gradient].into_iter().chain(saved) {
                self.release(storage);
            }
            results
        };
        for (&input, result) in op.inputs.iter().zip(results) {
            self.accumulate(frame, input, result.into());
        }
        // Sinks: one number a head.
        for (at, &param) in op.params.iter().enumerate() {
            let dtype = graph.values[op.inputs[0]].dtype;
            let made = self.temporary(graph.params[param].elements() * dtype.bytes(), "te.fused_attn_bwd");
            self.store_trained((graph, op), at, frame, (made, dtype));
        }
    }

    /// Gradients of queries, keys and values: one block where they are parts of one product, else three.
    fn flash_gradients(&mut self, graph: &Graph, op: &Op, together: bool) -> [Storage; 3] {
        const NAME: &str = "te.fused_attn_bwd";
        let sizes = [0, 1, 2].map(|at| graph.values[op.inputs[at]].bytes());
        let made = if together {
            let all = self.temporary(sizes.iter().sum(), NAME);
            [all, self.retain(all), self.retain(all)]
        } else {
            sizes.map(|bytes| self.temporary(bytes, NAME))
        };
        // FlashAttention 2's copies; one sum is not counted, nor is cuDNN's workspace.
        let copies = self.settings.copies_gradients.then(|| self.query_accumulator(graph, NAME));
        self.launch(NAME, Self::flash_work(graph, op, true), self.settings.backward);
        if let Some(copies) = copies {
            self.release(copies);
        }
        made
    }
}
