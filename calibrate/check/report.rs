//! Both answers side by side, as text and as JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use windtunnel::runtime::Parts;
use windtunnel::runtime::spmd::Attention;

use super::sides::{Compiler, Exchange, Ours};
use super::verdict::{Verdict, difference};
use super::{Question, Timed};
use crate::pjrt::buffers::Buffers;
use crate::step::KERNEL;

/// VMEM that is this much of a step's peak has a line of its own.
const VMEM_SHOWS: f64 = 0.01;

/// The report.
pub fn text(
    question: &Question,
    (compiler, ours, time): (&Compiler, &Ours, Option<&Timed>),
    verdict: &Verdict,
) -> String {
    let scenario = &question.scenario;
    let title = if scenario.description.is_empty() { &scenario.file } else { &scenario.description };
    let mut text = format!("{title}\none step, on each of {} chips\n\n", question.target.partitions);
    text += &figures(compiler, ours, question.target.slice.is_some());
    if compiler.compiled().is_some() {
        text += &collectives(compiler, ours);
    }
    text += &time.map(timed).unwrap_or_default();
    text += &notes(question, compiler);
    text.push('\n');
    match &verdict.apart[..] {
        [] if compiler.fits().is_none() => text += "Arguments agree with the compiler. Nothing else is compared.\n",
        [] => text += "The prediction agrees with the compiler.\n",
        apart => {
            text += "The prediction and the compiler are further apart than they may be:\n";
            apart.iter().for_each(|one| text += &format!("  {one}\n"));
        }
    }
    text
}

/// A line: what, the compiler's, ours, the difference.
fn line(what: &str, theirs: &str, own: &str, by: Option<f64>) -> String {
    let by = by.map(|by| format!("{:+.2} %", by * 100.0)).unwrap_or_default();
    format!("{what:24}{theirs:>24}{own:>24}{by:>13}").trim_end().to_owned() + "\n"
}

/// A line of both sides.
fn both(what: &str, theirs: u128, own: u128) -> String {
    line(what, &thousands(theirs), &thousands(own), difference(theirs as f64, own as f64))
}

/// The peak of HBM, and that with VMEM where it is another: of a step as small as VMEM.
fn peaks(hbm: u64, with_vmem: u64, own: u64) -> String {
    let other = difference(hbm as f64, with_vmem as f64).is_some_and(|by| by > VMEM_SHOWS);
    let with_vmem = other.then(|| both("  VMEM with it [B]", with_vmem.into(), own.into()));
    both("peak [B]", hbm.into(), own.into()) + &with_vmem.unwrap_or_default()
}

/// As much of a name as a line has room for.
pub fn shortened(name: &str) -> String {
    const ROOM: usize = 34;
    if name.chars().count() <= ROOM { name.to_owned() } else { name.chars().take(ROOM - 1).chain(['…']).collect() }
}

/// The time of the compiler's program by the profile, and what it goes to.
fn timed(time: &Timed) -> String {
    let priced = &time.priced;
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let mut text =
        "\ntime of a step: the compiler's instructions priced from the profile, and the scenario's own\n".to_owned();
    text += &line("step", &ms(priced.step_s), &ms(time.predicted_s), difference(priced.step_s, time.predicted_s));
    let parts = [
        ("  give or take", priced.half_s),
        ("  matmuls", priced.matmul_s),
        ("  bound by memory", priced.memory_s),
        ("  kernels, as predicted", priced.kernels_s),
        ("  waiting for exchanges", priced.waiting_s),
        ("  exchanges in all", priced.exchanges_s),
    ];
    parts.into_iter().for_each(|(what, seconds)| text += &line(what, &ms(seconds), "", None));
    for (what, seconds) in &priced.longest {
        text += &line(&format!("    {}", shortened(what)), &ms(*seconds), "", None);
    }
    for (call, times) in &priced.unpriced {
        text +=
            &format!("  {times} calls of {call}: nothing is known of them, and they are taken to be over at once\n");
    }
    text
}

