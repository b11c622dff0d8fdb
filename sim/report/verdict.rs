//! The verdict, in a sentence or two: whether the plan runs, with how much to spare, how long a step takes, and what bounds it.

use super::format::{gib, percent};
use crate::scenario::Prediction;
use crate::scenario::advice::{Tried, Unstated};
use crate::scenario::predict::{DeviceMemory, Host, Part, Verdict as Fits};
use crate::scenario::remedy::Remedy;
use crate::units::{Bytes, Time, thousands};

/// How good a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// All is well.
    Good,
    /// It may be.
    Doubtful,
    /// It is not.
    Bad,
}

/// A verdict.
pub(super) struct Verdict {
    pub(super) mood: Mood,
    /// The sentence that says it all.
    pub(super) first: String,
    /// What it rests on, and how long a step takes.
    pub(super) rest: String,
}

/// The verdict on a plan.
pub(super) fn verdict(answer: &Prediction) -> Verdict {
    let (mood, first, why) = fits(&answer.memory);
    let step = step(answer);
    let rest = if why.is_empty() { step } else { format!("{why} {step}") };
    Verdict { mood, first, rest }
}

/// Whether it fits, and what decides that.
fn fits(memory: &DeviceMemory) -> (Mood, String, String) {
    let free = gib(memory.capacity.saturating_sub(memory.device_total()));
    let (total, has) = (gib(memory.device_total()), gib(memory.capacity));
    let device = format!("The device has room: {total} of {has}.");
    match (memory.verdict(), memory.host) {
        (Fits::Yes, _) if memory.report.retries > 0 => {
            (Mood::Doubtful, "Fits, but only by giving cached memory back in every step.".to_owned(), String::new())
        }
        (Fits::Yes, _) => (Mood::Good, format!("Fits, with {free} to spare on each device."), String::new()),
        (Fits::Perhaps, Some(host)) if !host.suffices_beyond_doubt() => {
            let (wants, besides) = (gib(host.wanted()), gib(host.doubt()));
            let has = host.capacity.map_or_else(|| "an unstated amount".to_owned(), gib);
            let why = format!(
                "A node's ranks take {wants} of {has} of host memory, and their processes up to {besides} more (assumed). {device}"
            );
            (Mood::Doubtful, "Probably fits.".to_owned(), why)
        }
        (Fits::Perhaps, _) => {
            let first = format!("May not fit: {}, with {free} to spare on each device.", likely(memory));
            (Mood::Doubtful, first, sentence(&memory.doubtful))
        }
        (Fits::Unknown, host) => {
            let wants = host.map_or_else(String::new, |host| gib(host.wanted()));
            let why = format!("A node's ranks take {wants} of host memory, and the topology states none. {device}");
            (Mood::Doubtful, "Whether it fits is unknown.".to_owned(), why)
        }
        (Fits::No, Some(host)) if host.lacks() == Some(true) => lacking_host(host, &device),
        (Fits::Hardly, _) => {
            let missing = gib(memory.needs.saturating_sub(memory.capacity));
            let first = format!("May not fit: {}, for {missing} too much on each device.", likely(memory));
            (Mood::Bad, first, format!("{} {}", sentence(&lacks(memory)), sentence(&memory.doubtful)))
        }
        (_, _) => {
            let (wants, missing) = (gib(memory.wanted), gib(memory.shortfall()));
            let (first, why) = match pieces(memory) {
                Some((asked, free)) => {
                    let (asked, free) = (gib(asked), gib(free));
                    let first = format!("Does not fit: no block of {asked} is free, though {free} are, in pieces.");
                    (first, sentence(&lacks(memory)))
                }
                None => {
                    let first = format!("Does not fit: {missing} too much for each device.");
                    (first, format!("It wants {wants} and has {has}."))
                }
            };
            (Mood::Bad, first, why)
        }
    }
}

/// The chance that it fits, in whole per cents, of which neither none nor all is one.
fn likely(memory: &DeviceMemory) -> String {
    format!("{:.0} % likely that it fits", (100.0 * memory.chance()).clamp(1.0, 99.0))
}

/// What the allocator was asked for when memory ran out, and what was free then, where all tensors would fit but for the pieces that free
/// memory lies in.
fn pieces(memory: &DeviceMemory) -> Option<(Bytes, Bytes)> {
    let (failed, _) = memory.report.out_of_memory.filter(|_| !memory.report.compiled)?;
    let limit = memory.capacity.saturating_sub(memory.outside);
    let tensors_fit = memory.report.peak_allocated <= limit && failed.allocated + failed.requested <= limit;
    tensors_fit.then(|| (failed.requested, limit.saturating_sub(failed.allocated)))
}

/// A cache worth a word \[B\].
const CACHED: u64 = 1 << 28;

