//! What is decided before the first instruction: graphs of the distinct modules, parameters in registration order.

use std::sync::Arc;

pub(in crate::runtime) use super::part::Part;
use crate::model::Layer;
use crate::model::autocast;
use crate::model::block;
use crate::model::experts::titan;
use crate::model::fuse::{self, Compiled, Float8, Policy};
use crate::model::graph::{Dims, Graph, OpKind, Param};
use crate::model::head::{self, Head};
use crate::model::layer::KindId;
use crate::model::operators::Parameters;
use crate::model::style::{Modules, Rope};
use crate::model::trained::{Trained, Which};
use crate::model::unpad::unpad;
use crate::plan::torch::Checkpoint;
use crate::plan::torch::TorchPlan;
use crate::program::{DType, ScopeId};
use crate::runtime::Refusal;
use crate::runtime::eager::{Keep, Mode, ParamMap};
use crate::runtime::fsdp::Narrow;
use crate::runtime::fsdp::group::{Made, ShardedParam};

impl Part {
    /// The whole model.
    pub(in crate::runtime) fn whole(job: &TorchPlan) -> Part {
        Part { embedding: true, blocks: 0..job.model.layers.count() as usize, head: true }
    }

    /// How many parameters it has.
    fn params(&self, graphs: &Graphs, tied: bool) -> usize {
        let embedding = if self.embedding { graphs.embedding.params.len() } else { 0 };
        let head = if self.head { graphs.head.graph.params.len() - usize::from(tied) } else { 0 };
        let blocks = self.blocks.clone().map(|layer| graphs.blocks[graphs.of_block[layer]].params.len());
        embedding + blocks.sum::<usize>() + head
    }
}

/// Graphs of the distinct modules.
pub(in crate::runtime) struct Graphs {
    pub embedding: Graph,
    pub blocks: Vec<Graph>,
    /// For each block, its graph.
    pub of_block: Vec<usize>,
    /// Compiled blocks, one for each graph and policy in use.
    pub compiled: Vec<Arc<Compiled>>,
    /// For each block, what it was compiled to, if it was.
    pub compiled_block: Vec<Option<usize>>,
    pub head: Head,
}

/// Layers as their modules' code has them, a graph for each kind; and of each layer, which is its own.
fn blocks(job: &TorchPlan) -> (Vec<Graph>, Vec<usize>) {
    let (dims, compute) = (dims(job), job.multiplies_in());
    let mut style = job.style;
    if job.compile && style.rope == Rope::ComplexByPosition {
        // What a compiled block gathers of its table it lets go of in the same pass.
        style.rope = Rope::Complex;
    }
    // Transformers masks a sequence as long as the window, too.
    let seen = job.seq + u64::from(job.style.modules == Modules::Transformers);
    let mut layers = job.model.layers.clone();
    // A window that a sequence does not reach is none.
    layers.edit(|layer| layer.mixer = layer.mixer.with_window(layer.window().filter(|&window| window < seen)));
    let write = |layer: &Layer| {
        let block = block::block(&job.model, dims, compute, layer, style);
        if job.unpad { unpad(block) } else { block }
    };
    (layers.used().iter().map(write).collect(), layers.ids().map(KindId::index).collect())
}

fn dims(job: &TorchPlan) -> Dims {
    Dims { documents: job.documents, ..block::dims(&job.model, job.batch, job.own_tokens(), job.tensor) }
}

/// What stands before the blocks and behind them. Under autocast code that asks for its input's type is in bf16 wherever a
/// linear comes before it.
fn ends(job: &TorchPlan) -> (Graph, head::Head) {
    let (dims, compute) = (dims(job), job.multiplies_in());
    let embedding = block::embedding(&job.model, dims, compute, job.style);
    (embedding, head::head(&job.model, dims, compute, (job.loss, job.loss_inside), job.output))
}

