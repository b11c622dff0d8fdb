//! Data parallelism: gradients reduced and parameters gathered, bucket by bucket (`core/distributed`, 0.16.1).
//!
//! Without overlap all buckets are reduced after the last backward, and gathered after the optimizer's step. With
//! `overlap_grad_reduce` a bucket is reduced as soon as the last micro-batch has made all its gradients; with
//! `overlap_param_gather` the forward's first use of a bucket waits for its gathering and starts the next one's.

use super::bf16_optimizer::{self, NarrowGradients};
use super::buckets::{self, Rules, Slot, Together};
use super::replicas::Replicas;
use crate::model::megatron::Fp8;
use crate::plan::megatron::{Engine, MegatronPlan};
use crate::program::{
    Builder, Category, Collective, Comm, DType, Dispatch, EventId, GroupId, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::main_gradients::Moment;
use crate::units::Bytes;

/// The buckets of one model chunk, and how far each is in this step.
#[derive(Debug)]
struct Chunk {
    buckets: Vec<Together>,
    states: Vec<State>,
    /// By parameter, counted from the chunk's first: its bucket.
    bucket_of: Vec<usize>,
    /// Whether all buckets are reduced, and gathered, as one operation: in all chunks but a rank's first
    /// (`force_single_bucket_group`).
    together: bool,
}

impl Chunk {
    /// The bucket under which a bucket's operations are issued.
    fn issued_as(&self, at: usize) -> usize {
        if self.together { self.buckets.len() - 1 } else { at }
    }

    /// Elements of an operation issued under a bucket: in fp8, and the rest.
    fn elements(&self, at: usize) -> [u64; 2] {
        if self.together { self.total() } else { self.buckets[at].elements() }
    }

    fn total(&self) -> [u64; 2] {
        let sizes = self.buckets.iter().map(Together::elements);
        sizes.fold([0; 2], |[a, b], [c, d]| [a + c, b + d])
    }

    /// Elements of its buffers: what is not fp8, then what is, if any.
    fn buffers(&self) -> Vec<u64> {
        let [fp8, plain] = self.total();
        if fp8 > 0 { vec![plain, fp8] } else { vec![plain] }
    }

    /// The buckets under which operations are issued.
    fn issued(&self) -> std::ops::Range<usize> {
        if self.together { self.buckets.len().saturating_sub(1)..self.buckets.len() } else { 0..self.buckets.len() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Gradients that the last micro-batch has yet to make.
    missing: usize,
    /// When its reduction has ended, once it has been issued.
    reduced: Option<EventId>,
    /// Whether its gathering has been issued in this step.
    gathering: bool,
    /// When that has ended, until somebody has waited for it.
    gathered: Option<EventId>,
}

/// All buckets of a rank.
#[derive(Debug)]
pub struct Data {
    chunks: Vec<Chunk>,
    /// By parameter: its chunk, and its place there.
    place: Vec<(usize, usize)>,
    group: GroupId,
    stream: StreamId,
    ranks: u64,
    dtype: DType,
    gradients: DType,
    narrow: NarrowGradients,
    distributed: bool,
    /// Whether parameters are gathered into the buffer of the gradients, and copied from there: see [`Fp8::gathers_wide`].
    lends: bool,
    /// Whether every replica gets all gradients, though it steps a part: DeepSpeed's first stage of ZeRO without contiguous
    /// gradients (`stage_1_and_2.py`, `average_tensor`).
    reduces_all: bool,
    overlap_reduce: bool,
    overlap_gather: bool,
    checks: bool,
    /// The chunk whose last micro-batch is in backward, if it is reduced meanwhile.
    reducing: Option<usize>,
}

impl Data {
    /// The buckets of a pipeline rank's chunks. Only the first chunk of the first rank is cut: elsewhere one bucket holds
    /// all, as its reduction has the pipeline's bubble to hide in (`distributed_data_parallel.py`, `disable_bucketing`).
    ///
    /// Parameters of experts that are spread over ranks have buckets of their own, reduced over fewer ranks.
    pub fn new(
        job: &MegatronPlan,
        first_rank: bool,
        experts: bool,
        chunks: &[Vec<Slot>],
        group: GroupId,
        stream: StreamId,
    ) -> Data {
        let over = if experts { job.split.mesh.expert_data() } else { job.split.mesh.data() };
        let ranks = u64::from(over.size);
        let (mut list, mut place) = (vec![], vec![]);
        for (index, slots) in chunks.iter().enumerate() {
            let bucket = (first_rank && index == 0).then_some(job.gradients.bucket).flatten();
            let buckets =
                buckets::group(slots, Rules { ranks, distributed: job.optimizer.distributed, bucket, experts });
            let mut bucket_of = vec![0; slots.len()];
            for (at, together) in buckets.iter().enumerate() {
                together.all().flat_map(|bucket| &bucket.params).for_each(|&param| bucket_of[param] = at);
            }
            place.extend((0..slots.len()).map(|param| (index, param)));
            let states = vec![State::default(); buckets.len()];
            list.push(Chunk { buckets, states, bucket_of, together: index > 0 });
        }
        Data {
            chunks: list,
            place,
            group,
            stream,
            ranks,
            dtype: job.split.dtype,
            gradients: job.gradients.dtype,
            narrow: NarrowGradients::of(job, experts, chunks),
            distributed: job.optimizer.distributed,
            lends: job.optimizer.distributed && job.split.matmuls.fp8().is_some_and(Fp8::gathers_wide),
            reduces_all: !job.optimizer.distributed || job.engine == Engine::DeepSpeed,
            overlap_reduce: job.gradients.overlap_reduce,
            overlap_gather: job.optimizer.overlap_gather && job.optimizer.distributed,
            checks: job.checks_for_nan,
            reducing: None,
        }
    }

    fn reduce(&mut self, program: &mut Builder, chunk: usize, at: usize) {
        let pass = program.set_pass(Pass::Backward);
        let elements: u64 = self.chunks[chunk].elements(at).iter().sum();
        let bytes = Bytes(elements * self.gradients.bytes());
        if self.checks {
            let work = Work::Memory { kind: MemoryKind::Foreach, read: bytes, written: Bytes(4) };
            program.launch(COMPUTE, "aten.linalg_vector_norm", work, Dispatch::EagerForward);
            read_back(program, "aten.isnan");
        }
        if self.narrow.are_held() {
            let comm = Comm { kind: Collective::AllReduce, group: self.group, bytes, dtype: self.dtype };
            bf16_optimizer::reduce(program, self.stream, comm, self.ranks);
        } else {
            let work = Work::Memory { kind: MemoryKind::Elementwise, read: bytes, written: bytes };
            program.launch(COMPUTE, "aten.mul_", work, Dispatch::EagerForward);
            program.wait_stream(self.stream, COMPUTE);
            if self.ranks > 1 {
                let kind = if self.reduces_all { Collective::AllReduce } else { Collective::ReduceScatter };
                program.collective(self.stream, Comm { kind, group: self.group, bytes, dtype: self.gradients });
            }
        }
        self.chunks[chunk].states[at].reduced = Some(program.record(self.stream));
        program.set_pass(pass);
    }

    fn gather(&mut self, program: &mut Builder, chunk: usize, at: usize) {
        // Coalesced: one call moves both types.
        let [fp8, plain] = self.chunks[chunk].elements(at);
        let narrow = if self.lends { self.dtype } else { DType::Fp8 };
        let dtype = if fp8 > 0 { narrow } else { self.dtype };
        let bytes = Bytes(fp8 * narrow.bytes() + plain * self.dtype.bytes());
        program.wait_stream(self.stream, COMPUTE);
        if self.ranks > 1 {
            let comm = Comm { kind: Collective::AllGather, group: self.group, bytes, dtype };
            program.collective(self.stream, comm);
        }
        let state = &mut self.chunks[chunk].states[at];
        state.gathering = true;
        state.gathered = Some(program.record(self.stream));
    }
}

impl Data {
    /// What was gathered into the buffer of the gradients goes into the parameters, and the buffer is emptied for gradients. Those in
    /// fp8 are quantised by the linears that have them.
    fn copied(&self, program: &mut Builder, chunk: usize, at: usize) {
        if !self.lends {
            return;
        }
        let [fp8, plain] = self.chunks[chunk].elements(at);
        for (name, read, written) in [("aten.copy_", plain, plain), ("aten.zero_", 0, fp8 + plain)] {
            let [read, written] = [read, written].map(|elements| Bytes(elements * self.dtype.bytes()));
            if written.0 > 0 {
                let work = Work::Memory { kind: MemoryKind::Copy, read, written };
                program.launch(COMPUTE, name, work, Dispatch::EagerForward);
            }
        }
    }
}

impl Replicas for Data {
    fn shards(&self, slots: &[Slot]) -> Vec<(usize, u64)> {
        let mut shards = vec![];
        let mut first = 0;
        for chunk in &self.chunks {
            for bucket in chunk.buckets.iter().flat_map(Together::all) {
                let mine = bucket.len() / self.ranks;
                let mut at = bucket.elements.start;
                for &param in &bucket.params {
                    if self.distributed {
                        at = at.next_multiple_of(64);
                    }
                    let size = slots[first + param].elements;
                    let part = if self.distributed {
                        (at + size).min(bucket.elements.start + mine).saturating_sub(at)
                    } else {
                        size
                    };
                    if part > 0 {
                        shards.push((first + param, part));
                    }
                    at += size;
                }
            }
            first += chunk.bucket_of.len();
        }
        shards
    }

    fn zero(&mut self, program: &mut Builder) {
        for chunk in &mut self.chunks {
            let count = |together: &Together| together.all().map(|bucket| bucket.params.len()).sum::<usize>();
            let all = chunk.buckets.iter().map(count).sum();
            for (state, together) in chunk.states.iter_mut().zip(&chunk.buckets) {
                let params = count(together);
                state.missing = if chunk.together { all } else { params };
                state.reduced = None;
            }
            for elements in chunk.buffers() {
                let written = Bytes(elements * self.gradients.bytes());
                let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written };
                program.launch(COMPUTE, "aten.zero_", work, Dispatch::EagerForward);
            }
        }
    }

    fn is_quiet(&self, chunk: usize) -> bool {
        let there = |state: &State| state.gathering && state.gathered.is_none();
        let chunk = self.chunks.get(chunk).filter(|_| self.overlap_gather);
        let mut issued = chunk.into_iter().flat_map(|chunk| chunk.issued().map(|at| &chunk.states[at]));
        self.reducing.is_none() && issued.all(there)
    }

    /// Waits for its gathering, and starts the next.
    fn needed(&mut self, program: &mut Builder, param: usize) {
        if !self.overlap_gather {
            return;
        }
        let (chunk, param) = self.place[param];
        let at = self.chunks[chunk].issued_as(self.chunks[chunk].bucket_of[param]);
        if !self.chunks[chunk].states[at].gathering {
            self.gather(program, chunk, at);
        }
        if let Some(event) = self.chunks[chunk].states[at].gathered.take() {
            program.wait(COMPUTE, event);
            // The forward goes through the buffer from its end.
            let next = at.checked_sub(1).filter(|&next| self.chunks[chunk].issued().contains(&next));
            if let Some(next) = next.filter(|&next| !self.chunks[chunk].states[next].gathering) {
                self.gather(program, chunk, next);
            }
            self.copied(program, chunk, at);
        }
    }

    /// In the order in which forward needs them (`start_param_sync`).
    fn prefetch(&mut self, program: &mut Builder, chunk: usize) {
        if !self.overlap_gather || chunk >= self.chunks.len() {
            return;
        }
        for at in self.chunks[chunk].issued().rev() {
            if !self.chunks[chunk].states[at].gathering {
                self.gather(program, chunk, at);
            }
        }
    }

    fn reached(&mut self, program: &mut Builder, at: Moment) {
        if at == Moment::Returned {
            self.narrow.widened(program);
        }
    }

    fn arrived(&mut self, program: &mut Builder, param: usize) {
        let (chunk, param) = self.place[param];
        if self.reducing != Some(chunk) {
            return;
        }
        let at = self.chunks[chunk].issued_as(self.chunks[chunk].bucket_of[param]);
        let state = &mut self.chunks[chunk].states[at];
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 && state.reduced.is_none() {
            self.reduce(program, chunk, at);
        }
    }

    /// `start_grad_sync`.
    fn start(&mut self, program: &mut Builder, chunk: usize) {
        for at in self.chunks[chunk].issued() {
            if self.chunks[chunk].states[at].reduced.is_none() {
                self.reduce(program, chunk, at);
            }
        }
    }

    /// `finish_grad_sync`.
    fn finish(&mut self, program: &mut Builder, chunk: usize) {
        for at in self.chunks[chunk].issued() {
            if self.chunks[chunk].states[at].reduced.is_none() {
                self.reduce(program, chunk, at);
            }
            let state = &mut self.chunks[chunk].states[at];
            state.gathering = false;
            if let Some(event) = state.reduced {
                program.wait(COMPUTE, event);
            }
        }
    }

    fn gather_all(&mut self, program: &mut Builder, chunk: usize) {
        if !self.distributed || self.overlap_gather {
            return;
        }
        for at in self.chunks[chunk].issued() {
            self.gather(program, chunk, at);
            if let Some(event) = self.chunks[chunk].states[at].gathered.take() {
                program.wait(COMPUTE, event);
            }
            self.copied(program, chunk, at);
            self.chunks[chunk].states[at].gathering = false;
        }
    }

    fn overlaps_reduce(&self) -> bool {
        self.overlap_reduce
    }

    fn reduces(&mut self, chunk: Option<usize>) {
        self.reducing = chunk;
    }

    /// With the distributed optimizer parameters are views of one buffer, too, unless it is the gradients' own.
    fn take_buffers(&self, program: &mut Builder) {
        for chunk in &self.chunks {
            for (elements, dtype) in chunk.buffers().into_iter().zip([self.dtype, DType::Fp8]) {
                let lent = self.lends && dtype == DType::Fp8;
                if self.lends && !lent {
                    program.alloc(Bytes(elements * dtype.bytes()), COMPUTE, Category::Parameter, "parameters");
                }
                if self.distributed && !lent {
                    let bytes = Bytes(elements * dtype.bytes());
                    program.alloc(bytes, COMPUTE, Category::Parameter, "param_data");
                }
                let bytes = Bytes(elements * self.gradients.bytes());
                program.alloc(bytes, COMPUTE, Category::ShardedGradient, "grad_data");
            }
        }
        self.narrow.take(program);
    }
}

/// A number goes to the host, which waits for it.
pub fn read_back(program: &mut Builder, name: &'static str) {
    program.launch(COMPUTE, name, Work::HostCopy { bytes: Bytes(4), to_host: true }, Dispatch::EagerForward);
    program.wait_for_host(COMPUTE);
}
