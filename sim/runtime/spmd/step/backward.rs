//! The loop back over blocks: what was not kept is computed again, then each operator's gradient in reverse.

use std::ops::Range;

use super::shards::Gathered;
use super::state::{HALF, Late, LateMasks, Step, Variant, Whose};
use crate::plan::xla::Keep;
use crate::plan::xla::flags::Overlap;
use crate::program::{Category, Collective, MatmulLayout, MemoryKind, Pass};
use crate::runtime::spmd::block::{Kind, Named, Op, ROUTER, Tensor};
use crate::runtime::spmd::room::Blocks;
use crate::runtime::spmd::tape::Value;

/// A layer that ran again, and whose backward comes.
struct Ran {
    values: Vec<Option<Value>>,
    /// Weights that stay gathered.
    held: Vec<(usize, Value)>,
    again: Vec<usize>,
    /// Keys and values of whole sequences, and sums of rows, of its attention.
    sequences: Vec<Value>,
    row_sums: Option<Value>,
    /// Biases of its experts, a row for each copy of a token.
    bias_rows: Vec<Value>,
}

/// What comes after a linear's backward.
#[derive(Clone, Copy)]
struct After {
    /// The gradient of its input is whole on this chip, and is summed over the tensor axis.
    sum: bool,
    /// Its input is a gate's product.
    gated: bool,
    /// Its weight gradient waits for the gate's backward, which makes its input.
    late: bool,
}

