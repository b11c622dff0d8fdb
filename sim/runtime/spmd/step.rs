//! A training step as the compiler orders it: embedding, a loop over blocks, the loss, the loop back, the optimizer.

mod attention;
mod backward;
mod forward;
mod head;
mod optimizer;
mod pipeline;
mod router;
mod weights;

use std::collections::BTreeMap;

use super::block::{Block, Named, Tensor};
use super::room::Room;
use super::tape::{At, CORE, FROM_HOST, STAGES, TO_HOST, Tape, UNITS, Value};
use super::{Job, Keep, Pipeline, Policy};
use crate::model::Position;
use crate::program::builder::Section;
use crate::program::{
    Budget, Builder, Category, Collective, Comm, DType, Discipline, Dispatch, GroupId, MemoryKind, Pass, Program,
    ScopeId, Work,
};
use crate::runtime::optimizer::param::{Owned, Role, Shape, elements};
use crate::units::Bytes;

/// Bytes of a number in compute.
const HALF: u64 = 2;
/// Bytes of a number of parameters, moments and gradients.
const FULL: u64 = 4;

/// The region of the last norm, the head and the loss.
pub(super) const HEAD: &str = "decoder_norm, logits_dense";

/// The program of every chip.
pub(super) fn program((job, budget): (&Job, &Budget), room: Room) -> Program {
    let units = if job.pipeline.is_some() { &UNITS[..] } else { &UNITS[..STAGES.0 as usize] };
    let mut program = Builder::within(budget, job.mesh.ranks(), units);
    program.memory(Discipline::Static);
    let groups = Groups {
        fsdp: program.add_group(job.mesh.fsdp_group()),
        expert_fsdp: program.add_group(job.mesh.expert_fsdp_group()),
        expert: program.add_group(job.mesh.expert_group()),
        tensor: program.add_group(job.mesh.tensor_group()),
        context: program.add_group(job.mesh.context_group()),
        data: program.add_group(job.mesh.data_group()),
        data_fsdp: program.add_group(job.mesh.data_fsdp_group()),
        stage: program.add_group(job.mesh.stage_group()),
        stage_data: program.add_group(job.mesh.stage_data_group()),
        batch: program.add_group(job.mesh.batch_group()),
    };
    let scopes = Scopes {
        embedding: program.add_scope("token_embedder".to_owned()),
        layers: layers(job).map(|name| program.add_scope(name)).collect(),
        head: program.add_scope(HEAD.to_owned()),
        optimizer: program.add_scope("optimizer".to_owned()),
    };
    let micro = job.micro_batch();
    let mut step = Step::new((job, micro.as_ref()), room, groups, scopes);
    step.tape.within(budget);
    step.arguments(&mut program);
    step.run();
    program.section(Section::Step);
    super::emit::emit(&step.tape, &mut program);
    for _ in 0..job.host_syncs {
        program.wait_for_host(CORE);
        program.host(Dispatch::Synchronize, 1);
    }
    program.finish()
}

/// Regions of blocks: those of a stage, in a pipeline, then those that are in none.
fn layers(job: &Job) -> impl Iterator<Item = String> {
    let (staged, rest) =
        job.pipeline.map_or((0, job.model.layers), |all| (all.layers_per_stage, job.model.layers - all.layers));
    let outside = if staged > 0 { "layers_outside_pipeline" } else { "layers" };
    let named = |name: &'static str, count| (0..count).map(move |layer| format!("{name}.{layer}"));
    named("pipeline_module.layers", staged).chain(named(outside, rest))
}

/// Communicators.
struct Groups {
    fsdp: GroupId,
    expert_fsdp: GroupId,
    expert: GroupId,
    tensor: GroupId,
    context: GroupId,
    data: GroupId,
    data_fsdp: GroupId,
    stage: GroupId,
    stage_data: GroupId,
    batch: GroupId,
}

/// Regions.
struct Scopes {
    embedding: ScopeId,
    layers: Vec<ScopeId>,
    head: ScopeId,
    optimizer: ScopeId,
}

/// Blocks that are alike: they see as far, and have experts or not.
struct Variant {
    block: Block,
    /// What of it is kept for backward: tensor, and where.
    kept: Vec<(Tensor, Keep)>,
    /// Operators that run again.
    again: Vec<usize>,
}

