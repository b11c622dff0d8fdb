//! The training loop around a model under FSDP: setup, forward, loss, backward, clipping, optimizer, zeroing.
//!
//! The loop is the plain PyTorch one: `loss = ce_loss(model(x), y); loss.backward(); optimizer.step();
//! optimizer.zero_grad(set_to_none=True)`. Python's references are followed: a hidden state lives until the next one has
//! taken its name, logits until the loss has been computed.

use super::compiled::Rotate;
use super::eager::{COMPUTE, Eager, Settings, Shared, StepAtOnce, Storage, fp8};
use super::fsdp::hooks::Run;
use super::fsdp::{Fsdp, Reshard, Version};
use super::optimizer::{self, Optimizer, Owned};
use crate::model::fuse::Float8;
use crate::model::head::Loss;
use crate::model::style::{Linears, Rope, Style};
use crate::model::tensor::TensorParallel;
use crate::model::transformers::class_of;
use crate::model::{ModelConfig, Position};
use crate::program::builder::Section;
use crate::program::{Budget, BufferId, Builder, Category, DType, Dispatch, GroupId, Mark, Program, ScopeId};
use crate::units::Bytes;

mod besides;
mod blocks;
mod body;
mod captured;
mod checkpoint;
mod framework;
mod halves;
mod initial;
mod looped;
mod passes;
pub mod pipeline;
pub(super) mod plan;
mod spread;
mod units;
mod wrapped;

pub use checkpoint::Checkpoint;
pub use initial::Initialisation;
pub use looped::{KeepLogits, Loop};
use pipeline::Pipeline;
use plan::{Graphs, Layout, Part, Scopes, communicators, context_ring, graphs, layout, streams, tensor_group};
use units::Maker;

/// `torch.autocast` in bf16 around forward and loss of fp32 parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autocast {
    /// Whether it keeps the weights it has cast until it ends (`cache_enabled`).
    pub cache: bool,
}

/// A training job, fully decided.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model.
    pub model: ModelConfig,
    /// Sequences per micro-batch and rank.
    pub batch: u64,
    /// Tokens per sequence.
    pub seq: u64,
    /// Micro-batches per step.
    pub accumulation: u32,
    /// Whether every micro-batch reduces its gradients, or only the last.
    pub sync_every: bool,
    /// Whether the loop tells FSDP which micro-batch is the last (`set_is_last_backward`).
    pub marks_last: bool,
    /// Whether parameters stay gathered after the backward of every micro-batch but the last
    /// (`set_reshard_after_backward(False)`).
    pub keeps_gathered: bool,
    /// Whether replicas all-reduce what a micro-batch reduced, or only once, with the last one
    /// (`set_requires_all_reduce(False)`, HSDP).
    pub all_reduce_every: bool,
    /// FSDP.
    pub fsdp: Fsdp,
    /// How the model is split over tensor-parallel ranks, before FSDP shards what each has.
    pub tensor: TensorParallel,
    /// Ranks that share a sequence; FSDP shards over them too.
    pub context: u32,
    /// How those get each other's keys and values.
    pub rotate: Rotate,
    /// How stages of the model take turns, where it is cut into some: each stage is a root of FSDP.
    pub pipeline: Option<Pipeline>,
    /// Activation checkpointing.
    pub checkpoint: Checkpoint,
    /// Whether checkpoints are reentrant (`use_reentrant=True`).
    pub reentrant: bool,
    /// Whether they stand around sharded blocks, so that `fully_shard`'s hooks run inside them: of reentrant ones it makes a
    /// difference.
    pub around_hooks: bool,
    /// Eager settings.
    pub eager: Settings,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Whether the optimizer has copies of all parameters in fp32, which it steps and writes back.
    pub master_weights: bool,
    /// Whether each parameter's gradient is multiplied by a number before the step, one after the other.
    pub scale_gradients: bool,
    /// Whether each parameter is stepped as soon as its gradient is there, which then goes.
    pub step_in_backward: bool,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Rows of the rotary table kept as a buffer.
    pub max_positions: u64,
    /// Autocast, where it is on.
    pub autocast: Option<Autocast>,
    /// Whether each block is compiled on its own (`torch.compile` of every block before `fully_shard`).
    pub compile: bool,
    /// Linears of compiled blocks in fp8, where they are.
    pub float8: Option<Float8>,
    /// Whether checkpoints stand around compiled blocks, or are compiled with them.
    pub checkpoint_compiled: bool,
    /// Whether attention runs on tokens packed without padding ([`crate::model::unpad`]).
    pub unpad: bool,
    /// Whether forward, loss and backward of a micro-batch are one CUDA graph (torchtitan 0.3.0).
    pub cuda_graphs: bool,
    /// How parameters are initialised, where that leaves blocks in the allocator's cache.
    pub initialisation: Initialisation,
    /// How the model's code is written.
    pub style: Style,
    /// Loss.
    pub loss: Loss,
    /// What the loop does besides.
    pub training_loop: Loop,
    /// How long the loop's variable holds the logits.
    pub keep_logits: KeepLogits,
    /// Whether the model's own forward computes the loss (`labels=`), after which alone FSDP's root hears of its end; labels
    /// are then shifted, and padded for that.
    pub loss_inside: bool,
    /// Type the root's output is cast to (`MixedPrecisionPolicy.output_dtype`).
    pub output: Option<DType>,
}

