//! A pipeline rank before its first action and after its last: what it holds from the start, how gradients become final,
//! and the optimizer's turn (`core/distributed/finalize_model_grads.py`, 0.16.1).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::buckets::Slot;
use super::chunk::{Around, Chunk, ChunkParam};
use super::counts::Counts;
use super::data::Data;
use super::ends::{Ends, MODULES, TABLES, WITHOUT_TABLES};
use super::fsdp::Sharded;
use super::groups::{
    DATA, EXCHANGES, EXPERT_DATA, Groups, MAXIMA, PIPELINE, SHARED, TENSOR, corrects, expert_ranks, sequence, streams,
    user_buffers,
};
use super::optimizer::{self, Part, Shards};
use super::p2p::P2p;
use super::replicas::{Replicas, Shared};
use super::state::Rank;
use super::vocabulary::Vocabulary;
use crate::plan::megatron::{CudaGraphs, MegatronPlan};
use crate::program::{
    Budget, Builder, Category, Collective, Comm, DType, Dispatch, GroupId, MemoryKind, Pass, StreamId, Work,
};
use crate::runtime::eager::framework::{Experts, Megatron, SideStream};
use crate::runtime::eager::main_gradients::{MainGradients, Moment, ParamHooks, Takes};
use crate::runtime::eager::{COMPUTE, Eager, FrameworkState, Maxima, TensorGroup};
use crate::runtime::optimizer::Owned;
use crate::schedule::{Kind, Schedule};
use crate::units::Bytes;

impl<'j> Rank<'j> {
    /// A rank at rest.
    pub(super) fn new((job, budget): (&'j MegatronPlan, &Budget), schedule: &'j Schedule, rank: u32) -> Rank<'j> {
        let mut program = Builder::within(budget, job.split.mesh.ranks(), &streams(job));
        if job.graphs != CudaGraphs::None {
            program.add_graph_pool();
        }
        let groups = Groups::new(&mut program, job);
        let buffers = user_buffers(&mut program, job);
        let split = job.split.vocabulary_split();
        let owned = || (0..schedule.stages).filter(|&stage| schedule.rank_of[stage] == rank);
        let (mut chunks, mut scopes, mut params) = (vec![], vec![], 0);
        for stage in owned() {
            let (first, last) = (stage == 0, stage + 1 == schedule.stages);
            let before: u64 = job.split.pipeline.layers[..stage].iter().sum();
            let own = before..before + job.split.pipeline.layers[stage];
            let modules = if split.is_some() { &WITHOUT_TABLES } else { &MODULES };
            let chunk = Chunk::of(modules, (&job.split, Around::of(job)), Ends { first, last }, own, params);
            params += chunk.params().len();
            scopes.push(program.add_scope(format!("stage {stage}")));
            chunks.push(chunk);
        }
        let mut vocabulary = None;
        if let Some(split) = split {
            let tables = [params, params + 1];
            // The head's table is registered before the embedding's.
            for (name, ends) in [
                ("part of the head", Ends { first: false, last: true }),
                ("part of the embedding", Ends { first: true, last: false }),
            ] {
                chunks.push(Chunk::of(&TABLES, (&job.split, Around::of(job)), ends, 0..0, params));
                params += 1;
                scopes.push(program.add_scope(name.to_owned()));
            }
            vocabulary = Some(Vocabulary::new(job, split, tables));
        }
        let slots: Vec<Vec<Slot>> = chunks.iter().map(|chunk| slots(chunk, job, schedule)).collect();
        let data = wrappers(&mut program, (job, rank == 0), &chunks, (&slots, groups));
        let all: Vec<Slot> = slots.iter().flatten().copied().collect();
        let own: Vec<&ChunkParam> = chunks.iter().flat_map(Chunk::params).collect();
        let part = |(param, elements): (usize, u64)| {
            let ChunkParam { shape, role, .. } = *own[param];
            let stretch = job.optimizer.distributed || elements != shape.elements();
            let own = if stretch { Owned::stretch(shape, role, elements) } else { Owned::whole(shape, role) };
            Part { own, fp8: all[param].fp8 }
        };
        let weights = all.iter().filter(|slot| slot.fp8 && slot.trained).count() as u64;
        let parts = data.iter().flat_map(|data| data.borrow().shards(&all)).map(part).collect();
        let shards = Shards::new(parts, weights);
        let stages = owned().collect();
        let halves = halves(schedule);
        let p2p = P2p::new(job, (rank, halves), (&job.split.mesh.pipeline(), groups.pipeline), PIPELINE);
        let experts = all.iter().map(|slot| slot.expert).collect();
        let hooks = Box::new(Hooks { data: data.clone(), experts });
        let main = MainGradients::new(job.gradients.dtype, job.gradients.fused_accumulation, hooks);
        let mut megatron = Box::new(Megatron::new(main));
        let tensor = TensorGroup { group: groups.tensor, ranks: u64::from(job.split.mesh.tp), stream: TENSOR };
        megatron.tensor = (job.split.mesh.tp > 1).then_some(tensor);
        if job.split.runs_shared_beside() {
            program.computes_beside(SHARED);
            megatron.side =
                Some(SideStream { stream: SHARED, in_line: job.split.mixture.is_some_and(|run| run.in_line) });
        }
        megatron.buffers = buffers;
        megatron.context = sequence(job, groups);
        megatron.experts = expert_ranks(job, groups).map(Experts::new);
        megatron.fp8.maxima = job.split.matmuls.reduces_maxima().then(|| Maxima {
            over: groups.maxima.map(|group| (group, MAXIMA)),
            products: chunks.iter().map(Chunk::products).sum(),
        });
        let eager = Eager::new(program, job.split.modules(), params, FrameworkState::Megatron(megatron));
        let (count, started) = (chunks.len(), vec![false; chunks.len()]);
        Rank {
            job,
            schedule,
            rank,
            groups,
            stages,
            chunks,
            scopes,
            eager,
            data,
            shards,
            p2p,
            counts: Counts::default(),
            inputs: Default::default(),
            gradients: Default::default(),
            outputs: Default::default(),
            input_gradients: Default::default(),
            open: Default::default(),
            given: vec![None; count],
            kept: vec![None; count],
            deferred: Default::default(),
            halves,
            unwaited: vec![],
            sent: [None; 2],
            named: [None; 2],
            loss: None,
            reports: vec![],
            copies: vec![],
            started,
            vocabulary,
            exchanges: job.split.combines().then_some(EXCHANGES),
            after: None,
            left: Default::default(),
            stamps: None,
        }
    }

