//! Programs that were written before: a what-if that changes the machine, and no rank's program, does not have them written again.
//!
//! A draft and all that are made from it share one [`Programs`]. What a plan's ranks run depends on the plan alone.

use std::sync::{Mutex, PoisonError};

use crate::program::TooLong;
use crate::runtime::{Flight, Plan};

/// Instructions, at most, of all programs that are kept: some tens of megabytes.
const MOST: u64 = 1 << 20;

/// Programs of the plans that were written last.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// Oldest first.
    known: Mutex<Vec<(Plan, u32, Flight)>>,
}

impl Programs {
    /// What a plan's ranks run, in at most so many instructions, and in so many rounds more.
    pub(super) fn of(&self, plan: &Plan, further: u32, most: u64) -> Result<Flight, TooLong> {
        if let Some(known) = self.find(plan, further) {
            return if known.instructions() <= most { Ok(known) } else { Err(TooLong) };
        }
        let flight = plan.compile_within(most)?.going_on(further);
        self.keep(plan, further, &flight);
        Ok(flight)
    }

    fn find(&self, plan: &Plan, further: u32) -> Option<Flight> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(known, more, _)| (known, *more) == (plan, further)).map(|(.., flight)| flight.clone())
    }

    fn keep(&self, plan: &Plan, further: u32, flight: &Flight) {
        let length = |flight: &Flight| flight.instructions();
        if length(flight) > MOST {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((plan.clone(), further, flight.clone()));
        while known.iter().map(|(.., flight)| length(flight)).sum::<u64>() > MOST {
            known.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::scenario::Scenario;

    const PLAN: &str = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\n\
                        layers = 3\n[mesh]\ndp_shard = 8\n[batch]\nsequence = 2048\n";

    /// A plan's programs, by a draft with a key changed.
    fn changed(scenario: &Scenario, key: &str, value: &str) -> Scenario {
        let mut draft = scenario.draft.clone();
        draft.set(key, value);
        draft.scenario().expect(key)
    }

    #[test]
    fn a_what_if_of_the_machine_has_the_same_programs_and_one_of_the_plan_has_others() {
        let scenario = Scenario::parse("plan.toml", PLAN).expect("a plan");
        let first = |scenario: &Scenario| scenario.flight().expect("a short one").classes.remove(0);
        let before = first(&scenario);
        assert!(Arc::ptr_eq(&before, &first(&scenario)));
        assert!(Arc::ptr_eq(&before, &first(&changed(&scenario, "topology.name", "h200-sxm-141gb"))));
        assert!(!Arc::ptr_eq(&before, &first(&changed(&scenario, "precision.param", "fp32"))));
        // A file that is read again shares nothing.
        assert!(!Arc::ptr_eq(&before, &first(&Scenario::parse("plan.toml", PLAN).expect("a plan"))));
    }
}