impl Job {
    /// The type that matmuls multiply in.
    pub fn multiplies_in(&self) -> DType {
        if self.autocast.is_some() { DType::Bf16 } else { self.fsdp.mixed_precision.compute() }
    }

    /// Ranks that each have data of their own, if only parts of the same sequence.
    pub fn data_ranks(&self) -> u32 {
        self.fsdp.shard * self.fsdp.replicate
    }

    /// Ranks of the whole job.
    pub fn ranks(&self) -> u32 {
        self.data_ranks() * self.tensor.ranks as u32 * self.pipeline.as_ref().map_or(1, |pipeline| pipeline.ranks)
    }

    /// Whether the head stays gathered after the model's forward in the first step alone: a loss that gathers it itself sets its
    /// policy for all steps after (`torchtitan/components/loss.py:769`, 0.3.0).
    fn first_step_keeps_head(&self) -> bool {
        let unshards = matches!(self.loss, Loss::ChunkedGradients { unshards: true, .. });
        unshards && self.pipeline.is_none() && self.fsdp.wrap.head.is_some_and(|policy| policy != Reshard::Always)
    }

    /// Whether the first step is another than those after it.
    fn first_step_differs(&self) -> bool {
        self.cuda_graphs || self.first_step_keeps_head()
    }

    /// Tokens of a sequence that one rank has.
    pub fn own_tokens(&self) -> u64 {
        self.seq / u64::from(self.context)
    }

    /// Tokens of one step of the whole job.
    pub fn tokens(&self) -> u64 {
        self.batch * self.own_tokens() * u64::from(self.accumulation) * u64::from(self.data_ranks())
    }
}

/// The program of one rank; all ranks run the same, but in a pipeline.
pub fn compile(job: &Job) -> Program {
    compile_within(job, &Budget::unlimited())
}

fn compile_within(job: &Job, budget: &Budget) -> Program {
    let mut training = Training::new((job, budget), vec![Part::whole(job)]);
    training.setup();
    let sections: &[Section] = match job.fsdp.version {
        Version::Two if job.first_step_differs() => &[Section::First, Section::Step],
        // Every step is alike, but that the first makes the optimizer's state.
        Version::Two => &[Section::Step],
        // The first step learns the order of execution, and leaves events to the second.
        Version::One(_) | Version::Unsharded => &[Section::First, Section::Step],
    };
    for &section in sections {
        training.run.eager.program.section(section);
        training.step(sections.len() == 1 || section == Section::First);
    }
    if let Some(graphs) = training.graphs_of_passes {
        training.run.eager.program.take_graphs_memory_in_first(graphs.captured_at);
    }
    training.run.eager.program.finish()
}

