//! Megatron-FSDP (`core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py`, `mcore_fsdp_adapter.py`, 0.16.1).
//!
//! What a replica keeps, `n` being replicas:
//!
//! | strategy | weights | main weights in fp32, moments | main gradients |
//! |---|---|---|---|
//! | `no_shard` | whole | whole | whole |
//! | `optim` | whole | 1/n | whole |
//! | `optim_grads` | whole | 1/n | 1/n |
//! | `optim_grads_params` | 1/n | 1/n | 1/n |
//!
//! Under the last a block of the model is a unit: hooks before it gather it (`gathers.rs`), hooks behind it let go of it. In
//! backward a hook on the gradient of its result gathers it again, one on the gradient of its input lets go of it; when it runs
//! again in backward it is gathered without looking ahead, and stays for its backward. What is outside units is gathered
//! when it is first read and stays to the step's end. Embedding, last norm and head are the group of the lowest number: so looking
//! ahead from the last norm means the first units, which are gathered once more and which backward lets go of. Under the other strategies each module waits for its own parameters alone.
//!
//! Collectives run on their communicator's stream in the order in which they are issued, gathers and reductions alike unless
//! gathers have a communicator of their own (`--create-all-gather-group`).
//!
//! A step is counted from where the one before has stepped its parameters: it begins with the gathers that Megatron issues there
//! (`start_param_sync`). All replicas run the program of the first. What a hook costs the host is what one of `fully_shard` costs: of
//! these nobody has measured it.

mod cut;
mod gathers;
mod gradients;
mod lanes;
mod pool;
mod refuses;

pub(super) use refuses::refuses;
pub use refuses::unfit;

use super::buckets::Slot;
use super::chunk::{Chunk, ChunkParam};
use super::ends::Ends;
use super::replicas::Replicas;
use crate::plan::megatron::{Fsdp, MegatronPlan, Strategy};
use crate::program::{Builder, Category, DType, Dispatch, GroupId, MemoryKind, Work};
use crate::runtime::eager::COMPUTE;
use crate::runtime::eager::main_gradients::{Moment, Takes};
use crate::units::Bytes;
use cut::{Group, Member, Rules};
use gathers::{Gathers, Towards};
use gradients::Gradients;
use lanes::Lanes;
use pool::Pool;

/// What is gathered ahead and waits at least, in elements, where the file does not say how much.
const LEAST_UNIT: u64 = 1_000_000_000;

/// A model's parameters as Megatron-FSDP shares them.
#[derive(Debug)]
pub(super) struct Sharded {
    groups: Vec<Group>,
    /// By parameter, its group.
    group_of: Vec<usize>,
    ranks: u64,
    dtype: DType,
    overlap_gather: bool,
    lanes: Lanes,
    /// None under `no_shard`.
    gathers: Option<Gathers>,
    gradients: Gradients,
    /// By unit, whether it is about to run backward: then it stays when it has run.
    backward: Vec<bool>,
}

impl Sharded {
    pub(super) fn new(
        program: &mut Builder,
        of: (&MegatronPlan, Fsdp),
        params: &[ChunkParam],
        data: GroupId,
    ) -> Sharded {
        let (job, fsdp) = of;
        let ranks = u64::from(job.split.mesh.data().size);
        let lanes = Lanes::new(program, of, data);
        let groups = cut::cut(&members(params, fsdp), rules(job, fsdp));
        let mut group_of = vec![0; params.len()];
        for (at, group) in groups.iter().enumerate() {
            group.params.iter().for_each(|&(param, _)| group_of[param] = at);
        }
        let units = groups.iter().filter(|group| group.unit.is_some()).count();
        let pool = if fsdp.double_buffer { Pool::of(&groups) } else { Pool::default() };
        let blocks = fsdp.strategy == Strategy::Parameters;
        let gathers = (fsdp.strategy != Strategy::Whole)
            .then(|| Gathers::new(groups.len(), (lanes, job.split.dtype), (fsdp.unit_size / 2, blocks), pool.clone()));
        let own = (lanes, job.gradients.dtype, ranks);
        let gradients = Gradients::new(&groups, fsdp, own, job.gradients.overlap_reduce, pool);
        Sharded {
            ranks,
            dtype: job.split.dtype,
            overlap_gather: job.optimizer.overlap_gather || blocks,
            lanes,
            gathers,
            gradients,
            backward: vec![false; units],
            groups,
            group_of,
        }
    }

