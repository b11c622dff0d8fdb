//! The report a person reads: the answer first, then where it comes from, then how far to trust it.

use std::fmt::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use crate::model::ModelConfig;
use crate::program::{Category, DType};
use crate::scenario::predict::{Part, Prediction};
use crate::scenario::{Prediction as Answer, Scenario};
use crate::units::{Bytes, Time};

/// How many parts and live tensors the report lists.
const LISTED: usize = 12;

/// What to print beside the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Every MFU convention instead of the first.
    pub all_conventions: bool,
}

fn percent(part: Time, whole: Time) -> f64 {
    if whole.0 == 0 { 0.0 } else { 100.0 * part.0 as f64 / whole.0 as f64 }
}

fn gib(bytes: Bytes) -> String {
    format!("{:.2} GiB", bytes.gib())
}

/// A table with right-aligned columns after the first `left`.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, left: usize) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
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
        "{} · {} · {} × {} · {} tokens × {} per rank × {} micro-batch{}",
        scenario.runtime.lane(),
        job.model,
        topology.chips(),
        topology.chip.name,
        job.seq,
        job.batch,
        job.accumulation,
        if job.accumulation == 1 { "" } else { "es" },
    )?;
    answer_lines(out, scenario, answer, detail)?;
    memory(out, answer)?;
    time(out, answer)?;
    trust(out, scenario, answer)
}

fn answer_lines(out: &mut String, scenario: &Scenario, answer: &Prediction, detail: Detail) -> fmt::Result {
    let memory = &answer.memory;
    let (low, high) = answer.interval;
    let chips = scenario.topology.chips();
    writeln!(out)?;
    if memory.fits {
        let total = memory.device_total();
        let free = memory.capacity.saturating_sub(total);
        let doubt = memory.doubt();
        let sure = if memory.fits_beyond_doubt() { "yes" } else { "perhaps" };
        writeln!(
            out,
            "  fits          {sure}: {} of {} per device, {} free",
            gib(total),
            gib(memory.capacity),
            gib(free)
        )?;
        if !memory.fits_beyond_doubt() {
            let outside = gib(memory.outside);
            writeln!(out, "                what lives outside the allocator ({outside}) is known to ± {}", gib(doubt))?;
        }
    } else {
        writeln!(
            out,
            "  fits          NO: wants {} per device, has {}: {} too much",
            gib(memory.wanted),
            gib(memory.capacity),
            gib(memory.shortfall())
        )?;
    }
    let report = &memory.report;
    writeln!(
        out,
        "  peak memory   {} allocated, {} reserved, {} on the device (peak in {})",
        gib(report.peak_allocated),
        gib(report.peak_reserved),
        gib(memory.device_total()),
        report.peak_phase
    )?;
    if report.retries > 0 && memory.fits {
        writeln!(
            out,
            "                the allocator gave cached segments back {} times: each stalls the device, which the step time leaves out",
            report.retries
        )?;
    }
    writeln!(out, "  step time     {}   ({low} to {high}, 80 % interval)", answer.step)?;
    let rate = answer.tokens_per_second_per_chip(chips);
    writeln!(out, "  throughput    {rate:.0} tokens/s per chip, {:.0} in all", rate * f64::from(chips))?;
    let shown = if detail.all_conventions { answer.mfu.len() } else { 1 };
    for (index, mfu) in answer.mfu.iter().take(shown).enumerate() {
        let label = if index == 0 { "MFU" } else { "" };
        writeln!(out, "  {label:13} {:.1} %   {}", 100.0 * mfu.utilisation, mfu.formula)?;
    }
    writeln!(out, "  bubble        {:.1} %   no pipeline in this lane", 100.0 * answer.bubble())?;
    if !memory.fits {
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
    writeln!(out, "\nMemory at the peak ({})", report.peak_phase)?;
    let total = report.breakdown.total();
    let row = |category: Category, bytes: Bytes| {
        let names: Vec<String> = report
            .live
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
    writeln!(out, "{}", table(&["", "largest", "size", "share"], rows, 2))
}

fn time(out: &mut String, answer: &Prediction) -> fmt::Result {
    let step = answer.step;
    let split = answer.breakdown;
    writeln!(out, "\nTime of one step, bound by {}", answer.bound())?;
    for (name, time) in [
        ("compute", split.compute),
        ("exposed communication", split.exposed_communication),
        ("waiting for the host", split.host_bound),
        ("waiting otherwise", split.bubble + split.waiting),
    ] {
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
    Ok(())
}

/// Which kind of model it is: results of different kinds do not compare.
fn kind(model: &ModelConfig) -> String {
    match &model.experts {
        None => "dense decoder".to_owned(),
        Some(experts) => {
            format!("decoder with experts ({} of {} for each token, balanced)", experts.top_k, experts.count)
        }
    }
}

fn trust(out: &mut String, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    writeln!(out, "\nWhat it rests on")?;
    let shares: Vec<String> =
        answer.shares.iter().map(|(basis, share)| format!("{:.0} % {}", 100.0 * share, basis.label())).collect();
    writeln!(out, "  evidence      {}", shares.join(", "))?;
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

/// The five questions every report answers about itself.
pub fn questions(scenario: &Scenario, answer: &Prediction) -> [(&'static str, String); 5] {
    let topology = &scenario.topology;
    let job = &scenario.job;
    [
        ("topology", format!("{} ({})", topology.name, topology.size_in_words())),
        (
            "start-up",
            match (job.compile, job.loss.compiled()) {
                (false, false) => {
                    "steady state; eager, so nothing is compiled and no start-up is spread over the run".to_owned()
                }
                (blocks, loss) => format!(
                    "steady state; {} compiled once before the first step, and how long that takes is not predicted",
                    match (blocks, loss) {
                        (true, true) => "blocks and the loss are",
                        (true, false) => "blocks are",
                        _ => "the loss is",
                    }
                ),
            },
        ),
        ("workload", format!("{}, pre-training, sequences of {} tokens, no padding", kind(&job.model), job.seq)),
        ("path", path(scenario, answer)),
        (
            "target shape",
            format!(
                "simulated at the shape asked for: {} of {} ranks alike, {} instructions each",
                answer.program.ranks,
                answer.program.ranks,
                answer.program.step.len()
            ),
        ),
    ]
}

/// Which kernels run, and whether they are those the scenario means.
fn path(scenario: &Scenario, answer: &Prediction) -> String {
    let job = &scenario.job;
    let compute = job.fsdp.mixed_precision.compute();
    let matmuls = if compute == DType::Fp32 && scenario.software.tf32 { "tf32" } else { compute.name() };
    let attention = format!("{:?}", scenario.software.attention).to_lowercase();
    let blocks = if job.compile { "compiled" } else { "eager" };
    let mut doubts = vec![];
    if answer.program.kernels.iter().any(|kernel| kernel.name.contains("efficient_attention")) {
        doubts.push(format!(
            "attention falls back to the memory-efficient kernel (fp32, or a bias on the scores), whose rate nobody \
             measured: {attention}'s is taken, or fp32 matmul's if slower"
        ));
    }
    if job.model.attention_softcap {
        doubts.push("the soft cap on attention scores is not in PyTorch's fused kernels, and is left out".to_owned());
    }
    if job.fsdp.cpu_offload {
        doubts.push("the optimizer runs on the host, at an assumed memory bandwidth".to_owned());
    }
    if doubts.is_empty() {
        format!("as intended: {blocks} blocks, {attention} attention kernels, {matmuls} matmuls, no fallback")
    } else {
        format!("{blocks} blocks, {matmuls} matmuls, but {}", doubts.join("; "))
    }
}
