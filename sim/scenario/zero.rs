//! A job under DeepSpeed's ZeRO as understood. What the file leaves open is what `deepspeed/runtime/zero/config.py` (0.19.6)
//! has for it, and is listed.

mod disks;
mod offload;
mod quantized;
mod sequence;

use toml::Spanned;

use super::assumption::Assumption;
use super::entry::{Base, Decided, Entry, Runtime};
use super::error::ScenarioError;
use super::keys::row::Key;
use super::megatron::mesh;
use super::reader::Reader;
use super::train::eager;
use super::{classes, foreign, gate, limits, machine, names, recompute, training, written};
use crate::cost::{Backend, Software};
use crate::hardware::Vendor;
use crate::model::ModelConfig;
use crate::model::tensor::TensorParallel;
use crate::program::DType;
use crate::runtime;
use crate::runtime::compiled::Rotate;
use crate::runtime::eager::Settings;
use crate::runtime::fsdp::{Fsdp, MixedPrecision, Reshard, Version, Wrap};
use crate::runtime::optimizer::Caller;
use crate::runtime::train::{self, Checkpoint};
use crate::runtime::zero::{Gathering, Offload, Stage, Zero, ZeroPlan};

/// Elements of a bucket: `reduce_bucket_size`, `allgather_bucket_size`.
const BUCKET: u64 = 500_000_000;

/// Elements that ZeRO-3 steps together: `sub_group_size`.
const SUB_GROUP: u64 = 1_000_000_000;

/// `deepspeed.initialize` around a PyTorch module.
pub(super) const DEEPSPEED_ZERO: Runtime = Runtime(&Entry {
    written: names::DEEPSPEED_ZERO,
    also: &["zero", "zero-1", "zero-2", "zero-3", "zero1", "zero2", "zero3", "deepspeed-zero3"],
    name: "DeepSpeed ZeRO",
    lane: "DeepSpeed ZeRO 0.19 (CUDA)",
    splits_model: false,
    recompute: super::train::POLICIES,
    vendor: Vendor::Nvidia,
    also_on: &[],
    decide,
});