    fn strategy(&self) -> Strategy {
        self.gradients.strategy
    }

    /// The group that a block is, if it is a unit.
    fn unit(&self, block: u64) -> Option<usize> {
        self.groups.iter().position(|group| group.unit == Some(block))
    }

    /// Has a group gathered for what comes next on the default stream.
    fn gather(&mut self, program: &mut Builder, at: usize, towards: Option<Towards>) {
        if let Some(gathers) = &mut self.gathers {
            gathers.ask(program, &self.groups, at, towards);
            gathers.wait(program, at, COMPUTE);
        }
    }
}

/// Parameters as groups see them: blocks are units where parameters are shared.
fn members(params: &[ChunkParam], fsdp: Fsdp) -> Vec<Member> {
    let units = fsdp.strategy == Strategy::Parameters;
    let member = |param: &ChunkParam| Member {
        elements: param.elements,
        row: param.shape.cols,
        unit: param.block.filter(|_| units),
    };
    params.iter().map(member).collect()
}

fn rules(job: &MegatronPlan, fsdp: Fsdp) -> Rules {
    let ranks = u64::from(job.split.mesh.data().size);
    Rules { ranks, shares: fsdp.strategy != Strategy::Whole, bucket: job.gradients.bucket }
}

/// `suggested_communication_unit_size` where a file leaves it open: two units, or a bucket, but never less than 1,000,000,000
/// elements: the code calls that a cap, and takes the larger of the two.
pub fn unit_size(job: &MegatronPlan, strategy: Strategy) -> u64 {
    let chunk = Chunk::new(job, Ends::BOTH, 0..job.split.model.layers.count(), 0);
    let units: u64 = chunk.params().iter().filter(|param| param.block.is_some()).map(|param| param.elements).sum();
    let size = match strategy {
        Strategy::Parameters => units / job.split.model.layers.count().max(1) * 2,
        _ => job.gradients.bucket.unwrap_or(0),
    };
    size.max(LEAST_UNIT)
}

/// Whether gradients may be reduced in buckets of so many elements, or not, with the same result: no bucket closes a group
/// before its last parameter, and none is more than what may wait.
pub fn has_no_use_for_buckets(job: &MegatronPlan, fsdp: Fsdp, bucket: u64) -> bool {
    let members = members(Chunk::new(job, Ends::BOTH, 0..job.split.model.layers.count(), 0).params(), fsdp);
    let cut = |bucket| cut::cut(&members, Rules { bucket, ..rules(job, fsdp) });
    bucket <= LEAST_UNIT && cut(Some(bucket)) == cut(None)
}

impl Replicas for Sharded {
    fn take_buffers(&self, program: &mut Builder) {
        let shares = |from: Strategy| self.strategy() >= from;
        for group in &self.groups {
            let (whole, part) = (group.elements, group.part(self.ranks));
            let elements = |from: Strategy| if shares(from) { part } else { whole };
            let weights = if self.strategy() == Strategy::Whole {
                // The model's own, one by one.
                group.params.iter().map(|(_, place)| place.end - place.start).collect()
            } else {
                vec![elements(Strategy::Parameters)]
            };
            for elements in weights {
                program.alloc(Bytes(elements * self.dtype.bytes()), COMPUTE, Category::Parameter, "param_data");
            }
            let main = Bytes(elements(Strategy::Optimizer) * DType::Fp32.bytes());
            program.alloc(main, COMPUTE, Category::OptimizerState, "main_param");
        }
        let part = shares(Strategy::Gradients);
        let elements: u64 =
            self.groups.iter().map(|group| if part { group.part(self.ranks) } else { group.elements }).sum();
        let bytes = Bytes(elements * self.gradients.dtype.bytes());
        program.alloc(bytes, COMPUTE, Category::ShardedGradient, "grad_data");
        if let Some(group) = self.groups.iter().find(|group| self.gradients.pool.holds(group)) {
            let of = |dtype: DType| Bytes(group.elements * dtype.bytes());
            for stream in [COMPUTE, self.lanes.gather] {
                program.alloc(of(self.dtype), stream, Category::UnshardedParameter, "fsdp_params");
                program.alloc(of(self.gradients.dtype), COMPUTE, Category::UnshardedGradient, "fsdp_grads");
            }
        }
    }