    /// Parameters, main gradients, master parameters.
    pub(super) fn setup(&mut self) {
        let program = &mut self.eager.program;
        // With the distributed optimizer those that are trained are views of a buffer.
        let whole = |param: &&ChunkParam| !self.job.optimizer.distributed || !param.trained;
        for param in self.chunks.iter().flat_map(Chunk::params).filter(whole) {
            let dtype = if param.fp8 { DType::Fp8 } else { self.job.split.dtype };
            program.alloc(Bytes(param.elements * dtype.bytes()), COMPUTE, Category::Parameter, "parameter");
        }
        self.data.iter().for_each(|data| data.borrow().take_buffers(program));
        if self.job.fsdp.is_none() {
            self.shards.take_masters(program, self.job);
        }
        self.copies = self.shards.take_copies(program, self.job);
        // The learning rate's or the loss scale's one number.
        program.alloc(Bytes(4), COMPUTE, Category::Buffer, "scalar");
        for (bytes, name) in shared_buffers(&self.chunks) {
            program.alloc(Bytes(bytes), COMPUTE, Category::Buffer, name);
        }
        for (bytes, name) in self.chunks.iter().flat_map(Chunk::quantised) {
            program.alloc(Bytes(bytes), COMPUTE, Category::Parameter, name);
        }
        // What a step leaves for the next to let go of.
        let bytes = self.p2p.bytes();
        for (chunk, _) in self.stages.iter().enumerate().filter(|&(_, &stage)| stage > 0) {
            self.kept[chunk] = Some(
                ["recv_prev", "input's gradient"].map(|name| program.alloc(bytes, COMPUTE, Category::Activation, name)),
            );
        }
    }

    /// Gradients are zero at the start of a step, and the count of tokens.
    pub(super) fn zero(&mut self) {
        let program = &mut self.eager.program;
        program.host(Dispatch::StepOverhead, 1);
        self.data.iter().for_each(|data| data.borrow_mut().stepped(program));
        program.set_pass(Pass::Backward);
        self.data.iter().for_each(|data| data.borrow_mut().zero(program));
        // `optimizer.zero_grad`: what the last step copied to fp32 goes.
        self.copies.iter().for_each(|&copy| program.free(copy));
        self.started.fill(false);
    }

