//! `cuda_graph_impl` and `cuda_graph_scope`, what they ask for (`core/transformer/transformer_config.py`, `__post_init__`, 0.16.1),
//! and what a capture cannot hold: anything that the host waits for.

use toml::{Spanned, Value};

use crate::model::ModelConfig;
use crate::runtime::megatron::{
    Block, CudaGraphs, Engine, Implementation, Matmuls, Mesh, Mixture, Pipeline, Recompute, Scope, TokenDispatcher,
};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::{self, Graphs};

/// What of a job has been decided before.
pub(super) struct Settled<'j> {
    pub(super) engine: Engine,
    pub(super) model: &'j ModelConfig,
    pub(super) mesh: Mesh,
    pub(super) pipeline: &'j Pipeline,
    pub(super) block: &'j Block,
    pub(super) mixture: Option<Mixture>,
    pub(super) matmuls: Matmuls,
    pub(super) checks_for_nan: bool,
    pub(super) fsdp: bool,
    /// `framework.launch_blocking`, and `memory.expandable_segments`.
    pub(super) blocking: bool,
    pub(super) expandable: bool,
}

/// A case that cannot be: a problem and its remedy.
type Case<'c> = (bool, &'c str, &'c str);

const NARROWER: &str = "write a narrower megatron.cuda_graph_scope, or cuda_graph_impl = \"none\"";
const NONE: &str = "write megatron.cuda_graph_impl = \"none\"";

/// What is captured.
pub(super) fn asked(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    job: &Settled<'_>,
    together: bool,
) -> Result<CudaGraphs, ScenarioError> {
    if let (true, Some(at)) = (job.engine == Engine::DeepSpeed, &table.cuda_graph_scope) {
        return Err(reader.plan(at, "Megatron-DeepSpeed captures no CUDA graphs", "remove the key"));
    }
    let by = match (&table.cuda_graph_impl, &table.cuda_graph_scope) {
        (Some(at), _) if *at.get_ref() != Graphs::None => at,
        (Some(_), scope) => {
            if scope.is_some() {
                reader.idle("megatron.cuda_graph_scope", "nothing is captured");
            }
            return Ok(CudaGraphs::None);
        }
        (None, Some(at)) => {
            let problem = "cuda_graph_scope says what is captured, and nothing is";
            let remedy = "write megatron.cuda_graph_impl = \"transformer_engine\" or \"local\", or remove the key";
            return Err(reader.plan(at, problem, remedy));
        }
        (None, None) if job.engine == Engine::DeepSpeed => return Ok(CudaGraphs::None),
        (None, None) => return Ok(reader.assume("megatron.cuda_graph_impl", CudaGraphs::None, "none")),
    };
    let scopes = match &table.cuda_graph_scope {
        Some(at) => at.get_ref().clone(),
        None => reader.assume("megatron.cuda_graph_scope", vec![], Value::Array(vec![])),
    };
    let has = |scope| scopes.contains(&scope);
    let whole = scopes.is_empty();
    let always: [Case<'_>; 7] = [
        (job.engine == Engine::DeepSpeed, "Megatron-DeepSpeed captures no CUDA graphs", "remove the key"),
        (
            has(written::Scope::Mamba) && job.model.layers.kinds().iter().all(|kind| kind.mixer.mamba().is_none()),
            "cuda_graph_scope names mamba, and no layer is one",
            "remove \"mamba\" from the list",
        ),
        (job.model.mtp_layers > 0, "CUDA graphs with multi-token prediction are not simulated", NONE),
        (job.fsdp, "CUDA graphs under use_megatron_fsdp are not simulated", NONE),
        (
            job.blocking,
            "CUDA graphs with framework.launch_blocking, under which the host waits for each, are not simulated",
            "remove framework.launch_blocking",
        ),
        (together, "CUDA graphs under overlap_moe_expert_parallel_comm are not simulated", NONE),
        (
            !job.pipeline.schedule.name.starts_with("Megatron"),
            "CUDA graphs are simulated for Megatron-Core's own schedules",
            if job.pipeline.virtual_stages == 1 {
                "write pipeline.schedule = \"Megatron1F1B\", or megatron.cuda_graph_impl = \"none\""
            } else {
                "write pipeline.schedule = \"MegatronInterleaved\", or megatron.cuda_graph_impl = \"none\""
            },
        ),
    ];
    refuse(reader, by, &always)?;
    reader.note("what graphs themselves take on the device is not counted (PyTorch's documentation: 64 KB a kernel before CUDA 12.4)");
    if job.expandable {
        reader.note("Megatron-Core refuses CUDA graphs with expandable segments unless NCCL_GRAPH_REGISTER=0 is set");
    }
    if has(written::Scope::FullIteration) {
        iteration(reader, by, &scopes, job)?;
        return Ok(CudaGraphs::Iteration);
    }
    if *by.get_ref() == Graphs::Local {
        let problem = "cuda_graph_impl = \"local\" is simulated with cuda_graph_scope = [\"full_iteration\"] alone";
        let remedy = "write cuda_graph_impl = \"transformer_engine\" for graphs of parts of blocks";
        return Err(reader.plan(by, problem, remedy));
    }
    let scope = Scope {
        attention: has(written::Scope::Attn),
        feed_forward: has(written::Scope::Mlp),
        mixture: has(written::Scope::Moe),
        router: has(written::Scope::MoeRouter),
        mamba: has(written::Scope::Mamba),
        preprocess: has(written::Scope::MoePreprocess),
    };
    layers(reader, by, (scope, whole), job)?;
    Ok(CudaGraphs::Layers(scope))
}