/// What of a job's operators a compiler of blocks, or autocast, has no rules for here, if anything.
pub(super) fn refuses(job: &TorchPlan) -> Option<Refusal> {
    if !job.compile && job.autocast.is_none() {
        return None;
    }
    let (blocks, _) = blocks(job);
    if job.compile {
        let operator = blocks.iter().find_map(fuse::refuses);
        return operator.map(|what| Refusal::new("compiled-operator", what).on("compile.blocks"));
    }
    let (embedding, head) = ends(job);
    let operator = blocks.iter().chain([&embedding, &head.graph]).find_map(autocast::refuses);
    operator.map(|what| Refusal::new("autocast-operator", what).on("precision.autocast"))
}

/// Whether a kind of layer has a linear by the name of its module.
pub(super) fn has_linear(job: &TorchPlan, module: &str) -> bool {
    blocks(job).0.iter().flat_map(|block| &block.ops).any(|op| op.kind.is_linear() && op.module == module)
}

/// Builds the graphs.
pub(in crate::runtime) fn graphs(job: &TorchPlan) -> Graphs {
    let (mut blocks, of_block) = blocks(job);
    let (mut embedding, mut head) = ends(job);
    if job.autocast.is_some() {
        let tokens = embedding.values[0].dtype;
        embedding = autocast::autocast(embedding, tokens).0;
        blocks = blocks.into_iter().map(|block| autocast::autocast(block, DType::Fp32).0).collect();
        head = head.autocast();
    }
    let mut of_block = of_block;
    if let Some(trained) = &job.trained {
        let layers = of_block.len() as u64;
        embedding = trained.apply(embedding, Which::Embedding, layers);
        head.graph = trained.apply(head.graph, Which::Head, layers);
        (blocks, of_block) = apart(trained, &blocks, &of_block);
    }
    let (compiled, compiled_block) = compile_blocks(job, &blocks, &of_block);
    Graphs { compiled, compiled_block, embedding, blocks, of_block, head }
}

/// A graph for each kind of layer and what of it is trained; and of each layer, which is its own.
fn apart(trained: &Trained, blocks: &[Graph], of_block: &[usize]) -> (Vec<Graph>, Vec<usize>) {
    let layers = of_block.len() as u64;
    let (mut known, mut graphs) = (vec![], vec![]);
    let of_block = of_block.iter().enumerate().map(|(layer, &kind)| {
        let which = Which::Layer(layer as u64);
        let key = (kind, trained.trains_layer(layer as u64), trained.input_needs(which));
        known.iter().position(|&made| made == key).unwrap_or_else(|| {
            known.push(key);
            graphs.push(trained.apply(blocks[kind].clone(), which, layers));
            graphs.len() - 1
        })
    });
    let of_block = of_block.collect();
    (graphs, of_block)
}

/// Compiles each graph once for each policy.
fn compile_blocks(job: &TorchPlan, blocks: &[Graph], of_block: &[usize]) -> (Vec<Arc<Compiled>>, Vec<Option<usize>>) {
    if !job.compile {
        return (vec![], vec![None; of_block.len()]);
    }
    let options = fuse::Options { float8: job.float8, pipelined: job.tensor.asynchronous };
    let (mut compiled, mut known) = (vec![], vec![]);
    let choose = |(layer, &graph): (usize, &usize)| {
        let policy = match mode(&job.checkpoint, layer) {
            _ if job.checkpoint_compiled => Policy::MinCut,
            Mode::Train => Policy::MinCut,
            Mode::Checkpoint(Keep::Nothing) => Policy::Input,
            Mode::Checkpoint(Keep::ComputeIntensive) => Policy::ComputeIntensive,
            Mode::Checkpoint(Keep::Saved(_)) => unreachable!("compiled blocks have no policy of their own"),
        };
        let at = known.iter().position(|&made| made == (graph, policy)).unwrap_or_else(|| {
            known.push((graph, policy));
            compiled.push(fuse::compiled(&blocks[graph], policy, options));
            compiled.len() - 1
        });
        Some(at)
    };
    let of_block = of_block.iter().enumerate().map(choose).collect();
    (compiled, of_block)
}