struct Training<'j> {
    job: &'j Job,
    graphs: Graphs,
    layout: Layout,
    scopes: Scopes,
    run: Run<'j>,
    /// What each of the rank's roots has of the model, and which of them is at work.
    parts: Vec<Part>,
    at: usize,
    /// What transformers' `forward` makes for all blocks.
    body: body::Made,
    /// Logits that the loop's variable holds, of the micro-batch before.
    kept: Vec<Storage>,
    /// What they are known as from one step to the next.
    kept_across: Vec<BufferId>,
    /// What the loop's name for a step's loss holds, in a pipeline: it outlives the optimizer's step.
    of_loss: Vec<Storage>,
    /// The pipeline's communicator, where there is one.
    pipeline_group: Option<GroupId>,
    /// CUDA graphs of forward and backward, where the job has them.
    graphs_of_passes: Option<captured::Captured>,
}

impl<'j> Training<'j> {
    /// A rank that has these parts of the model, each a root of its own.
    fn new((job, budget): (&'j Job, &Budget), parts: Vec<Part>) -> Self {
        let streams = streams(job);
        let mut program = Builder::within(budget, job.ranks(), &streams);
        let mut scopes = Scopes {
            root: ScopeId(0),
            embedding: program.add_scope("tok_embeddings".to_owned()),
            blocks: (0..job.model.layers).map(|layer| program.add_scope(format!("layers.{layer}"))).collect(),
            head: program.add_scope("norm, output".to_owned()),
            optimizer: program.add_scope("optimizer".to_owned()),
            metrics: ScopeId(0),
        };
        if job.training_loop.train_metrics > 0 {
            scopes.metrics = program.add_scope("metrics".to_owned());
        }
        let graphs_of_passes = job.cuda_graphs.then(|| captured::Captured::new(&mut program));
        let communicators = communicators(&mut program, job);
        let tensor = tensor_group(&mut program, job, streams.len());
        let ring = context_ring(&mut program, job, streams.len());
        let graphs = graphs(job);
        let layout = layout(job, &graphs, &parts);
        let mut eager = Eager::new(program, job.eager, layout.params.len());
        eager.tensor = tensor;
        eager.context = ring;
        let spread = spread::groups(&mut eager.program, job, streams.len());
        eager.spread = spread.map(|(_, ranks)| ranks);
        let head = &graphs.head.graph;
        let weight = head.params.len() - 1;
        let uses = head.ops.iter().filter(|op| op.params.contains(&weight)).count() + usize::from(job.model.tied_head);
        let shared = Shared { param: layout.head.index(weight), uses: uses as u32, zeroed: true };
        eager.shared = (uses > 1).then_some(shared).into_iter().collect();
        let run = if job.fsdp.version == Version::Unsharded {
            let over = (job.fsdp.shard, communicators.shard);
            let params = || layout.params.iter().map(|param| param.stepped(over)).collect();
            let (optimizer, scope) = (job.optimizer, scopes.optimizer);
            eager.step_at_once = job.step_in_backward.then(|| StepAtOnce { optimizer, scope, params: params() });
            Run::unsharded(eager, &job.fsdp, &layout.params, communicators)
        } else {
            let own = spread.map(|(own, _)| own);
            let mut all = vec![];
            let (graphs, layout, scopes) = (&graphs, &layout, &scopes);
            let units = |part| Maker { job, graphs, layout, part, scopes, own }.groups(&mut all);
            let mut roots = parts.iter().map(units).collect::<Vec<_>>().into_iter();
            let first = roots.next().expect("a rank has a part of the model");
            let mut run = Run::new(eager, &job.fsdp, all, first, communicators);
            roots.for_each(|units| run.add_root(units));
            run
        };
        let (kept, kept_across, of_loss) = (vec![], vec![], vec![]);
        let (body, pipeline_group, at) = (body::Made::default(), None, 0);
        Training {
            job,
            graphs,
            layout,
            scopes,
            run,
            parts,
            at,
            body,
            kept,
            kept_across,
            of_loss,
            pipeline_group,
            graphs_of_passes,
        }
    }

    /// Parameters, buffers, inputs.
    fn setup(&mut self) {
        let job = self.job;
        let storage = job.fsdp.mixed_precision.storage.bytes();
        let shards = self.run.shards();
        let keeps_logits = self.keeps_logits();
        let program = &mut self.run.eager.program;
        // The rotary table: complex64, one row per position. Every part of the model has one, or every block before its parameters.
        let by_position = job.style.rope == Rope::ComplexByPosition;
        let table = match job.model.position {
            Position::Rope { dims } => Some(Bytes(job.max_positions * dims / 2 * 8)),
            _ => None,
        };
        let of_blocks = table.filter(|_| by_position);
        let layers = || self.parts.iter().flat_map(|part| part.blocks.clone());
        let mut tables = vec![];
        let mut add = |program: &mut Builder, layer: usize| {
            let made = of_blocks.map(|bytes| program.alloc(bytes, COMPUTE, Category::Buffer, "freqs_cis"));
            tables.extend(made.map(|buffer| (layer, buffer)));
        };
        if job.fsdp.cpu_offload {
            layers().for_each(|layer| add(program, layer));
            shards.iter().for_each(|(_, param)| job.optimizer.keep_on_host(program, param, storage));
        } else {
            for (param, owned) in shards {
                for layer in layers().filter(|&layer| param == Some(self.layout.blocks[layer])) {
                    add(program, layer);
                }
                let name = param.map_or("flat_param", |param| self.layout.names[param]);
                program.alloc(Bytes(owned.elements() * storage), COMPUTE, Category::Parameter, name);
            }
        }
        // `to_empty` makes a tied table twice; the second goes when FSDP ties the two again before the first step.
        let tied_later = job.model.tied_head && job.fsdp.version != Version::Unsharded;
        let twice = (tied_later && !job.fsdp.cpu_offload).then(|| {
            let bytes = Bytes(self.layout.params[0].padded_shard(job.fsdp.shard) * storage);
            program.alloc(bytes, COMPUTE, Category::Parameter, "output.weight")
        });
        let transformers = class_of(&job.model, job.style).is_some();
        if let Position::Rope { dims } = job.model.position
            && transformers
        {
            // `inv_freq` and `original_inv_freq`.
            for _ in 0..2 {
                program.alloc(Bytes(2 * dims), COMPUTE, Category::Buffer, "inv_freq");
            }
        } else if let (Some(bytes), false) = (table, by_position) {
            // The rotary table: complex64, one row per position. Every part of the model has one.
            for _ in &self.parts {
                program.alloc(bytes, COMPUTE, Category::Buffer, "freqs_cis");
            }
        }
        if job.model.position == Position::Alibi && job.eager.bias_tensor && !transformers {
            let elements = job.model.heads * job.max_positions * job.max_positions;
            let bytes = Bytes(elements * job.fsdp.mixed_precision.compute().bytes());
            for _ in &self.parts {
                program.alloc(bytes, COMPUTE, Category::Buffer, "attention bias");
            }
        }
        if let Some(twice) = twice {
            program.free(twice);
        }
        self.initialise(&tables, table.unwrap_or_default());
        if job.master_weights {
            // `p.detach().clone().float()`
            for elements in self.run.owned().iter().map(Owned::elements) {
                let program = &mut self.run.eager.program;
                let clone = program.alloc(Bytes(elements * storage), COMPUTE, Category::OptimizerState, "clone");
                let bytes = Bytes(elements * DType::Fp32.bytes());
                program.alloc(bytes, COMPUTE, Category::OptimizerState, "master copy");
                program.free(clone);
            }
        }
        let program = &mut self.run.eager.program;
        if job.style.linears == Linears::EngineFp8 {
            program.alloc(Bytes(fp8::WORKSPACE), COMPUTE, Category::Buffer, "te cublas workspace");
        }
        if keeps_logits {
            let head = &self.graphs.head;
            let bytes = head.logits.0.iter().map(|&value| Bytes(head.graph.values[value].bytes()));
            self.kept_across = bytes
                .map(|bytes| program.later(bytes, COMPUTE, Category::Logits, "logits of the step before"))
                .collect();
        }
        // All that a pipeline takes in a step is there when it begins.
        let batches = if job.pipeline.is_some() { job.accumulation } else { 1 };
        let given: &[_] = if by_position { &["tokens", "labels", "positions"] } else { &["tokens", "labels"] };
        for name in (0..batches).flat_map(|_| given) {
            program.alloc(Bytes(job.batch * job.own_tokens() * DType::Int64.bytes()), COMPUTE, Category::Buffer, name);
        }
    }

    fn phase_end(&mut self, name: &str, micro_batch: u32) {
        let name = if self.job.accumulation > 1 && matches!(name, "fwd" | "bwd") {
            format!("{name}{micro_batch}")
        } else {
            name.to_owned()
        };
        self.run.eager.program.mark(Mark::PhaseEnd(name));
    }

    fn step(&mut self, first: bool) {
        self.run.eager.program.host(Dispatch::StepOverhead, 1);
        for micro_batch in 0..self.job.accumulation {
            let last = micro_batch + 1 == self.job.accumulation;
            self.run.reduce_gradients = last || self.job.sync_every;
            self.run.keeps_gathered = !last && self.job.keeps_gathered;
            self.run.all_reduces = last || self.job.all_reduce_every;
            self.run.eager.gradient_dtype = self.run.stored_gradient();
            self.graph_begins(first, micro_batch);
            let (mut frames, _) = self.forward(None);
            self.loss(&mut frames);
            self.phase_end("fwd", micro_batch);
            let (loss, logits) = (frames.loss.take(), std::mem::take(&mut frames.logits));
            self.backward(&mut frames, None, last || !self.job.marks_last);
            if let Some(loss) = loss {
                self.run.eager.release(loss);
            }
            for storage in logits {
                self.run.eager.release(storage);
            }
            self.graph_ends(first, last);
            self.metrics();
            self.phase_end("bwd", micro_batch);
        }
        self.update(first);
        self.read_back();
        let buffers = std::mem::take(&mut self.kept_across);
        for (storage, &buffer) in std::mem::take(&mut self.kept).into_iter().zip(&buffers) {
            self.run.eager.hand_over(storage, buffer);
        }
        self.kept_across = buffers;
    }

    /// Clipping, the optimizer step, zeroing.
    fn update(&mut self, mut first: bool) {
        let (job, params, caller) = (self.job, self.run.owned(), self.job.fsdp.version.caller());
        let element = job.fsdp.mixed_precision.storage.bytes();
        let scope = self.scopes.optimizer;
        let program = &mut self.run.eager.program;
        let before = program.enter(scope);
        let on_host = job.fsdp.cpu_offload;
        if job.step_in_backward {
            self.phase_end("opt", 0);
            self.run.eager.program.enter(before);
            return;
        }
        if job.scale_gradients {
            optimizer::scale(program, &params, element);
        }
        if job.clip && !on_host {
            self.clip(&params, element);
        }
        if job.clip {
            self.phase_end("clip", 0);
        }
        self.balance_experts();
        let program = &mut self.run.eager.program;
        if on_host {
            job.optimizer.step_on_host(program, (caller, &params, element), job.clip);
        } else {
            let of_state = if job.master_weights { DType::Fp32.bytes() } else { element };
            // The first step makes the optimizer's state.
            let mut make = |program: &mut Builder| {
                if !std::mem::take(&mut first) {
                    return;
                }
                let make = |program: &mut Builder| job.optimizer.make_state(program, caller, &params, of_state);
                match job.fsdp.version {
                    Version::Two if !job.first_step_differs() => program.first_only(make),
                    _ => make(program),
                }
            };
            // Each part of the model has an optimizer of its own.
            let mut start = 0;
            for &end in &self.layout.ends {
                let end = if self.layout.ends.len() == 1 { params.len() } else { end };
                let own = &params[start..end];
                if job.master_weights {
                    job.optimizer.step_master(program, (caller, own, element), &mut make);
                } else {
                    make(program);
                    job.optimizer.step(program, caller, own, element);
                }
                start = end;
            }
        }
        self.find_scales();
        self.phase_end("opt", 0);
        for storage in std::mem::take(&mut self.of_loss) {
            self.run.eager.release(storage);
        }
        if self.graphs_of_passes.is_some() {
            self.zero_in_place();
        } else {
            self.run.zero_gradients();
        }
        self.phase_end("zero", 0);
        self.run.eager.program.enter(before);
    }
}