fn figures(compiler: &Compiler, ours: &Ours, for_slice: bool) -> String {
    let mut text = line("", "compiler", "predicted", None).replace("predicted", "predicted   difference");
    match compiler {
        Compiler::Fits(compiled) => {
            let memory = &compiled.memory;
            text += &both("arguments [B]", memory.argument.into(), ours.arguments.into());
            let peak = thousands(ours.peak.into());
            text += &match for_slice {
                true => peaks(compiled.peak(), compiled.with_vmem(), ours.peak),
                false => line("peak [B]", "another chip's", &peak, None),
            };
            text += &line("temporary [B]", &thousands(memory.temp.into()), "", None);
            text += &both("host memory [B]", memory.host_temp.into(), ours.host.into());
            text += &both("matmuls [FLOP]", compiled.flops.matmul.into(), ours.matmul);
            if ours.attention > 0 {
                let calls = compiled.flops.unseen.get(KERNEL).copied().unwrap_or(0);
                text +=
                    &line("attention [FLOP]", &format!("{calls} calls, not seen"), &thousands(ours.attention), None);
            }
            if for_slice {
                text += &line("verdict", "fits", fits(ours.fits), None);
            }
        }
        Compiler::Holds(buffers) => {
            text += &both("arguments [B]", buffers.argument.into(), ours.arguments.into());
            text += &peaks(buffers.peak, buffers.with_vmem, ours.peak);
            text += &line("with gaps between [B]", &thousands(buffers.total.into()), "", None);
            text += &line("there is [B]", "", &thousands(ours.capacity.into()), None);
            text += &line("verdict", "not asked", fits(ours.fits), None);
            text += &live(buffers);
        }
        Compiler::OutOfMemory { needed, limit, account, .. } => {
            let size = |bytes: &Option<u64>| bytes.map_or("not said".to_owned(), |bytes| thousands(bytes.into()));
            text += &line("needed [B]", &size(needed), &thousands(ours.peak.into()), None);
            text += &line("there is [B]", &size(limit), &thousands(ours.capacity.into()), None);
            text += &line("verdict", "does not fit", fits(ours.fits), None);
            text += &account.as_deref().map(live).unwrap_or_default();
        }
    }
    text
}

/// What is live at the compiler's peak besides arguments.
fn live(buffers: &Buffers) -> String {
    let mut text =
        format!("\nlive at the compiler's peak ({}), besides arguments; a hundredth of it and more\n", buffers.at);
    for live in &buffers.live {
        let operator = live.operator.as_deref().unwrap_or("-");
        let life = format!("{} to {}", live.from, live.to);
        text += format!("{:>18} B  {:32} {operator:28} {life}", thousands(live.bytes.into()), live.shape).trim_end();
        text.push('\n');
    }
    text
}

fn fits(fits: bool) -> &'static str {
    if fits { "fits" } else { "does not fit" }
}

/// Kinds with all their bytes, and what they are made of.
fn collectives(compiler: &Compiler, ours: &Ours) -> String {
    let (theirs, own) = (compiler.collectives(), &ours.collectives);
    let all: BTreeSet<&Exchange> = theirs.keys().chain(own.keys()).collect();
    if all.is_empty() {
        return "\nno collectives\n".to_owned();
    }
    let count = |side: &std::collections::BTreeMap<Exchange, u64>, one: &Exchange| side.get(one).copied().unwrap_or(0);
    let mut text = "\ncollectives: times in a step, bytes of the whole buffer, ranks of a group\n".to_owned();
    let kinds: BTreeSet<&str> = all.iter().map(|one| one.kind.as_str()).collect();
    for kind in kinds {
        let of_kind = || all.iter().filter(|one| one.kind == kind);
        let bytes = |side| of_kind().map(|one| u128::from(one.bytes) * u128::from(count(side, one))).sum::<u128>();
        let (sum, own_sum) = (bytes(&theirs), bytes(own));
        text +=
            &line(&format!("{kind} [B]"), &thousands(sum), &thousands(own_sum), difference(sum as f64, own_sum as f64));
        for one in of_kind() {
            let what = format!("  {} B on {}", thousands(one.bytes.into()), one.ranks);
            let times = |count: u64| if count == 0 { "-".to_owned() } else { format!("{count} x") };
            text += &line(&what, &times(count(&theirs, one)), &times(count(own, one)), None);
        }
    }
    text
}

