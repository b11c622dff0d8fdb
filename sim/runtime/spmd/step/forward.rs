//! The embedding, and forward of the blocks.

use std::ops::Range;

use super::shards::Gathered;
use super::state::{FULL, HALF, Step, Variant, Whose};
use crate::plan::xla::flags::Overlap;
use crate::plan::xla::{Keep, Policy};
use crate::program::{Category, Collective, MatmulLayout, MemoryKind};
use crate::runtime::spmd::block::{Kind, Tensor};
use crate::runtime::spmd::tape::{At, KEPT, Value};

impl Step<'_> {
    /// Looks tokens up in the table.
    pub(super) fn embed(&mut self) -> Value {
        self.tape.scope = self.scopes.embedding;
        let (width, tokens) = (self.job.model.width, self.tokens());
        let tensor = u64::from(self.job.mesh.tensor);
        let table = self.job.model.vocab * width / tensor;
        let bytes = self.activation();
        if self.cuts_words() {
            let output = self.tape.value("embedded", bytes, Category::Activation);
            self.look_up(output);
            return output;
        }
        let own = table.div_ceil(u64::from(self.job.mesh.shards()));
        let element = self.looked_up();
        let copied = if self.job.torch.is_some() { 0 } else { element * own };
        let cast = self.tape.value("embedding in bf16", copied, Category::AllGatherInput);
        if copied > 0 {
            let work = Self::memory(MemoryKind::Elementwise, self.full() * own, copied);
            self.tape.kernel("convert", work, &[], &[cast]);
        }
        let output = self.tape.value("embedded", bytes, Category::Activation);
        if self.job.iota_embed {
            let after = self.tape.now();
            let how = self.settle(self.job.flags.gather_forward, tokens, self.all());
            let weight = self.gather(table, self.all(), how, after);
            let vocab = self.job.model.vocab / tensor;
            let before = self.tape.now();
            let words = self.one_hot_words(vocab);
            let reads: Vec<Value> = words.into_iter().chain([cast]).collect();
            self.matmul((tokens, width, vocab, MatmulLayout::Forward), &weight, (&reads, &[output]));
            self.sum_parts(HALF * width * tokens, output, before);
        } else if self.gathers_table() {
            let whole = self.tape.value("embedding", element * table, Category::UnshardedParameter);
            let comm = self.comm(Collective::AllGather, self.groups.fsdp, element * table);
            let after = self.tape.now();
            self.tape.exchange(comm, (&[cast], &[whole]), after);
            self.tape.kernel("gather", Self::memory(MemoryKind::Gather, bytes, bytes), &[whole], &[output]);
            let after = self.tape.now();
            self.sum_parts(HALF * width * tokens, output, after);
        } else {
            // Each chip looks all tokens up in its columns; then tokens and columns change places.
            let columns = self.tape.value("looked up", bytes, Category::Activation);
            // The compiler sorts all words at once, for the rows of the gradient to be added up in that order.
            let all = tokens * u64::from(self.job.mesh.shards());
            let sorted = self.tape.value("sorted words", 2 * FULL * all, Category::Buffer);
            self.sorted_words = Some(sorted);
            let work = Self::memory(MemoryKind::Gather, bytes, bytes);
            self.tape.kernel("gather", work, &[cast], &[columns, sorted]);
            // Words of other chips' parts of the table are zero.
            let after = self.tape.now();
            self.sum_parts(HALF * width * tokens, columns, after);
            if self.job.mesh.shards() > 1 {
                let comm = self.comm(Collective::AllToAll, self.groups.fsdp, bytes);
                let swapped = self.tape.value("looked up", bytes, Category::Activation);
                let after = self.tape.now();
                self.tape.exchange(comm, (&[columns], &[swapped]), after);
                self.tape.kernel("transpose", Self::memory(MemoryKind::Copy, bytes, bytes), &[swapped], &[output]);
            } else {
                self.tape.kernel("copy", Self::memory(MemoryKind::Copy, bytes, bytes), &[columns], &[output]);
            }
        }
        output
    }

    /// Runs some blocks. What backward will find is stored as it is made.
    pub(super) fn blocks(&mut self, layers: Range<usize>, mut input: Value) -> Value {
        for layer in layers {
            self.layer = layer;
            self.tape.scope = self.scopes.layers[layer];
            let variant = self.variant_of[layer];
            let ops: Vec<usize> = (0..self.variants[variant].block.ops.len()).collect();
            let mut values = vec![None; self.variants[variant].block.tensors.len()];
            values[0] = Some(input);
            if self.begins_turn(layer) {
                self.keep(variant, 0, input);
            }
            self.forward_ops(variant, &ops, &mut values, (self.job.flags.gather_forward, true), &mut vec![]);
            let last = values.len() - 1;
            input = values[last].unwrap_or(input);
        }
        input
    }

    /// Whether a layer is the first of a turn of the scan, whose input is kept.
    pub(super) fn begins_turn(&self, layer: usize) -> bool {
        self.staged.is_some() || self.turns.iter().any(|turn| turn.start == layer)
    }

    /// Rows of zeros and a one that an embedding by a matmul reads, and its backward again. On TPUs the matmuls make them.
    pub(super) fn one_hot_words(&mut self, vocab: u64) -> Option<Value> {
        self.job.gpu()?;
        if let Some(words) = self.sorted_words.take() {
            return Some(words);
        }
        let bytes = HALF * vocab * self.tokens();
        let words = self.tape.value("one-hot words", bytes, Category::Buffer);
        self.tape.kernel("one_hot", Self::memory(MemoryKind::Elementwise, 0, bytes), &[], &[words]);
        self.sorted_words = Some(words);
        Some(words)
    }

    /// This chip's shards of all blocks' weights, in bf16, before the loops. GPUs cast a weight where it is used, and so do blocks
    /// that are written out.
    pub(super) fn cast_weights(&mut self) {
        // Weights that are in bf16 are read where they lie; a loop over micro-batches casts once.
        let used = self.job.gpu().is_some() || !self.job.scan;
        if used || self.job.half_weights || self.shards.is_some() {
            return;
        }
        let block = |(layer, &variant): (usize, &usize)| {
            let weights = &self.variants[variant].block.weights;
            self.times(layer) * weights.iter().map(|weight| self.own(weight)).sum::<u64>()
        };
        let numbers: u64 = self.variant_of.iter().enumerate().map(block).sum();
        let value = self.tape.value("weights in bf16", HALF * numbers, Category::AllGatherInput);
        let work = Self::memory(MemoryKind::Elementwise, FULL * numbers, HALF * numbers);
        self.tape.kernel("convert", work, &[], &[value]);
        self.shards = Some(value);
    }

    /// Stores a tensor of forward where backward will look for it.
    fn keep(&mut self, variant: usize, tensor: Tensor, value: Value) {
        let kept = &self.variants[variant].kept;
        let Some(&(_, keep)) = kept.iter().find(|(kept, _)| *kept == tensor) else { return };
        let bytes = Self::bytes(self.variants[variant].block.tensors[tensor]);
        match keep {
            Keep::Remat => {}
            Keep::Offload => self.send_to_host(value, bytes),
            Keep::Device if matches!(self.whose(), Whose::Block(_)) => {
                self.stacks.push(((self.whose(), tensor), value))
            }
            Keep::Device => {
                let stack = self.stack(tensor, bytes);
                // The slice is written by the kernel that makes it, where that is no matmul.
                let work = Self::memory(MemoryKind::Copy, bytes, bytes);
                self.tape.kernel("dynamic_update_slice", work, &[value], &[stack]);
            }
        }
    }

    /// Stores what an operator keeps besides tensors, where nothing is computed again.
    fn keep_more(&mut self, variant: usize, op: usize, output: Value) {
        if let Some((place, bytes)) = self.more(variant, op) {
            let stack = self.stack(place, bytes);
            let work = Self::memory(MemoryKind::Copy, 0, bytes);
            self.tape.kernel("dynamic_update_slice", work, &[output], &[stack]);
        }
    }

    /// Whether an operator's result takes no memory: single matmuls with weights make it as they read it, and nothing keeps it.
    fn made_as_read(&self, variant: usize, op: usize) -> bool {
        let Variant { block, kept, .. } = &self.variants[variant];
        let output = block.ops[op].output;
        let kept = kept.iter().any(|(tensor, _)| *tensor == output) || self.more(variant, op).is_some();
        let mut readers = block.ops.iter().filter(|other| other.inputs.contains(&output));
        let multiplied = readers.all(|other| matches!(other.kind, Kind::Linear(_)));
        let exchanged = self.job.activation_embed && self.job.mesh.tensor > 1;
        !kept && multiplied && !exchanged && !self.job.in_memory(self.staged.is_some())
    }

    /// Where that is among the stacks, behind the tensors, and its bytes.
    pub(super) fn more(&self, variant: usize, op: usize) -> Option<(usize, u64)> {
        let block = &self.variants[variant].block;
        let bytes = block.also_keeps(op, self.job);
        (self.job.remat == Policy::None && bytes > 0).then_some((block.tensors.len() + op, bytes))
    }

    /// Whose is what the block being written keeps.
    pub(super) fn whose(&self) -> Whose {
        match (self.staged.is_some(), self.job.scan) {
            (true, _) => Whose::Iterations,
            (false, true) => Whose::Blocks,
            (false, false) => Whose::Block(self.layer),
        }
    }

    /// All values of a tensor that one buffer keeps.
    pub(super) fn stack(&mut self, tensor: Tensor, bytes: u64) -> Value {
        let place = (self.whose(), tensor);
        if let Some((_, stack)) = self.stacks.iter().find(|(known, _)| *known == place) {
            return *stack;
        }
        let blocks = match place.0 {
            Whose::Block(_) => 1,
            Whose::Blocks if tensor == 0 => self.turns.len() as u64,
            Whose::Blocks | Whose::Iterations => self.runs(),
        };
        let stack = self.tape.value(KEPT, blocks * bytes, Category::Activation);
        self.stacks.push((place, stack));
        stack
    }

    /// Runs operators of a block's forward; in backward those that run again, whose weights stay gathered.
    pub(super) fn forward_ops(
        &mut self,
        variant: usize,
        ops: &[usize],
        values: &mut [Option<Value>],
        (how, keeps): (Overlap, bool),
        held: &mut Vec<(usize, Value)>,
    ) {
        let block = self.variants[variant].block.clone();
        let category = if keeps { Category::Activation } else { Category::Recompute };
        let linears: Vec<usize> =
            ops.iter().copied().filter(|&op| matches!(block.ops[op].kind, Kind::Linear(_))).collect();
        let mut ahead: Option<(usize, Gathered)> = None;
        let gpu = self.job.gpu().is_some();
        // What a kernel of its own reads and writes, which on TPUs is part of another.
        let apart = gpu || how == Overlap::Windowed;
        // Inputs of which all chips of the tensor axis have been asked for their part.
        let mut whole: Vec<(Tensor, Value)> = vec![];
        for &at in ops {
            let op = &block.ops[at];
            if op.kind == Kind::Gate && !keeps {
                // Not a kernel again: what reads the product makes it, and its backward does for the weight gradient.
                continue;
            }
            let output = self.tape.value(name(op.kind), Self::bytes(block.tensors[op.output]), category);
            let read = |tensor: Tensor| values[tensor];
            let reads: Vec<Value> = op.inputs.iter().filter_map(|&tensor| read(tensor)).collect();
            let of = |tensor: usize| Self::bytes(block.tensors[tensor]);
            match op.kind {
                Kind::Norm => {
                    let bytes = of(op.inputs[0]);
                    // Read for the mean square; scaling is part of the matmuls that take the result.
                    let work = Self::memory(MemoryKind::Norm, bytes, if gpu { bytes } else { 0 });
                    if let (true, Some(input)) = (self.made_as_read(variant, at), read(op.inputs[0])) {
                        self.tape.kernel("rms_norm", work, &reads, &[]);
                        values[op.output] = Some(input);
                        continue;
                    }
                    self.tape.kernel("rms_norm", work, &reads, &[output]);
                }
                Kind::Rope => {
                    let bytes = of(op.output);
                    // Halves are taken in fp32 and put together in bf16.
                    let (read, written) = if gpu { (bytes, bytes) } else { (3 * bytes, 2 * bytes) };
                    let work = Self::memory(MemoryKind::Elementwise, read, written);
                    self.tape.kernel("rotary", work, &reads, &[output]);
                }
                Kind::Repeat => {
                    let work = Self::memory(MemoryKind::Copy, of(op.inputs[0]), of(op.output));
                    self.tape.kernel("repeat_kv", work, &reads, &[output]);
                }
                Kind::Add => {
                    // Part of the matmul before it, where that is one; on GPUs of the norm behind it, which reads and writes a sum more.
                    let bytes = if apart { of(op.output) } else { 0 };
                    let work = Self::memory(MemoryKind::Elementwise, if gpu { bytes } else { 2 * bytes }, bytes);
                    self.tape.elementwise("add", work, &reads, &[output]);
                }
                Kind::Gate => {
                    // Part of the matmul behind it.
                    let bytes = if apart { of(op.output) } else { 0 };
                    let factors = if gpu { reads.len() as u64 } else { 2 };
                    let work = Self::memory(MemoryKind::Elementwise, factors * bytes, bytes);
                    self.tape.elementwise("gate", work, &reads, &[output]);
                }
                Kind::Masks => {
                    // Places are counted up over the sequence; one mask of zeros and ones, one of weights.
                    let bytes = of(op.output);
                    let work = Self::memory(MemoryKind::Elementwise, bytes, 2 * bytes);
                    self.tape.kernel("masks", work, &reads, &[output]);
                    self.scatter_scores();
                }
                Kind::Dispatch(_) => {
                    let to = block.tensors[op.output];
                    let size = (to.rows, to.width, self.job.seq, MatmulLayout::Forward);
                    self.matmul(size, &Gathered::Own, (&reads, &[output]));
                }
                Kind::Combine(places) => {
                    let to = block.tensors[op.output];
                    let size = (to.rows, to.width, places, MatmulLayout::Forward);
                    self.matmul(size, &Gathered::Own, (&reads, &[output]));
                    self.sum_experts(output, of(op.output));
                }
                Kind::Send => reads.iter().for_each(|&value| self.send(value, output, of(op.output))),
                Kind::Sort => {
                    let bytes = of(op.output);
                    self.tape.kernel("sort", Self::memory(MemoryKind::Gather, bytes, bytes), &reads, &[output]);
                    self.count_copies();
                }
                Kind::Exchange => self.exchange_copies((reads[0], of(op.inputs[0])), (output, of(op.output))),
                Kind::Arrange => {
                    let bytes = of(op.output);
                    self.tape.kernel("arrange", Self::memory(MemoryKind::Gather, bytes, bytes), &reads, &[output]);
                }
                Kind::AllTokens => self.over_experts(Collective::AllGather, (reads[0], output), of(op.output)),
                Kind::OwnTokens => self.over_experts(Collective::ReduceScatter, (reads[0], output), of(op.inputs[0])),
                Kind::Unsort => {
                    // Rows in the order of tokens, then their weighted sums.
                    let (rows, sums) = (of(op.inputs[0]), of(op.output));
                    let back = self.tape.value("unsorted", rows, category);
                    self.tape.kernel("unsort", Self::memory(MemoryKind::Gather, rows, rows), &reads, &[back]);
                    let work = Self::memory(MemoryKind::Elementwise, rows, sums);
                    self.tape.kernel("weighted sum", work, &[back], &[output]);
                }
                Kind::Attention(shape) => self.attend(shape, &reads, output, category),
                Kind::Linear(index) => {
                    let weight = block.weights[index];
                    let (numbers, among) = (weight.numbers(), self.among(&weight));
                    let now = self.tape.now();
                    let how = self.settle(how, block.tensors[op.output].rows / weight.copies, among);
                    let gathered = match ahead.take() {
                        _ if gpu => self.fetch((self.layer, index)),
                        Some((known, gathered)) if known == index => gathered,
                        // A product whose parts are summed over the tensor axis is not cut into windows.
                        _ if weight.row_parallel && self.job.mesh.tensor > 1 && how == Overlap::Windowed => {
                            self.gather(numbers, among, Overlap::None, now.clone())
                        }
                        _ => self.gather_weight(index, numbers, (among, how), now.clone()),
                    };
                    if how == Overlap::Asynchronous && !gpu {
                        let next =
                            linears.iter().position(|&linear| linear == at).and_then(|place| linears.get(place + 1));
                        if let Some(&next) = next
                            && let Kind::Linear(next) = block.ops[next].kind
                        {
                            let weight = block.weights[next];
                            ahead = Some((next, self.gather(weight.numbers(), self.among(&weight), how, now)));
                        }
                    }
                    if let (Gathered::Whole(value), false) = (&gathered, keeps) {
                        held.push((index, *value));
                    }
                    let rows = block.tensors[op.output].rows;
                    let size = (self.rows_of(&weight, rows), weight.outputs, weight.inputs, MatmulLayout::Forward);
                    self.linear = true;
                    if weight.row_parallel {
                        let before = self.tape.now();
                        self.matmul(size, &gathered, (&reads, &[output]));
                        self.sum_parts(HALF * rows * weight.outputs, output, before);
                    } else {
                        let known = whole.iter().find(|(tensor, _)| *tensor == op.inputs[0]).map(|(_, value)| *value);
                        let coming = match known {
                            Some(_) => None,
                            None => self.gather_parts(HALF * rows * weight.inputs, &reads, category),
                        };
                        let reads: Vec<Value> = reads.iter().copied().chain(known).collect();
                        self.matmul(size, &gathered, (&reads, &[output]));
                        if let Some((value, at)) = coming {
                            self.tape.join(at);
                            whole.push((op.inputs[0], value));
                        }
                    }
                    self.linear = false;
                    self.zero_rows(&weight, of(op.output));
                    self.rows_of_biases(&weight, of(op.output), keeps);
                }
            }
            values[op.output] = Some(output);
            if keeps {
                self.keep(variant, op.output, output);
                self.keep_more(variant, at, output);
            }
        }
    }

    /// Adds up parts of a sum over the tensor axis, while the step waits; where the sum lies on that axis, each chip keeps its
    /// part, in windows beside the matmul that makes it, which began when `before` was over.
    pub(super) fn sum_parts(&mut self, bytes: u64, value: Value, before: Vec<At>) {
        if self.job.mesh.tensor < 2 {
            return;
        }
        let windows = self.job.activation_embed && self.job.flags.windows;
        let (after, reads) = if windows { (before, vec![]) } else { (self.tape.now(), vec![value]) };
        let kind = if self.job.activation_embed { Collective::ReduceScatter } else { Collective::AllReduce };
        let comm = self.comm(kind, self.groups.tensor, bytes);
        let at = self.tape.exchange(comm, (&reads, &[]), after);
        self.tape.join(at);
    }

    /// All parts of what lies on the tensor axis: in windows beside the matmul that comes, or before it.
    pub(super) fn gather_parts(&mut self, bytes: u64, reads: &[Value], category: Category) -> Option<(Value, At)> {
        if self.job.mesh.tensor < 2 || !self.job.activation_embed {
            return None;
        }
        let value = self.tape.value("all parts", bytes, category);
        let comm = self.comm(Collective::AllGather, self.groups.tensor, bytes);
        let after = self.tape.now();
        let at = self.tape.exchange(comm, (reads, &[value]), after);
        if !self.job.flags.windows {
            self.tape.join(at);
        }
        Some((value, at))
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Norm => "normed",
        Kind::Linear(_) => "projected",
        Kind::Rope => "rotated",
        Kind::Repeat => "repeated",
        Kind::Attention(_) => "attended",
        Kind::Add => "residual",
        Kind::Gate => "gated",
        Kind::Masks => "masks",
        Kind::Dispatch(_) => "dispatched",
        Kind::Combine(_) => "combined",
        Kind::Send => "sent",
        Kind::Sort => "sorted",
        Kind::Unsort => "unsorted",
        Kind::Exchange => "exchanged",
        Kind::Arrange => "arranged",
        Kind::AllTokens => "all tokens",
        Kind::OwnTokens => "own tokens",
    }
}
