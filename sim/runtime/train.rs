//! The training loop around a model under FSDP: setup, forward, loss, backward, clipping, optimizer, zeroing.
//!
//! The loop is the plain PyTorch one: `loss = ce_loss(model(x), y); loss.backward(); optimizer.step();
//! optimizer.zero_grad(set_to_none=True)`. Python's references are followed: a hidden state lives until the next one has
//! taken its name, logits until the loss has been computed.

use super::eager::{COMPUTE, Eager, Frame, Mode, ParamMap, Settings, Storage, fp8};
use super::fsdp::hooks::Run;
use super::fsdp::{Fsdp, Version};
use super::optimizer::{self, Optimizer};
use crate::model::fuse::Float8;
use crate::model::head::Loss;
use crate::model::style::{Linears, Style};
use crate::model::tensor::TensorParallel;
use crate::model::{ModelConfig, Position};
use crate::program::builder::Section;
use crate::program::{BufferId, Builder, Category, DType, Dispatch, Mark, Pass, Program, ScopeId};
use crate::units::Bytes;

mod besides;
mod blocks;
mod framework;
pub(super) mod plan;
mod spread;
mod wrapped;

use blocks::BlockFrame;
use plan::{Graphs, Layout, Scopes, communicators, context_ring, graphs, groups, layout, streams, tensor_group};

/// The operator of an embedding's graph that looks positions up, where it has one: after tokens and row numbers.
const POSITIONS: usize = 2;

/// What each block does about its activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Keep everything autograd saves.
    None,
    /// Keep the block's input, run its forward again in backward.
    Full,
    /// Do that for the blocks that say so.
    Blocks(Vec<bool>),
    /// torchtitan's operator-level selective policy.
    SelectiveOp,
}

/// What the loop does besides forward, backward and optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loop {
    /// Cross-entropy metrics computed on the logits of each micro-batch.
    pub train_metrics: u32,
    /// Numbers reduced over all ranks and read back at the end of a step.
    pub host_syncs: u32,
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
    /// FSDP.
    pub fsdp: Fsdp,
    /// How the model is split over tensor-parallel ranks, before FSDP shards what each has.
    pub tensor: TensorParallel,
    /// Ranks that share a sequence; FSDP shards over them too.
    pub context: u32,
    /// Activation checkpointing.
    pub checkpoint: Checkpoint,
    /// Eager settings.
    pub eager: Settings,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Whether each parameter's gradient is multiplied by a number before the step, one after the other.
    pub scale_gradients: bool,
    /// Whether each parameter is stepped as soon as its gradient is there, which then goes.
    pub step_in_backward: bool,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Rows of the rotary table kept as a buffer.
    pub max_positions: u64,
    /// Whether each block is compiled on its own (`torch.compile` of every block before `fully_shard`).
    pub compile: bool,
    /// Linears of compiled blocks in fp8, where they are.
    pub float8: Option<Float8>,
    /// Whether checkpoints stand around compiled blocks, or are compiled with them.
    pub checkpoint_compiled: bool,
    /// Whether attention runs on tokens packed without padding ([`crate::model::unpad`]).
    pub unpad: bool,
    /// How the model's code is written.
    pub style: Style,
    /// Loss.
    pub loss: Loss,
    /// What the loop does besides.
    pub training_loop: Loop,
    /// Whether the loop's variable holds the logits until the next forward has returned.
    pub keep_logits: bool,
    /// Type the root's output is cast to (`MixedPrecisionPolicy.output_dtype`).
    pub output: Option<DType>,
}

