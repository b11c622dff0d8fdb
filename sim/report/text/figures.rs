//! The figures: step time, throughput, MFU, memory, and the run that they are of.

use std::fmt;

use super::super::format::gib;
use super::super::{pipeline, verdict};
use super::page::Page;
use crate::runtime::fsdp::Version;
use crate::runtime::megatron::Mesh;
use crate::runtime::{Parts, Plan, train};
use crate::scenario::advice::Unstated;
use crate::scenario::predict::{Host, Mfu, WITHIN_DOCUMENTS};
use crate::scenario::{Prediction, Scenario};
use crate::units::{Time, thousands};

pub(super) fn figures(
    page: &mut Page,
    scenario: &Scenario,
    answer: &Prediction,
    unstated: Option<&Unstated>,
    all: bool,
) -> fmt::Result {
    let (low, high) = answer.interval;
    page.gap()?;
    let confidence = answer.confidence();
    let taken = if unstated.is_some() { ", for what is taken" } else { "" };
    let step = answer.step;
    page.line("step time", &format!("{step} (80 % interval: {low} to {high}{taken}; confidence {confidence})"))?;
    let chips = scenario.topology.chips();
    let rate = answer.tokens_per_second_per_chip(chips);
    let whole = |rate: f64| thousands(rate.round().max(0.0) as u64);
    let (each, together) = (whole(rate), whole(rate * f64::from(chips)));
    page.line("throughput", &format!("{each} tokens/s per chip, {together} in all"))?;
    if let Some(of) = unstated {
        page.line("unstated", &verdict::unstated(of, answer))?;
    }
    page.line("batch", &batch(scenario, answer))?;
    // Where documents have a mask of their own, the convention that leaves out what it hides stands beside the first.
    let shown = |(index, mfu): &(usize, &Mfu)| all || *index == 0 || mfu.name == WITHIN_DOCUMENTS;
    for (index, mfu) in answer.mfu.iter().enumerate().filter(shown) {
        let of = mfu.of.map_or_else(String::new, |of| format!("; {of}"));
        let over = "more than the peak, so it counts keys that masks hide";
        let over = (mfu.utilisation > 1.0 && mfu.of.is_none()).then(|| over.to_owned());
        let why = mfu.because.clone().or(over).map_or_else(String::new, |why| format!("; {why}"));
        let label = if index == 0 { "MFU" } else { "" };
        page.line(label, &format!("{:.1} % by {}{of}{why}", 100.0 * mfu.utilisation, mfu.formula))?;
    }
    memory(page, answer)?;
    if let Some(of) = bubble(scenario, answer) {
        page.line("bubble", &format!("{:.1} % {of}", 100.0 * pipeline::bubble(scenario, answer)))?;
    }
    page.line("run", &run(scenario))?;
    if let Some(network) = network(scenario) {
        page.line("network", &network)?;
    }
    left_out(page, scenario)?;
    without_effect(page, scenario, answer)
}

fn batch(scenario: &Scenario, answer: &Prediction) -> String {
    let (seq, tokens) = (scenario.job.seq(), answer.tokens);
    let sequences = tokens / seq.max(1);
    let s = if sequences == 1 { "" } else { "s" };
    let all = thousands(tokens);
    format!("{} sequence{s} of {} tokens, {all} tokens a step (global)", thousands(sequences), thousands(seq))
}

fn memory(page: &mut Page, answer: &Prediction) -> fmt::Result {
    let (memory, report) = (&answer.memory, &answer.memory.report);
    let fullest = match answer.classes.len() {
        1 => String::new(),
        _ => format!(" on pipeline rank {}, the fullest", answer.tightest),
    };
    let (total, has) = (gib(memory.device_total()), gib(memory.capacity));
    let (allocated, reserved) = (gib(report.peak_allocated), gib(report.peak_reserved));
    let whole = match memory.on_device {
        true => format!("{total} of {has} per device{fullest}"),
        false => format!("{} wanted per device{fullest}, which has {has}", gib(memory.wanted)),
    };
    let device = format!("{whole}: {allocated} allocated, {reserved} reserved (peak in {})", report.peak_phase);
    page.line("memory", &device)?;
    if let Some(host) = memory.host {
        let has = host.capacity.map_or_else(|| "an unstated amount".to_owned(), gib);
        let Host { rank, ranks, .. } = host;
        let whole = format!("{} of {has} per node: {ranks} ranks × {}", gib(host.wanted()), gib(rank.all));
        page.line("host memory", &format!("{whole}, {} of it pinned", gib(rank.pinned)))?;
        if rank.files.0 > 0 {
            page.line("disks", &format!("{} of files for each rank", gib(rank.files)))?;
        }
    }
    if report.retries > 0 && memory.on_device && answer.stall > Time::ZERO {
        let (times, adds) = (report.retries, answer.stall);
        let returns = format!(
            "the allocator returns cached segments to the device {times} times a step, which adds {adds} (assumed rates)"
        );
        page.line("retries", &returns)?;
    }
    Ok(())
}

