//! Numbers of a topology file that change nothing: somebody who edits one should not think that the answer has moved by it.
//! Keys of which only a prediction tells that they change nothing.
//!
//! A number is one that somebody has edited if it is not the shipped machine's of the same profile. What it changes is asked of all that
//! a prediction is made of: the same programs with the same costs are the same step.

use std::cell::LazyCell;

use super::{Prediction, Settings, predict, predict_beside};
use crate::hardware::{Fact, Topology};
use crate::scenario::reader::Idle;
use crate::scenario::understood::Scenario;

/// What every prediction shows: how much a device holds.
const ALWAYS_READ: &str = "chip.memory";

/// Numbers that no prediction reads: what they are about is in the times that were measured.
const NEVER_READ: [&str; 5] =
    ["chip.l2", "chip.clock", "chip.host_bandwidth", "node.host_cores", "price.usd_per_chip_hour"];

/// Numbers that count where a profile is carried over to another chip than it was measured on.
const READ_IF_CARRIED: [&str; 2] = ["chip.memory_bandwidth", "chip.power"];

/// All that is predicted, but what would make the plan fit.
fn predicted(answer: &Prediction) -> String {
    let Prediction { memory, step, interval, reasons, stall, breakdown, shares, parts, mfu, tokens, .. } = answer;
    let mut memory = memory.clone();
    memory.remedies.clear();
    format!("{:?}", (step, interval, reasons, stall, breakdown, shares, parts, mfu, tokens, memory))
}

/// Keys of the file that change nothing, as far as [`crate::scenario::idle`] cannot know before programs are there.
pub(super) fn idle(scenario: &Scenario, answer: &Prediction, settings: Settings) -> Vec<Idle> {
    const QUEUES: &str = "framework.device_max_connections";
    if scenario.draft.get(QUEUES).is_none() {
        return vec![];
    }
    let mut other = scenario.with(scenario.job.clone(), scenario.expandable_segments);
    other.one_queue = !scenario.one_queue;
    let again = Settings { remedies: false, record: false, ..settings };
    let same = predict(&other, again).is_ok_and(|other| predicted(&other) == predicted(answer));
    let why = "nothing waits for another stream's work in this plan, from one queue or from many".to_owned();
    same.then(|| Idle { key: QUEUES.to_owned(), why }).into_iter().collect()
}

/// Numbers of the topology that are not the shipped machine's of the same profile and change nothing, each with why.
pub(super) fn unread(scenario: &Scenario, answer: &Prediction) -> Vec<Idle> {
    let topology = &scenario.topology;
    let shipped = Topology::shipped(&topology.profile);
    let as_shipped = |fact: &&Fact| {
        let known = shipped.iter().flat_map(|shipped| &shipped.facts);
        known.clone().any(|known| known.name == fact.name && known.value == fact.value)
    };
    let changed = topology.facts.iter().filter(|fact| !as_shipped(fact) && fact.name != ALWAYS_READ);
    let (ran, known) = (answer.as_ran(scenario), LazyCell::new(|| predicted(answer)));
    let shown = LazyCell::new(|| ran.on(scenario).0);
    let same = |text: &String| {
        let Ok(other) = scenario.draft.tried(Some(text)) else { return false };
        // What differs where it is shown is read. How much of a link something takes is seen in a run alone.
        ran.on(&other).0 == *shown
            && predict_beside(&other, (scenario, answer))
                .is_ok_and(|other| other.is_none_or(|other| predicted(&other) == *known))
    };
    let mut text = topology.text.clone();
    let mut unread = vec![];
    for Fact { name, .. } in changed {
        let measured = || format!("times come from what was measured, in the profile {}", scenario.profile.name);
        let why = if NEVER_READ.contains(&name.as_str()) {
            measured()
        } else {
            // The shipped number may not fit the levels around it: then half and twice as much are asked about.
            let fitting = |other: Option<&Topology>| {
                let others = topology.changed(&text, name, other);
                others.into_iter().filter(|text| scenario.draft.tried(Some(text)).is_ok()).collect::<Vec<_>>()
            };
            let others = Some(fitting(shipped.as_ref())).filter(|others| !others.is_empty());
            let others = others.unwrap_or_else(|| fitting(None));
            let Some(last) = others.last().filter(|_| others.iter().all(same)) else { continue };
            // The next number is asked about on the machine without this one: together they may change something.
            text.clone_from(last);
            match READ_IF_CARRIED.contains(&name.as_str()) {
                true => measured(),
                false => "this plan is predicted alike without the change".to_owned(),
            }
        };
        unread.push(Idle { key: name.clone(), why });
    }
    unread
}
