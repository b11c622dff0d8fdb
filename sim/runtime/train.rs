//! The training loop around a model under FSDP: setup, forward, loss, backward, clipping, optimizer, zeroing.
//!
//! The loop is the plain PyTorch one: `loss = ce_loss(model(x), y); loss.backward(); optimizer.step();
//! optimizer.zero_grad(set_to_none=True)`. Python's references are followed: a hidden state lives until the next one has
//! taken its name, logits until the loss has been computed.

use super::eager::{COMPUTE, Eager, Frame, Keep, Mode, ParamMap, Settings, Storage};
use super::fsdp::group::ShardedParam;
use super::fsdp::hooks::{Run, Units};
use super::fsdp::{Communicators, Fsdp, Group, Wrap};
use super::optimizer::{self, Optimizer};
use crate::model::block;
use crate::model::graph::Graph;
use crate::model::{ModelConfig, Position};
use crate::program::builder::Section;
use crate::program::{
    Builder, Category, Collective, Comm, DType, Dispatch, GroupId, Mark, Pass, Program, ScopeId,
};
use crate::units::Bytes;

/// What each block does about its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Keep everything autograd saves.
    None,
    /// Keep the block's input, run its forward again in backward.
    Full,
    /// Do that for one block in `every`, starting with the first.
    Every(u32),
    /// torchtitan's operator-level selective policy.
    SelectiveOp,
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
    /// Activation checkpointing.
    pub checkpoint: Checkpoint,
    /// Eager settings.
    pub eager: Settings,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// Whether gradients are clipped to a norm.
    pub clip: bool,
    /// Rows of the rotary table kept as a buffer.
    pub max_positions: u64,
}

/// Graphs of the distinct modules.
struct Graphs {
    embedding: Graph,
    blocks: Vec<Graph>,
    /// For each block, its graph.
    of_block: Vec<usize>,
    head: Graph,
    loss: Graph,
}

/// Builds the graphs: blocks differ only by their sliding window.
fn graphs(job: &Job) -> Graphs {
    let dims = block::dims(&job.model, job.batch, job.seq);
    let compute = job.fsdp.mixed_precision.compute();
    let (mut blocks, mut windows, mut of_block) = (vec![], vec![], vec![]);
    for layer in 0..job.model.layers {
        let window = job.model.window(layer).filter(|&window| window < job.seq);
        let at = windows.iter().position(|&known| known == window).unwrap_or_else(|| {
            windows.push(window);
            blocks.push(block::block(&job.model, dims, compute, window));
            windows.len() - 1
        });
        of_block.push(at);
    }
    Graphs {
        embedding: block::embedding(&job.model, dims, compute),
        blocks,
        of_block,
        head: block::head(&job.model, dims, compute),
        loss: block::loss(dims, compute),
    }
}

/// Parameters of the whole model in registration order, and where each module's begin.
struct Layout {
    params: Vec<ShardedParam>,
    names: Vec<&'static str>,
    blocks: Vec<usize>,
    head: ParamMap,
}

fn layout(job: &Job, graphs: &Graphs) -> Layout {
    let (mut params, mut names) = (vec![], vec![]);
    let mut add = |graph: &Graph, skip: usize| {
        let first = params.len();
        for param in &graph.params[..graph.params.len() - skip] {
            params.push(ShardedParam { index: params.len(), rows: param.rows, cols: param.cols });
            names.push(param.name);
        }
        first
    };
    add(&graphs.embedding, 0);
    let blocks = graphs.of_block.iter().map(|&at| add(&graphs.blocks[at], 0)).collect();
    let tied = job.model.tied_head;
    let first = add(&graphs.head, usize::from(tied));
    // A tied head reads the embedding's table, parameter 0; its own weight would be its graph's last parameter.
    let head = ParamMap { first, tied: tied.then(|| (graphs.head.params.len() - 1, 0)) };
    Layout { params, names, blocks, head }
}