impl Job {
    /// Ranks that each have data of their own, if only parts of the same sequence.
    pub fn data_ranks(&self) -> u32 {
        self.fsdp.shard * self.fsdp.replicate
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

/// The program of one rank; all ranks run the same.
pub fn compile(job: &Job) -> Program {
    let ranks = job.data_ranks() * job.tensor.ranks as u32;
    let streams = streams(job);
    let mut program = Builder::new(ranks, &streams);
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
    let communicators = communicators(&mut program, job);
    let tensor = tensor_group(&mut program, job, streams.len());
    let ring = context_ring(&mut program, job, streams.len());
    let graphs = graphs(job);
    let layout = layout(job, &graphs);
    let mut eager = Eager::new(program, job.eager, layout.params.len());
    eager.tensor = tensor;
    eager.context = ring;
    let spread = spread::groups(&mut eager.program, job, streams.len());
    eager.spread = spread.map(|(_, ranks)| ranks);
    let head = &graphs.head.graph;
    let weight = head.params.len() - 1;
    let uses = head.ops.iter().filter(|op| op.params.contains(&weight)).count() + usize::from(job.model.tied_head);
    eager.shared = (uses > 1).then(|| (layout.head.index(weight), uses as u32));
    let run = if job.fsdp.version == Version::Unsharded {
        eager.step_at_once = job.step_in_backward.then_some((job.optimizer, scopes.optimizer));
        Run::unsharded(eager, &job.fsdp, &layout.params, communicators)
    } else {
        let own = spread.map(|(own, _)| own);
        let (groups, units) = groups(job, &graphs, &layout, (&scopes, own));
        Run::new(eager, &job.fsdp, groups, units, communicators)
    };
    let mut training = Training { job, graphs, layout, scopes, run, kept: vec![], kept_across: vec![] };
    training.setup();
    let sections: &[Section] = match job.fsdp.version {
        // Every step is alike, but that the first makes the optimizer's state.
        Version::Two => &[Section::Step],
        // The first step learns the order of execution, and leaves events to the second.
        Version::One(_) | Version::Unsharded => &[Section::First, Section::Step],
    };
    for &section in sections {
        training.run.eager.program.section(section);
        training.step(sections.len() == 1 || section == Section::First);
    }
    training.run.eager.program.finish()
}

struct Training<'j> {
    job: &'j Job,
    graphs: Graphs,
    layout: Layout,
    scopes: Scopes,
    run: Run<'j>,
    /// Logits that the loop's variable holds, of the micro-batch before.
    kept: Vec<Storage>,
    /// What they are known as from one step to the next.
    kept_across: Vec<BufferId>,
}

impl Training<'_> {
    /// Parameters, buffers, inputs.
    fn setup(&mut self) {
        let job = self.job;
        let storage = job.fsdp.mixed_precision.storage.bytes();
        let shards = self.run.shards();
        let keeps_logits = self.keeps_logits();
        let program = &mut self.run.eager.program;
        if !job.fsdp.cpu_offload {
            for (param, elements) in shards {
                let name = param.map_or("flat_param", |param| self.layout.names[param]);
                program.alloc(Bytes(elements * storage), COMPUTE, Category::Parameter, name);
            }
        }
        // `to_empty` makes a tied table twice; the second goes when FSDP ties the two again before the first step.
        let tied_later = job.model.tied_head && job.fsdp.version != Version::Unsharded;
        let twice = (tied_later && !job.fsdp.cpu_offload).then(|| {
            let bytes = Bytes(self.layout.params[0].padded_shard(job.fsdp.shard) * storage);
            program.alloc(bytes, COMPUTE, Category::Parameter, "output.weight")
        });
        if let Position::Rope { dims } = job.model.position {
            // The rotary table: complex64, one row per position.
            program.alloc(Bytes(job.max_positions * dims / 2 * 8), COMPUTE, Category::Buffer, "freqs_cis");
        }
        if job.model.position == Position::Alibi && job.eager.bias_tensor {
            let elements = job.model.heads * job.max_positions * job.max_positions;
            let bytes = Bytes(elements * job.fsdp.mixed_precision.compute().bytes());
            program.alloc(bytes, COMPUTE, Category::Buffer, "attention bias");
        }
        if let Some(twice) = twice {
            program.free(twice);
        }
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
        for name in ["tokens", "labels"] {
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
            self.run.eager.gradient_dtype = self.run.stored_gradient();
            let frames = self.forward();
            self.phase_end("fwd", micro_batch);
            self.backward(frames, last || !self.job.marks_last);
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

    fn forward(&mut self) -> Frames {
        self.run.eager.program.set_pass(Pass::Forward);
        self.run.eager.category = Category::Activation;
        self.run.root_pre_forward();
        let tokens = self.run.eager.borrowed();
        let units = self.run.units.clone();

        if let Some(group) = units.embedding {
            let prefetch = self.prefetched_by_embedding();
            self.run.pre_forward(group, &prefetch);
        }
        let before = self.run.eager.program.enter(self.scopes.embedding);
        let first = ParamMap { first: 0, tied: None };
        let graph = &self.graphs.embedding;
        let mut embedding = self.run.eager.frame(graph, tokens, first, Mode::Train);
        // Where the tables are units of their own, the first operator is the one's, the third the other's.
        let own = if self.job.fsdp.wrap.apart { 1 } else { graph.ops.len() };
        self.run.eager.forward_ops(graph, &mut embedding, 0..own);
        self.run.eager.program.enter(before);
        if let Some(group) = units.embedding {
            self.run.post_forward(group);
        }
        self.run.eager.program.enter(self.scopes.embedding);
        let mut at = own;
        if let Some(group) = units.positions {
            self.run.eager.forward_ops(graph, &mut embedding, own..POSITIONS);
            self.run.pre_forward(group, &[]);
            self.run.eager.forward_ops(graph, &mut embedding, POSITIONS..POSITIONS + 1);
            self.run.post_forward(group);
            at = POSITIONS + 1;
        }
        self.run.eager.forward_ops(graph, &mut embedding, at..graph.ops.len());
        let mut hidden = self.run.eager.finish_forward(graph, &mut embedding);
        self.run.eager.program.enter(before);

        let mut blocks = Vec::with_capacity(units.blocks.len());
        for layer in 0..units.blocks.len() {
            self.block_forward_begins(layer);
            let before = self.run.eager.program.enter(self.scopes.blocks[layer]);
            let (frame, output) = self.forward_block(layer, hidden);
            self.run.eager.program.enter(before);
            self.block_forward_ended(layer);
            self.run.eager.release(hidden);
            hidden = output;
            blocks.push(frame);
        }

        let apart = self.job.fsdp.wrap.apart;
        if let Some(group) = if apart { units.norm } else { units.head } {
            self.run.pre_forward(group, &[]);
        }
        let before = self.run.eager.program.enter(self.scopes.head);
        let (graph, norm, loss_from) = (&self.graphs.head.graph, self.graphs.head.norm, self.graphs.head.loss_from);
        let mut head = self.run.eager.frame(graph, hidden, self.layout.head, Mode::Train);
        self.run.eager.forward_ops(graph, &mut head, 0..norm);
        if let Some(group) = units.norm {
            self.run.post_forward(group);
        }
        if let Some(group) = units.head.filter(|_| norm > 0 || apart) {
            // Norm and head are one group unless they are apart: its hook runs before each of them.
            self.run.pre_forward(group, &[]);
        }
        self.run.eager.category = Category::Logits;
        self.run.eager.forward_ops(graph, &mut head, norm..loss_from);
        self.run.eager.program.enter(before);
        if let Some(group) = units.head {
            self.run.post_forward(group);
        }
        self.run.eager.release(hidden);
        self.run.root_post_forward();

        let before = self.run.eager.program.enter(self.scopes.head);
        let (logits, handed) = (&self.graphs.head.logits.0, self.graphs.head.logits.1);
        self.run.eager.forward_ops(graph, &mut head, loss_from..handed);
        if self.keeps_logits() {
            let now = logits.iter().map(|&value| self.run.eager.hold(&head, value)).collect();
            let before = std::mem::replace(&mut self.kept, now);
            if before.is_empty() {
                // The first micro-batch: what the step before left.
                for &buffer in &self.kept_across {
                    self.run.eager.program.free(buffer);
                }
            }
            for storage in before {
                self.run.eager.release(storage);
            }
        }
        self.forward_loss(&mut head, handed);
        let graph = &self.graphs.head.graph;
        let loss_value = self.run.eager.finish_forward(graph, &mut head);
        self.run.eager.program.enter(before);
        Frames { embedding, blocks, head, loss_value }
    }

    fn backward(&mut self, mut frames: Frames, last: bool) {
        self.run.eager.program.set_pass(Pass::Backward);
        let units = self.run.units.clone();
        let before = self.run.eager.program.enter(self.scopes.head);
        let (graph, loss_from) = (&self.graphs.head.graph, self.graphs.head.loss_from);
        let ones = self.run.eager.seed_gradient(graph.values[graph.output].dtype);
        let seed = self.run.eager.retain(ones);
        self.run.eager.start_backward(graph, &mut frames.head, seed);
        // Gradients of the head's weight that arrive before the root's hook are stored in the type they are reduced in.
        let stored = self.run.eager.gradient_dtype;
        self.run.eager.gradient_dtype = Some(self.job.fsdp.mixed_precision.reduce_dtype());
        self.run.eager.backward_ops(graph, &mut frames.head, loss_from..graph.ops.len());
        self.run.eager.gradient_dtype = stored;
        for group in [units.head, units.root].into_iter().flatten() {
            let prefetch = self.prefetched_by_head();
            self.run.pre_backward(group, &prefetch);
        }
        let norm = if units.norm.is_some() { self.graphs.head.norm } else { 0 };
        self.run.eager.backward_ops(graph, &mut frames.head, norm..loss_from);
        // A head that is the embedding's table gets its other gradient at the end.
        let shared = units.head == units.embedding;
        let mut done = units.head.filter(|_| !shared);
        if let Some(group) = units.norm {
            if let Some(head) = done.replace(group) {
                self.run.post_backward(head);
            }
            self.run.pre_backward(group, &[]);
            self.run.eager.backward_ops(graph, &mut frames.head, 0..norm);
        }
        let hidden = self.run.eager.finish_backward(&mut frames.head);
        let mut hidden = hidden.expect("the logits depend on the hidden state");
        if let Some(group) = done {
            self.run.post_backward(group);
        }
        for layer in (0..units.blocks.len()).rev() {
            self.block_backward_begins(layer);
            self.run.eager.program.enter(self.scopes.blocks[layer]);
            let frame = frames.blocks.pop().expect("a frame for every block");
            hidden = self.backward_block(layer, frame, hidden);
            self.block_backward_ended(layer);
        }
        let graph = &self.graphs.embedding;
        let mut left = graph.ops.len();
        self.run.eager.start_backward(graph, &mut frames.embedding, hidden);
        if let Some(group) = units.positions {
            self.run.eager.program.enter(self.scopes.embedding);
            self.run.eager.backward_ops(graph, &mut frames.embedding, POSITIONS + 1..left);
            self.run.pre_backward(group, &[]);
            self.run.eager.backward_ops(graph, &mut frames.embedding, POSITIONS..POSITIONS + 1);
            self.run.post_backward(group);
            left = POSITIONS;
        }
        // The hook of a table that is used twice runs once, where its first gradient came.
        if let Some(group) = units.embedding.filter(|_| !shared) {
            self.run.pre_backward(group, &[]);
        }
        self.run.eager.program.enter(self.scopes.embedding);
        self.run.eager.backward_ops(graph, &mut frames.embedding, 0..left);
        self.run.eager.finish_backward(&mut frames.embedding);
        self.run.eager.program.enter(before);
        self.run.final_callback(last);
        self.run.eager.release(ones);
        self.run.eager.release(frames.loss_value);
    }

    /// Clipping, the optimizer step, zeroing.
    fn update(&mut self, first: bool) {
        let (job, sizes) = (self.job, self.run.optimizer_sizes());
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
            optimizer::scale(program, &sizes, element);
        }
        if job.clip && !on_host {
            self.clip(&sizes, element);
        }
        if job.clip {
            self.phase_end("clip", 0);
        }
        self.balance_experts();
        let program = &mut self.run.eager.program;
        if on_host {
            optimizer::step_on_host(program, job.optimizer, &sizes, element, job.clip);
        } else {
            if first {
                let make = |program: &mut Builder| optimizer::make_state(program, job.optimizer, &sizes, element);
                match job.fsdp.version {
                    Version::Two => program.first_only(make),
                    Version::One(_) | Version::Unsharded => make(program),
                }
            }
            optimizer::step(program, job.optimizer, &sizes, element);
        }
        self.find_scales();
        self.phase_end("opt", 0);
        self.run.zero_gradients();
        self.phase_end("zero", 0);
        self.run.eager.program.enter(before);
    }
}

struct Frames {
    embedding: Frame,
    blocks: Vec<BlockFrame>,
    head: Frame,
    loss_value: Storage,
}
