//! A training step in host order (`engine.py`): `engine(batch)`, `engine.backward(loss)`, `engine.step()` for each
//! micro-batch, of which only the last steps. The throughput timer drains the device around each.

use std::cell::RefCell;
use std::rc::Rc;

use super::disk;
use super::flat::{self, Flat};
use super::modules::Modules;
use super::parts::{self, Groups, Parts};
use super::quantized::Hops;
use super::reduce::Partition;
use super::shelf::Trouble;
use super::streams::{STREAMS, STREAMS_OF_THREE, drain};
use super::sub_groups::SubGroups;
use super::update::Update;
use super::visits::{self, Recorder, Visit};
use crate::model::Position;
use crate::plan::zero::{Nodes, Stage, ZeroPlan};
use crate::program::builder::Section;
use crate::program::{Budget, Builder, Category, DType, Dispatch, Group, Mark, MemoryKind, Pass, Program, ScopeId};
use crate::runtime::eager::around::Around;
use crate::runtime::eager::{
    COMPUTE, DeepSpeed, Eager, Frame, FrameworkState, Mode, ParamMap, Shared, Storage, Ulysses,
};
use crate::runtime::train::plan::{Graphs, Layout, Part, graphs, layout, mode};
use crate::units::Bytes;

/// The program of one rank.
pub(super) fn program(job: &ZeroPlan, budget: &Budget) -> Program {
    let zero = job.zero;
    let order = (zero.stage == Stage::Three).then(|| Visit::order(&recorded(job, budget)));
    let Prepared { model, modules, groups, shapes, elements } = prepared(job, budget);
    let whole = &job.whole;
    let mut run = match order {
        Some(order) => {
            let parts = Parts::new(job, (groups, shapes), modules, &order);
            let parts = parts::Shared(Rc::new(RefCell::new(parts)));
            let hooks = Box::new(parts.clone());
            model.run(job, (hooks, true), Engine::Parts(parts, Box::new(SubGroups::new(job, &elements, groups.all))))
        }
        None => {
            let partition = Partition::new(zero.reduction(), &elements);
            let rank = partition.fullest(zero.offload.optimizer);
            let flat = Flat::new(job, &partition, (rank, groups.all), elements.clone());
            let flat = flat::Shared(Rc::new(RefCell::new(flat)));
            let hooks = Box::new(flat.clone());
            model.run(job, (hooks, false), Engine::Flat(flat, Update::new(job, &partition, groups.all)))
        }
    };
    run.setup(&elements);
    run.eager.program.section(Section::Step);
    run.eager.program.host(Dispatch::StepOverhead, 1);
    for micro_batch in 0..whole.accumulation {
        run.micro_batch(micro_batch);
    }
    let before = run.eager.program.enter(run.scopes.optimizer);
    match &run.engine {
        Engine::Recording => {}
        Engine::Flat(flat, update) => update.step(&mut run.eager.program, flat),
        Engine::Parts(parts, groups) => groups.step(&mut run.eager.program, &mut parts.0.borrow_mut()),
    }
    run.eager.program.mark(Mark::PhaseEnd("opt".to_owned()));
    run.eager.program.enter(before);
    drain(&mut run.eager.program);
    run.eager.program.finish()
}

/// What of files would end the run with so many buffers. A step is written for the first answer alone: what happens to modules
/// is the same with any number.
pub(super) fn trouble(job: &ZeroPlan) -> impl Fn(u64) -> Option<Trouble> {
    let budget = Budget::unlimited();
    let Prepared { modules, elements, .. } = prepared(job, &budget);
    let (visits, zero, micro_batches) = (recorded(job, &budget), job.zero, job.whole.accumulation);
    move |buffers| {
        let mut zero = zero;
        if let Some(files) = &mut zero.offload.files {
            files.buffers = buffers;
        }
        visits::trouble((&zero, micro_batches), &elements, &modules, &visits)
    }
}

/// What happens to modules in a micro-batch: the engine's first steps write it down.
fn recorded(job: &ZeroPlan, budget: &Budget) -> Vec<Visit> {
    let Prepared { model, modules, .. } = prepared(job, budget);
    let visits = Rc::new(RefCell::new(vec![]));
    let hooks = Box::new(Recorder { modules, visits: Rc::clone(&visits) });
    let mut run = model.run(job, (hooks, true), Engine::Recording);
    let frames = run.forward();
    run.backward(frames);
    visits.take()
}

/// A rank before anything has run, and what is known of its model.
struct Prepared {
    model: Model,
    modules: Rc<Modules>,
    groups: Groups,
    /// Rows and columns of each parameter, and its elements.
    shapes: Vec<(u64, u64)>,
    elements: Vec<u64>,
}

/// A rank's model, without what stands around it.
struct Model {
    program: Builder,
    graphs: Graphs,
    layout: Layout,
    scopes: Scopes,
    ulysses: Option<Ulysses>,
}

