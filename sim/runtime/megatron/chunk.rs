//! One model chunk: a virtual stage on a pipeline rank, forward and backward of one micro-batch
//! (`core/pipeline_parallel/schedules.py`, `forward_step`, `backward_step`; `core/transformer/transformer_block.py`).

mod around;
mod backward;
pub(super) mod combined;
mod frame;
mod graphs;
mod refuses;

use std::ops::Range;

pub use around::Around;
use frame::{BlocksFrame, Checkpoint};
pub use frame::{ChunkFrame, LossReport};

use super::batch::{Batch, Reading};
use super::builder;
use super::ends::{Ends, MODULES};
use super::experts;
use super::latent;
use super::layers::Layers;
use super::modules::Modules;
use super::mtp;
use crate::model::Position;
use crate::model::graph::{Dims, Graph, Param};
use crate::model::trained::Which;
use crate::plan::megatron::{Core, CudaGraphs, Fp8Recipe, Implementation, Loader, MegatronPlan, Recompute, Split};
use crate::program::{DType, Graphs};
use crate::runtime::eager::fp8;
use crate::runtime::eager::main_gradients::Moment;
use crate::runtime::eager::{BUFFER_STREAMS, Eager, Frame, Keep, Mode, ParamMap, Storage};
use crate::runtime::optimizer::param::{Role, Shape};

/// Workspace of Transformer Engine's matmuls on Hopper \[B\] (`module/base.py`, `get_cublas_workspace_size_bytes`).
const ENGINE_WORKSPACE: u64 = (32 << 20) + 1024;

/// Streams of its grouped matmuls, each with a workspace (`get_multi_stream_cublas_workspace`).
const GROUPED_STREAMS: usize = 4;

/// What the names of the blocks' parameters begin with.
const LAYERS: &str = "decoder.layers.";

/// The words' table, and the head's.
const WORDS: &str = "word_embeddings.weight";
const POSITIONS: &str = "position_embeddings.weight";
const HEAD: &str = "output_layer.weight";

/// The attention mask among a block's values.
const MASK: usize = 1;

/// Whether a parameter is the weight of a linear of Transformer Engine's: not of a router, a table or the head.
fn multiplies(param: &Param) -> bool {
    let other = [WORDS, POSITIONS, HEAD].contains(&param.name)
        || param.name.starts_with(experts::ROUTER)
        || param.role == Role::Adapter;
    param.cols > 1 && !other
}

/// A parameter of a chunk, this rank's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkParam {
    /// Name within the model.
    pub name: String,
    /// Elements.
    pub elements: u64,
    /// Whether every tensor-parallel rank has all of it and makes a part of its gradient: norms and the biases added
    /// where the sequence is split (`sequence_parallel` of a parameter).
    pub partial: bool,
    /// Whether it is the word embedding, or the head that is tied to it on another stage.
    pub word_embedding: bool,
    /// Whether it is kept, and gathered, in fp8.
    pub fp8: bool,
    /// Whether it is an expert's that other ranks do not have.
    pub expert: bool,
    /// Whether it is trained.
    pub trained: bool,
    /// Its dimensions.
    pub shape: Shape,
    /// What it is for.
    pub role: Role,
    /// The block of the chunk that it belongs to, if any.
    pub block: Option<u64>,
}

/// The graphs and parameters of a chunk.
#[derive(Clone, Debug)]
pub struct Chunk {
    job: Split,
    around: Around,
    embedding: Option<Graph>,
    blocks: Layers,
    dims: Dims,
    /// What stands behind the last block: the head, or a final norm whose head is on a later stage.
    head: Option<Graph>,
    /// Whether it is the model's last.
    last: bool,
    /// Where the first parameter of the embedding and of the head is numbered.
    first: [usize; 2],
    /// The words' table, where what stands behind the last block uses it, too: a head that is tied to it, or modules that
    /// predict tokens further ahead.
    words: Option<usize>,
    params: Vec<ChunkParam>,
}

impl Chunk {
    /// A chunk of the model's blocks `layers`, with its `ends`. Parameters are numbered from `first_param`, in the order of Megatron's
    /// modules.
    pub fn new(job: &MegatronPlan, ends: Ends, layers: Range<u64>, first_param: usize) -> Chunk {
        Chunk::of(&MODULES, (&job.split, Around::of(job)), ends, layers, first_param)
    }

