//! How a mixture of experts lies on Megatron-Core's mesh, and how it is run (`megatron/training/arguments.py`, 0.16).

use toml::Spanned;

use crate::hardware::Topology;
use crate::model::ModelConfig;
use crate::model::routing::Load;
use crate::near::did_you_mean;
use crate::runtime::megatron::{ExpertCapacity, Implementation, Mesh, Mixture, TokenDispatcher};
use crate::scenario::error::ScenarioError;
use crate::scenario::reader::Reader;
use crate::scenario::written::{self, FlexBackend};
use crate::units::Finite;

/// The largest capacity of an expert, over a balanced load.
const MOST_CAPACITY: f64 = 1000.0;

/// The sizes of `count` below `most` that divide it.
fn divisors(count: u64, most: u64) -> String {
    let all: Vec<String> = (1..=most).filter(|&size| count.is_multiple_of(size)).map(|size| size.to_string()).collect();
    all.join(" or ")
}

/// The mesh with experts spread over the ranks of a stage (`core/parallel_state.py`, `expert_decoder_rank_generator`).
pub(super) fn mesh(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (topology, model): (&Topology, &ModelConfig),
    (mesh, sequence_parallel): (Mesh, bool),
) -> Result<Mesh, ScenarioError> {
    let written = scenario.mesh.get_ref();
    let Some(experts) = model.experts() else {
        return match written.ep.as_ref().or(written.etp.as_ref()) {
            Some(at) => {
                let problem = format!("mesh.ep and mesh.etp spread experts over ranks, and {} has none", model.name);
                Err(reader.plan(at, problem, "remove the key, or take a model with experts"))
            }
            None => Ok(mesh),
        };
    };
    let ep = reader.count_or(&written::Mesh::ep, written.ep.as_ref(), 1)?;
    let (tp, stage) = (u64::from(mesh.tp), u64::from(mesh.ranks_of_stage()));
    let etp = reader.count_or(&written::Mesh::etp, written.etp.as_ref(), tp)?;
    let place = |at: &Option<Spanned<i64>>| {
        at.as_ref().or(written.ep.as_ref()).map_or_else(|| reader.place(&scenario.mesh), |at| reader.place(at))
    };
    let refuse = |at: &Option<Spanned<i64>>, problem: String, remedy: String| {
        Err(ScenarioError::Plan { code: None, problem, place: place(at), remedy })
    };
    if !experts.count.is_multiple_of(ep) {
        let problem = format!("mesh.ep = {ep} does not divide the {} experts of {}", experts.count, model.name);
        return refuse(&written.ep, problem, format!("write mesh.ep = {}", divisors(experts.count, ep.min(512))));
    }
    if !stage.is_multiple_of(ep.saturating_mul(etp)) {
        let problem =
            format!("ep × etp = {ep} × {etp} does not divide the tp·cp·dp = {stage} ranks of a pipeline stage");
        let remedy = if stage.is_multiple_of(ep) {
            format!("write mesh.etp = {}", divisors(stage / ep, etp.min(512)))
        } else {
            "write axes whose product divides it; mesh.etp is mesh.tp where the file leaves it open".to_owned()
        };
        return refuse(&written.etp, problem, remedy);
    }
    if !experts.width.is_multiple_of(etp) {
        let problem =
            format!("mesh.etp = {etp} does not divide the {} numbers of an expert of {}", experts.width, model.name);
        return refuse(&written.etp, problem, format!("write mesh.etp = {}", divisors(experts.width, etp.min(512))));
    }
    if ep == 1 && etp != tp {
        let problem =
            format!("mesh.etp = {etp} splits experts otherwise than mesh.tp = {tp} the rest, on the same ranks");
        return refuse(&written.etp, problem, "write mesh.ep = 2 or more, or remove mesh.etp".to_owned());
    }
    if tp > 1 && !sequence_parallel {
        let problem = "tensor parallelism with experts is trained with a split sequence (`MoELayer.forward`)";
        let remedy = "write tensor_parallel.sequence = true, or mesh.tp = 1".to_owned();
        return refuse(&written.tp, problem.to_owned(), remedy);
    }
    let (inside, span) = (u64::from(topology.ranks_per_node()), ep * etp);
    if ep > 1 && topology.nodes > 1 && !inside.is_multiple_of(span) {
        reader.note(format!(
            "mesh.ep × mesh.etp = {span} leaves the {inside} chips of a node, so rows of experts cross the network \
             four times in every block"
        ));
    }
    Ok(Mesh { ep: ep as u32, etp: etp as u32, ..mesh })
}