/// Groups as `fully_shard` makes them: wrapped modules take their parameters, the root takes the rest.
fn groups(job: &Job, graphs: &Graphs, layout: &Layout, scopes: &Scopes) -> (Vec<Group>, Units) {
    let Wrap { blocks, embedding, head, root } = &job.fsdp.wrap;
    let params = &layout.params;
    let embedding_end = graphs.embedding.params.len();
    let head_start = layout.head.first;
    let tied = layout.head.tied.is_some();
    let (mut all, mut rest) = (vec![], vec![]);
    let mut units = Units { root: None, embedding: None, blocks: vec![None; blocks.len()], head: None };
    // Tied weights must share a group, so the root keeps both ends of the model.
    match embedding {
        Some(reshard) if !tied => {
            units.embedding = Some(all.len());
            all.push(Group::new(scopes.embedding, params[..embedding_end].to_vec(), *reshard));
        }
        _ => rest.extend_from_slice(&params[..embedding_end]),
    }
    for (at, reshard) in blocks.iter().enumerate() {
        let start = layout.blocks[at];
        let own = &params[start..start + graphs.blocks[graphs.of_block[at]].params.len()];
        match reshard {
            Some(reshard) => {
                units.blocks[at] = Some(all.len());
                all.push(Group::new(scopes.blocks[at], own.to_vec(), *reshard));
            }
            None => rest.extend_from_slice(own),
        }
    }
    match head {
        Some(reshard) if !tied => {
            units.head = Some(all.len());
            all.push(Group::new(scopes.head, params[head_start..].to_vec(), *reshard));
        }
        _ => rest.extend_from_slice(&params[head_start..]),
    }
    if !rest.is_empty() {
        units.root = Some(all.len());
        all.push(Group::new(scopes.root, rest, *root));
    }
    (all, units)
}

struct Scopes {
    root: ScopeId,
    embedding: ScopeId,
    blocks: Vec<ScopeId>,
    head: ScopeId,
    optimizer: ScopeId,
}

/// The program of one rank; all ranks run the same.
pub fn compile(job: &Job) -> Program {
    let ranks = job.fsdp.shard * job.fsdp.replicate;
    let mut program = Builder::new(ranks, job.fsdp.streams());
    let scopes = Scopes {
        root: ScopeId(0),
        embedding: program.add_scope("tok_embeddings".to_owned()),
        blocks: (0..job.model.layers).map(|layer| program.add_scope(format!("layers.{layer}"))).collect(),
        head: program.add_scope("norm, output".to_owned()),
        optimizer: program.add_scope("optimizer".to_owned()),
    };
    let communicators = communicators(&mut program, &job.fsdp);
    let graphs = graphs(job);
    let layout = layout(job, &graphs);
    let (groups, units) = groups(job, &graphs, &layout, &scopes);
    let eager = Eager::new(program, job.eager, layout.params.len());
    let run = Run::new(eager, &job.fsdp, groups, units, communicators);
    let mut training = Training { job, graphs, layout, scopes, run };
    training.setup();
    for section in [Section::First, Section::Step] {
        training.run.eager.program.section(section);
        training.step(section == Section::First);
    }
    training.run.eager.program.finish()
}

fn communicators(program: &mut Builder, fsdp: &Fsdp) -> Communicators {
    let mut add = |name: &str, size, stride| {
        program.add_group(crate::program::Group { name: name.to_owned(), size, stride })
    };
    let shard = add("dp_shard", fsdp.shard, 1);
    let replicate = (fsdp.replicate > 1).then(|| add("dp_replicate", fsdp.replicate, fsdp.shard));
    let post_forward: Option<GroupId> = fsdp.wrap.blocks.iter().flatten().find_map(|reshard| match reshard {
        super::fsdp::Reshard::To(ranks) => Some(add("dp_shard (after forward)", *ranks, 1)),
        _ => None,
    });
    Communicators { shard, replicate, post_forward }
}