    /// A chunk made of a framework's own modules.
    pub fn of(
        modules: &Modules,
        (job, around): (&Split, Around),
        Ends { first, last }: Ends,
        layers: Range<u64>,
        first_param: usize,
    ) -> Chunk {
        let marked = |graph: Graph, which: Which| match &job.trained {
            Some(trained) => trained.mark(graph, which, job.model.layers.count()),
            None => graph,
        };
        let embedding = first.then(|| marked((modules.embedding)(job), Which::Embedding));
        let ends = !last && !layers.is_empty() && layers.end == job.model.layers.count() && mtp::norm_apart(job);
        let head = last.then(|| marked((modules.head)(job), Which::Head)).or_else(|| ends.then(|| mtp::norm(job)));
        // A stage that predicts further ahead has a copy of the words' table.
        let copied = (last && !first && job.model.mtp_layers > 0).then(|| (modules.embedding)(job));
        let embeddings = embedding.iter().chain(&copied).map(|graph| graph.params.len()).sum::<usize>();
        let blocks = Layers::new(modules, job, layers, first_param + embeddings);
        let dims = blocks.kinds().first().map_or_else(|| builder::dims(job), |graph| graph.dims);
        let sequence = dims.tensor.sequence;
        let mut params = vec![];
        let mut add = |prefix: &str, block: Option<u64>, param: &Param| {
            // Each rank has norms of some heads' queries and keys: of whole ones, as far as parameters go.
            let of_heads =
                job.mesh.tp > 1 && (param.name.contains("q_layernorm") || param.name.contains("k_layernorm"));
            let partial = of_heads
                || sequence
                    && (param.name.contains("layernorm")
                        || param.name.starts_with("mtp.") && param.name.contains("norm.")
                        || param.name.starts_with(experts::ROUTER)
                        || param.name.ends_with(latent::WHOLE)
                        || param.name.ends_with(experts::LATENT_WEIGHT)
                        || param.name.contains("layer_norm")
                        || param.name.ends_with("linear_proj.bias")
                        || param.name == "mlp.linear_fc2.bias");
            let word_embedding = param.name == WORDS || (param.name == HEAD && job.model.tied_head);
            let name = format!("{prefix}{}", param.name);
            let fp8 = multiplies(param) && job.matmuls.fp8().is_some_and(|fp8| fp8.parameters);
            let expert = job.mesh.shards_experts() && param.name.starts_with(experts::EXPERT);
            let (elements, shape, role) = (param.elements(), param.shape, param.role);
            let trained = param.trained;
            params.push(ChunkParam {
                name,
                elements,
                partial,
                word_embedding,
                fp8,
                expert,
                trained,
                shape,
                role,
                block,
            });
        };
        for param in embedding.iter().chain(&copied).flat_map(|graph| &graph.params) {
            add("embedding.", None, param);
        }
        for (layer, param) in blocks.params() {
            add(&format!("{LAYERS}{layer}."), Some(layer), param);
        }
        let tied = first && last && job.model.tied_head;
        let words = (tied || last && job.model.mtp_layers > 0).then_some(first_param);
        for param in head.iter().flat_map(|graph| &graph.params) {
            if !(tied && param.name == HEAD || param.name == WORDS) {
                add("", None, param);
            }
        }
        let first = [first_param, first_param + embeddings + blocks.params().count()];
        Chunk { job: job.clone(), around, embedding, blocks, dims, head, last, first, words, params }
    }

    /// The parameters, in registration order.
    pub fn params(&self) -> &[ChunkParam] {
        &self.params
    }