impl Model {
    /// The rank with an engine around its model: the hooks, and whether they are modules' as well as gradients'.
    fn run(self, job: &ZeroPlan, (hooks, of_modules): (Box<dyn Around>, bool), engine: Engine) -> Run<'_> {
        let Model { program, graphs, layout, scopes, ulysses } = self;
        let whole = &job.whole;
        let deepspeed = FrameworkState::DeepSpeed(DeepSpeed::new(hooks, of_modules, ulysses));
        let mut eager = Eager::new(program, whole.eager, layout.params.len(), deepspeed);
        let head = &graphs.head.graph;
        let weight = head.params.len() - 1;
        let uses =
            head.ops.iter().filter(|op| op.params.contains(&weight)).count() + usize::from(whole.model.tied_head);
        let shared = Shared { param: layout.head.index(weight), uses: uses as u32, zeroed: true };
        eager.leaves.shared = (uses > 1).then_some(shared).into_iter().collect();
        Run { job, graphs, layout, scopes, eager, engine }
    }
}

fn prepared(job: &ZeroPlan, budget: &Budget) -> Prepared {
    let (whole, zero) = (&job.whole, job.zero);
    let three = zero.stage == Stage::Three;
    let on_disks = zero.offload.states.is_some() || zero.offload.files.is_some();
    let streams = match (three, on_disks) {
        (false, _) => STREAMS.to_vec(),
        (true, false) => STREAMS_OF_THREE.to_vec(),
        (true, true) => [&STREAMS_OF_THREE[..], &disk::HANDLES].concat(),
    };
    let mut program = Builder::within(budget, zero.ranks, &streams);
    let scopes = Scopes {
        embedding: program.add_scope("tok_embeddings".to_owned()),
        blocks: (0..whole.model.layers.count()).map(|layer| program.add_scope(format!("layers.{layer}"))).collect(),
        head: program.add_scope("norm, output".to_owned()),
        optimizer: program.add_scope("optimizer".to_owned()),
    };
    let group = program.add_group(Group::new("dp", zero.ranks, 1));
    let second = if zero.hpz > 1 { program.add_group(Group::new("hpz", zero.hpz, 1)) } else { group };
    let hops = zero.quantized.gradients.map(|Nodes { count: nodes, ranks: chips }| Hops {
        node: program.add_group(Group::new("node", chips, 1)),
        across: program.add_group(Group::new("across nodes", nodes, chips)),
        all: group,
        nodes,
        chips,
    });
    let graphs = graphs(whole);
    let layout = layout(whole, &graphs, &[Part::whole(whole)]);
    let elements: Vec<u64> = layout.params.iter().map(|param| param.elements()).collect();
    let shapes: Vec<(u64, u64)> = layout.params.iter().map(|param| (param.rows, param.cols)).collect();
    let ulysses = (zero.sequence > 1).then(|| {
        let group = program.add_group(Group::new("cp", zero.sequence, 1));
        Ulysses::new(group, zero.sequence.into())
    });
    let modules = Rc::new(Modules::of(&graphs, &layout));
    let model = Model { program, graphs, layout, scopes, ulysses };
    Prepared { model, modules, groups: Groups { all: group, second, hops }, shapes, elements }
}

/// What stands around the model: of which stage, and what steps.
enum Engine {
    Recording,
    Flat(flat::Shared, Update),
    Parts(parts::Shared, Box<SubGroups>),
}

struct Scopes {
    embedding: ScopeId,
    blocks: Vec<ScopeId>,
    head: ScopeId,
    optimizer: ScopeId,
}

struct Run<'j> {
    job: &'j ZeroPlan,
    graphs: Graphs,
    layout: Layout,
    scopes: Scopes,
    eager: Eager,
    engine: Engine,
}

/// What a forward leaves for its backward.
struct Frames {
    embedding: Frame,
    blocks: Vec<Frame>,
    head: Frame,
    loss: Storage,
}