/// Everything that ZeRO leaves to the file.
pub(super) fn decide(reader: &mut Reader<'_>, base: Base<'_>) -> Result<Decided, ScenarioError> {
    let Base { scenario, runtime, topology, profile, model, seq, micro, accumulation, .. } = base;
    foreign::check(reader, runtime)?;
    let before = reader.assumptions.len();
    let mesh = mesh::mesh(reader, scenario, topology)?;
    let (ranks, shared) = (mesh.dp * mesh.cp, mesh.cp);
    // Of the other axes, which the file cannot have, nothing is said.
    let said = reader.assumptions.split_off(before);
    let data_parallel = |said: &Assumption| said.key().is_some_and(|key| key.starts_with("mesh.dp"));
    reader.assumptions.extend(said.into_iter().filter(data_parallel));
    match &scenario.precision.param {
        None => reader.assume("precision.param", (), "bf16"),
        Some(at) if *at.get_ref() == DType::Bf16 => {}
        Some(at) => {
            let problem = format!("parameters in {} have no rules under ZeRO", at.get_ref().name());
            return Err(reader.plan(at, problem, "write precision.param = \"bf16\""));
        }
    }
    let zero = zero(reader, scenario, (ranks, shared, topology.ranks_per_node()))?;
    sequence::check(reader, scenario, (&model, seq, topology), &zero)?;
    let checkpoint = recompute::checkpoint(reader, &scenario.activation_checkpointing, model.layers.count())?;
    recompute::fits(reader, scenario, &checkpoint)?;
    let early_stop = reader.flag(&written::Checkpointing::early_stop, scenario.activation_checkpointing.early_stop);
    let optimizer = match zero.offload.optimizer {
        true => offload::optimizer(reader, &scenario.optimizer)?,
        false => super::optimizer::optimizer(reader, &scenario.optimizer, (runtime, Caller::Zero, false))?,
    };
    if zero.offload.optimizer && scenario.optimizer.clip_grad_norm.is_some() {
        reader.idle("optimizer.clip_grad_norm", "on the host DeepSpeed takes the norm and scales gradients either way");
    }
    let clip = reader.flag(&written::Optimizer::clip_grad_norm, scenario.optimizer.clip_grad_norm);
    let regime = machine::regime(reader, &scenario.topology);
    machine::no_flex(reader, &scenario.attention)?;
    let (attention, deterministic) =
        machine::pytorch_kernels(reader, &scenario.attention, (topology, profile), &model)?;
    let expandable_segments = reader.flag(&written::Memory::expandable_segments, scenario.memory.expandable_segments);
    let rail = machine::rail(reader, &scenario.topology, topology)?;
    let cublas = machine::cublas(reader, &scenario.framework, profile)?;
    let loss = training::loss(reader, &scenario.loss, &scenario.compile)?;
    simulated(reader, scenario, &model, (zero.stage, &checkpoint, loss.sees_whole_logits()))?;
    let whole = train::TorchPlan {
        batch: micro,
        seq,
        documents: None,
        accumulation: accumulation as u32,
        sync_every: true,
        marks_last: true,
        keeps_gathered: false,
        all_reduce_every: true,
        fsdp: around_nothing(ranks, model.layers.count()),
        ddp: None,
        tensor: TensorParallel::NONE,
        context: shared,
        rotate: Rotate::default(),
        checkpoint,
        checkpoint_compiled: false,
        reentrant: false,
        around_hooks: false,
        compile: false,
        float8: None,
        trained: None,
        loss,
        reference: None,
        unpad: false,
        keep_logits: train::KeepLogits::No,
        loss_inside: false,
        training_loop: train::Loop::default(),
        initialisation: train::Initialisation::default(),
        autocast: None,
        cuda_graphs: false,
        style: classes::plain(reader, &scenario.framework, &model),
        output: None,
        eager: Settings {
            copies_gradients: deterministic && attention == Backend::Flash2,
            ..eager(reader, scenario, (topology, profile), (&model, early_stop, None))
        },
        optimizer,
        clip,
        master_weights: false,
        scale_gradients: false,
        step_in_backward: false,
        pipeline: None,
        max_positions: seq,
        model,
    };
    gate::positions(reader, scenario, &whole.model, seq)?;
    let zero = ZeroPlan { whole, zero };
    let job = runtime::Plan::Zero(zero.clone());
    let mut disks = None;
    if let Some(table) = scenario.zero.as_ref().map(Spanned::get_ref) {
        limits::check(reader, scenario, &job)?;
        quantized::check(reader, table, &zero)?;
        disks::check(reader, table, &zero)?;
        disks = disks::rates(reader, table, topology)?;
    }
    let software = Software { attention, deterministic, tf32: false, cublas, rail, blocks: None, disks };
    Ok(Decided { job, regime, software, expandable_segments })
}

/// What of a module, and of how it is run, has no rules under a stage.
fn simulated(
    reader: &Reader<'_>,
    scenario: &written::Scenario,
    model: &ModelConfig,
    (stage, checkpoint, whole): (Stage, &Checkpoint, bool),
) -> Result<(), ScenarioError> {
    if model.experts().is_some() {
        let problem = format!("experts, which {} has, are not simulated under ZeRO yet", model.name);
        return Err(reader.plan(&scenario.model, problem, "take a dense model, or runtime = \"fsdp2\""));
    }
    if let (Some(at), true, Stage::Three) =
        (&scenario.activation_checkpointing.policy, checkpoint.is_selective(), stage)
    {
        let problem = "selective checkpointing is not simulated under zero.stage = 3 yet";
        return Err(reader.plan(at, problem, "write activation_checkpointing.policy = \"full\", or zero.stage = 2"));
    }
    if let (Some(at), false, Stage::Three) = (&scenario.loss.kind, whole, stage) {
        let problem = "a loss that takes the head in parts is not simulated under zero.stage = 3 yet";
        return Err(reader.plan(at, problem, "write loss.kind = \"fp32\", or zero.stage = 2"));
    }
    Ok(())
}