    /// What all micro-batches share, taken once \[B\]: the buffer of gathers and scores (`GlobalMemoryBuffer`, `"mpu"`),
    /// the angles of rotary embeddings, the workspace of Transformer Engine's matmuls, and a stand-in for each shape of a
    /// gradient that its matmul has added to the main gradients already (Transformer Engine's `get_dummy_wgrad`).
    pub fn buffers(&self) -> Vec<(u64, &'static str)> {
        let (d, block, dtype) = (self.dims, self.job.block, self.job.dtype.bytes());
        let engine = block.implementation == Implementation::TransformerEngine;
        // A frozen head gathers into a tensor of its own.
        let gathers = d.tensor.sequence && (!engine || self.last && self.job.trained.is_none());
        let gathered = if gathers { d.tokens() * d.d * dtype } else { 0 };
        let has_blocks = !self.blocks.is_empty() || self.ahead() > 0;
        let scores = match block.core {
            // Transformer Engine's scores are tensors of their own.
            Core::Unfused { .. } if !engine && self.attentions() > 0 => d.b * d.n * d.s * d.s * dtype,
            _ => 0,
        };
        let dispatched = if has_blocks { experts::shared_buffer(&self.job, d) } else { 0 };
        let mut buffers = vec![(gathered.max(scores).max(dispatched), "global memory buffer")];
        if matches!(self.job.model.position, Position::Rope { .. }) {
            let angles = (d.s * d.r * DType::Fp32.bytes(), "rotary angles");
            buffers.extend(latent::tables(&self.job, (self.attentions(), d.r), angles));
        }
        if engine {
            let grouped = self.job.mixture.is_some_and(|run| run.grouped) && has_blocks;
            let grouped = if grouped { GROUPED_STREAMS } else { 0 };
            // One for each stream that parts of a matmul run on.
            let own = if self.job.overlap_tensor.is_some() { BUFFER_STREAMS as u64 } else { 1 };
            buffers.push((own * ENGINE_WORKSPACE, "te cublas workspace"));
            buffers.extend([(ENGINE_WORKSPACE, "te cublas workspace")].repeat(grouped));
        } else if self.job.mixture.is_some() && has_blocks {
            // A router multiplies with Transformer Engine whatever the other modules are.
            buffers.push((ENGINE_WORKSPACE, "te cublas workspace"));
        }
        if self.around.fused_accumulation {
            let grouped = self.job.mixture.is_none_or(|run| run.grouped);
            let matrices = |graph: &Graph| {
                let own = |param: &&Param| {
                    // Grouped linears take theirs anew each time, and the router's has none.
                    param.cols > 1
                        && param.trained
                        && !param.name.starts_with(experts::ROUTER)
                        && !(grouped && param.name.starts_with(experts::EXPERT))
                };
                graph.params.iter().filter(own).map(|param| (param.rows, param.cols)).collect::<Vec<_>>()
            };
            let mut shapes: Vec<(u64, u64)> = self.head.iter().chain(self.blocks.kinds()).flat_map(matrices).collect();
            shapes.sort_unstable();
            shapes.dedup();
            buffers.extend(shapes.iter().map(|(rows, cols)| (rows * cols * dtype, "dummy wgrad")));
        }
        buffers.retain(|&(bytes, _)| bytes > 0);
        buffers
    }

    /// What fp8 keeps for good \[B\]: of each linear's weight the copy as it lies, unless the parameter is that, and the
    /// transposed one (`get_weight_workspace`); under delayed scaling the maxima of earlier steps.
    pub fn quantised(&self) -> Vec<(u64, &'static str)> {
        let Some(fp8) = self.job.matmuls.fp8() else { return vec![] };
        let histories = |products: u64| {
            fp8::SCALED.map(|tensors| (fp8::HISTORY * products * tensors * DType::Fp32.bytes(), "amax history"))
        };
        let delayed = fp8.recipe == Fp8Recipe::Delayed;
        let mut each = vec![];
        for weight in self.scaled() {
            for block in fp8::weight_blocks(weight.elements(), fp8.recipe) {
                each.extend((!fp8.parameters || fp8.gathers_wide()).then_some((block, "fp8 weight")));
                each.extend(fp8.has_columns().then_some((block, "fp8 transposed weight")));
            }
            each.extend(delayed.then(|| histories(1)).into_iter().flatten());
        }
        let attentions = if delayed { self.attentions() } else { 0 };
        each.extend((0..attentions).flat_map(|_| histories(fp8::OF_ATTENTION)));
        each
    }

    /// Weights of linears in fp8. Each expert's is one.
    fn scaled(&self) -> impl Iterator<Item = &Param> {
        let ahead = self.head.iter().flat_map(|graph| &graph.params);
        self.blocks.params().map(|(_, param)| param).chain(ahead).filter(|param| multiplies(param))
    }

    /// Blocks of modules that predict further ahead.
    fn ahead(&self) -> u64 {
        if self.last { self.job.model.mtp_layers } else { 0 }
    }

    /// Blocks with attention, those of modules ahead included.
    fn attentions(&self) -> u64 {
        self.blocks.attending() + self.ahead()
    }

    /// Products that have fp8 scales.
    pub fn products(&self) -> u64 {
        self.scaled().count() as u64 + fp8::OF_ATTENTION * self.attentions()
    }