    /// After the last backward: gradients of all replicas, of norms over tensor-parallel ranks, of a tied embedding over
    /// its two stages.
    pub(super) fn finalize(&mut self) {
        let program = &mut self.eager.program;
        program.set_pass(Pass::Backward);
        for data in &self.data {
            let mut data = data.borrow_mut();
            if data.overlaps_reduce() {
                for chunk in (0..self.chunks.len()).filter(|&chunk| !self.started[chunk]) {
                    data.start(program, chunk);
                }
            }
        }
        for chunk in 0..self.chunks.len() {
            self.data.iter().for_each(|data| data.borrow_mut().finish(program, chunk));
        }
        if self.job.fsdp.is_some() {
            optimizer::widen(program, self.job, (&self.shards, &self.copies));
        }
        self.data.iter().for_each(|data| data.borrow_mut().attached(program));
        let gradients = if self.job.fsdp.is_some() { DType::Fp32 } else { self.job.gradients.dtype };
        let partial = self.partial();
        let program = &mut self.eager.program;
        let elements: u64 = partial.iter().sum();
        if elements > 0 && self.job.split.mesh.tp > 1 {
            let bytes = Bytes(elements * gradients.bytes());
            let flat = program.alloc(bytes, COMPUTE, Category::ShardedGradient, "aten.cat");
            let copy = Work::Memory { kind: MemoryKind::Foreach, read: bytes, written: bytes };
            program.launch(COMPUTE, "aten.cat", copy, Dispatch::EagerForward);
            reduce(program, (self.groups.tensor, TENSOR), bytes, gradients);
            for elements in &partial {
                let each = Bytes(elements * gradients.bytes());
                let copy = Work::Memory { kind: MemoryKind::Copy, read: each, written: each };
                program.launch(COMPUTE, "aten.copy_", copy, Dispatch::EagerForward);
            }
            program.free(flat);
        }
        let shared = self.chunks.iter().flat_map(Chunk::params).find(|param| is_shared(param, self.job, self.schedule));
        if let Some(param) = shared {
            let bytes = Bytes(param.elements * gradients.bytes());
            reduce(program, (self.groups.embedding, DATA), bytes, gradients);
        }
        // `_update_router_expert_bias`: copies of all micro-batches, in the parameters' type.
        let router = |param: &&ChunkParam| param.name.ends_with("mlp.router.weight");
        let routers = self.chunks.iter().flat_map(Chunk::params).filter(router).count() as u64;
        if let (true, Some(group), Some(experts)) =
            (corrects(self.job), self.groups.maxima, self.job.split.model.experts())
            && routers > 0
        {
            let bytes = Bytes(routers * experts.count * self.job.split.dtype.bytes());
            reduce(program, (group, MAXIMA), bytes, self.job.split.dtype);
        }
    }

    /// Elements of the gradients of which tensor-parallel ranks make a part each: of each parameter, those that the rank has.
    fn partial(&self) -> Vec<u64> {
        let params: Vec<&ChunkParam> = self.chunks.iter().flat_map(Chunk::params).collect();
        if self.job.fsdp.is_some() {
            let shards = self.data.iter().flat_map(|data| data.borrow().shards(&[]));
            return shards.filter(|&(param, _)| params[param].partial).map(|(_, elements)| elements).collect();
        }
        params.into_iter().filter(|param| param.partial && param.trained).map(|param| param.elements).collect()
    }

    /// The optimizer's step, and the parameters that other ranks have stepped; the loss for the log.
    pub(super) fn update(&mut self) {
        let program = &mut self.eager.program;
        let (job, shards) = (self.job, &self.shards);
        program.first_only(|program| shards.take_moments(program, job));
        let groups = [self.groups.world, self.groups.data];
        optimizer::step(program, job, (shards, &self.copies), (groups, DATA));
        // Each of the two optimizers gathers all parameters (`step_with_ready_grads`).
        for _ in &self.data {
            for chunk in 0..self.chunks.len() {
                self.data.iter().for_each(|data| data.borrow_mut().gather_all(program, chunk));
            }
        }
        let replicas = job.split.mesh.dp * job.split.mesh.cp;
        let last = self.schedule.rank_of[self.schedule.stages - 1] == self.rank;
        if last && replicas > 1 {
            reduce(program, (self.groups.data, DATA), Bytes(8), DType::Fp32);
        }
    }
}

