//! What each operator allocates, launches and saves in forward.

use super::{COMPUTE, Eager, Frame, Keep, Mode, ParamMap, Storage, early_stop_at, kept_ops};
use crate::model::Activation;
use crate::model::graph::{Graph, Op, OpKind};
use crate::program::{AttentionShape, Category, DType, Dispatch, MatmulLayout, MemoryKind, Pass, Work};

/// Results beside the named outputs that an operator makes, in bytes: statistics of norms, log-sum-exp and the random
/// state of attention.
fn auxiliaries(graph: &Graph, op: &Op) -> ([u64; 3], usize) {
    match op.kind {
        OpKind::RmsNorm { rows } => ([rows * 4, 0, 0], 1),
        OpKind::LayerNorm { rows } => ([rows * 4, rows * 4, 0], 2),
        // Flash attention: log-sum-exp per query head in fp32, philox seed (16 B) and offset (8 B).
        OpKind::Attention { .. } if graph.values[op.inputs[0]].dtype != DType::Fp32 => {
            ([graph.dims.tokens() * graph.dims.n * 4, 16, 8], 3)
        }
        // The memory-efficient kernel, which serves fp32, makes seed and offset (8 B each) first.
        OpKind::Attention { .. } => ([8, 8, graph.dims.tokens() * graph.dims.n * 4], 3),
        _ => ([0; 3], 0),
    }
}

/// The shape of an attention operator.
pub(in crate::runtime) fn attention_shape(graph: &Graph, window: Option<u64>) -> AttentionShape {
    let d = graph.dims;
    AttentionShape {
        batch: d.b,
        heads: d.n,
        kv_heads: d.k,
        queries: d.s,
        keys: d.s,
        head_dim: d.h,
        causal: graph.causal,
        window,
    }
}

/// What becomes of an operator's results beside its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Results {
    /// Autograd saves what backward needs.
    Save,
    /// A checkpointing policy keeps all results for the recompute.
    Keep,
    /// Nothing is kept.
    Forget,
}

impl Eager {
    /// Runs a graph's forward on `input` (whose reference stays the caller's). `params` says which of the
    /// model's parameters the graph's are. Returns the frame for backward and the output, with one reference.
    pub fn forward(&mut self, graph: &Graph, input: Storage, params: ParamMap, mode: Mode) -> (Frame, Storage) {
        let mut frame = self.frame(graph, input, params, mode);
        self.forward_ops(graph, &mut frame, 0..graph.ops.len());
        let output = self.finish_forward(graph, &mut frame);
        (frame, output)
    }

    /// A frame before its first operator.
    pub fn frame(&mut self, graph: &Graph, input: Storage, params: ParamMap, mode: Mode) -> Frame {
        let checkpoint = match mode {
            Mode::Train => None,
            Mode::Checkpoint(keep) => {
                self.retain(input);
                Some(keep)
            }
        };
        let mut frame = Frame {
            slots: vec![None; graph.values.len()],
            gradients: vec![None; graph.values.len()],
            saved: Vec::with_capacity(3 * graph.ops.len()),
            saved_end: Vec::with_capacity(graph.ops.len()),
            kept: Vec::new(),
            kept_end: Vec::new(),
            params,
            checkpoint,
            input,
            recomputed: false,
        };
        frame.slots[0] = Some(input);
        frame
    }

    /// Runs a range of a graph's operators.
    pub fn forward_ops(&mut self, graph: &Graph, frame: &mut Frame, range: std::ops::Range<usize>) {
        let keeps = kept_ops(graph);
        for index in range {
            let op = &graph.ops[index];
            let dispatch = self.settings.forward;
            let results = match frame.checkpoint {
                None => Results::Save,
                Some(Keep::ComputeIntensive) if keeps(index) => Results::Keep,
                Some(_) => Results::Forget,
            };
            self.run(graph, op, frame, results, dispatch, &[]);
            if frame.checkpoint.is_some() {
                frame.kept_end.push(frame.kept.len() as u32);
            }
            self.drop_python_references(op, frame);
        }
    }

