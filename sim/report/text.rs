//! The report a person reads: the answer first, then where it comes from, then how far to trust it.

use std::fmt::{self, Write};

pub(crate) use super::format::gib;
pub use super::format::table;

use super::format::percent;
use super::questions::questions;
use super::{pipeline, start_up};
use crate::program::Category;
use crate::runtime::megatron::Mesh;
use crate::runtime::{Parts, Plan, train};
use crate::scenario::predict::{Alike, DeviceMemory, Host, Part, Prediction, Verdict};
use crate::scenario::{Prediction as Answer, Scenario};
use crate::units::{Bytes, Time, thousands};

/// How many parts and live tensors the report lists.
const LISTED: usize = 12;

/// What to print beside the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Every MFU convention instead of the first.
    pub all_conventions: bool,
}

impl Answer {
    /// The report that `windtunnel run` prints.
    pub fn text(&self, scenario: &Scenario) -> String {
        report(scenario, self, Detail::default())
    }
}

/// Writes the report.
pub fn report(scenario: &Scenario, answer: &Answer, detail: Detail) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, scenario, answer, detail);
    out
}

fn write(out: &mut String, scenario: &Scenario, answer: &Prediction, detail: Detail) -> fmt::Result {
    let topology = &scenario.topology;
    let job = &scenario.job;
    writeln!(out, "{}", scenario.description)?;
    writeln!(
        out,
        "{} · {} · {} × {} · {}{} tokens × {} per {} × {} micro-batch{}",
        scenario.runtime.lane(),
        job.model(),
        topology.chips(),
        topology.chip.name,
        mesh(job),
        job.seq(),
        job.batch(),
        whose(job),
        job.micro_batches(),
        if job.micro_batches() == 1 { "" } else { "es" },
    )?;
    no_effect(out, scenario, answer)?;
    answer_lines(out, scenario, answer, detail)?;
    stages(out, scenario, answer)?;
    memory(out, answer)?;
    time(out, answer)?;
    start_up::text(out, scenario, answer)?;
    trust(out, scenario, answer)
}

/// What the files say and this plan does not read, with why: keys of the scenario, and numbers of the machine.
fn no_effect(out: &mut String, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    // Keys of one reason share a line.
    let mut lines: Vec<(&str, Vec<&str>)> = vec![];
    for idle in answer.unread.iter().chain(&scenario.idle).chain(&answer.idle) {
        match lines.iter_mut().find(|(why, _)| *why == idle.why) {
            Some((_, keys)) => keys.push(&idle.key),
            None => lines.push((&idle.why, vec![&idle.key])),
        }
    }
    let keys = lines.into_iter().map(|(why, keys)| format!("{}: {why}", keys.join(", ")));
    for (index, line) in keys.enumerate() {
        let label = if index == 0 { "\n  no effect     " } else { "                " };
        writeln!(out, "{label}{line}")?;
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
        let tensor = job.tensor.ranks;
        match &job.pipeline {
            Some(stages) => Some(format!("tp {tensor} × {context}pp {} × dp {replicas} · ", stages.ranks)),
            None if tensor > 1 => Some(format!("tp {tensor} × {context}dp {replicas} · ")),
            None => (job.context > 1).then(|| format!("{context}dp {replicas} · ")),
        }
    };
    let of_stages = || job.train().and_then(stages);
    job.split().map(|job| axes(job.mesh)).or_else(of_stages).unwrap_or_default()
}

/// Whether there is a pipeline, and if so what its bubble is a share of.
fn bubble(scenario: &Scenario, answer: &Prediction) -> String {
    match (scenario.job.parts(), answer.classes.len()) {
        (Parts::Compiled(job), _) => match job.pipeline {
            None => "no pipeline: mesh.pipeline = 1".to_owned(),
            Some(all) => {
                format!("of the pipeline's {} iterations compute what nobody reads, and take as long", all.iterations())
            }
        },
        (Parts::Split(_), 1) => "no pipeline: mesh.pp = 1".to_owned(),
        (Parts::Split(_), _) => "of all ranks' time, spent waiting for other stages".to_owned(),
        (Parts::Whole(job), _) if job.pipeline.is_some() => {
            "of all ranks' time, spent waiting for other stages".to_owned()
        }
        _ => "no pipeline in this lane".to_owned(),
    }
}

fn stages(out: &mut String, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    match pipeline::text(scenario, answer) {
        Some(table) => writeln!(out, "\nRanks of the pipeline, shares of the step\n{table}"),
        None => Ok(()),
    }
}

