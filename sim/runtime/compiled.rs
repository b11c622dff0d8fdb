//! Runs a compiled module as inductor's wrapper does: allocate, launch, delete what was read for the last time.
//!
//! There is no autograd inside: the module is one node, whose saved tensors the wrapper deletes one by one as backward
//! uses them up, and whose parameter gradients are stored together when it returns. The host pays one cheap launch
//! per kernel. What runs and in which order is decided in [`crate::model::fuse`].

mod pipelined;
mod ring;
mod rotation;

pub use crate::plan::torch::{Method, Rotate};
pub use rotation::Rotation;

use super::eager::{COMPUTE, Eager, Exchanged, MatmulShape, ParamMap, Storage, attention_shape};
use crate::model::fuse::{Compiled, Kernel, Launch, TensorId};
use crate::model::graph::Graph;
use crate::program::{Category, Dispatch, Pass, Work};

/// What a compiled forward left for backward.
#[derive(Clone, Debug)]
pub struct CompiledFrame {
    /// Storage of each tensor, while there is one.
    slots: Vec<Option<Storage>>,
    params: ParamMap,
}

impl Eager {
    /// Runs a compiled forward on `input`, whose reference stays the caller's. Returns the frame for backward and the
    /// output with one reference.
    pub fn forward_compiled(
        &mut self,
        graph: &Graph,
        compiled: &Compiled,
        input: Storage,
        params: ParamMap,
    ) -> (CompiledFrame, Storage) {
        let mut frame = CompiledFrame { slots: vec![None; compiled.tensors.len()], params };
        frame.slots[0] = Some(self.retain(input));
        let mut kept = compiled.saved.clone();
        kept.push(compiled.output);
        self.kernels(graph, compiled, &compiled.forward, &mut frame, &kept);
        let output = frame.slots[compiled.output].expect("a module's kernels make its output");
        if compiled.saved.contains(&compiled.output) {
            self.retain(output);
        } else {
            frame.slots[compiled.output] = None;
        }
        if let Some(input) = frame.slots[0].filter(|_| !compiled.saved.contains(&0)) {
            self.release(input);
            frame.slots[0] = None;
        }
        (frame, output)
    }

    /// Lets go of what a forward saved.
    pub fn forget_compiled(&mut self, frame: CompiledFrame) {
        for storage in frame.slots.into_iter().flatten() {
            self.release(storage);
        }
    }

    /// Runs a compiled backward from the gradient of the output, which it takes over. Returns the gradient of the input.
    pub fn backward_compiled(
        &mut self,
        graph: &Graph,
        compiled: &Compiled,
        frame: &mut CompiledFrame,
        gradient: Storage,
    ) -> Storage {
        frame.slots[compiled.seed] = Some(gradient);
        let mut results: Vec<TensorId> = compiled.gradients.iter().map(|&(_, tensor)| tensor).collect();
        results.push(compiled.input_gradient);
        let before = self.category;
        self.kernels(graph, compiled, &compiled.backward, frame, &results);
        self.category = before;
        for &(param, tensor) in &compiled.gradients {
            let made = frame.slots[tensor].take().expect("backward makes every parameter's gradient");
            let param = frame.params.index(param);
            let (made, dtype) = self.upcast(param, made, compiled.dtype);
            self.store_leaf(param, made, dtype);
        }
        frame.slots[compiled.input_gradient].take().expect("backward makes the input's gradient")
    }