/// How experts are run; none where the model has none.
pub(super) fn mixture(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    model: &ModelConfig,
    implementation: Implementation,
) -> Result<Option<Mixture>, ScenarioError> {
    let keys = [
        table.moe_token_dispatcher_type.as_ref().map(|at| at.span()),
        table.moe_flex_dispatcher_backend.as_ref().map(|at| at.span()),
        table.moe_flex_dispatcher_num_sms.as_ref().map(|at| at.span()),
        table.moe_expert_capacity_factor.as_ref().map(|at| at.span()),
        table.moe_pad_expert_input_to_capacity.as_ref().map(|at| at.span()),
        table.moe_grouped_gemm.as_ref().map(|at| at.span()),
        table.moe_permute_fusion.as_ref().map(|at| at.span()),
        table.moe_router_fp32.as_ref().map(|at| at.span()),
        table.moe_aux_loss.as_ref().map(|at| at.span()),
        table.moe_router_fusion.as_ref().map(|at| at.span()),
        table.moe_router_force_load_balancing.as_ref().map(|at| at.span()),
        table.delay_wgrad_compute.as_ref().map(|at| at.span()),
        table.moe_shared_expert_overlap.as_ref().map(|at| at.span()),
        table.waited_collectives.as_ref().map(|at| at.span()),
    ];
    if model.experts().is_none() {
        return match keys.into_iter().flatten().next() {
            Some(span) => {
                let problem = format!("the key says how experts are run, and {} has none", model.name);
                Err(reader.plan(&Spanned::new(span, ()), problem, "remove the key"))
            }
            None => Ok(None),
        };
    }
    let grouped = grouped(reader, table);
    let dispatcher = dispatcher(reader, table)?;
    let capacity = capacity(reader, table)?;
    let exchange_processors = exchange_processors(reader, table, dispatcher)?;
    let shared_overlap = super::overlap::shared(reader, table, (model, dispatcher))?;
    let engine = implementation == Implementation::TransformerEngine;
    let flag = |at: &Option<Spanned<bool>>| at.as_ref().map(|at| *at.get_ref());
    if let (Some(at), false) = (table.moe_permute_fusion.as_ref().filter(|at| *at.get_ref()), engine) {
        let problem = "moe_permute_fusion is Transformer Engine's, and megatron.implementation is \"local\"";
        return Err(reader.plan(at, problem, "write megatron.implementation = \"transformer_engine\""));
    }
    if model.has_sinks() {
        reader.note("attention with sinks is taken to be as fast as without");
    }
    Ok(Some(Mixture {
        dispatcher,
        exchange_processors,
        capacity,
        grouped,
        permute_fusion: reader.flag(&written::Megatron::moe_permute_fusion, flag(&table.moe_permute_fusion)),
        fp32_router: reader.flag(&written::Megatron::moe_router_fp32, flag(&table.moe_router_fp32)),
        router_fusion: reader.flag(&written::Megatron::moe_router_fusion, flag(&table.moe_router_fusion)),
        delay_wgrad: super::overlap::delays(reader, table)?,
        shared_overlap,
        in_line: super::overlap::in_line(reader, table, shared_overlap)?,
        drawn: drawn(reader, table, model, capacity.is_some())?,
        auxiliary_loss: reader.flag(&written::Megatron::moe_aux_loss, flag(&table.moe_aux_loss)),
    }))
}