    /// Ends a forward: the output, with one reference.
    pub fn finish_forward(&mut self, graph: &Graph, frame: &mut Frame) -> Storage {
        frame.slots[0] = None;
        frame.slots[graph.output].take().expect("a graph's output is made by its last operators")
    }

    /// Runs a checkpointed forward again, this time saving; called when backward first needs something of it.
    pub(super) fn recompute(&mut self, graph: &Graph, frame: &mut Frame) {
        let (pass, category) = (self.program.set_pass(Pass::Recompute), self.category);
        self.category = Category::Recompute;
        frame.slots[0] = Some(frame.input);
        let stop = if self.settings.early_stop { early_stop_at(graph) } else { graph.ops.len() };
        let kept = std::mem::take(&mut frame.kept);
        let mut kept_start = 0;
        for (index, op) in graph.ops.iter().enumerate() {
            let kept_end = frame.kept_end[index] as usize;
            let cached = &kept[kept_start..kept_end];
            kept_start = kept_end;
            if index < stop {
                let dispatch = self.settings.forward;
                self.run(graph, op, frame, Results::Save, dispatch, cached);
                self.drop_python_references(op, frame);
            } else {
                if index == stop {
                    self.save_inputs(op, frame);
                }
                frame.saved_end.push(frame.saved.len() as u32);
                // The policy's cache outlives a recompute that stops early.
                frame.kept.extend_from_slice(cached);
            }
        }
        frame.slots[0] = None;
        // Whatever Python still held when the recompute ended.
        for slot in frame.slots.iter_mut().skip(1) {
            if let Some(storage) = slot.take() {
                self.release(storage);
            }
        }
        frame.recomputed = true;
        self.release(frame.input);
        self.program.set_pass(pass);
        self.category = category;
    }

    fn drop_python_references(&mut self, op: &Op, frame: &mut Frame) {
        for &value in &op.drops {
            if let Some(storage) = frame.slots[value].take() {
                self.release(storage);
            }
        }
    }

    /// Saves the inputs that an operator packs before it runs.
    fn save_inputs(&mut self, op: &Op, frame: &mut Frame) {
        let inputs: &[usize] = match op.kind {
            OpKind::Linear { .. } | OpKind::Act(_) => &op.inputs[..1],
            OpKind::Mul => &op.inputs,
            _ => &[],
        };
        for &value in inputs {
            let storage = frame.slots[value].expect("an operator reads live values");
            let saved = self.retain(storage);
            frame.saved.push(saved);
        }
    }

    /// One operator: allocate, launch, save. What a policy has `cached` is taken from there instead.
    fn run(
        &mut self,
        graph: &Graph,
        op: &Op,
        frame: &mut Frame,
        results: Results,
        dispatch: Dispatch,
        cached: &[Storage],
    ) {
        let mut aux = [None; 3];
        match op.kind {
            OpKind::Split => {
                let whole = frame.slots[op.inputs[0]].expect("an operator reads live values");
                for &value in &op.outputs {
                    frame.slots[value] = Some(self.retain(whole));
                }
            }
            OpKind::CrossEntropy => return self.cross_entropy(graph, op, frame, results, dispatch),
            OpKind::Softcap => return self.softcap(graph, op, frame, results, dispatch),
            _ if !cached.is_empty() => {
                frame.slots[op.outputs[0]] = Some(cached[0]);
                for (slot, &storage) in aux.iter_mut().zip(&cached[1..]) {
                    *slot = Some(storage);
                }
            }
            _ => {
                let (sizes, count) = auxiliaries(graph, op);
                let name = kernel_name(graph, op);
                // The memory-efficient kernel makes its random state before its output.
                let first = if sizes[0] == 8 && count == 3 { 2 } else { 0 };
                for at in 0..first {
                    aux[at] = Some(self.storage(sizes[at], name));
                }
                let output = self.storage(graph.values[op.outputs[0]].bytes(), name);
                frame.slots[op.outputs[0]] = Some(output);
                for at in first..count {
                    aux[at] = Some(self.storage(sizes[at], name));
                }
                self.launch_forward(graph, op, dispatch);
            }
        }
        match results {
            Results::Save => self.save(graph, op, frame, &aux),
            Results::Keep => {
                let output = frame.slots[op.outputs[0]].expect("an operator's output is live right after it ran");
                frame.kept.push(self.retain(output));
                frame.kept.extend(aux.iter().flatten());
            }
            Results::Forget => {
                for storage in aux.into_iter().flatten() {
                    self.release(storage);
                }
            }
        }
    }