fn refuse(reader: &Reader<'_>, at: &Spanned<Graphs>, cases: &[Case<'_>]) -> Result<(), ScenarioError> {
    match cases.iter().find(|(applies, _, _)| *applies) {
        Some(&(_, problem, remedy)) => Err(reader.plan(at, problem, remedy)),
        None => Ok(()),
    }
}

/// Whether experts get as many rows as they have room for, whatever the router says: then nobody asks how many.
fn pads(mixture: Option<Mixture>) -> bool {
    mixture.is_none_or(|run| run.capacity.is_some_and(|capacity| capacity.pads))
}

/// Whether all of a step may be one graph.
fn iteration(
    reader: &Reader<'_>,
    at: &Spanned<Graphs>,
    scopes: &[written::Scope],
    job: &Settled<'_>,
) -> Result<(), ScenarioError> {
    let engine = *at.get_ref() == Graphs::TransformerEngine;
    // What one refusal asks for, the next would ask for more.
    let waits = job.mesh.pp > 1 && !job.pipeline.overlap_p2p;
    let beside = if waits { " and pipeline.virtual_stages = 2 with pipeline.overlap_p2p = true" } else { "" };
    let silent = if job.checks_for_nan { " and megatron.check_for_nan = false" } else { "" };
    let local = format!("write megatron.cuda_graph_impl = \"local\"{silent}{beside}");
    let unchecked = format!("write megatron.check_for_nan = false{beside}");
    let cases: [Case<'_>; 6] = [
        (engine, "full_iteration is captured by Megatron-Core, not by Transformer Engine", &local),
        (scopes.len() > 1, "full_iteration captures everything: no other scope goes with it", "remove the others"),
        (job.checks_for_nan, "full_iteration captures the loss, which megatron.check_for_nan reads back", &unchecked),
        (
            waits,
            "full_iteration captures messages between stages, and the host waits for each of them",
            "write pipeline.virtual_stages = 2 or more with pipeline.overlap_p2p = true, or mesh.pp = 1",
        ),
        (
            !pads(job.mixture),
            "full_iteration captures experts, and the host reads how many rows each gets",
            "write megatron.moe_expert_capacity_factor and moe_pad_expert_input_to_capacity = true, or capture the router \
             alone",
        ),
        (job.matmuls.fp8().is_some(), "full_iteration with linears in fp8 is not simulated", "remove megatron.fp8"),
    ];
    refuse(reader, at, &cases)
}

