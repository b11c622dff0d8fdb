//! The loop of a pipeline and the loop back: what stages send on, and what each iteration takes up and puts away
//! (`layers/pipeline.py`: `get_iteration_inputs`, `get_new_loop_state`).

use super::state::{HALF, Step};
use crate::plan::xla::Pipeline;
use crate::program::{Category, Collective, GroupId, MemoryKind};
use crate::runtime::spmd::tape::Value;

/// What is carried through a loop.
struct Carried {
    /// Inputs of the stages, in whose places results come, or gradients of these.
    io: Value,
    /// What comes from the stage before, or its gradient.
    shift: Value,
    /// What comes an iteration later, with a delay.
    before: Value,
    /// What the last stage made, until the first takes it up: what is on its way there, and what is there.
    stored: Option<(Value, Value)>,
}

impl Step<'_> {
    /// Goes into the pipeline's loop, or out of it: what is run at a time is another.
    fn enter(&mut self, pipeline: Option<Pipeline>) {
        self.staged = pipeline;
        self.hoisted.clear();
        if let Some(other) = self.other {
            self.other = Some(std::mem::replace(&mut self.job, other));
        }
    }

    /// From all inputs to all results.
    pub(super) fn pipeline(&mut self, pipeline: Pipeline, input: Value) -> Value {
        self.tape.scope = self.scopes.layers[0];
        let input = self.take_turns(pipeline, input);
        self.gather_once(pipeline);
        self.enter(Some(pipeline));
        let part = self.activation();
        let mut carried = self.carried(pipeline, input);
        for _ in 0..pipeline.iterations() {
            self.tape.scope = self.scopes.layers[0];
            let chosen = self.tape.value("iteration input", part, Category::Activation);
            let reads: Vec<Value> =
                [carried.io, carried.shift].into_iter().chain(carried.stored.map(|(_, all)| all)).collect();
            let read = part * reads.len() as u64;
            self.tape.elementwise("select", Self::memory(MemoryKind::Elementwise, read, part), &reads, &[chosen]);
            // Neither of these waits for the stage.
            let back = self.permute(carried.io, part);
            let moved = carried.stored.map(|(moving, _)| self.permute(moving, part));
            let early = pipeline.delay.then(|| self.permute(carried.before, part));
            let output = self.blocks(self.stage_blocks(), chosen);
            carried.shift = early.unwrap_or_else(|| self.permute(output, part));
            carried.before = output;
            self.put_away(carried.io, &[back, output], part);
            if let (Some((moving, all)), Some(moved)) = (&mut carried.stored, moved) {
                let all = *all;
                *moving = output;
                self.put_away(all, &[moved], part);
            }
        }
        self.enter(None);
        self.take_turns(pipeline, carried.io)
    }

    /// From the gradient of all results to that of all inputs.
    pub(super) fn pipeline_backward(&mut self, pipeline: Pipeline, gradient: Value) -> Value {
        self.tape.scope = self.scopes.layers[0];
        let gradient = self.take_turns(pipeline, gradient);
        self.enter(Some(pipeline));
        let part = self.activation();
        let blocks = self.stage_blocks();
        let numbers = self.gradients_of(blocks.clone());
        let mut carried = self.carried(pipeline, gradient);
        for _ in 0..pipeline.iterations() {
            self.tape.scope = self.scopes.layers[0];
            let made = self.tape.value("gradient", part, Category::BackwardTemporary);
            let sent = match pipeline.delay {
                true => carried.before,
                false => self.permute(carried.shift, part),
            };
            let moving = carried.stored.map(|(moving, _)| moving);
            let reads: Vec<Value> = [carried.io, sent].into_iter().chain(moving).collect();
            let read = part * reads.len() as u64;
            self.tape.elementwise("select", Self::memory(MemoryKind::Elementwise, read, part), &reads, &[made]);
            let back = self.permute(carried.io, part);
            let early = pipeline.delay.then(|| self.permute(carried.shift, part));
            let moved = carried.stored.map(|(_, all)| self.permute(all, part));
            let chosen = self.blocks_backward(blocks.clone(), made);
            carried.shift = chosen;
            if let Some(early) = early {
                carried.before = early;
            }
            self.put_away(carried.io, &[back, chosen], part);
            if let (Some((moving, all)), Some(moved)) = (&mut carried.stored, moved) {
                let all = *all;
                *moving = moved;
                self.put_away(all, &[chosen], part);
            }
        }
        let norms: u64 = blocks.map(|at| self.times(at) * self.variants[self.variant_of[at]].block.norms).sum();
        self.norm_gradients(norms);
        self.reduce(numbers);
        self.enter(None);
        self.take_turns(pipeline, carried.io)
    }

    /// Zeros around what goes in.
    fn carried(&mut self, pipeline: Pipeline, io: Value) -> Carried {
        let part = self.activation();
        let shift = self.zeros(part);
        let before = if pipeline.delay { self.zeros(part) } else { shift };
        let stored = pipeline.stores().then(|| (self.zeros(part), self.zeros(pipeline.micro_batches * part)));
        Carried { io, shift, before, stored }
    }

    fn zeros(&mut self, bytes: u64) -> Value {
        let value = self.tape.value("carried by the pipeline", bytes, Category::Activation);
        self.tape.kernel("broadcast", Self::memory(MemoryKind::Copy, 0, bytes), &[], &[value]);
        value
    }

    /// Writes a micro-batch's part where it belongs.
    fn put_away(&mut self, place: Value, parts: &[Value], bytes: u64) {
        let reads: Vec<Value> = parts.iter().copied().chain([place]).collect();
        let work = Self::memory(MemoryKind::Copy, bytes * parts.len() as u64, bytes);
        self.tape.kernel("dynamic_update_slice", work, &reads, &[place]);
    }

    /// Sends a micro-batch's part to the next stage beside what follows, up to who reads it.
    fn permute(&mut self, value: Value, bytes: u64) -> Value {
        let sent = self.tape.value("sent on", bytes, Category::Activation);
        let comm = self.comm(Collective::SendRecv, self.groups.stage, bytes);
        self.tape.send(comm, (&[value], &[sent]));
        sent
    }

    /// A chip's sequences are neighbours in the batch; of a micro-batch each chip has a part. Where a stage holds several,
    /// all its chips with other tokens change places: those of a slice, and then those in the same place of each slice.
    ///
    /// Compiled steps show it over `fsdp` and over `data`, each alone. Over both, and over slices, it is taken from where the
    /// sequences lie.
    fn take_turns(&mut self, pipeline: Pipeline, value: Value) -> Value {
        let mesh = self.job.mesh;
        let in_slice = if mesh.data > 1 { self.groups.data_fsdp } else { self.groups.fsdp };
        let all = [(mesh.data * mesh.shards(), in_slice), (mesh.dcn_data, self.groups.data)];
        let mut over = all.into_iter().filter(|&(chips, _)| pipeline.held() > 1 && chips > 1).peekable();
        if over.peek().is_none() {
            return value;
        }
        let bytes = self.activation();
        let laid = self.tape.value("micro-batches", bytes, Category::Activation);
        self.tape.kernel("transpose", Self::memory(MemoryKind::Copy, bytes, bytes), &[value], &[laid]);
        let mut placed = laid;
        for (_, group) in over {
            let swapped = self.tape.value("micro-batches", bytes, Category::Activation);
            let comm = self.comm(Collective::AllToAll, group, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&[placed], &[swapped]), after);
            self.tape.join(at);
            placed = swapped;
        }
        placed
    }

    /// All weights of a stage, whole, for the loop and the loop back.
    fn gather_once(&mut self, pipeline: Pipeline) {
        if !pipeline.gather_once || self.job.mesh.shards() < 2 {
            return;
        }
        let weights = |at: usize| {
            let (times, block) = (self.times(at), &self.variants[self.variant_of[at]].block);
            block.weights.iter().map(move |weight| HALF * times * weight.numbers())
        };
        let bytes: Vec<u64> = self.stage_blocks().flat_map(weights).collect();
        let whole = self.tape.value("gathered", bytes.iter().sum(), Category::UnshardedParameter);
        let reads: Vec<Value> = self.shards.into_iter().collect();
        for bytes in bytes {
            let comm = self.comm(Collective::AllGather, self.groups.fsdp, bytes);
            let after = self.tape.now();
            let at = self.tape.exchange(comm, (&reads, &[whole]), after);
            self.tape.join(at);
        }
        self.gathered = Some(whole);
    }

    /// What waits for the end of the loop back: gradients of weights that were gathered once, which are added up whole, and sums
    /// over replicas. Gradients are added up in fp32 and reduced in bf16.
    fn reduce(&mut self, numbers: u64) {
        let (once, (replicas, group)) = (self.gathered_once(), self.replicas());
        let Some(sum) = self.gradients.filter(|_| once || replicas > 1) else { return };
        let mut shard = self.tape.value("gradients", HALF * numbers, Category::UnshardedGradient);
        let work = Self::memory(MemoryKind::Elementwise, self.full() * numbers, HALF * numbers);
        self.tape.kernel("convert", work, &[sum], &[shard]);
        let shards = if once { u64::from(self.job.mesh.shards()) } else { 1 };
        let own = numbers.div_ceil(shards);
        if once {
            let slices = self.job.flags.all_reduce_and_slice;
            let kind = if slices { Collective::AllReduce } else { Collective::ReduceScatter };
            shard = self.reduced(kind, self.groups.fsdp, shard, (numbers, own));
        }
        if replicas > 1 {
            shard = self.reduced(Collective::AllReduce, group, shard, (own, own));
        }
        self.gradients = Some(shard);
    }

    /// Some of the numbers of a sum over a group, in bf16, for which the step waits.
    fn reduced(&mut self, kind: Collective, group: GroupId, value: Value, (of, left): (u64, u64)) -> Value {
        let shard = self.tape.value("blocks' gradients", HALF * left, Category::ShardedGradient);
        let comm = self.comm(kind, group, HALF * of);
        let at = self.tape.exchange(comm, (&[value], &[shard]), vec![]);
        self.tape.join(at);
        shard
    }
}