/// The most rows that an expert takes, over a balanced load's, and whether it is filled up to that.
fn capacity(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<Option<ExpertCapacity>, ScenarioError> {
    let pads = table.moe_pad_expert_input_to_capacity.as_ref();
    let Some(at) = &table.moe_expert_capacity_factor else {
        return match pads.filter(|at| *at.get_ref()) {
            Some(at) => {
                let problem = "experts are filled up to a capacity, and none is written";
                Err(reader.plan(at, problem, "write megatron.moe_expert_capacity_factor = 1.0, or remove the key"))
            }
            None => Ok(None),
        };
    };
    let factor = *at.get_ref();
    if !(factor > 0.0 && factor <= MOST_CAPACITY) {
        let problem = format!("megatron.moe_expert_capacity_factor = {factor} is out of range");
        return Err(reader.plan(
            at,
            problem,
            format!("write a number above 0, at most {MOST_CAPACITY}; 1.0 is a balanced load"),
        ));
    }
    let pads = reader.flag_or("megatron.moe_pad_expert_input_to_capacity", pads.map(|at| *at.get_ref()), false);
    Ok(Some(ExpertCapacity { factor: Finite::nearest(factor), pads }))
}

/// Whether tokens draw their experts at random.
fn drawn(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    model: &ModelConfig,
    capacity: bool,
) -> Result<bool, ScenarioError> {
    let Some(at) = table.moe_router_force_load_balancing.as_ref().filter(|at| *at.get_ref()) else { return Ok(false) };
    if model.experts().is_some_and(|experts| experts.load != Load::Balanced) {
        let problem =
            "moe_router_force_load_balancing lets every token draw its experts, and model.expert_load says otherwise";
        return Err(reader.plan(at, problem, "remove one of the two keys"));
    }
    if capacity {
        let problem = "moe_router_force_load_balancing with a capacity of experts is not simulated";
        return Err(reader.plan(at, problem, "remove the key, or megatron.moe_expert_capacity_factor"));
    }
    Ok(true)
}

/// Whether the experts of a rank are multiplied in one call, or one after the other (`SequentialMLP`).
fn grouped(reader: &mut Reader<'_>, table: &written::Megatron) -> bool {
    match &table.moe_grouped_gemm {
        Some(at) => *at.get_ref(),
        None => {
            let why = "Megatron-Core's own default is false; recipes write true";
            reader.assume_for("megatron.moe_grouped_gemm", true, true, why)
        }
    }
}

/// How rows get to experts and back.
fn dispatcher(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<TokenDispatcher, ScenarioError> {
    let named = named(reader, table)?;
    match (&table.moe_flex_dispatcher_backend, named) {
        (Some(at), TokenDispatcher::Flex) => match at.get_ref() {
            FlexBackend::Deepep => Ok(named),
            FlexBackend::Hybridep => Ok(TokenDispatcher::Hybrid),
        },
        (Some(at), _) => {
            let problem = "moe_flex_dispatcher_backend is the flex dispatcher's, and this is another one";
            Err(reader.plan(at, problem, "write megatron.moe_token_dispatcher_type = \"flex\", or remove the key"))
        }
        (None, TokenDispatcher::Flex) => {
            let why = "Megatron-Core's; recipes for NVL72 write \"hybridep\"";
            Ok(reader.assume_for("megatron.moe_flex_dispatcher_backend", named, "deepep", why))
        }
        (None, _) => Ok(named),
    }
}

/// How many processors its kernels run on, if not its library's own number.
fn exchange_processors(
    reader: &mut Reader<'_>,
    table: &written::Megatron,
    dispatcher: TokenDispatcher,
) -> Result<Option<u32>, ScenarioError> {
    const KEY: &str = "megatron.moe_flex_dispatcher_num_sms";
    let own = match dispatcher {
        TokenDispatcher::Flex => Some((20, "Megatron-Core's number for DeepEP")),
        TokenDispatcher::Hybrid => Some((16, "Hybrid-EP's own; NVIDIA's performance scripts write 32")),
        TokenDispatcher::AllToAll | TokenDispatcher::AllGather => None,
    };
    match (&table.moe_flex_dispatcher_num_sms, own) {
        (Some(at), own) => {
            let count = reader.count(&written::Megatron::moe_flex_dispatcher_num_sms, at)?;
            if own.is_none() {
                let problem = "moe_flex_dispatcher_num_sms is the flex dispatcher's, and this is another one";
                let remedy = "write megatron.moe_token_dispatcher_type = \"flex\", or remove the key";
                return Err(reader.plan(at, problem, remedy));
            }
            Ok(Some(count as u32))
        }
        (None, Some((own, why))) => Ok(reader.assume_for(KEY, None, own, why)),
        (None, None) => Ok(None),
    }
}

/// The dispatcher by its name.
fn named(reader: &mut Reader<'_>, table: &written::Megatron) -> Result<TokenDispatcher, ScenarioError> {
    let Some(at) = &table.moe_token_dispatcher_type else {
        let default = TokenDispatcher::AllGather;
        let why = "Megatron-Core's; recipes write \"alltoall\" or \"flex\"";
        return Ok(reader.assume_for("megatron.moe_token_dispatcher_type", default, default.name(), why));
    };
    TokenDispatcher::find(at.get_ref()).ok_or_else(|| {
        let known: Vec<String> =
            TokenDispatcher::ALL.iter().map(|one| format!("\"{}\" ({})", one.name(), one.row().about)).collect();
        let hint = did_you_mean(at.get_ref(), TokenDispatcher::ALL.iter().map(|one| one.name()));
        let problem = format!("no dispatcher of tokens is called {:?}{hint}", at.get_ref());
        reader.unknown(at, problem, format!("write megatron.moe_token_dispatcher_type = {}", known.join(" or ")))
    })
}
