//! The verdict, in a sentence or two: whether the plan runs, with how much to spare, how long a step takes, and what bounds it.

use super::format::{gib, percent};
use crate::scenario::Prediction;
use crate::scenario::advice::Unstated;
use crate::scenario::predict::{DeviceMemory, Host, Part, Verdict as Fits};
use crate::units::thousands;

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
            let first = format!("Probably fits, with {free} to spare on each device.");
            (Mood::Doubtful, first, sentence(&memory.doubtful))
        }
        (Fits::Unknown, host) => {
            let wants = host.map_or_else(String::new, |host| gib(host.wanted()));
            let why = format!("A node's ranks take {wants} of host memory, and the topology states none. {device}");
            (Mood::Doubtful, "Whether it fits is unknown.".to_owned(), why)
        }
        (Fits::No, Some(host)) if host.lacks() == Some(true) => lacking_host(host, &device),
        (_, _) => {
            let (wants, missing) = (gib(memory.wanted), gib(memory.shortfall()));
            let first = format!("Does not fit: {missing} too much for each device.");
            let mut why = format!("It wants {wants} and has {has}.");
            if memory.may_fit() {
                why += &format!(" It may still fit: {}", sentence(&memory.doubtful));
            }
            (Mood::Bad, first, why)
        }
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

/// What decides and is not stated, and where throughput lies if it is otherwise.
pub(super) fn unstated(of: &Unstated, answer: &Prediction) -> String {
    let whole = |rate: f64| thousands(rate.round().max(0.0) as u64);
    let (low, high) = (whole(of.rates.0), whole(of.rates.1));
    let range = if low == high { low } else { format!("{low} to {high}") };
    let fits = if answer.memory.refused() { " that fit" } else { "" };
    let are = if of.defaults.len() == 1 { "is" } else { "are" };
    format!("{} {are} taken; at other values{fits} {range} tokens/s per chip", of.defaults.join(", "))
}

/// A remark as a sentence of its own.
fn sentence(remark: &str) -> String {
    let mut letters = remark.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if remark.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