/// Whether a schedule's backwards come in halves, as those of zero-bubble schedules do.
fn halves(schedule: &Schedule) -> bool {
    schedule.lists.all().iter().any(|action| action.kind == Kind::Weight)
}

/// The wrappers of a pipeline rank's chunks: of the parameters that all ranks have, and of experts that they do not.
fn wrappers(
    program: &mut Builder,
    (job, first_rank): (&MegatronPlan, bool),
    chunks: &[Chunk],
    (slots, groups): (&[Vec<Slot>], Groups),
) -> Vec<Shared> {
    if let (Some(fsdp), [chunk]) = (job.fsdp, chunks) {
        return vec![Rc::new(RefCell::new(Sharded::new(program, (job, fsdp), chunk.params(), groups.data)))];
    }
    let buckets = |experts: bool, group, stream| -> Shared {
        Rc::new(RefCell::new(Data::new(job, first_rank, experts, slots, group, stream)))
    };
    let mut data = vec![buckets(false, groups.data, DATA)];
    data.extend(groups.expert_data.map(|group| buckets(true, group, EXPERT_DATA)));
    data
}

/// The buffers that a rank's chunks share: of each name, those of the chunk with the most.
fn shared_buffers(chunks: &[Chunk]) -> Vec<(u64, &'static str)> {
    let mut most: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    for chunk in chunks {
        let mut own: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
        for (bytes, name) in chunk.buffers() {
            own.entry(name).or_default().push(bytes);
        }
        for (name, sizes) in own {
            let known = most.entry(name).or_default();
            if sizes.iter().sum::<u64>() > known.iter().sum() {
                *known = sizes;
            }
        }
    }
    most.into_iter().flat_map(|(name, sizes)| sizes.into_iter().map(move |bytes| (bytes, name))).collect()
}

/// Whether two ranks hold a parameter. Where stages go there and back the two copies are one rank's, whose gradients nobody
/// adds up (`default_embedding_ranks` of sail-sg/zero-bubble-pipeline-parallelism, 39f2c186).
fn is_shared(param: &ChunkParam, job: &MegatronPlan, schedule: &Schedule) -> bool {
    let apart = schedule.rank_of[0] != schedule.rank_of[schedule.stages - 1];
    let copied = job.split.model.tied_head || job.split.model.mtp_layers > 0;
    param.trained && param.word_embedding && copied && apart
}

/// A chunk's parameters as its buffer sees them.
fn slots(chunk: &Chunk, job: &MegatronPlan, schedule: &Schedule) -> Vec<Slot> {
    let slot = |param: &ChunkParam| Slot {
        elements: param.elements,
        shared: is_shared(param, job, schedule),
        fp8: param.fp8,
        expert: param.expert,
        trained: param.trained,
    };
    chunk.params().iter().map(slot).collect()
}

/// Tells the buckets of parameters about to be read and of gradients that have arrived.
#[derive(Debug)]
struct Hooks {
    /// Of the parameters that all ranks have, and of experts that are spread over ranks.
    data: Vec<Shared>,
    /// Which parameters are such experts'.
    experts: Vec<bool>,
}

impl Hooks {
    fn of(&self, param: usize) -> &RefCell<dyn Replicas> {
        self.data[usize::from(self.experts[param])].as_ref()
    }
}

impl ParamHooks for Hooks {
    fn reached(&mut self, program: &mut Builder, at: Moment) {
        self.data.iter().for_each(|data| data.borrow_mut().reached(program, at));
    }

    fn takes(&mut self, program: &mut Builder, param: usize) -> Takes {
        self.of(param).borrow_mut().takes(program, param)
    }

    fn read(&mut self, program: &mut Builder, param: usize) {
        self.of(param).borrow_mut().needed(program, param);
    }

    fn arrived(&mut self, program: &mut Builder, param: usize) {
        self.of(param).borrow_mut().arrived(program, param);
    }
}

/// An all-reduce that what follows waits for.
fn reduce(program: &mut Builder, (group, stream): (GroupId, StreamId), bytes: Bytes, dtype: DType) {
    program.wait_stream(stream, COMPUTE);
    program.collective(stream, Comm { kind: Collective::AllReduce, group, bytes, dtype });
    program.wait_stream(COMPUTE, stream);
}