struct Training<'j> {
    job: &'j Job,
    graphs: Graphs,
    layout: Layout,
    scopes: Scopes,
    run: Run<'j>,
}

impl Training<'_> {
    /// Parameters, buffers, inputs.
    fn setup(&mut self) {
        let job = self.job;
        let storage = job.fsdp.mixed_precision.storage.bytes();
        let shards = self.run.shards();
        let program = &mut self.run.eager.program;
        if !job.fsdp.cpu_offload {
            for (param, elements) in shards {
                let name = param.map_or("flat_param", |param| self.layout.names[param]);
                program.alloc(Bytes(elements * storage), COMPUTE, Category::Parameter, name);
            }
        }
        if let Position::Rope { dims } = job.model.position {
            // The rotary table: complex64, one row per position.
            program.alloc(Bytes(job.max_positions * dims / 2 * 8), COMPUTE, Category::Buffer, "freqs_cis");
        }
        for name in ["tokens", "labels"] {
            program.alloc(Bytes(job.batch * job.seq * DType::Int64.bytes()), COMPUTE, Category::Buffer, name);
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
            self.phase_end("bwd", micro_batch);
        }
        self.update(first);
    }

    fn mode(&self, layer: usize) -> Mode {
        match self.job.checkpoint {
            Checkpoint::None => Mode::Train,
            Checkpoint::Full => Mode::Checkpoint(Keep::Nothing),
            Checkpoint::Every(every) if layer.is_multiple_of(every as usize) => Mode::Checkpoint(Keep::Nothing),
            Checkpoint::Every(_) => Mode::Train,
            Checkpoint::SelectiveOp => Mode::Checkpoint(Keep::ComputeIntensive),
        }
    }

    /// Groups of up to `count` blocks after (or before) a block.
    fn neighbours(&self, layer: usize, count: usize, forward: bool) -> Vec<usize> {
        let blocks = &self.run.units.blocks;
        let pick = |at: usize| blocks[at];
        if forward {
            (layer + 1..blocks.len().min(layer + 1 + count)).filter_map(pick).collect()
        } else {
            (layer.saturating_sub(count)..layer).rev().filter_map(pick).collect()
        }
    }

    fn forward(&mut self) -> Frames {
        self.run.eager.program.set_pass(Pass::Forward);
        self.run.eager.category = Category::Activation;
        self.run.root_pre_forward();
        let tokens = self.run.eager.borrowed();
        let units = self.run.units.clone();

        if let Some(group) = units.embedding {
            self.run.pre_forward(group, &[]);
        }
        let before = self.run.eager.program.enter(self.scopes.embedding);
        let first = ParamMap { first: 0, tied: None };
        let (embedding, mut hidden) = self.run.eager.forward(&self.graphs.embedding, tokens, first, Mode::Train);
        self.run.eager.program.enter(before);
        if let Some(group) = units.embedding {
            self.run.post_forward(group);
        }

        let mut blocks = Vec::with_capacity(units.blocks.len());
        for layer in 0..units.blocks.len() {
            let prefetch = self.neighbours(layer, self.job.fsdp.forward_prefetch, true);
            if let Some(group) = units.blocks[layer] {
                self.run.pre_forward(group, &prefetch);
            }
            let before = self.run.eager.program.enter(self.scopes.blocks[layer]);
            let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
            let map = ParamMap { first: self.layout.blocks[layer], tied: None };
            let mode = self.mode(layer);
            let (frame, output) = self.run.eager.forward(graph, hidden, map, mode);
            self.run.eager.program.enter(before);
            if let Some(group) = units.blocks[layer] {
                self.run.post_forward(group);
            }
            self.run.eager.release(hidden);
            hidden = output;
            blocks.push(frame);
        }

        if let Some(group) = units.head {
            self.run.pre_forward(group, &[]);
        }
        let before = self.run.eager.program.enter(self.scopes.head);
        let mut head = self.run.eager.frame(&self.graphs.head, hidden, self.layout.head, Mode::Train);
        let norm = usize::from(self.job.model.final_norm);
        self.run.eager.forward_ops(&self.graphs.head, &mut head, 0..norm);
        if let Some(group) = units.head.filter(|_| norm > 0) {
            // Norm and head are one group: its hook runs before each of them.
            self.run.pre_forward(group, &[]);
        }
        self.run.eager.category = Category::Logits;
        self.run.eager.forward_ops(&self.graphs.head, &mut head, norm..self.graphs.head.ops.len());
        let logits = self.run.eager.finish_forward(&self.graphs.head, &mut head);
        self.run.eager.program.enter(before);
        if let Some(group) = units.head {
            self.run.post_forward(group);
        }
        self.run.eager.release(hidden);
        self.run.root_post_forward();

        let before = self.run.eager.program.enter(self.scopes.head);
        let (loss_frame, loss) = self.run.eager.forward(&self.graphs.loss, logits, first, Mode::Train);
        self.run.eager.release(logits);
        self.run.eager.program.enter(before);
        Frames { embedding, blocks, head, loss: loss_frame, loss_value: loss }
    }

    fn backward(&mut self, mut frames: Frames, last: bool) {
        self.run.eager.program.set_pass(Pass::Backward);
        let units = self.run.units.clone();
        let before = self.run.eager.program.enter(self.scopes.head);
        let ones = self.run.eager.seed_gradient();
        let seed = self.run.eager.retain(ones);
        let logits = self.run.eager.backward(&self.graphs.loss, &mut frames.loss, seed);
        let logits = logits.expect("the loss depends on the logits");
        for group in [units.head, units.root].into_iter().flatten() {
            self.run.pre_backward(group, &[]);
        }
        let hidden = self.run.eager.backward(&self.graphs.head, &mut frames.head, logits);
        let mut hidden = hidden.expect("the logits depend on the hidden state");
        if let Some(group) = units.head {
            self.run.post_backward(group);
        }
        for layer in (0..units.blocks.len()).rev() {
            let prefetch = self.neighbours(layer, self.job.fsdp.backward_prefetch, false);
            if let Some(group) = units.blocks[layer] {
                self.run.pre_backward(group, &prefetch);
            }
            self.run.eager.program.enter(self.scopes.blocks[layer]);
            let graph = &self.graphs.blocks[self.graphs.of_block[layer]];
            let gradient = self.run.eager.backward(graph, &mut frames.blocks[layer], hidden);
            hidden = gradient.expect("a block's output depends on its input");
            if let Some(group) = units.blocks[layer] {
                self.run.post_backward(group);
            }
        }
        if let Some(group) = units.embedding {
            self.run.pre_backward(group, &[]);
        }
        self.run.eager.program.enter(self.scopes.embedding);
        self.run.eager.backward(&self.graphs.embedding, &mut frames.embedding, hidden);
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
        let communicators = self.run.communicators;
        let program = &mut self.run.eager.program;
        let before = program.enter(scope);
        if job.clip {
            optimizer::clip(program, &sizes, element, |program| {
                if job.fsdp.shard > 1 {
                    let group = communicators.shard;
                    let comm = Comm { kind: Collective::AllReduce, group, bytes: Bytes(4), dtype: DType::Fp32 };
                    program.collective(COMPUTE, comm);
                }
            });
            self.phase_end("clip", 0);
        }
        let program = &mut self.run.eager.program;
        if job.fsdp.cpu_offload {
            program.host(Dispatch::OptimizerParam, sizes.len() as u32);
        } else {
            if first {
                optimizer::make_state(program, job.optimizer, &sizes, element);
            }
            optimizer::step(program, job.optimizer, &sizes, element);
        }
        self.phase_end("opt", 0);
        self.run.zero_gradients();
        self.phase_end("zero", 0);
        self.run.eager.program.enter(before);
    }
}

struct Frames {
    embedding: Frame,
    blocks: Vec<Frame>,
    head: Frame,
    loss: Frame,
    loss_value: Storage,
}
