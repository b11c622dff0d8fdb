//! The shard-plan check: impossible plans are explained before anything is simulated.

use std::sync::Arc;

use toml::Spanned;

use super::error::ScenarioError;
use super::machine::power_limit;
use super::reader::Reader;
use super::{autocast, stages, tensor, written};
use crate::cost::clock::LEAST_LIMIT;
use crate::cost::{FARTHEST, Profile};
use crate::hardware::Topology;
use crate::model::{ModelConfig, Position};
use crate::runtime::fsdp::Reshard;
use crate::runtime::train::TorchPlan;
use crate::units::Bandwidth;

/// How far a topology and its profile may differ: roundings of the same datasheet.
const PROFILE_TOLERANCE: f64 = 0.05;

/// The mesh, which must tile the topology exactly. One data-parallel axis may be left open: it takes what the others leave.
pub(super) fn mesh(
    reader: &mut Reader<'_>,
    mesh: &Spanned<written::Mesh>,
    (topology, (tensor, context, pipeline)): (&Topology, (u64, u64, u64)),
    count: impl Fn(&Reader<'_>, &str, &Spanned<i64>) -> Result<u64, ScenarioError>,
) -> Result<(u32, u32), ScenarioError> {
    let all = u64::from(topology.ranks());
    let written = mesh.get_ref();
    if let (Some(at), false) = (&written.tp, all.is_multiple_of(tensor)) {
        let problem = format!("mesh.tp = {tensor} does not divide the {all} chips of {}", topology.name);
        return Err(reader.plan(at, problem, "write a divisor, or change the topology's size"));
    }
    let mut chips = all / tensor;
    if !chips.is_multiple_of(pipeline) {
        let problem = format!("mesh.pp = {pipeline} does not divide the {chips} chips that tp = {tensor} leaves");
        let place = written.pp.as_ref().map_or_else(|| reader.place(mesh), |at| reader.place(at));
        let remedy = "write a divisor, or change the topology's size".to_owned();
        return Err(ScenarioError::Plan { code: None, problem, place, remedy });
    }
    chips /= pipeline;
    if let (Some(at), false) = (&written.cp, chips.is_multiple_of(context)) {
        let problem = format!("mesh.cp = {context} does not divide the {chips} chips that tp = {tensor} leaves");
        return Err(reader.plan(at, problem, "write a divisor, or change the topology's size"));
    }
    let chips = chips / context;
    let mut beside = if tensor > 1 { format!(" beside tp = {tensor}") } else { String::new() };
    if context > 1 {
        beside += &format!(" beside cp = {context}");
    }
    if pipeline > 1 {
        beside += &format!(" beside pp = {pipeline}");
    }
    let shard = written.dp_shard.as_ref().map(|at| count(reader, "mesh.dp_shard", at)).transpose()?;
    let replicate = written.dp_replicate.as_ref().map(|at| count(reader, "mesh.dp_replicate", at)).transpose()?;
    let given = shard.unwrap_or(1) * replicate.unwrap_or(1);
    let (shard, replicate) = match (shard, replicate) {
        (Some(shard), Some(replicate)) => (shard, replicate),
        (Some(shard), None) if chips.is_multiple_of(shard) => {
            let rest = chips / shard;
            if rest > 1 {
                reader.assume_for("mesh.dp_replicate", (), rest, format!("{chips} chips / dp_shard {shard}"));
                reader.note(format!(
                    "mesh.dp_replicate is not stated: {chips} chips / dp_shard {shard} make {rest} replicas (HSDP)"
                ));
            }
            (shard, rest)
        }
        (None, Some(replicate)) if chips.is_multiple_of(replicate) => {
            reader.assume_for("mesh.dp_shard", (), chips / replicate, format!("{chips} chips / dp_replicate"));
            (chips / replicate, replicate)
        }
        (None, None) => {
            reader.assume_for("mesh.dp_shard", (), chips, format!("all chips{beside}"));
            (chips, 1)
        }
        _ => (given, 1),
    };
    if shard * replicate != chips {
        let at = written.dp_shard.as_ref().or(written.dp_replicate.as_ref());
        let problem = format!(
            "the mesh holds {} ranks but the topology has {all} chips ({} of {})",
            shard * replicate * tensor * context * pipeline,
            topology.size_in_words(),
            topology.name
        );
        let remedy = format!("dp_shard × dp_replicate must be {chips}{beside}; or change the topology's size");
        let place = at.map_or_else(|| reader.place(mesh), |at| reader.place(at));
        return Err(ScenarioError::Plan { code: None, problem, place, remedy });
    }
    Ok((shard as u32, replicate as u32))
}

/// `reshard_after_forward = N`: N must divide the shard axis.
pub(super) fn post_forward(
    reader: &Reader<'_>,
    at: &Spanned<written::Reshard>,
    ranks: i64,
    shard: u32,
) -> Result<Reshard, ScenarioError> {
    let divides = u32::try_from(ranks).ok().filter(|&ranks| ranks > 1 && shard.is_multiple_of(ranks));
    match divides {
        Some(ranks) if ranks == shard => Ok(Reshard::Always),
        Some(ranks) => Ok(Reshard::To(ranks)),
        None => {
            let problem = format!("reshard_after_forward = {ranks} does not divide dp_shard = {shard}");
            Err(reader.plan(at, problem, "write true, false, or a divisor of dp_shard above 1"))
        }
    }
}

/// The profile must be of the machine that the topology describes: costs come from the profile alone.
pub(super) fn profile(
    reader: &mut Reader<'_>,
    written: &written::Topology,
    topology: &Topology,
    profile: Arc<Profile>,
) -> Result<Arc<Profile>, ScenarioError> {
    let at = written.profile.as_ref().unwrap_or(&written.name);
    if topology.axes().is_some() != profile.collectives.of_a_torus() {
        let (one, other) = if profile.collectives.of_a_torus() { ("slices", "nodes") } else { ("nodes", "slices") };
        let problem = format!("the profile {} was measured on {one}, and {} is {other}", profile.name, topology.name);
        return Err(reader.plan(at, problem, "name a topology and a profile of the same machine"));
    }
    let link = topology.fabric.first().map_or(Bandwidth(0.0), |level| level.carries());
    let chip = &topology.chip;
    let mut other = vec![];
    for (what, here, there, unit) in [
        ("memory bandwidth", chip.memory_bandwidth.0, profile.machine.memory_bandwidth.0, "GB/s"),
        ("bf16 peak", chip.peak.bf16.0, profile.bf16_peak().0, "GFLOP/s"),
    ] {
        let ratio = here / there;
        let figures = format!("{what} of {} is {:.0} {unit}", topology.name, here / 1e9);
        // A compiler decides about a TPU's step, and knows its own chip only.
        if !(1.0 / FARTHEST..=FARTHEST).contains(&ratio)
            || (profile.collectives.of_a_torus() && (ratio - 1.0).abs() > PROFILE_TOLERANCE)
        {
            let problem = format!(
                "the {figures}, but its costs come from the profile {}, measured at {:.0} {unit}",
                profile.name,
                there / 1e9
            );
            let remedy = "name a topology and a profile of the same machine; a new machine needs a profile of its own";
            return Err(reader.plan(at, problem, remedy));
        }
        if (ratio - 1.0).abs() > PROFILE_TOLERANCE {
            other.push(format!("{figures}, and {:.0} in the profile {}", there / 1e9, profile.name));
        }
    }
    let measured_under = profile.machine.power_limit;
    let (profile, own) = match other[..] {
        [] => (profile, measured_under.or(chip.power)),
        _ => {
            let other = other.join("; the ");
            reader
                .note(format!("the {other}: kernels are carried over by the chip's own figures, with wider intervals"));
            (Arc::new(Arc::unwrap_or_clone(profile).carried_over(chip)), chip.power)
        }
    };
    let profile = match (power_limit(reader, written, chip, &profile)?, own) {
        (Some(limit), Some(own)) if limit.0 < LEAST_LIMIT * own.0 => {
            let problem = format!(
                "a board of {} draws {limit} at most, but its costs come from the profile {}, measured under {own}",
                topology.name, profile.name
            );
            let remedy = "name a profile of the same board; a new one needs a profile of its own";
            return Err(reader.plan(at, problem, remedy));
        }
        (Some(limit), Some(own)) if limit.0 < own.0 => Arc::new(Arc::unwrap_or_clone(profile).limited(limit, own)),
        _ => profile,
    };
    let measured = profile.collectives.link;
    if profile.collectives.of_a_torus() || (link.0 / measured.0 - 1.0).abs() <= PROFILE_TOLERANCE {
        return Ok(profile);
    }
    reader.note(format!(
        "links inside a node carry {:.0} GB/s here and {:.0} GB/s in the profile {}: collectives are extrapolated by bandwidth",
        link.0 / 1e9,
        measured.0 / 1e9,
        profile.name
    ));
    Ok(Arc::new(Arc::unwrap_or_clone(profile).on_link(link)))
}

/// A table of learned positions must be as long as sequences are.
pub(super) fn positions(
    reader: &mut Reader<'_>,
    written: &written::Scenario,
    model: &ModelConfig,
    seq: u64,
) -> Result<(), ScenarioError> {
    if let Some(context) = model.context.filter(|&context| seq > context) {
        reader.note(format!(
            "batch.sequence = {seq} is longer than the {context} positions that {} is for (max_position_embeddings): time and \
             memory do not depend on them",
            model.name
        ));
    }
    if let Position::Learned { positions } = model.position
        && seq > positions
    {
        let problem =
            format!("batch.sequence = {} but {} has a table of {positions} learned positions", seq, model.name);
        let remedy = format!("train on {positions} tokens or fewer, or write model.positions = {}", seq);
        return Err(reader.plan(&written.batch.sequence, problem, remedy));
    }
    Ok(())
}

/// What is left to check once everything is known.
pub(super) fn check(
    reader: &mut Reader<'_>,
    written: &written::Scenario,
    job: &TorchPlan,
    topology: &Topology,
) -> Result<(), ScenarioError> {
    positions(reader, written, &job.model, job.seq)?;
    autocast::check(reader, written, job)?;
    if let (Some(at), false) = (&written.precision.output, job.loss.sees_whole_logits()) {
        let problem = "precision.output casts the model's logits, and this loss takes them in parts or not at all";
        return Err(reader.plan(at, problem, "remove precision.output, or write loss.kind = \"fp32\""));
    }
    if let Some(at) = written.attention.unpad.as_ref().filter(|_| job.unpad && job.compile) {
        let problem = "packing tokens reads numbers back to the host, which a compiled block cannot";
        let remedy = match &written.compile.model {
            Some(_) => "write attention.unpad = false, or remove compile.model",
            None => "write attention.unpad = false, or compile.blocks = false",
        };
        return Err(reader.plan(at, problem, remedy));
    }
    tensor::check(reader, written, job)?;
    stages::check(reader, written, job)?;
    let policies = job.fsdp.wrap.post_forward();
    if let Some(other) = policies.iter().find(|&&ranks| ranks != policies[0]) {
        let problem = format!("modules reshard to {} and to {other} ranks", policies[0]);
        return Err(reader.plan(&written.mesh, problem, "one post-forward mesh is supported: use one number"));
    }
    let ep = job.style.experts.ranks();
    if let (Some(ranks), Some(at), true) = (policies.first(), &written.mesh.get_ref().ep, ep > 1) {
        let problem = format!(
            "modules reshard to {ranks} ranks, and mesh.ep = {ep} shards experts over other ranks than the rest: \
             both at once are not simulated"
        );
        return Err(reader.plan(at, problem, "write reshard_after_forward = true or false, or remove mesh.ep"));
    }
    if job.fsdp.replicate > 1 && job.fsdp.shard > topology.ranks_per_node() && topology.nodes > 1 {
        reader.note(format!(
            "dp_shard = {} spans nodes of {} chips, so parameters are gathered over the network; dp_shard = {} would keep them inside",
            job.fsdp.shard, topology.ranks_per_node(), topology.ranks_per_node()
        ));
    }
    Ok(())
}