    fn map(&self, part: usize) -> ParamMap {
        let local = |head: &Graph, name| head.params.iter().position(|param| param.name == name);
        let tied = match (part, &self.head, self.words) {
            (1, Some(head), Some(words)) => {
                let tied = if self.job.model.tied_head { local(head, HEAD) } else { None };
                [local(head, WORDS), tied].map(|local| local.map(|local| (local, words)))
            }
            _ => [None; 2],
        };
        ParamMap { first: self.first[part], tied }
    }

    /// Forward of one micro-batch from the stage before's hidden state, which it takes over; none on the first stage.
    /// Returns what backward needs, and the hidden state, or the loss.
    pub fn forward(&self, eager: &mut Eager, input: Option<Storage>) -> (ChunkFrame, Storage) {
        let batch = self.batch(eager);
        self.forward_on(eager, input, batch)
    }

    /// Does the same on a micro-batch that has been read before. With the embedding, an input is the words' rows.
    pub(super) fn forward_on(&self, eager: &mut Eager, input: Option<Storage>, batch: Batch) -> (ChunkFrame, Storage) {
        let mut frame = ChunkFrame::default();
        let mut hidden = self.embed(eager, input, batch, &mut frame);
        // The model names what its first block is given until it returns; a block that is no graph holds it all the same, unless
        // it is frozen.
        let names = matches!(self.around.graphs, CudaGraphs::Layers(_)) || self.job.trained.is_some();
        let named = names.then(|| eager.retain(hidden));
        let mut layer = 0;
        while layer < self.blocks.len() {
            let again = self.run_again(layer);
            let (done, out) = self.forward_blocks(eager, (hidden, batch.mask), (layer, again));
            eager.release(hidden);
            hidden = out;
            frame.blocks.push(done);
            layer += again.unwrap_or(1);
        }
        self.reduce_maxima(eager);
        let out = self.end(eager, hidden, batch, &mut frame);
        named.into_iter().for_each(|storage| eager.release(storage));
        (frame, out)
    }

    /// The hidden state before the first block.
    fn embed(&self, eager: &mut Eager, input: Option<Storage>, batch: Batch, frame: &mut ChunkFrame) -> Storage {
        let Some(graph) = &self.embedding else {
            return input.expect("a stage behind the first is given a hidden state");
        };
        let words = input;
        let mut running = eager.frame(graph, words.unwrap_or(batch.tokens), self.map(0), Mode::Train);
        eager.give(&mut running, 1, Some(batch.positions));
        eager.forward_ops(graph, &mut running, 0..graph.ops.len());
        eager.give(&mut running, 1, None);
        let out = eager.finish_forward(graph, &mut running);
        if let Some(words) = words {
            eager.release(words);
        }
        frame.embedding = Some(running);
        out
    }

    /// The maxima of its numbers in fp8 become scales, where a chunk's forward or backward says so.
    fn reduce_maxima(&self, eager: &mut Eager) {
        if !self.blocks.is_empty() {
            eager.reduce_maxima();
        }
    }

    /// What follows the last block: the hidden state itself, or the loss.
    fn end(&self, eager: &mut Eager, hidden: Storage, batch: Batch, frame: &mut ChunkFrame) -> Storage {
        let running = self.begin_head(eager, hidden, batch);
        self.end_head(eager, (running, 0), (hidden, batch), frame)
    }

    /// What of the micro-batch stands before a head's operators, after the hidden state: modules that predict further ahead
    /// read all of it.
    fn read_by_head(&self, batch: Batch) -> impl Iterator<Item = (usize, Storage)> + use<> {
        let Batch { tokens, labels, positions, mask, loss_mask } = batch;
        let ahead = self.last && self.job.model.mtp_layers > 0;
        let read = [loss_mask, tokens, labels, positions, mask];
        (1..).zip(read).take(if ahead { read.len() } else { 1 })
    }

    /// What stands behind the last block, before its first operator.
    fn begin_head(&self, eager: &mut Eager, hidden: Storage, batch: Batch) -> Option<Frame> {
        let graph = self.head.as_ref()?;
        let mut running = eager.frame(graph, hidden, self.map(1), Mode::Train);
        self.read_by_head(batch).for_each(|(value, storage)| eager.give(&mut running, value, Some(storage)));
        Some(running)
    }