/// Parameters in bf16 that no wrapper shards.
fn around_nothing(ranks: u32, layers: u64) -> Fsdp {
    let blocks = vec![None; layers as usize];
    Fsdp {
        version: Version::Unsharded,
        shard: ranks,
        replicate: 1,
        wrap: Wrap::of_blocks(blocks, Reshard::Never),
        mixed_precision: MixedPrecision { storage: DType::Bf16, param: None, reduce: None },
        forward_prefetch: 0,
        backward_prefetch: 0,
        prefetches_ends: false,
        second_dims: vec![],
        reduce_scatter_buffers: 1,
        unshard_in_backward: true,
        cpu_offload: false,
    }
}

/// The table `[zero]`.
fn zero(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (ranks, sequence, chips): (u32, u32, u32),
) -> Result<Zero, ScenarioError> {
    let Some(table) = scenario.zero.as_ref() else {
        let problem = "runtime = \"deepspeed-zero\" needs to know what is sharded";
        return Err(reader.plan(&scenario.runtime, problem, "write a table [zero] with stage = 1, 2 or 3"));
    };
    let stage = stage(reader, table)?;
    let table = table.get_ref();
    without_rules(reader, table, stage)?;
    let bucket = reader.count_or(&written::Zero::reduce_bucket_size, table.reduce_bucket_size.as_ref(), BUCKET)?;
    if let Some(at) = &table.allgather_bucket_size {
        reader.count(&written::Zero::allgather_bucket_size, at)?;
        reader
            .idle("zero.allgather_bucket_size", "PyTorch has all_gather_into_tensor, which gathers everything at once");
    }
    let overlap = reader.flag_or("zero.overlap_comm", table.overlap_comm, stage == Stage::Three);
    let round_robin = match &table.round_robin_gradients {
        None if stage < Stage::Three => reader.assume("zero.round_robin_gradients", false, false),
        at => at.as_ref().is_some_and(|at| *at.get_ref()),
    };
    if stage == Stage::Three && ranks == 1 {
        let problem = "zero.stage = 3 on one rank has no parts to gather: it has no rules";
        return Err(reader.plan(&scenario.mesh, problem, "write zero.stage = 2, or take more chips"));
    }
    let offload = offload::offload(reader, table, stage)?;
    let (gathering, sub_group) = match stage {
        Stage::Three => of_three(reader, table)?,
        Stage::One | Stage::Two => (Gathering::default(), SUB_GROUP),
    };
    let hpz = match stage {
        Stage::Three => hpz(reader, table, (ranks, chips), offload)?,
        Stage::One | Stage::Two => 1,
    };
    let quantized = quantized::quantized(reader, table, stage, (ranks, chips))?;
    Ok(Zero { stage, ranks, sequence, bucket, overlap, round_robin, gathering, sub_group, offload, hpz, quantized })
}

/// What ZeRO-3 alone reads: what decides on gathers, and how many elements are stepped together.
fn of_three(reader: &mut Reader<'_>, table: &written::Zero) -> Result<(Gathering, u64), ScenarioError> {
    if let Some(at) = &table.round_robin_gradients {
        let remedy = "remove the key, or write stage = 2";
        return Err(reader.plan(at, "zero.round_robin_gradients means nothing under stage = 3", remedy));
    }
    let default = Gathering::default();
    let mut count = |key: &Key, at: &Option<Spanned<i64>>, default| reader.count_or(key, at.as_ref(), default);
    let gathering = Gathering {
        prefetch: count(
            &written::Zero::stage3_prefetch_bucket_size,
            &table.stage3_prefetch_bucket_size,
            default.prefetch,
        )?,
        persist: count(
            &written::Zero::stage3_param_persistence_threshold,
            &table.stage3_param_persistence_threshold,
            default.persist,
        )?,
        live: count(&written::Zero::stage3_max_live_parameters, &table.stage3_max_live_parameters, default.live)?,
        reuse: count(&written::Zero::stage3_max_reuse_distance, &table.stage3_max_reuse_distance, default.reuse)?,
    };
    Ok((gathering, count(&written::Zero::sub_group_size, &table.sub_group_size, SUB_GROUP)?))
}