    /// Runs kernels; what is not in `results` goes when it is read for the last time.
    fn kernels(
        &mut self,
        graph: &Graph,
        compiled: &Compiled,
        kernels: &[Kernel],
        frame: &mut CompiledFrame,
        results: &[TensorId],
    ) {
        let base = |tensor: TensorId| compiled.tensors[tensor].base;
        // A buffer that is handed on stays until it is taken.
        let mut stays = vec![false; compiled.tensors.len()];
        let results = results.iter().map(|&tensor| base(tensor));
        results.chain(compiled.takes.values().copied()).for_each(|tensor| stays[tensor] = true);
        let mut last = vec![0; compiled.tensors.len()];
        for (at, kernel) in kernels.iter().enumerate() {
            for &tensor in kernel.reads.iter().chain(&kernel.writes) {
                last[base(tensor)] = at;
            }
        }
        let pass = self.program.pass();
        for (at, kernel) in kernels.iter().enumerate() {
            if pass == Pass::Backward {
                let (pass, category) = if kernel.recompute {
                    (Pass::Recompute, Category::Recompute)
                } else {
                    (Pass::Backward, Category::BackwardTemporary)
                };
                self.program.set_pass(pass);
                self.category = category;
            }
            let outside = self.program.at_work(graph.ops[kernel.op].owner);
            self.kernel(graph, compiled, kernel, frame);
            self.program.enter(outside);
            let mut touched: Vec<TensorId> = kernel.reads.iter().chain(&kernel.writes).map(|&t| base(t)).collect();
            touched.sort_unstable();
            touched.dedup();
            for tensor in touched {
                let dead = last[tensor] == at && !stays[tensor];
                if let Some(storage) = frame.slots[tensor].take_if(|_| dead) {
                    self.release(storage);
                }
            }
        }
        self.program.set_pass(pass);
    }

    /// The ranks that share a sequence, where some do.
    fn rotation(&self) -> Option<Rotation> {
        self.framework.torch()?.context
    }

    /// One kernel: its results, taken over or new, and its launch.
    fn kernel(&mut self, graph: &Graph, compiled: &Compiled, kernel: &Kernel, frame: &mut CompiledFrame) {
        let dispatch = Dispatch::Compiled;
        if let Launch::Attention { op, window, backward: true } = kernel.launch {
            let op = &graph.ops[op];
            let made = match self.rotation() {
                Some(rotation) => self.ring_attention_gradients(graph, op, rotation, kernel.name),
                None => self.attention_gradients(graph, op, window, dispatch),
            };
            for (&tensor, storage) in kernel.writes.iter().zip(made) {
                frame.slots[tensor] = Some(storage);
            }
            return;
        }
        for &tensor in &kernel.writes {
            let storage = match compiled.takes.get(&tensor) {
                Some(&from) => frame.slots[from].take().expect("a buffer is handed on once"),
                None => self.storage(compiled.tensors[tensor].bytes, kernel.name),
            };
            frame.slots[tensor] = Some(storage);
        }
        match kernel.launch {
            Launch::GatherMatmuls { ref works, bytes, dtype, keeps } => {
                self.gather_matmuls(kernel.name, works, Exchanged { bytes, dtype }, keeps, dispatch);
            }
            Launch::MatmulScatter { work, bytes, dtype } => {
                self.matmul_scatter(kernel.name, work, Exchanged { bytes, dtype }, dispatch);
            }
            Launch::Matmul(Work::Matmul { m, n, k, dtype, layout }) => {
                self.matmul(kernel.name, MatmulShape { m, n, k }, dtype, layout, dispatch);
            }
            Launch::Matmul(work) | Launch::Library(work) | Launch::Fused(work) => {
                self.program.launch(COMPUTE, kernel.name, work, dispatch);
            }
            Launch::Exchange { kind, bytes, dtype } => self.exchange(kind, bytes, dtype),
            Launch::Attention { op, window, .. } => {
                self.ask_before_attention(dispatch);
                let op = &graph.ops[op];
                if let Some(rotation) = self.rotation() {
                    return self.ring_attention(graph, op, rotation, kernel.name);
                }
                let (shape, dtype) = (attention_shape(graph, op, window), graph.values[op.inputs[0]].dtype);
                let work = Work::Attention { shape, dtype, backward: false };
                self.program.launch(COMPUTE, kernel.name, work, dispatch);
            }
        }
    }
}