/// How a block's forward runs.
pub(in crate::runtime) fn mode(checkpoint: &Checkpoint, layer: usize) -> Mode {
    match checkpoint {
        Checkpoint::None => Mode::Train,
        Checkpoint::Full => Mode::Checkpoint(Keep::Nothing),
        Checkpoint::Blocks(again) if again.get(layer) == Some(&true) => Mode::Checkpoint(Keep::Nothing),
        Checkpoint::Blocks(_) => Mode::Train,
        Checkpoint::SelectiveOp => Mode::Checkpoint(Keep::ComputeIntensive),
        Checkpoint::Saving(ops) => Mode::Checkpoint(Keep::Saved(*ops)),
    }
}

/// Parameters of a rank in registration order, part after part, and where each module's begin.
pub(in crate::runtime) struct Layout {
    pub params: Vec<ShardedParam>,
    pub names: Vec<&'static str>,
    pub embedding: usize,
    /// Of blocks that the rank has not, nothing.
    pub blocks: Vec<usize>,
    pub head: ParamMap,
    /// How many parameters there are up to the end of each part.
    pub ends: Vec<usize>,
}

pub(in crate::runtime) fn layout(job: &TorchPlan, graphs: &Graphs, parts: &[Part]) -> Layout {
    let (mut params, mut names) = (vec![], vec![]);
    let mut add = |graph: &Graph, skip: usize, in_block: bool| {
        let first = params.len();
        for (at, param) in graph.params[..graph.params.len() - skip].iter().enumerate() {
            let reader = graph.read_by(at);
            let gradient = match reader.map_or(Parameters::Own, |op| op.row().parameters) {
                Parameters::Partial if job.tensor.sequence => Made::Partial,
                Parameters::Whole if job.tensor.splits() => Made::Whole(job.tensor.ranks),
                Parameters::Own | Parameters::Partial | Parameters::Whole => Made::Own,
            };
            let narrow =
                match (job.float8, reader.map(|op| op.kind)) {
                    (Some(float8), Some(OpKind::Linear { inputs, outputs }))
                        if in_block && float8.all_gather && Float8::takes(inputs, outputs) =>
                    {
                        if float8.precompute_scale { Narrow::Scaled } else { Narrow::Unscaled }
                    }
                    _ => Narrow::No,
                };
            let index = params.len();
            let ((rows, cols), second) = sharded_dim(job, param);
            let Param { shape, role, trained, stored, .. } = *param;
            let made = ShardedParam { index, rows, cols, second, gradient, narrow, shape, role, trained, stored };
            params.push(made);
            names.push(param.name);
        }
        first
    };
    let tied = job.model.tied_head;
    let (mut embedding, mut blocks, mut head) = (0, vec![0; graphs.of_block.len()], 0);
    let mut ends = vec![];
    for part in parts {
        if part.embedding {
            embedding = add(&graphs.embedding, 0, false);
        }
        for layer in part.blocks.clone() {
            blocks[layer] = add(&graphs.blocks[graphs.of_block[layer]], 0, true);
        }
        if part.head {
            head = add(&graphs.head.graph, usize::from(tied), false);
        }
        ends.push(part.params(graphs, tied) + ends.last().copied().unwrap_or(0));
    }
    // A tied head reads the embedding's table, parameter 0; its own weight would be its graph's last parameter.
    let head = ParamMap { first: head, tied: [tied.then(|| (graphs.head.graph.params.len() - 1, 0)), None] };
    Layout { params, names, embedding, blocks, head, ends }
}

/// The dimension a parameter is sharded on and all others together: its first, but the second of experts' where there are
/// more ranks than experts (torchtitan, `apply_fsdp_to_decoder`). And whether it is the second.
fn sharded_dim(job: &TorchPlan, param: &Param) -> ((u64, u64), bool) {
    match job.model.experts() {
        Some(experts) if titan::is_routed(param.name) && u64::from(job.fsdp.shard) > experts.count => {
            let second = param.shape.rows;
            ((second, param.elements() / second), true)
        }
        _ if param.cols > 1 && job.fsdp.names_second(param.name) => ((param.cols, param.rows), true),
        _ => ((param.rows, param.cols), false),
    }
}

pub(super) struct Scopes {
    pub root: ScopeId,
    pub embedding: ScopeId,
    pub blocks: Vec<ScopeId>,
    pub head: ScopeId,
    pub optimizer: ScopeId,
    pub metrics: ScopeId,
}