impl Step<'_> {
    /// Zeros, to which the gradients of some blocks are added; their number.
    /// On GPUs layers that are written out have no such stack.
    pub(super) fn gradients_of(&mut self, layers: Range<usize>) -> u64 {
        let numbers = self.block_numbers(layers);
        if self.job.gpu().is_some() && !self.job.scan {
            return numbers;
        }
        self.end_backward();
        let stack = self.tape.value("blocks' gradients", self.full() * numbers, Category::ShardedGradient);
        self.tape.kernel("broadcast", Self::memory(MemoryKind::Copy, 0, self.full() * numbers), &[], &[stack]);
        self.gradients = Some(stack);
        self.began = self.tape.now();
        numbers
    }

    /// From the gradient of the last of some blocks' result to that of the first one's input.
    pub(super) fn blocks_backward(&mut self, layers: Range<usize>, mut gradient: Value) -> Value {
        let turns = match self.staged {
            Some(_) => layers.map(|layer| layer..layer + 1).collect(),
            None => self.turns.clone(),
        };
        for turn in turns.into_iter().rev() {
            gradient = self.turn_backward(turn, gradient);
        }
        gradient
    }

    /// All layers of a turn run again, each from the one before it, and then back.
    fn turn_backward(&mut self, layers: Range<usize>, mut gradient: Value) -> Value {
        let mut ran = vec![];
        let mut input = None;
        for layer in layers.clone() {
            self.at(layer);
            let one = self.run_again(self.variant_of[layer], input, layer + 1 < layers.end);
            input = one.values.last().copied().flatten();
            ran.push(one);
        }
        for (layer, one) in layers.zip(ran).rev() {
            self.at(layer);
            gradient = self.block_backward(self.variant_of[layer], one, gradient);
        }
        gradient
    }

    fn at(&mut self, layer: usize) {
        self.layer = layer;
        self.tape.scope = self.scopes.layers[layer];
    }

    /// Numbers of blocks' gradients on this chip.
    fn block_numbers(&self, layers: Range<usize>) -> u64 {
        let whole = self.gathered_once();
        let block = |layer: usize| {
            let block = &self.variants[self.variant_of[layer]].block;
            let numbers = block.weights.iter().map(|weight| if whole { weight.numbers() } else { self.own(weight) });
            self.times(layer) * (numbers.sum::<u64>() + block.norms)
        };
        layers.map(block).sum()
    }

    /// Finds what forward of a layer kept, and computes the rest again: from `input` where the layer before it ran again, too, and up to
    /// its result where the layer behind it (`more`) does.
    fn run_again(&mut self, variant: usize, input: Option<Value>, more: bool) -> Ran {
        let block = self.variants[variant].block.clone();
        let mut values: Vec<Option<Value>> = vec![None; block.tensors.len()];
        let start = self.tape.now();
        values[0] = input;
        for (tensor, keep) in self.variants[variant].kept.clone() {
            if tensor == 0 && input.is_some() {
                continue;
            }
            let bytes = Self::bytes(block.tensors[tensor]);
            values[tensor] = match keep == Keep::Device && self.reads_stacks(variant) && block.gates(tensor) {
                true => Some(self.stack(tensor, bytes)),
                false => self.found(tensor, bytes, keep),
            };
        }
        self.began = start;
        let Variant { again, whole, .. } = &self.variants[variant];
        let again = if more { whole.clone() } else { again.clone() };
        let mut held = vec![];
        self.tape.pass = Pass::Recompute;
        self.forward_ops(variant, &again, &mut values, (self.gather_again(), false), &mut held);
        self.tape.pass = Pass::Backward;
        let (sequences, row_sums) = (std::mem::take(&mut self.sequences), self.row_sums.take());
        Ran { values, held, again, sequences, row_sums, bias_rows: std::mem::take(&mut self.bias_rows) }
    }

    fn block_backward(&mut self, variant: usize, ran: Ran, gradient: Value) -> Value {
        let block = self.variants[variant].block.clone();
        let Ran { mut values, held, again, sequences, row_sums, bias_rows } = ran;
        (self.sequences, self.row_sums, self.bias_rows) = (sequences, row_sums, bias_rows);
        let mut dropped = block.droppable(&again);
        if !self.job.in_memory(self.staged.is_some()) {
            // Single matmuls read a sum in place of its norm, so it is there anyway.
            dropped.retain(|(_, ops)| ops.iter().all(|&at| block.ops[at].kind != Kind::Add));
        }
        let mut gradients: Vec<Option<Value>> = vec![None; block.tensors.len()];
        let last = gradients.len() - 1;
        gradients[last] = Some(gradient);
        for (at, op) in block.ops.iter().enumerate().rev() {
            if let Some((place, bytes)) = self.more(variant, at) {
                let stack = self.stack(place, bytes);
                self.tape.kernel("dynamic_slice", Self::memory(MemoryKind::Copy, bytes, 0), &[stack], &[]);
            }
            if self.room.blocks == Blocks::Short {
                self.make_again(variant, op, &mut dropped, &mut values);
            }
            self.op_backward((variant, op), &values, &mut gradients, &held);
        }
        if self.staged.is_none() {
            self.norm_gradients(block.norms);
        }
        self.end_turn();
        gradients[0].unwrap_or(gradient)
    }

    /// Whether matmuls read what was kept where it lies: those of experts whose weights are asked for whole, and that wait for
    /// no window.
    fn reads_stacks(&self, variant: usize) -> bool {
        self.job.mesh.expert > 1 && self.variants[variant].block.weights.iter().any(|weight| weight.experts)
    }

    /// How weights are gathered for what runs again.
    fn gather_again(&self) -> Overlap {
        match self.job.flags.gather_backward {
            Overlap::Windowed => Overlap::None,
            how => how,
        }
    }

    /// Runs again what makes an operator's operands, where they have been dropped.
    fn make_again(
        &mut self,
        variant: usize,
        op: &Op,
        dropped: &mut Vec<(Tensor, Vec<usize>)>,
        values: &mut [Option<Value>],
    ) {
        for tensor in op.needs() {
            if let Some(at) = dropped.iter().position(|(known, _)| *known == tensor) {
                let (_, ops) = dropped.swap_remove(at);
                self.tape.pass = Pass::Recompute;
                self.forward_ops(variant, &ops, values, (self.gather_again(), false), &mut vec![]);
                self.tape.pass = Pass::Backward;
            }
        }
    }

    /// What forward kept of a tensor.
    fn found(&mut self, tensor: Tensor, bytes: u64, keep: Keep) -> Option<Value> {
        match keep {
            Keep::Remat => None,
            // The copy for this block was begun when the block after it began.
            Keep::Offload => Some(self.fetch_from_host(bytes, self.began.clone())),
            Keep::Device if matches!(self.whose(), Whose::Block(_)) => Some(self.stack(tensor, bytes)),
            Keep::Device => {
                let stack = self.stack(tensor, bytes);
                let value = self.tape.value("kept", bytes, Category::Activation);
                let work = Self::memory(MemoryKind::Copy, bytes, bytes);
                self.tape.kernel("dynamic_slice", work, &[stack], &[value]);
                Some(value)
            }
        }
    }

    /// Norms' gradients are summed over all chips with other tokens, while the step waits.
    pub(super) fn norm_gradients(&mut self, numbers: u64) {
        for (ranks, group) in [(self.job.mesh.shards(), self.groups.fsdp), self.replicas()] {
            if ranks > 1 {
                let comm = self.comm(Collective::AllReduce, group, HALF * numbers);
                let after = self.tape.now();
                let at = self.tape.exchange(comm, (&[], &[]), after);
                if !self.job.gpu().is_some_and(|flags| flags.latency_hiding) {
                    self.tape.join(at);
                }
            }
        }
    }

    fn op_backward(
        &mut self,
        (variant, op): (usize, &Op),
        values: &[Option<Value>],
        gradients: &mut [Option<Value>],
        held: &[(usize, Value)],
    ) {
        let Some(gradient) = gradients[op.output] else { return };
        let tensors = &self.variants[variant].block.tensors;
        let inputs: Vec<Named> = op.inputs.iter().map(|&at| tensors[at]).collect();
        let to = tensors[op.output];
        let needs: Vec<Value> = op.needs().into_iter().filter_map(|tensor| values[tensor]).collect();
        if op.kind == Kind::Add {
            // The gradient goes both ways as it is.
            for &input in &op.inputs {
                self.add(gradients, input, gradient);
            }
            return;
        }
        let outputs: Vec<Value> = inputs
            .iter()
            .map(|&input| self.tape.value("gradient", Self::bytes(input), Category::BackwardTemporary))
            .collect();
        let bytes = Self::bytes(inputs[0]);
        let mut reads: Vec<Value> = needs.iter().copied().chain([gradient]).collect();
        let gpu = self.job.gpu().is_some();
        match op.kind {
            Kind::Norm => {
                // Sums over the width first, then the gradient.
                let work = Self::memory(MemoryKind::NormBackward, 4 * bytes, bytes);
                self.tape.elementwise("rms_norm backward", work, &reads, &outputs);
            }
            Kind::Rope => {
                let (read, written) = if gpu { (bytes, bytes) } else { (3 * bytes, 2 * bytes) };
                let work = Self::memory(MemoryKind::Elementwise, read, written);
                self.tape.kernel("rotary backward", work, &reads, &outputs);
            }
            Kind::Gate => {
                // Besides the gradients it makes the product again, which only the weight gradient behind it reads. The gate's
                // own gradient comes last, in the place of what is not read any more; the others have places of their own.
                let mut outputs = outputs.clone();
                let late = self.late.take();
                // Of experts, what the mask's gradient asks for is multiplied again behind it, so all three weights are there.
                let Variant { block, kept, .. } = &self.variants[variant];
                reads.extend(held.iter().filter(|(index, _)| block.weights[*index].experts).map(|(_, value)| *value));
                reads.extend(self.gates_weight.take());
                // Biases are added where the sums are read.
                reads.append(&mut self.bias_rows);
                // Where its inputs are kept, the weight gradient makes the product as it reads them.
                let found = op.inputs.iter().all(|input| kept.iter().any(|(tensor, _)| tensor == input));
                let again = (late.is_some() && !(found && self.reads_stacks(variant)))
                    .then(|| self.tape.value("gated", Self::bytes(to), Category::Recompute));
                outputs.extend(again);
                let moved = (inputs.len() as u64 + 1) * bytes;
                let work = Self::memory(MemoryKind::Elementwise, moved, moved);
                self.tape.elementwise("gate backward", work, &reads, &outputs);
                if let Some(Late { size, tokens, among, mut reads }) = late {
                    reads.extend(again);
                    match self.job.spread_of_sorted() {
                        Some(_) => self.late_experts.push(Late { size, tokens, among, reads }),
                        None => {
                            self.linear = true;
                            self.weight_gradient(size, tokens, among, &reads);
                            self.linear = false;
                        }
                    }
                }
            }
            Kind::Attention(shape) => self.attend_backward(shape, (&needs, gradient), &outputs),
            Kind::Linear(index) => {
                let block = &self.variants[variant].block;
                let gated = block.ops.iter().any(|other| other.kind == Kind::Gate && other.output == op.inputs[0]);
                let after = After { sum: block.first_reader(op), gated, late: gated && needs.is_empty() };
                self.linear_backward((variant, index), (&needs, gradient), (inputs[0], outputs[0], after), held);
                let weight = self.variants[variant].block.weights[index];
                self.bias_rows_backward(&weight, (gradient, Self::bytes(to)));
                self.add_up_rows((variant, index), (gradients[op.inputs[0]], outputs[0]), bytes);
            }
            Kind::Masks => {
                self.masks_gradient();
                let work = Self::memory(MemoryKind::Elementwise, Self::bytes(to), bytes);
                self.scatter_scores_backward();
                self.tape.kernel("masks backward", work, &reads, &outputs);
            }
            // The mask of zeros and ones has no gradient.
            Kind::Dispatch(places) => {
                let size = (inputs[0].rows, inputs[0].width, places, MatmulLayout::Forward);
                self.matmul(size, &Gathered::Own, (&reads, &outputs[..1]));
                self.sum_experts(outputs[0], bytes);
            }
            Kind::Combine(places) => {
                let size = (inputs[0].rows, inputs[0].width, self.job.seq, MatmulLayout::Forward);
                self.matmul(size, &Gathered::Own, (&reads, &outputs[..1]));
                self.late_masks = Some(LateMasks { size: (to.rows, places, to.width), reads, gradient: outputs[1] });
            }
            Kind::Send => self.send(gradient, outputs[0], Self::bytes(to)),
            Kind::Exchange => {
                // The results that went home again are read by an exchange that is beside experts' backward.
                self.going_home.extend(values[op.inputs[0]].filter(|_| to.rows < inputs[0].rows));
                self.exchange_copies((gradient, Self::bytes(to)), (outputs[0], bytes));
            }
            Kind::Arrange => {
                self.experts_gradients();
                self.tape.kernel("arrange", Self::memory(MemoryKind::Gather, bytes, bytes), &reads, &outputs);
            }
            Kind::AllTokens => self.over_experts(Collective::ReduceScatter, (gradient, outputs[0]), Self::bytes(to)),
            Kind::OwnTokens => self.over_experts(Collective::AllGather, (gradient, outputs[0]), bytes),
            // Copies' gradients in the order of tokens, added up (`use_custom_sort_vjp`); the choice has none.
            Kind::Sort => {
                self.experts_gradients();
                let rows = Self::bytes(to);
                let back = self.tape.value("unsorted", rows, Category::BackwardTemporary);
                self.tape.kernel("unsort", Self::memory(MemoryKind::Gather, rows, rows), &reads, &[back]);
                let work = Self::memory(MemoryKind::Elementwise, rows, bytes);
                self.tape.kernel("sum of copies", work, &[back], &outputs[..1]);
            }
            // Each copy's gradient is its token's by its weight, and the weight's the product with its result.
            Kind::Unsort => {
                self.tape.kernel("sort", Self::memory(MemoryKind::Gather, bytes, bytes), &reads, &outputs[..1]);
                let work = Self::memory(MemoryKind::Norm, 2 * bytes, 0);
                self.tape.kernel("weights backward", work, &reads, &outputs[1..]);
            }
            Kind::Repeat => {
                let work = Self::memory(MemoryKind::Elementwise, Self::bytes(to), bytes);
                self.tape.kernel("repeat_kv backward", work, &reads, &outputs);
            }
            Kind::Add => {}
        }
        let passed = if matches!(op.kind, Kind::Dispatch(_) | Kind::Sort) { 1 } else { outputs.len() };
        for (&input, output) in op.inputs.iter().zip(outputs).take(passed) {
            self.add(gradients, input, output);
        }
    }

    fn linear_backward(
        &mut self,
        (variant, index): (usize, usize),
        (needs, gradient): (&[Value], Value),
        (input, output, after): (Named, Value, After),
        held: &[(usize, Value)],
    ) {
        let weight = self.variants[variant].block.weights[index];
        let (numbers, among) = (weight.numbers(), self.among(&weight));
        let gathered = match held.iter().find(|(known, _)| *known == index) {
            Some(_) if self.room.blocks > Blocks::Ample => {
                let after = self.tape.now();
                self.gather(numbers, among, self.gather_again(), after)
            }
            Some((_, value)) => Gathered::Whole(*value),
            None if self.job.gpu().is_some() => self.fetch((self.layer, index)),
            None => {
                // Used once: as in forward.
                let how = match self.job.flags.gather_backward {
                    Overlap::None => self.job.flags.gather_forward,
                    how => how,
                };
                let how = self.settle(how, input.rows / weight.copies, among);
                let after = self.tape.now();
                self.gather_weight(index, numbers, (among, how), after)
            }
        };
        let rows = self.rows_of(&weight, input.rows);
        let size = (rows, weight.inputs, weight.outputs, MatmulLayout::DataGradient);
        self.linear = true;
        let before = self.tape.now();
        let mut reads: Vec<Value> = needs.iter().copied().chain([gradient]).collect();
        let bytes = HALF * input.rows * weight.outputs;
        let coming = match weight.row_parallel {
            true => self.gather_parts(bytes, &[gradient], Category::BackwardTemporary),
            false => None,
        };
        // One matmul makes the gradient of a gate's product and what follows from it, unless it waits for windows.
        let gpu = self.job.gpu().is_some();
        let fused = after.gated && !gpu && !matches!(gathered, Gathered::Windowed(..));
        let made = if fused { vec![] } else { vec![output] };
        if after.gated && !fused && !gpu {
            // Then the last matmul that ran again makes the gate's gradients, and its weight is still there.
            let block = &self.variants[variant].block;
            let gate = block.ops.iter().find(|op| op.kind == Kind::Gate);
            let makes = |index: usize| {
                let op = block.ops.iter().find(|op| op.kind == Kind::Linear(index));
                op.zip(gate).is_some_and(|(op, gate)| gate.inputs.contains(&op.output))
            };
            self.gates_weight = held.iter().rev().find(|(index, _)| makes(*index)).map(|(_, weight)| *weight);
        }
        let beside: Vec<Value> = match weight.experts {
            true => [gradient].into_iter().chain(self.going_home.iter().copied()).collect(),
            false => vec![gradient],
        };
        self.matmul(size, &gathered, (&beside, &made));
        if let Some((value, at)) = coming {
            self.tape.join(at);
            reads.push(value);
        }
        // Gradients of one input are added up on the chip, and over the tensor axis once.
        // The router's weight is whole on each of them.
        if !weight.row_parallel && weight.name != ROUTER && after.sum {
            self.sum_parts(HALF * input.rows * weight.inputs, output, before);
        }
        self.zero_rows(&weight, Self::bytes(input));
        let (size, tokens) = ((weight.inputs * weight.copies, weight.outputs), rows / weight.copies);
        let waits = weight.experts && self.job.spread_of_sorted().is_some();
        if after.late {
            self.late = Some(Late { size, tokens, among, reads });
        } else if waits {
            self.late_experts.push(Late { size, tokens, among, reads });
        } else {
            self.weight_gradient(size, tokens, among, &reads);
        }
        self.linear = false;
    }

    /// Gradients of sorted experts' weights over an expert axis: the compiler makes them when all gradients of rows are there, so that what they
    /// read lies beside those (MaxText 0.2.5 under libtpu 0.0.51, `tests/oracles/xla-dropless.json`).
    fn experts_gradients(&mut self) {
        // Nothing to wait for: results that go back.
        if self.late_experts.len() < self.experts_weights() {
            return;
        }
        self.going_home.clear();
        for Late { size, tokens, among, reads } in std::mem::take(&mut self.late_experts) {
            self.linear = true;
            self.weight_gradient(size, tokens, among, &reads);
            self.linear = false;
        }
    }

    /// How many weights each expert of the block that is being written has.
    fn experts_weights(&self) -> usize {
        let block = &self.variants[self.variant_of[self.layer]].block;
        block.weights.iter().filter(|weight| weight.experts).count()
    }

    /// The gradient of the weights in a mask: nothing but the mask's own backward asks for it, and it is as large as the mask, so the
    /// compiler makes it when experts' backward is over.
    fn masks_gradient(&mut self) {
        if let Some(LateMasks { size: (m, n, k), reads, gradient }) = self.late_masks.take() {
            self.matmul((m, n, k, MatmulLayout::Forward), &Gathered::Own, (&reads, &[gradient]));
        }
    }

    /// A tensor's gradient: the first to arrive, or the sum, which the kernel that makes the second takes in.
    fn add(&mut self, gradients: &mut [Option<Value>], tensor: Tensor, gradient: Value) {
        gradients[tensor] = Some(gradient);
    }
}