    /// From one of its operators to the end; without a head the hidden state itself.
    fn end_head(
        &self,
        eager: &mut Eager,
        (running, from): (Option<Frame>, usize),
        (hidden, batch): (Storage, Batch),
        frame: &mut ChunkFrame,
    ) -> Storage {
        let Some((graph, mut running)) = self.head.as_ref().zip(running) else {
            self.let_go(eager, &batch);
            eager.release(batch.loss_mask);
            return hidden;
        };
        let mean = graph.ops.len() - 1;
        eager.forward_ops(graph, &mut running, from..mean.max(from));
        self.read_by_head(batch).skip(1).for_each(|(value, _)| eager.give(&mut running, value, None));
        self.let_go(eager, &batch);
        eager.forward_ops(graph, &mut running, mean.max(from)..mean + 1);
        eager.give(&mut running, 1, None);
        let made = &graph.ops[mean].outputs;
        let [tokens, report] = [1, 2].map(|at| made.get(at).and_then(|&value| eager.take(&mut running, value)));
        frame.report = tokens.zip(report).map(|(tokens, report)| LossReport { tokens, report });
        let loss = eager.finish_forward(graph, &mut running);
        eager.release(hidden);
        eager.release(batch.loss_mask);
        frame.head = Some(running);
        loss
    }

    /// How many blocks from `layer` on are run again in backward as one; none if they are not.
    fn run_again(&self, layer: u64) -> Option<u64> {
        match self.job.block.recompute {
            Recompute::Uniform { layers } => Some(layers.min(self.blocks.len() - layer)),
            Recompute::Block { layers } if layer < layers => Some(1),
            _ => None,
        }
    }

    /// Forward of one block.
    fn forward_block(
        &self,
        eager: &mut Eager,
        (x, mask): (Storage, Storage),
        layer: u64,
        mode: Mode,
    ) -> (Frame, Storage) {
        let graph = self.blocks.graph(layer);
        let map = ParamMap::from(self.blocks.first(layer));
        eager.reached(Moment::Block(layer));
        let mut running = eager.frame(graph, x, map, mode);
        eager.give(&mut running, MASK, Some(mask));
        self.forward_ops(eager, &mut running, layer);
        eager.give(&mut running, MASK, None);
        let out = eager.finish_forward(graph, &mut running);
        eager.reached(Moment::BlockRan(layer));
        if self.around.hooks_views {
            eager.lingers_with(out);
        }
        (running, out)
    }

    /// Forward of one block, or of some that are run again.
    fn forward_blocks(
        &self,
        eager: &mut Eager,
        (hidden, mask): (Storage, Storage),
        (first, again): (u64, Option<u64>),
    ) -> (BlocksFrame, Storage) {
        let Some(layers) = again else {
            let (frame, out) = self.forward_block(eager, (hidden, mask), first, Mode::Train);
            return (BlocksFrame::Saved(first, Box::new(frame)), out);
        };
        let held = Checkpoint { input: eager.retain(hidden), mask: eager.retain(mask), first, layers };
        let mut x = eager.retain(hidden);
        for layer in first..first + layers {
            let (_, out) = self.forward_block(eager, (x, mask), layer, Mode::Checkpoint(Keep::Nothing));
            // The checkpoint around all of them holds the first input alone.
            eager.release(x);
            eager.release(x);
            x = out;
        }
        eager.let_go_of_lingering();
        (BlocksFrame::Recompute(held), x)
    }

    /// What the data loader hands the step.
    pub(super) fn batch(&self, eager: &mut Eager) -> Batch {
        // One graph of the whole step reads batches that lie where they lay when it was captured, and are copied there beside
        // the step before (`StaticBufferLoader`).
        let whole = self.around.graphs == CudaGraphs::Iteration;
        let before = whole.then(|| eager.program.graphs(Graphs::Replayed));
        let reading = self.reading();
        let loader = if whole { Loader::There } else { reading.loader };
        let batch = Batch::read(eager, Reading { loader, ..reading });
        before.map(|before| eager.program.graphs(before));
        batch
    }

    fn reading(&self) -> Reading {
        let Split { batch: micro, seq, mesh, .. } = self.job;
        let loader = self.around.loader;
        // A part of the vocabulary is looked up and compared by every rank.
        let all = self.job.vocabulary_split().is_some() || self.last && self.job.model.mtp_layers > 0;
        let ends = [self.embedding.is_some() || all, self.last || all];
        Reading { loader, micro, seq, cp: u64::from(mesh.cp), ends }
    }

    /// Lets go of all but the loss mask.
    fn let_go(&self, eager: &mut Eager, batch: &Batch) {
        for storage in [batch.tokens, batch.labels, batch.positions, batch.mask] {
            eager.release(storage);
        }
    }
}