/// What a step that does not fit is short by, and what would mend it if memory lies in pieces.
pub(crate) fn lacks(memory: &DeviceMemory) -> String {
    if memory.report.compiled {
        // XLA's own words (`xla/service/tpu`, RESOURCE_EXHAUSTED).
        return format!(
            "XLA refuses to compile it: \"Ran out of memory in memory space hbm. Used {} of {} hbm\", {} too much",
            gib(memory.wanted),
            gib(memory.capacity),
            gib(memory.shortfall())
        );
    }
    let failed = memory.report.out_of_memory.map_or(String::new(), |(failed, _)| {
        let (asked, taken) = (gib(failed.requested), gib(failed.allocated));
        let cached = failed.reserved.saturating_sub(failed.allocated);
        let pieces = match cached.0 > CACHED {
            true => format!(" and {} cached in pieces, none of them large enough", gib(cached)),
            false => String::new(),
        };
        format!("the allocator finds no block of {asked}, with {taken} allocated{pieces}; ")
    });
    let (wanted, capacity) = (gib(memory.wanted), gib(memory.capacity));
    let expandable = |remedy: &Remedy| remedy.change.starts_with("memory.expandable_segments");
    let mends = match memory.remedies.iter().any(expandable) {
        true => "; expandable segments mend it",
        false => "",
    };
    let missing = gib(memory.shortfall());
    format!("{failed}without a limit it would take {wanted} of {capacity}: {missing} too much{mends}")
}

/// What is said where no changes make a plan fit on its devices.
pub(crate) fn beyond(memory: &DeviceMemory) -> Option<String> {
    const NEXT: &str = "`windtunnel plan` searches other layouts and larger machines.";
    match &memory.nearest {
        Some(Remedy { change, device_total }) => {
            let missing = gib(device_total.saturating_sub(memory.capacity));
            Some(format!("All that was tried together leaves {missing} missing: {change}. {NEXT}"))
        }
        None if memory.remedies.is_empty() => Some(format!("No change that was tried makes it fit. {NEXT}")),
        None => None,
    }
}

fn lacking_host(host: Host, device: &str) -> (Mood, String, String) {
    let (wants, missing) = (gib(host.wanted()), gib(host.shortfall()));
    let has = host.capacity.map_or_else(|| "an unstated amount".to_owned(), gib);
    let first = format!("Does not fit: {missing} too much for the host's memory.");
    (Mood::Bad, first, format!("A node's ranks want {wants}, and it has {has}. {device}"))
}

/// How long a step takes, what it consists of, and the parts that count most.
fn step(answer: &Prediction) -> String {
    let split = answer.breakdown;
    let waits = if answer.waits_for_ranks() { "waiting for other ranks" } else { "waiting for events" };
    let mut kinds = [
        ("compute", split.compute),
        ("exposed communication", split.exposed_communication),
        (waits, split.bubble + split.waiting),
        ("waiting for the host", split.host_bound),
    ];
    kinds.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    let share = |time| percent(time, answer.step);
    let told = kinds.iter().enumerate().filter(|(at, (_, time))| *at == 0 || share(*time) >= 5.0);
    let told: Vec<String> = told.map(|(_, (name, time))| format!("{:.0} % {name}", share(*time))).collect();
    let takes = if answer.memory.refused() { "would take" } else { "takes" };
    let mut said = format!("A step {takes} {}: {}.", answer.step, told.join(", "));
    if answer.reasons.waits_for_host() {
        let (low, high) = answer.interval;
        said = format!("A step {takes} {low} to {high}, for it is bound by the host: {}.", told.join(", "));
        said += " How fast a host issues work is not known to a factor of two.";
    }
    if answer.memory.report.retries > 0 && answer.memory.on_device && answer.stall > Time::ZERO {
        said += &at_the_limit(answer);
    }
    let communicates = |part: &&Part| part.group == "collective" || part.group == "communication";
    if let Some(most) = answer.parts.iter().find(|part| !communicates(part)) {
        said += &format!(" The longest kernel is {} in {} ({:.0} %).", most.name, most.group, share(most.busy));
    }
    let exposed = answer.parts.iter().filter(communicates).max_by_key(|part| part.exposed);
    if let Some(most) = exposed.filter(|part| share(part.exposed) >= 5.0) {
        said += &format!(" The most exposed exchange is {} ({:.0} %).", most.name, share(most.exposed));
    }
    said
}

/// What giving cached memory back in every step does to it.
fn at_the_limit(answer: &Prediction) -> String {
    let times = match answer.memory.report.retries {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    format!(
        " It runs at the limit: {times} a step the allocator gives cached memory back to the device and asks for it again. That takes {} of \
         the step at assumed rates, and may take several times as long.",
        answer.stall
    )
}

/// What decides and is not stated, each default with what its other value makes of the step, and where throughput lies in all.
pub(super) fn unstated(of: &Unstated, answer: &Prediction) -> String {
    let whole = |rate: f64| thousands(rate.round().max(0.0) as u64);
    let other = |(default, other): (&String, &Tried)| {
        let value = other.change.split_once(" = ").map_or(other.change.as_str(), |(_, value)| value);
        let step = match other.tokens == answer.tokens {
            true => format!("{} a step", other.step),
            false => format!("{} tokens/s per chip", whole(other.rate)),
        };
        format!("{default} is taken (with {value} {step})")
    };
    let told: Vec<String> = of.defaults.iter().zip(&of.others).map(other).collect();
    let (low, high) = (whole(of.rates.0), whole(of.rates.1));
    let range = if low == high { low } else { format!("{low} to {high}") };
    let fits = if answer.memory.refused() { ", of what fits," } else { "" };
    format!("{}; in all{fits} {range} tokens/s per chip", told.join("; "))
}

/// A remark as a sentence of its own.
fn sentence(remark: &str) -> String {
    let mut letters = remark.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if remark.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