    fn shards(&self, _: &[Slot]) -> Vec<(usize, u64)> {
        let whole = self.strategy() == Strategy::Whole;
        let ranks = if whole { 1 } else { self.ranks };
        let parts = self.groups.iter().flat_map(|group| group.first_part(ranks));
        parts.filter(|&(_, elements)| elements > 0).collect()
    }

    fn stepped(&mut self, program: &mut Builder) {
        let Some(gathers) = &mut self.gathers else { return };
        if self.overlap_gather {
            gathers.ask(program, &self.groups, self.group_of[0], Some(Towards::Last));
        } else {
            gathers.gather_all(program, &self.groups);
        }
    }

    fn zero(&mut self, program: &mut Builder) {
        // Once for the model, and once for the optimizer, which has the model do it.
        for group in self.groups.iter().chain(&self.groups) {
            let elements = if self.gradients.shares() { group.part(self.ranks) } else { group.elements };
            let written = Bytes(elements * self.gradients.dtype.bytes());
            let work = Work::Memory { kind: MemoryKind::Copy, read: Bytes(0), written };
            program.launch(COMPUTE, "aten.zero_", work, Dispatch::EagerForward);
        }
    }

    fn is_quiet(&self, _: usize) -> bool {
        false
    }

    fn needed(&mut self, program: &mut Builder, param: usize) {
        let at = self.group_of[param];
        if self.groups[at].unit.is_none() && self.gathers.is_some() {
            program.host(Dispatch::FsdpParam, 1);
            self.gather(program, at, Some(Towards::Last));
        }
    }

    fn reached(&mut self, program: &mut Builder, at: Moment) {
        match at {
            Moment::Backward => {
                self.backward.fill(true);
                if let Some(gathers) = &mut self.gathers {
                    gathers.release_units_lazily(&self.groups);
                }
            }
            Moment::Returned => self.gradients.returned(program),
            Moment::Block(block)
            | Moment::BlockRan(block)
            | Moment::BlockBackward(block)
            | Moment::BlockReturned(block) => {
                let Some(unit) = self.unit(block) else { return };
                program.host(Dispatch::FsdpHook, 1);
                let again = self.backward[block as usize];
                match at {
                    Moment::Block(_) => self.gather(program, unit, (!again).then_some(Towards::Last)),
                    Moment::BlockBackward(_) => {
                        self.backward[block as usize] = true;
                        self.gather(program, unit, Some(Towards::First));
                    }
                    _ => {
                        let Some(gathers) = &mut self.gathers else { return };
                        if at == Moment::BlockRan(block) && again {
                            gathers.release_lazily(unit);
                        } else {
                            gathers.release(program, unit, COMPUTE);
                            self.backward[block as usize] = false;
                        }
                    }
                }
            }
        }
    }

    fn takes(&mut self, program: &mut Builder, param: usize) -> Takes {
        program.host(Dispatch::FsdpParam, 1);
        self.gradients.takes(program, &self.groups, self.group_of[param])
    }

    fn arrived(&mut self, program: &mut Builder, param: usize) {
        self.gradients.arrived(program, &self.groups, self.group_of[param]);
    }

    fn overlaps_reduce(&self) -> bool {
        self.gradients.overlap
    }

    fn reduces(&mut self, chunk: Option<usize>) {
        self.gradients.last = chunk.is_some();
    }

    fn finish(&mut self, program: &mut Builder, _: usize) {
        self.gradients.finish(program, &self.groups);
    }

    fn attached(&mut self, program: &mut Builder) {
        if let Some(gathers) = self.gathers.as_mut().filter(|_| self.overlap_gather) {
            gathers.reset(program);
        }
    }
}