    /// What autograd keeps, in the order it lets go of it.
    fn save(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, aux: &[Option<Storage>; 3]) {
        let slot = |frame: &Frame, value: usize| frame.slots[value].expect("an operator reads live values");
        let keep = |this: &mut Self, frame: &mut Frame, value: usize| {
            let storage = slot(frame, value);
            let saved = this.retain(storage);
            frame.saved.push(saved);
        };
        match op.kind {
            OpKind::Linear { .. } | OpKind::RmsNorm { .. } | OpKind::LayerNorm { .. } => {
                keep(self, frame, op.inputs[0]);
            }
            OpKind::Act(Activation::Relu) => keep(self, frame, op.outputs[0]),
            OpKind::Act(_) => keep(self, frame, op.inputs[0]),
            OpKind::Mul => {
                keep(self, frame, op.inputs[1]);
                keep(self, frame, op.inputs[0]);
            }
            OpKind::Attention { .. } => {
                keep(self, frame, op.inputs[1]);
                keep(self, frame, op.inputs[0]);
                keep(self, frame, op.inputs[2]);
                let efficient = graph.values[op.inputs[0]].dtype == DType::Fp32;
                let order: [usize; 3] = if efficient { [2, 0, 1] } else { [0, 1, 2] };
                frame.saved.extend(aux[order[0]]);
                keep(self, frame, op.outputs[0]);
                frame.saved.extend(aux[order[1]]);
                frame.saved.extend(aux[order[2]]);
                frame.saved_end.push(frame.saved.len() as u32);
                return;
            }
            _ => {}
        }
        frame.saved.extend(aux.iter().flatten());
        frame.saved_end.push(frame.saved.len() as u32);
    }

    /// Launches the kernel of a simple operator.
    fn launch_forward(&mut self, graph: &Graph, op: &Op, dispatch: Dispatch) {
        let name = kernel_name(graph, op);
        let read: u64 = op.inputs.iter().map(|&value| graph.values[value].bytes()).sum();
        let written: u64 = op.outputs.iter().map(|&value| graph.values[value].bytes()).sum();
        let dtype = graph.values[op.inputs[0]].dtype;
        match op.kind {
            OpKind::Linear { inputs, outputs } => {
                let m = graph.dims.tokens();
                self.matmul(name, (m, outputs, inputs), dtype, MatmulLayout::Forward, dispatch);
            }
            OpKind::Attention { window } => {
                let shape = attention_shape(graph, window);
                self.program.launch(COMPUTE, name, Work::Attention { shape, dtype, backward: false }, dispatch);
            }
            OpKind::RmsNorm { .. } | OpKind::LayerNorm { .. } => {
                self.pointwise(name, MemoryKind::Norm, read, written, dispatch);
            }
            OpKind::RotateComplex { table } => {
                self.pointwise(name, MemoryKind::Complex, read + 8 * table, written, dispatch);
            }
            OpKind::Embedding => {
                let table = written;
                self.pointwise(name, MemoryKind::Gather, table + graph.dims.tokens() * 8, written, dispatch);
            }
            _ => self.pointwise(name, MemoryKind::Elementwise, read, written, dispatch),
        }
    }

    /// A matmul with its workspace.
    pub(in crate::runtime) fn matmul(
        &mut self,
        name: &'static str,
        (m, n, k): (u64, u64, u64),
        dtype: DType,
        layout: MatmulLayout,
        dispatch: Dispatch,
    ) {
        self.workspace();
        self.program.launch(COMPUTE, name, Work::Matmul { m, n, k, dtype, layout }, dispatch);
    }