/// What a chip has to other nodes, beside what the topology has if that is another figure; nothing on one node.
fn network(scenario: &Scenario) -> Option<String> {
    let topology = &scenario.topology;
    let own = scenario.software.rail.filter(|_| topology.axes().is_none())?;
    let level = topology.fabric.get(topology.level_of(topology.ranks(), 1))?;
    let shipped = topology.rail();
    let other = match own == shipped {
        true => String::new(),
        false => format!("; topology.nic_bandwidth says so, and {} has {shipped}", topology.name),
    };
    Some(format!("{own} per chip to other nodes ({}){other}", level.name))
}

/// What runs where, in a line.
fn run(scenario: &Scenario) -> String {
    let (job, topology) = (&scenario.job, &scenario.topology);
    let micro_batches = job.micro_batches();
    let es = if micro_batches == 1 { "" } else { "es" };
    let size = format!("{} tokens × {} per {} × {micro_batches} micro-batch{es}", job.seq(), job.batch(), whose(job));
    let (runtime, model, chips) = (scenario.runtime.lane(), job.model(), topology.chips());
    format!("{runtime} · {model} · {chips} × {} · {}{}{size}", topology.chip.name, mesh(job), replicas(job))
}

/// Switches of the run that are not simulated.
fn left_out(page: &mut Page, scenario: &Scenario) -> fmt::Result {
    for (index, left) in scenario.not_simulated.iter().enumerate() {
        page.line(if index == 0 { "left out" } else { "" }, left)?;
    }
    Ok(())
}

/// What the files say and this plan does not read, with why: keys of the scenario, and numbers of the machine.
fn without_effect(page: &mut Page, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    // Keys of one reason share a line.
    let mut lines: Vec<(&str, Vec<&str>)> = vec![];
    for idle in answer.unread.iter().chain(&scenario.idle).chain(&answer.idle) {
        match lines.iter_mut().find(|(why, _)| *why == idle.why) {
            Some((_, keys)) => keys.push(&idle.key),
            None => lines.push((&idle.why, vec![&idle.key])),
        }
    }
    for (index, (why, keys)) in lines.into_iter().enumerate() {
        let label = if index == 0 { "no effect" } else { "" };
        page.line(label, &format!("{}: {why}", keys.join(", ")))?;
    }
    Ok(())
}

/// Whose sequences and micro-batches a job counts: a rank's, or those of several that share them.
pub(crate) fn whose(job: &Plan) -> &'static str {
    if mesh(job).is_empty() { "rank" } else { "replica" }
}

/// The axes of a mesh that splits the model in stages, or sequences; nothing where each rank has sequences of its own.
fn mesh(job: &Plan) -> String {
    let axes = |mesh: Mesh| {
        let context = if mesh.cp > 1 { format!("cp {} × ", mesh.cp) } else { String::new() };
        format!("tp {} × {context}pp {} × dp {} · ", mesh.tp, mesh.pp, mesh.dp)
    };
    let stages = |job: &train::TorchPlan| {
        let context = if job.context > 1 { format!("cp {} × ", job.context) } else { String::new() };
        let replicas = job.data_ranks() / job.context.max(1);
        let data = if job.fsdp.replicate == 1 && job.fsdp.version == Version::Two { "dp_shard" } else { "dp" };
        let tensor = job.tensor.ranks;
        match &job.pipeline {
            Some(stages) => Some(format!("tp {tensor} × {context}pp {} × {data} {replicas} · ", stages.ranks)),
            None if tensor > 1 => Some(format!("tp {tensor} × {context}{data} {replicas} · ")),
            None => (job.context > 1).then(|| format!("{context}{data} {replicas} · ")),
        }
    };
    let of_stages = || job.train().and_then(stages);
    job.split().map(|job| axes(job.mesh)).or_else(of_stages).unwrap_or_default()
}

/// Replicas of PyTorch's sharded groups, or of a model that nothing shards, where there are several.
fn replicas(job: &Plan) -> String {
    match job.train().filter(|job| job.fsdp.replicate > 1) {
        None => String::new(),
        Some(job) if job.ddp.is_some() => format!("dp_replicate {} · ", job.fsdp.replicate),
        Some(job) => format!("dp_replicate {} × dp_shard {} · ", job.fsdp.replicate, job.fsdp.shard),
    }
}

/// What the bubble is a share of; nothing without a pipeline.
fn bubble(scenario: &Scenario, answer: &Prediction) -> Option<String> {
    let waits = || "of all ranks' time, spent waiting for other stages".to_owned();
    match (scenario.job.parts(), answer.classes.len()) {
        (Parts::Compiled(job), _) => job.pipeline.map(|all| {
            format!("of the pipeline's {} iterations compute what nobody reads, and take as long", all.iterations())
        }),
        (Parts::Split(_), 1) => None,
        (Parts::Split(_), _) => Some(waits()),
        (Parts::Whole(job), _) => job.pipeline.is_some().then(waits),
    }
}