/// Whose a buffer is that is kept for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// All iterations' of a pipeline.
    Iterations,
    /// All blocks' of a loop.
    Blocks,
    /// One block's, where blocks are written out.
    Block(usize),
}

/// A step being written.
struct Step<'j> {
    /// What is run: all of it, or of a micro-batch, in a pipeline's loop.
    job: &'j Job,
    /// The other of both.
    other: Option<&'j Job>,
    /// The loop of the pipeline that is being written.
    staged: Option<Pipeline>,
    /// All weights of a stage, where they are gathered once.
    gathered: Option<Value>,
    /// The block that is being written, and weights that its loop finds gathered, by block and place.
    layer: usize,
    hoisted: Vec<((usize, usize), Value)>,
    room: Room,
    groups: Groups,
    scopes: Scopes,
    tape: Tape,
    variants: Vec<Variant>,
    /// The variant of each block, those of a stage first.
    variant_of: Vec<usize>,
    /// All blocks' weights in bf16, this chip's shards: made once, used by both loops.
    shards: Option<Value>,
    /// What forward kept in HBM, by whose it is and by name or place.
    stacks: Vec<((Whose, Tensor), Value)>,
    /// All blocks' gradients, this chip's shards, in the loop back.
    gradients: Option<Value>,
    /// Gradients that the optimizer reads: all blocks', and each table's.
    tables: Vec<Value>,
    /// The head's gradient where the loss was taken in parts, whole until blocks' backward is over.
    whole_head: Option<Value>,
    /// What the head's gradient is made of, where it waits for blocks' backward.
    late_head: Option<[Value; 2]>,
    /// Logits whose loss has not been summed, unless they were given up, and what they were made from.
    late_loss: Option<(Option<Value>, Value)>,
    /// What the gradient of the last norm's scale is made of, where that waits.
    late_scale: Option<[Value; 2]>,
    /// Reductions whose result is not stored yet.
    pending: Vec<(Value, u64)>,
    /// A weight gradient that waits for its input.
    late: Option<backward::Late>,
    /// Keys and values of whole sequences, which attention that ran again has gathered and its backward reads.
    sequences: Vec<Value>,
    /// Each row's log-sum-exp, of attention that ran again.
    row_sums: Option<Value>,
    /// Words sorted, and where each stood, for the embedding's gradient.
    sorted_words: Option<Value>,
    /// The weight of the matmul that makes a gate's gradients in its own kernel.
    gates_weight: Option<Value>,
    /// Whether a linear of a block is being written.
    linear: bool,
    /// Where the last block's backward began: copies for the next one start then.
    began: Vec<At>,
}

impl<'j> Step<'j> {
    fn new((job, micro): (&'j Job, Option<&'j Job>), room: Room, groups: Groups, scopes: Scopes) -> Self {
        let staged = job.pipeline.map_or(0, |all| all.layers_per_stage as usize);
        let kinds = (0..scopes.layers.len()).map(|at| {
            let layer = at as u64;
            (at < staged, job.model.window(layer), job.model.experts_in(layer).is_some())
        });
        let mut seen: Vec<(bool, Option<u64>, bool)> = vec![];
        let mut variant_of = vec![];
        for kind in kinds {
            let at = seen.iter().position(|known| *known == kind).unwrap_or_else(|| {
                seen.push(kind);
                seen.len() - 1
            });
            variant_of.push(at);
        }
        let of = |staged: bool| micro.filter(|_| staged).unwrap_or(job);
        let variants =
            seen.into_iter().map(|(staged, window, sparse)| Variant::new(of(staged), (window, sparse))).collect();
        Step {
            job,
            other: micro,
            staged: None,
            gathered: None,
            layer: 0,
            hoisted: vec![],
            room,
            groups,
            scopes,
            tape: Tape::new(),
            variants,
            variant_of,
            shards: None,
            stacks: vec![],
            gradients: None,
            tables: vec![],
            whole_head: None,
            late_head: None,
            late_loss: None,
            late_scale: None,
            pending: vec![],
            late: None,
            sequences: vec![],
            row_sums: None,
            sorted_words: None,
            gates_weight: None,
            linear: false,
            began: vec![],
        }
    }

