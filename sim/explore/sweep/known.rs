//! Runs that are the same: understood as the same plan on the same machine, with the same costs. They are simulated once.
//!
//! Plans are compared, not their hashes alone. Only predictions are shared: the words of a refusal depend on how the file says it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use toml::Value;

use super::row::Row;
use crate::cost::{Regime, Software};
use crate::hardware::Topology;
use crate::runtime::Plan;
use crate::scenario::{Runtime, Scenario};

/// Everything of a scenario that decides its prediction.
#[derive(PartialEq)]
struct Asked {
    runtime: Runtime,
    plan: Plan,
    /// The machine, by its number in the list of machines.
    machine: usize,
    /// The profile of costs that the file names; without one it is the machine's.
    profile: Option<Value>,
    regime: Regime,
    software: Software,
    launch_blocking: bool,
    one_queue: bool,
    expandable_segments: bool,
}

/// What is known of it.
enum Answer {
    /// It is being simulated, and these runs are the same.
    Begun(Vec<u64>),
    Row(Box<Row>),
    /// It was refused, so that the same runs are simulated by themselves.
    Refused,
}

/// What a run is told.
pub(super) enum Claim {
    /// It is the first of its kind: simulate it, and say so to [`Known::answer`].
    First(Ticket),
    /// The same run was simulated.
    Answered(Box<Row>),
    /// The same run is being simulated, and whoever does so takes care of this one, too.
    Follows,
    /// Simulate it. Nobody waits.
    Alone,
}

/// Where a run that is being simulated is in the list.
pub(super) struct Ticket {
    hash: u64,
    at: usize,
}

/// Runs that were begun.
#[derive(Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Default)]
struct State {
    machines: Vec<Topology>,
    begun: BTreeMap<u64, Vec<(Asked, Answer)>>,
}

impl Known {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a run of this scenario is known.
    pub(super) fn claim(&self, scenario: &Scenario, run: u64) -> Claim {
        let hash = hash(&scenario.job);
        let mut state = self.state();
        let asked = state.asked(scenario);
        let alike = state.begun.entry(hash).or_default();
        match alike.iter_mut().find(|(other, _)| *other == asked) {
            None => {
                alike.push((asked, Answer::Begun(vec![])));
                Claim::First(Ticket { hash, at: alike.len() - 1 })
            }
            Some((_, Answer::Begun(same))) => {
                same.push(run);
                Claim::Follows
            }
            Some((_, Answer::Row(row))) => Claim::Answered(row.clone()),
            Some((_, Answer::Refused)) => Claim::Alone,
        }
    }

    /// Keeps what a run does, and returns the same runs that came meanwhile.
    pub(super) fn answer(&self, ticket: Ticket, row: &Row) -> Vec<u64> {
        let answer = if row.is_refused() { Answer::Refused } else { Answer::Row(Box::new(row.clone())) };
        let mut state = self.state();
        let begun = state.begun.get_mut(&ticket.hash).and_then(|alike| alike.get_mut(ticket.at));
        match begun.map(|(_, known)| std::mem::replace(known, answer)) {
            Some(Answer::Begun(same)) => same,
            Some(Answer::Row(_) | Answer::Refused) | None => vec![],
        }
    }
}

impl State {
    fn asked(&mut self, scenario: &Scenario) -> Asked {
        let topology = &scenario.topology;
        let machine = self.machines.iter().position(|known| known == topology).unwrap_or_else(|| {
            self.machines.push(topology.clone());
            self.machines.len() - 1
        });
        Asked {
            runtime: scenario.runtime,
            plan: scenario.job.clone(),
            machine,
            profile: scenario.draft.get("topology.profile").cloned(),
            regime: scenario.regime,
            software: scenario.software,
            launch_blocking: scenario.launch_blocking,
            one_queue: scenario.one_queue,
            expandable_segments: scenario.expandable_segments,
        }
    }
}

fn hash(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::sweep::Grid;
    use crate::scenario::Scenario;

    const PLAN: &str = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n\
                        layers = 3\n[mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\n";

    fn plan(more: &str) -> Scenario {
        Scenario::parse("plan.toml", &format!("{PLAN}{more}")).expect(more)
    }

    #[test]
    fn the_same_run_is_simulated_once_however_it_is_written() {
        let (known, same) = (Known::default(), "micro = 1\n");
        let Claim::First(ticket) = known.claim(&plan(""), 0) else { panic!("nothing is known") };
        assert!(matches!(known.claim(&plan(same), 1), Claim::Follows));
        for other in ["micro = 2\n", "[topology]\nclocks = \"burst\"\n", "[memory]\nexpandable_segments = true\n"] {
            let text = match other.starts_with("[topology]") {
                true => PLAN.replace("nodes = 1\n", "nodes = 1\nclocks = \"burst\"\n"),
                false => format!("{PLAN}{other}"),
            };
            let scenario = Scenario::parse("plan.toml", &text).expect(other);
            assert!(matches!(known.claim(&scenario, 2), Claim::First(_)), "{other}");
        }
        let grid = Grid::new(plan(""), &[]).expect("one run");
        let row = Row::of(&grid, &plan(""), &plan("").predict().expect("a plan"));
        assert_eq!(known.answer(ticket, &row), [1]);
        assert!(matches!(known.claim(&plan(same), 3), Claim::Answered(known) if known.step_time_s == row.step_time_s));
    }

    #[test]
    fn a_refusal_is_not_shared() {
        let (known, grid) = (Known::default(), Grid::new(plan(""), &[]).expect("one run"));
        let Claim::First(ticket) = known.claim(&plan(""), 0) else { panic!("nothing is known") };
        let why = crate::explore::sweep::row::Refusal::bug("none");
        known.answer(ticket, &Row::refused(&grid, why));
        assert!(matches!(known.claim(&plan(""), 1), Claim::Alone));
    }
}