/// What the figures are worth, and where they come from.
fn notes(question: &Question, compiler: &Compiler) -> String {
    let target = &question.target;
    let mut text = "\n".to_owned();
    let mut note = |what: &str| text += &format!("- {what}\n");
    if let Some(compiled) = compiler.compiled() {
        let from =
            if question.stand_ins { "the program is written from the scenario" } else { "the program is a file's" };
        let when = if compiled.cached { ", kept from an earlier run" } else { "" };
        note(&format!("{}: {:.1} s to compile{when}; {from}", compiled.plugin, compiled.compile_seconds));
        let kernels = compiled.flops.unseen.contains_key(KERNEL);
        let job = question.scenario.job.parts();
        let splash = matches!(job, Parts::Compiled(job) if job.attention != Attention::DotProduct);
        if kernels && question.stand_ins && splash {
            note(
                "in place of the splash attention kernel stands a call with its operands and results, and nothing inside: \
                 memory and collectives are the kernel's, its FLOPs are counted here",
            );
        }
        let sorted = matches!(job, Parts::Compiled(job) if job.sorts_experts());
        if kernels && question.stand_ins && sorted {
            note(
                "sorted experts multiply in such calls, too: their FLOPs are among those predicted, not the compiler's",
            );
        }
        let again = &compiled.again;
        if again.times > 0 {
            note(&format!(
                "short of memory the compiler computes {} results again in a step, {} B in all; the largest: {}",
                again.times,
                thousands(again.bytes.into()),
                again.largest.as_deref().unwrap_or("-")
            ));
        }
        for unbounded in &compiled.flops.unbounded {
            note(&format!("counted once: the loop {unbounded}, whose turns are not known"));
        }
    } else if let Compiler::Holds(buffers) = compiler {
        let from =
            if question.stand_ins { "the program is written from the scenario" } else { "the program is a file's" };
        note(&format!("{}: {:.1} s to give buffers their places; {from}", target.plugin, buffers.seconds));
        note(
            "a hint and no verdict: short of memory the compiler starts over and computes results again; without \
             --memory-only it is heard to the end",
        );
    } else if let Compiler::OutOfMemory { message, seconds, .. } = compiler {
        note(&format!("{}: {seconds:.1} s to find out: {}", target.plugin, message.lines().next().unwrap_or_default()));
    }
    match target.slice {
        Some(_) => {
            let flags: Vec<String> = target.flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
            note(&format!(
                "flags: {}",
                if flags.is_empty() { "the compiler's defaults".to_owned() } else { flags.join(" ") }
            ));
        }
        None => note("compiled for this machine's processors: neither flags nor memory are a TPU's"),
    }
    if !question.dropped.is_empty() {
        note(&format!(
            "flags of the scenario that this version of the compiler does not have, left out: {}",
            question.dropped.join(" ")
        ));
    }
    if !question.set.is_empty() {
        note(&format!("set otherwise than the scenario has them, as the compiler asks: {}", question.set.join(" ")));
    }
    text
}

/// The answer as JSON.
pub fn json(
    question: &Question,
    (compiler, ours, time): (&Compiler, &Ours, Option<&Timed>),
    verdict: &Verdict,
) -> Value {
    let compiled = compiler.compiled();
    // Another machine's memory says nothing of a chip's.
    let for_slice = question.target.slice.is_some();
    let pair = |theirs: Option<u128>, own: u128| {
        let by = theirs.and_then(|theirs| difference(theirs as f64, own as f64));
        json!({"compiler": theirs.map(|theirs| theirs as u64), "predicted": own as u64, "difference": by})
    };
    let memory = compiled.map(|compiled| compiled.memory);
    let held = compiler.memory();
    let account = compiler.account();
    let (theirs, own) = (compiler.collectives(), &ours.collectives);
    let all: BTreeSet<&Exchange> = theirs.keys().chain(own.keys()).collect();
    let exchange = |one: &&Exchange| {
        let counts = (theirs.get(one).copied().unwrap_or(0), own.get(one).copied().unwrap_or(0));
        // Who was asked about memory alone, or refused, has said nothing of it.
        let theirs = compiled.map(|_| counts.0);
        json!({"kind": one.kind, "bytes": one.bytes, "ranks": one.ranks, "compiler": theirs, "predicted": counts.1})
    };
    let (needed, limit, message) = match compiler {
        Compiler::OutOfMemory { needed, limit, message, .. } => (*needed, *limit, Some(message)),
        Compiler::Fits(_) | Compiler::Holds(_) => (None, None, None),
    };
    json!({
        "scenario": question.scenario.file,
        "program": question.program,
        "plugin": question.target.plugin.to_string(),
        "compiler": compiled.map(|compiled| &compiled.compiler),
        "slice": question.target.slice.as_ref().map(ToString::to_string),
        "chips": question.target.partitions,
        "flags": question.target.flags,
        "flags_dropped": question.dropped,
        "flags_set": question.set,
        "cached": compiled.map(|compiled| compiled.cached),
        "compile_seconds": compiler.seconds(),
        "computed_again": compiled.map(|compiled| &compiled.again),
        "fits": {"compiler": compiler.fits().filter(|_| for_slice), "predicted": ours.fits, "needed": needed, "limit": limit, "message": message},
        "memory": {
            "argument": pair(held.map(|(argument, _)| argument.into()), ours.arguments.into()),
            "peak": pair(held.filter(|_| for_slice).map(|(_, peak)| peak.into()), ours.peak.into()),
            "peak_with_vmem": account.map(|account| account.with_vmem),
            "total": account.map(|account| account.total),
            "live": account.map(|account| &account.live),
            "temp": memory.map(|memory| memory.temp),
            "host": pair(memory.map(|memory| memory.host_temp.into()), ours.host.into()),
        },
        "flops": {
            "matmul": pair(compiled.map(|compiled| compiled.flops.matmul.into()), ours.matmul),
            "attention": ours.attention as u64,
            "unseen": compiled.map(|compiled| &compiled.flops.unseen),
        },
        "collectives": all.iter().map(exchange).collect::<Vec<_>>(),
        "time": time.map(|time| json!({"program": time.priced, "predicted_s": time.predicted_s})),
        "apart": verdict.apart,
    })
}

/// `131,072`.
pub fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