    fn workspace(&mut self) {
        let bytes = crate::units::Bytes(self.settings.workspace);
        self.program.transient(bytes, COMPUTE, Category::Workspace, "cublas workspace");
    }

    /// `cap·tanh(x/cap)`: the quotient, its tangent, the product; backward keeps the tangent.
    fn softcap(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results, dispatch: Dispatch) {
        let bytes = graph.values[op.outputs[0]].bytes();
        let step = |this: &mut Self, name| {
            let storage = this.storage_as(bytes, Category::Logits, name);
            this.pointwise(name, MemoryKind::Elementwise, bytes, bytes, dispatch);
            storage
        };
        let quotient = step(self, "aten.div");
        let tangent = step(self, "aten.tanh");
        self.release(quotient);
        let product = step(self, "aten.mul");
        frame.slots[op.outputs[0]] = Some(product);
        if results == Results::Save {
            frame.saved.push(tangent);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            self.release(tangent);
        }
    }

    /// `F.cross_entropy(logits.float(), labels)`: an fp32 copy, its log-softmax (kept), the mean.
    fn cross_entropy(&mut self, graph: &Graph, op: &Op, frame: &mut Frame, results: Results, dispatch: Dispatch) {
        let logits = &graph.values[op.inputs[0]];
        let wide = logits.elements * 4;
        let copy = (logits.dtype != DType::Fp32).then(|| {
            let storage = self.storage_as(wide, Category::Logits, "aten._to_copy");
            self.pointwise("aten._to_copy", MemoryKind::Elementwise, logits.bytes(), wide, dispatch);
            storage
        });
        let log_softmax = self.storage_as(wide, Category::Logits, "aten._log_softmax");
        self.pointwise("aten._log_softmax", MemoryKind::Softmax, wide, wide, dispatch);
        let loss = self.storage(4, "aten.nll_loss_forward");
        let weight = self.storage(4, "aten.nll_loss_forward");
        self.pointwise("aten.nll_loss_forward", MemoryKind::Gather, graph.dims.tokens() * 12, 4, dispatch);
        if let Some(copy) = copy {
            self.release(copy);
        }
        frame.slots[op.outputs[0]] = Some(loss);
        if results == Results::Save {
            frame.saved.extend([weight, log_softmax]);
            frame.saved_end.push(frame.saved.len() as u32);
        } else {
            self.release(weight);
            self.release(log_softmax);
        }
    }
}

/// The operator's name as PyTorch's profiler shows it.
fn kernel_name(graph: &Graph, op: &Op) -> &'static str {
    match op.kind {
        OpKind::Linear { .. } if op.params.len() > 1 => "aten.addmm",
        OpKind::Linear { .. } => "aten.mm",
        OpKind::RmsNorm { .. } => "aten._fused_rms_norm",
        OpKind::LayerNorm { .. } => "aten.native_layer_norm",
        OpKind::Cast => "aten._to_copy",
        OpKind::RotateComplex { .. } | OpKind::Mul | OpKind::Scale => "aten.mul",
        OpKind::Add => "aten.add",
        OpKind::Softcap => "aten.tanh",
        OpKind::Act(Activation::Silu) => "aten.silu",
        OpKind::Act(Activation::Gelu | Activation::GeluTanh) => "aten.gelu",
        OpKind::Act(Activation::Relu) => "aten.relu",
        OpKind::Act(Activation::ReluSquared) => "aten.pow",
        OpKind::Split => "aten.split",
        OpKind::Attention { .. } if graph.values[op.inputs[0]].dtype == DType::Fp32 => {
            "aten._scaled_dot_product_efficient_attention"
        }
        OpKind::Attention { .. } => "aten._scaled_dot_product_flash_attention",
        OpKind::Embedding => "aten.embedding",
        OpKind::CrossEntropy => "aten._log_softmax",
    }
}