/// Ranks among which ZeRO++ spreads parameters a second time.
fn hpz(
    reader: &mut Reader<'_>,
    table: &written::Zero,
    (ranks, chips): (u32, u32),
    offload: Offload,
) -> Result<u32, ScenarioError> {
    let Some(at) = &table.zero_hpz_partition_size else { return Ok(1) };
    let size = reader.count_within("zero.zero_hpz_partition_size", at, 1, ranks.into())? as u32;
    if !ranks.is_multiple_of(size) {
        let problem = format!("{ranks} ranks cannot be cut into groups of zero.zero_hpz_partition_size = {size}");
        let remedy = format!("take a divisor of {ranks}, such as the chips of a node");
        return Err(reader.plan(at, problem, remedy));
    }
    if size > 1 && !chips.is_multiple_of(size) {
        reader.note(format!(
            "groups of zero.zero_hpz_partition_size = {size} do not lie within nodes of {chips} chips, and gather across"
        ));
    }
    if size > 1 && offload.parameters {
        let problem = "zero.zero_hpz_partition_size with parameters in the host's memory has no rules";
        return Err(reader.plan(at, problem, "remove the key, or offload_param"));
    }
    Ok(size)
}

fn stage(reader: &Reader<'_>, table: &Spanned<written::Zero>) -> Result<Stage, ScenarioError> {
    let Some(at) = &table.get_ref().stage else {
        return Err(reader.plan(table, "[zero] does not say zero.stage", "write stage = 1, 2 or 3"));
    };
    match *at.get_ref() {
        1 => Ok(Stage::One),
        2 => Ok(Stage::Two),
        3 => Ok(Stage::Three),
        0 => {
            let remedy = "write stage = 1, 2 or 3";
            Err(reader.plan(at, "zero.stage = 0 shards nothing: it has no rules", remedy))
        }
        other => {
            let problem = format!("zero.stage = {other} is none of DeepSpeed's");
            Err(reader.plan(at, problem, "write stage = 1, 2 or 3"))
        }
    }
}

/// Keys that belong to another stage, and settings whose steps are not written down.
fn without_rules(reader: &Reader<'_>, table: &written::Zero, stage: Stage) -> Result<(), ScenarioError> {
    let of_three = [
        ("stage3_prefetch_bucket_size", &table.stage3_prefetch_bucket_size),
        ("stage3_param_persistence_threshold", &table.stage3_param_persistence_threshold),
        ("stage3_max_live_parameters", &table.stage3_max_live_parameters),
        ("stage3_max_reuse_distance", &table.stage3_max_reuse_distance),
        ("sub_group_size", &table.sub_group_size),
        ("zero_hpz_partition_size", &table.zero_hpz_partition_size),
    ];
    for (key, at) in of_three {
        if let Some(at) = at.as_ref().filter(|_| stage < Stage::Three) {
            let problem = format!("zero.{key} is read under stage = 3 alone");
            return Err(reader.plan(at, problem, "remove the key, or write stage = 3"));
        }
    }
    for (key, at) in [("contiguous_gradients", &table.contiguous_gradients), ("reduce_scatter", &table.reduce_scatter)]
    {
        if let Some(at) = at.as_ref().filter(|at| !*at.get_ref()) {
            let problem = format!("zero.{key} = false has no rules");
            return Err(reader.plan(at, problem, format!("write {key} = true, which is DeepSpeed's default")));
        }
    }
    Ok(())
}