impl Run<'_> {
    /// Buffers and inputs.
    fn setup(&mut self, elements: &[u64]) {
        let (whole, program) = (&self.job.whole, &mut self.eager.program);
        if let Position::Rope { dims } = whole.model.position {
            // The rotary table: complex64, one row per position.
            program.alloc(Bytes(whole.max_positions * dims / 2 * 8), COMPUTE, Category::Buffer, "freqs_cis");
        }
        if whole.model.position == Position::Alibi && whole.eager.bias_tensor {
            let elements = whole.model.heads() * whole.max_positions * whole.max_positions;
            program.alloc(Bytes(elements * DType::Bf16.bytes()), COMPUTE, Category::Buffer, "attention bias");
        }
        let positions = (whole.context > 1).then_some("positions");
        for name in ["tokens", "labels"].into_iter().chain(positions) {
            program.alloc(
                Bytes(whole.batch * whole.own_tokens() * DType::Int64.bytes()),
                COMPUTE,
                Category::Buffer,
                name,
            );
        }
        match &mut self.engine {
            Engine::Recording => {}
            Engine::Flat(_, update) => update.setup(program, elements),
            Engine::Parts(_, groups) => groups.setup(program),
        }
    }

    fn micro_batch(&mut self, micro_batch: u32) {
        let whole = &self.job.whole;
        let several = whole.accumulation > 1;
        match &self.engine {
            Engine::Recording => {}
            Engine::Flat(flat, _) => flat.0.borrow_mut().boundary = micro_batch + 1 == whole.accumulation,
            Engine::Parts(parts, _) => parts.0.borrow_mut().begin(micro_batch, micro_batch + 1 == whole.accumulation),
        }
        drain(&mut self.eager.program);
        let frames = self.forward();
        let name = |phase: &str| if several { format!("{phase}{micro_batch}") } else { phase.to_owned() };
        self.eager.program.mark(Mark::PhaseEnd(name("fwd")));
        self.backward(frames);
        self.eager.program.mark(Mark::PhaseEnd(name("bwd")));
        if micro_batch + 1 < whole.accumulation {
            drain(&mut self.eager.program);
        }
    }

    fn forward(&mut self) -> Frames {
        let (eager, whole) = (&mut self.eager, &self.job.whole);
        eager.program.set_pass(Pass::Forward);
        eager.category = Category::Activation;
        let tokens = eager.borrowed();
        let outside = eager.program.enter(self.scopes.embedding);
        let mode_of = |layer| mode(&whole.checkpoint, layer);
        let first = ParamMap::from(0);
        let (embedding, mut hidden) = eager.forward(&self.graphs.embedding, tokens, first, Mode::Train);
        let mut blocks = vec![];
        for (layer, &at) in self.graphs.of_block.iter().enumerate() {
            eager.program.enter(self.scopes.blocks[layer]);
            let params = ParamMap::from(self.layout.blocks[layer]);
            let (frame, output) = eager.forward(&self.graphs.blocks[at], hidden, params, mode_of(layer));
            eager.release(hidden);
            hidden = output;
            blocks.push(frame);
        }
        eager.program.enter(self.scopes.head);
        let graph = &self.graphs.head.graph;
        let mut head = eager.frame(graph, hidden, self.layout.head, Mode::Train);
        eager.forward_ops(graph, &mut head, 0..self.graphs.head.norm);
        eager.release(hidden);
        eager.category = Category::Logits;
        eager.forward_ops(graph, &mut head, self.graphs.head.norm..graph.ops.len());
        let loss = eager.finish_forward(graph, &mut head);
        if whole.context > 1 {
            eager.weigh_loss(whole.batch * whole.own_tokens());
        }
        eager.program.enter(outside);
        Frames { embedding, blocks, head, loss }
    }

    /// `engine.backward`: the loss is divided by the number of micro-batches for whoever reads it, and scaled by one.
    fn backward(&mut self, mut frames: Frames) {
        let eager = &mut self.eager;
        eager.program.set_pass(Pass::Backward);
        eager.category = Category::BackwardTemporary;
        let dispatch = eager.settings.forward;
        let [returned, scaled] = ["aten.div", "aten.mul"].map(|name| {
            let number = eager.storage(DType::Fp32.bytes(), name);
            eager.pointwise(name, MemoryKind::Elementwise, 4, 4, dispatch);
            number
        });
        let outside = eager.program.enter(self.scopes.head);
        let graph = &self.graphs.head.graph;
        let ones = eager.seed_gradient(graph.values[graph.output].dtype);
        let seed = eager.retain(ones);
        if self.job.whole.context > 1 {
            eager.weigh_loss_backward();
        }
        let hidden = eager.backward(graph, &mut frames.head, seed);
        let mut gradient = hidden.expect("the loss depends on the hidden state");
        for (layer, &at) in self.graphs.of_block.iter().enumerate().rev() {
            eager.program.enter(self.scopes.blocks[layer]);
            let mut frame = frames.blocks.pop().expect("a frame for every block");
            let input = eager.backward(&self.graphs.blocks[at], &mut frame, gradient);
            gradient = input.expect("a block's output depends on its input");
        }
        eager.program.enter(self.scopes.embedding);
        let graph = &self.graphs.embedding;
        eager.backward(graph, &mut frames.embedding, gradient);
        eager.release(ones);
        eager.program.enter(outside);
        match &self.engine {
            Engine::Recording => {}
            Engine::Flat(flat, _) => flat.ended(eager),
            Engine::Parts(parts, _) => parts.ended(eager),
        }
        for number in [scaled, returned, frames.loss] {
            eager.release(number);
        }
    }
}