/// The first line where the device has room and the host's memory decides.
fn host_verdict(out: &mut String, memory: &DeviceMemory, host: Host) -> fmt::Result {
    let wants = gib(host.wanted());
    let device = format!("the device has room: {} of {}", gib(memory.device_total()), gib(memory.capacity));
    match (memory.verdict(), host.capacity) {
        (Verdict::Unknown, _) => {
            writeln!(out, "  fits          unknown: the topology states no host memory; a node's ranks take {wants}")?;
        }
        (Verdict::Perhaps, Some(has)) if !host.suffices_beyond_doubt() => {
            let besides = gib(host.doubt());
            let room = format!("a node's ranks take {wants} of {} of host memory", gib(has));
            writeln!(out, "  fits          perhaps: {room}, and their processes up to {besides} besides (assumed)")?;
        }
        (Verdict::No, Some(has)) => {
            let missing = gib(host.shortfall());
            writeln!(
                out,
                "  fits          NO: a node's ranks want {wants} of host memory, it has {}: {missing} too much",
                gib(has)
            )?;
        }
        _ => return writeln!(out, "  fits          perhaps: {device}\n                {}", memory.doubtful),
    }
    writeln!(out, "                {device}")
}

fn answer_lines(out: &mut String, scenario: &Scenario, answer: &Prediction, detail: Detail) -> fmt::Result {
    let memory = &answer.memory;
    let (low, high) = answer.interval;
    let chips = scenario.topology.chips();
    writeln!(out)?;
    if let Some(host) = memory.host.filter(|_| memory.on_device && memory.verdict() != Verdict::Yes) {
        host_verdict(out, memory, host)?;
    } else if memory.on_device {
        let total = memory.device_total();
        let free = memory.capacity.saturating_sub(total);
        let sure = if memory.fits_beyond_doubt() { "yes" } else { "perhaps" };
        writeln!(
            out,
            "  fits          {sure}: {} of {} per device, {} free",
            gib(total),
            gib(memory.capacity),
            gib(free)
        )?;
        if !memory.fits_beyond_doubt() {
            writeln!(out, "                {}", memory.doubtful)?;
        }
    } else {
        writeln!(
            out,
            "  fits          NO: wants {} per device, has {}: {} too much",
            gib(memory.wanted),
            gib(memory.capacity),
            gib(memory.shortfall())
        )?;
        if memory.may_fit() {
            writeln!(out, "                {}: it may still fit", memory.doubtful)?;
        }
    }
    let report = &memory.report;
    writeln!(
        out,
        "  peak memory   {} allocated, {} reserved, {} on the device (peak in {}{})",
        gib(report.peak_allocated),
        gib(report.peak_reserved),
        gib(memory.device_total()),
        report.peak_phase,
        match answer.classes.len() {
            1 => String::new(),
            _ => format!(", on pipeline rank {}, the fullest", answer.tightest),
        }
    )?;
    if let Some(host) = memory.host {
        let has = host.capacity.map_or("an unstated amount".to_owned(), gib);
        let Host { rank, ranks, .. } = host;
        let whole = format!("{} of {has} per node: {ranks} ranks × {}", gib(host.wanted()), gib(rank.all));
        writeln!(out, "  host memory   {whole}, {} of it pinned", gib(rank.pinned))?;
        if rank.files.0 > 0 {
            writeln!(out, "  disks         {} of files for each rank", gib(rank.files))?;
        }
    }
    if report.retries > 0 && memory.on_device {
        writeln!(
            out,
            "                the allocator returns cached segments to the device {} times a step, which adds {} (assumed rates)",
            report.retries, answer.stall
        )?;
    }
    let (sequences, tokens) = (answer.tokens / scenario.job.seq().max(1), answer.tokens);
    writeln!(
        out,
        "  batch         {} sequence{} of {} tokens = {} tokens a step (global)",
        thousands(sequences),
        if sequences == 1 { "" } else { "s" },
        thousands(scenario.job.seq()),
        thousands(tokens)
    )?;
    writeln!(out, "  step time     {}   ({low} to {high}, 80 % interval)", answer.step)?;
    let rate = answer.tokens_per_second_per_chip(chips);
    writeln!(out, "  throughput    {rate:.0} tokens/s per chip, {:.0} in all", rate * f64::from(chips))?;
    let shown = if detail.all_conventions { answer.mfu.len() } else { 1 };
    for (index, mfu) in answer.mfu.iter().take(shown).enumerate() {
        let label = if index == 0 { "MFU" } else { "" };
        let of = mfu.of.map_or_else(String::new, |of| format!("; {of}"));
        writeln!(out, "  {label:13} {:.1} %   {}{of}", 100.0 * mfu.utilisation, mfu.formula)?;
    }
    writeln!(
        out,
        "  bubble        {:.1} %   {}",
        100.0 * pipeline::bubble(scenario, answer),
        bubble(scenario, answer)
    )?;
    if memory.refused() {
        writeln!(out, "\nIt would fit with any one of")?;
        for remedy in &memory.remedies {
            writeln!(out, "  {:50} {} on the device", remedy.change, gib(remedy.device_total))?;
        }
        if memory.remedies.is_empty() {
            writeln!(out, "  no single change tried: use more devices, or combine changes")?;
        }
    }
    Ok(())
}