/// Whether these parts of blocks may be graphs.
fn layers(
    reader: &Reader<'_>,
    at: &Spanned<Graphs>,
    (scope, whole): (Scope, bool),
    job: &Settled<'_>,
) -> Result<(), ScenarioError> {
    let Settled { model, block, mixture, .. } = *job;
    let experts = model.experts().is_some();
    let dense = model.dense().is_some();
    let attention = whole || scope.attention;
    let (recompute, again) = (block.recompute, block.recompute_modules);
    let alltoall = mixture.is_some_and(|run| run.dispatcher == TokenDispatcher::AllToAll);
    let capacity = mixture.is_some_and(|run| run.capacity.is_some());
    let mixed = (whole || scope.mixture) && experts;
    // `CheckpointWithoutOutput`, which may run again while a graph is captured (`core/tensor_parallel/random.py`).
    let lets_go =
        attention && again.up_projection || experts && (mixed || scope.router) && (again.norms || again.activation);
    let checkpointed = attention && recompute == Recompute::Core
        || (whole || scope.feed_forward) && again.feed_forward
        || experts && (mixed || scope.router) && (again.mixture || again.shared);
    let shared = model.experts().is_some_and(|experts| experts.shared > 0);
    let overlaps = mixture.is_some_and(|run| run.shared_overlap);
    let narrowed = model.experts().is_some_and(|experts| experts.latent.is_some());
    let cases: [Case<'_>; 18] = [
        (
            narrowed && (mixed || scope.router),
            "parts of a mixture in CUDA graphs whose experts see a narrower copy of the hidden state are not simulated",
            "narrow cuda_graph_scope to \"attn\" and \"mamba\"",
        ),
        (
            overlaps && experts && (mixed || scope.router),
            "parts of a mixture in CUDA graphs with overlapped shared experts are not simulated",
            "narrow cuda_graph_scope to \"attn\", or remove megatron.moe_shared_expert_overlap",
        ),
        (
            block.implementation == Implementation::Local,
            "CUDA graphs of Megatron's own modules are not simulated",
            "write megatron.implementation = \"transformer_engine\"",
        ),
        (
            matches!(recompute, Recompute::Uniform { .. } | Recompute::Block { .. }),
            "graphs of blocks that megatron.recompute runs again: Megatron-Core captures them with full_iteration alone",
            "write megatron.recompute = \"none\"",
        ),
        (
            checkpointed,
            "what runs again in backward is in a graph, and autograd.grad, which captures it, runs nothing again",
            "write megatron.recompute = \"none\" and leave such modules out of recompute_modules, or of cuda_graph_scope",
        ),
        (
            lets_go,
            "layernorm, moe_act and mla_up_proj that run again within a graph are not simulated",
            "leave them out of recompute_modules, or narrow cuda_graph_scope",
        ),
        (
            scope.mixture && scope.router,
            "cuda_graph_scope names moe and moe_router, which is a part of it",
            "remove one",
        ),
        (
            scope.preprocess && !scope.router,
            "cuda_graph_scope names moe_preprocess without moe_router, behind which it stands",
            "add \"moe_router\" to the list",
        ),
        (
            (scope.mixture || scope.router) && !experts,
            "cuda_graph_scope names parts of a mixture of experts, and the model has none",
            "write cuda_graph_scope = [\"attn\", \"mlp\"]",
        ),
        (
            scope.feed_forward && !dense,
            "cuda_graph_scope names mlp, and all blocks have experts in its place",
            "remove \"mlp\" from the list",
        ),
        (
            scope.mixture && !pads(mixture),
            "cuda_graph_scope names moe, and the host reads how many rows each expert gets",
            "write moe_expert_capacity_factor and moe_pad_expert_input_to_capacity = true, or \"moe_router\" in its place",
        ),
        (
            scope.preprocess && alltoall && capacity && !pads(mixture),
            "cuda_graph_scope names moe_preprocess, in which the host reads how many rows are not dropped",
            "write megatron.moe_pad_expert_input_to_capacity = true, or remove \"moe_preprocess\" from the list",
        ),
        (
            mixed && !pads(mixture),
            "whole blocks are captured, and the host reads how many rows each expert gets",
            "write cuda_graph_scope = [\"attn\", \"moe_router\"]",
        ),
        (
            scope.preprocess && mixture.is_some_and(|run| !run.permute_fusion) && !pads(mixture),
            "cuda_graph_scope names moe_preprocess, in which rows are selected by a mask, whose size the host reads",
            "write megatron.moe_permute_fusion = true",
        ),
        (
            scope.preprocess && mixture.is_some_and(|run| run.dispatcher.name() == "flex"),
            "moe_preprocess of the dispatcher \"flex\" is not simulated",
            "remove \"moe_preprocess\" from the list",
        ),
        (
            attention && job.mesh.cp > 1,
            "graphs around attention of a sequence that ranks share are not simulated",
            NARROWER,
        ),
        (
            job.matmuls.fp8().is_some() && (attention || scope.feed_forward || scope.mixture || scope.router && shared),
            "graphs around linears in fp8 are not simulated",
            NARROWER,
        ),
        (model.latent().is_some() && attention, "graphs around latent attention are not simulated", NARROWER),
    ];
    refuse(reader, at, &cases)
}