    /// Parameters, moments and the batch: what the program is called with, and gives back in place.
    fn arguments(&self, program: &mut Builder) {
        let (params, optimizer) = (self.parameters(), self.job.optimizer());
        program.section(Section::Setup);
        program.alloc(Bytes(FULL * elements(&params)), CORE, Category::Parameter, "params");
        let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
        for state in params.iter().flat_map(|param| optimizer.states(param, FULL)) {
            *states.entry(state.name).or_default() += state.bytes();
        }
        for (name, bytes) in states {
            program.alloc(Bytes(bytes), CORE, Category::OptimizerState, name);
        }
        program.alloc(Bytes(2 * 4 * self.job.own_tokens()), CORE, Category::Buffer, "inputs, targets");
    }

    /// Parameters, and what this chip has of each: a part of weights and tables, and all of norms. Those of a layer that is run
    /// several times lie together.
    fn parameters(&self) -> Vec<Owned> {
        let (model, shards) = (&self.job.model, u64::from(self.job.mesh.shards()));
        let tensor = u64::from(self.job.mesh.tensor);
        let mut params = vec![];
        let norms = |numbers: u64| Owned::whole(Shape::vector(numbers), Role::Vector);
        params.extend(model.final_norm.then(|| norms(model.width)));
        for (layer, &variant) in self.variant_of.iter().enumerate() {
            let (times, block) = (self.times(layer), &self.variants[variant].block);
            params.extend(block.weights.iter().map(|weight| {
                let shape = Shape { matrices: times * weight.copies, rows: weight.inputs, cols: weight.outputs };
                let role = if weight.experts { Role::Expert } else { Role::Matrix };
                Owned::stretch(shape, role, times * self.own(weight))
            }));
            params.push(norms(times * block.norms));
        }
        let positions = match model.position {
            Position::Learned { positions } => Some(positions),
            _ => None,
        };
        let tables = [Some(model.vocab), (!model.tied_head).then_some(model.vocab), positions];
        params.extend(tables.into_iter().flatten().map(|rows| {
            let own = (rows * model.width / tensor).div_ceil(shards);
            Owned::stretch(Shape::matrix(rows, model.width), Role::Table, own)
        }));
        params
    }

    fn run(&mut self) {
        let input = self.embed();
        let hidden = self.forward(input);
        let gradient = self.loss(hidden);
        self.tape.pass = Pass::Backward;
        let gradient = self.backward(gradient);
        self.reduce_head();
        self.embed_backward(gradient);
        self.tape.phase("bwd");
        self.tape.pass = Pass::Optimizer;
        self.update();
        self.tape.phase("opt");
    }

    fn tokens(&self) -> u64 {
        self.job.own_tokens()
    }

    /// Bytes of what a chip holds between the halves of a block, in bf16.
    fn activation(&self) -> u64 {
        HALF * self.job.stream() * self.tokens()
    }

    /// Bytes of a tensor in bf16.
    fn bytes(tensor: Named) -> u64 {
        HALF * tensor.numbers()
    }

    /// A kernel bounded by memory.
    fn memory(kind: MemoryKind, read: u64, written: u64) -> Work {
        Work::Memory { kind, read: Bytes(read), written: Bytes(written) }
    }

    fn comm(&self, kind: Collective, group: GroupId, bytes: u64) -> Comm {
        Comm { kind, group, bytes: Bytes(bytes), dtype: DType::Bf16 }
    }

    /// Copies a tensor to the host beside what follows.
    fn send_to_host(&mut self, value: Value, bytes: u64) {
        let work = Work::HostCopy { bytes: Bytes(bytes), to_host: true };
        self.tape.copy(TO_HOST, work, (&[value], &[]), vec![]);
    }

    /// Copies a tensor back, from when `after` is over.
    fn fetch_from_host(&mut self, bytes: u64, after: Vec<At>) -> Value {
        let value = self.tape.value("from host", bytes, Category::Activation);
        let work = Work::HostCopy { bytes: Bytes(bytes), to_host: false };
        self.tape.copy(FROM_HOST, work, (&[], &[value]), after);
        value
    }
}

impl Variant {
    /// Blocks of a window, with experts or without.
    fn new(job: &Job, (window, sparse): (Option<u64>, bool)) -> Variant {
        let block = Block::with(job, window, job.model.experts.as_ref().filter(|_| sparse));
        let (mut kept, again) = (job.remat.kept(&block), job.remat.again(&block));
        if job.remat == Policy::None && !job.scan {
            kept.retain(|(tensor, _)| !block.ops.iter().any(|op| op.output == *tensor && op.is_fused()));
        }
        Variant { block, kept, again }
    }
}