fn memory(out: &mut String, answer: &Prediction) -> fmt::Result {
    let report = &answer.memory.report;
    let live = report.live(&answer.classes[answer.tightest].program);
    writeln!(out, "\nMemory at the peak ({})", report.peak_phase)?;
    let total = report.breakdown.total();
    let row = |category: Category, bytes: Bytes| {
        let names: Vec<String> = live
            .iter()
            .filter(|live| live.category == category)
            .take(3)
            .map(|live| format!("{} × {}", live.count, live.name))
            .collect();
        vec![
            category.label().to_owned(),
            names.join(", "),
            gib(bytes),
            format!("{:.1} %", 100.0 * bytes.0 as f64 / total.0 as f64),
        ]
    };
    let mut rows: Vec<Vec<String>> =
        report.breakdown.sorted().into_iter().map(|(category, bytes)| row(category, bytes)).collect();
    let cached = report.peak_reserved.saturating_sub(report.peak_allocated);
    rows.push(vec!["cached by the allocator".to_owned(), String::new(), gib(cached), String::new()]);
    rows.push(vec!["context and communicators".to_owned(), String::new(), gib(answer.memory.outside), String::new()]);
    writeln!(out, "{}", table(&["", "largest", "size", "share"], rows, 2))?;
    let pool = answer.classes[answer.tightest].program.graph_pool;
    if let Some(pools) = pool.and_then(|pool| report.reserved_by_stream.get(usize::from(pool.0)..)) {
        let held = Bytes(pools.iter().map(|pool| pool.0).sum());
        writeln!(out, "  Of all this {} lie in the CUDA graphs' pool, for good", gib(held))?;
    }
    Ok(())
}

fn time(out: &mut String, answer: &Prediction) -> fmt::Result {
    let step = answer.step;
    let split = answer.breakdown;
    writeln!(out, "\nTime of one step, bound by {}", answer.bound())?;
    let staged = answer.classes.len() > 1;
    let (bubble, otherwise) =
        if staged { (split.bubble, split.waiting) } else { (Time::ZERO, split.bubble + split.waiting) };
    for (name, time) in [
        ("compute", split.compute),
        ("exposed communication", split.exposed_communication),
        ("waiting for other ranks", bubble),
        ("waiting for the host", split.host_bound),
        ("waiting for events", otherwise),
    ] {
        if name == "waiting for other ranks" && !staged {
            continue;
        }
        writeln!(out, "  {name:24} {:>10}  {:5.1} %", time.to_string(), percent(time, step))?;
    }
    let row = |part: &Part| {
        vec![
            part.group.to_owned(),
            part.name.clone(),
            part.count.to_string(),
            part.busy.to_string(),
            format!("{:.1} %", percent(part.busy, step)),
            if part.group == "collective" || part.group == "communication" {
                format!("{:.1} %", percent(part.exposed, step))
            } else {
                String::new()
            },
            part.basis.label().to_owned(),
        ]
    };
    let rows = answer.parts.iter().take(LISTED).map(row).collect();
    writeln!(out)?;
    writeln!(out, "{}", table(&["part", "kernel", "count", "busy", "of step", "exposed", "rests on"], rows, 2))?;
    if answer.parts.len() > LISTED {
        writeln!(out, "  and {} more: see --json", answer.parts.len() - LISTED)?;
    }
    if staged {
        writeln!(out, "  counts are those of one rank of each stage together, times and shares the mean of all ranks")?;
    }
    Ok(())
}

/// How many measured runs of the same kind there are, and how far predictions of them were off.
fn runs_like_it(answer: &Prediction) -> String {
    let Alike { runs, families, bias } = answer.alike;
    let kind = answer.kind.parts().join(", ");
    match runs {
        0 => format!("none measured ({kind}): the interval rests on the costs' residuals and on other kinds of runs"),
        _ => format!(
            "{runs} measured configuration{} of {families} model{} ({kind}); predicted steps are {:.1} % too {} in the median",
            if runs == 1 { "" } else { "s" },
            if families == 1 { "" } else { "s" },
            100.0 * bias.abs(),
            if bias < 0.0 { "short" } else { "long" },
        ),
    }
}

fn trust(out: &mut String, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    writeln!(out, "\nWhat it rests on")?;
    let shares: Vec<String> =
        answer.shares.iter().map(|(basis, share)| format!("{:.0} % {}", 100.0 * share, basis.label())).collect();
    writeln!(out, "  evidence      {}", shares.join(", "))?;
    writeln!(out, "  runs like it  {}", runs_like_it(answer))?;
    writeln!(out, "  profile       {} ({})", scenario.profile.name, scenario.profile.summary)?;
    for (question, reply) in questions(scenario, answer) {
        writeln!(out, "  {question:13} {reply}")?;
    }
    if !scenario.assumptions.is_empty() {
        writeln!(out, "\nLeft open in the file, and taken as")?;
        for assumption in &scenario.assumptions {
            writeln!(out, "  {assumption}")?;
        }
    }
    Ok(())
}
