//! What the bounds of many plans share: costs by kernel, and walks of short pipelines, by machine and software.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use super::walk::{Walked, walk};
use crate::cost::{CostModel, Profile, Regime, Software};
use crate::engine::Costs;
use crate::hardware::Topology;
use crate::program::Program;
use crate::runtime::Plan;
use crate::scenario::Scenario;
use crate::scenario::predict::costs::{Known, costs};
use crate::scenario::predict::memory::outside;
use crate::units::Bytes;

/// Instructions, at most, of a program that is written for a bound: bounds are for plans that are long to simulate, and cost little.
const MOST: u64 = 400_000;

/// Bounds that were found, and what they were made of; shared by all plans of a search.
#[derive(Debug, Default)]
pub struct Floors {
    settings: Mutex<Vec<Arc<Setting>>>,
}

/// A machine with its software: what costs depend on besides the plan.
#[derive(Debug)]
pub(super) struct Setting {
    topology: Topology,
    profile: Arc<Profile>,
    regime: Regime,
    software: Software,
    costs: Mutex<Known>,
    walks: Mutex<Walks>,
}

/// Walks by plan, and plans by their hash.
type Walks = BTreeMap<u64, Vec<(Plan, Option<Arc<[Stage]>>)>>;

/// A class of ranks of a short program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub walked: Walked,
    /// Memory outside the allocator \[B\].
    pub outside: Bytes,
}

impl Setting {
    fn is_of(&self, scenario: &Scenario) -> bool {
        Arc::ptr_eq(&self.profile, &scenario.profile)
            && (self.regime, self.software) == (scenario.regime, scenario.software)
            && self.topology == scenario.topology
    }

    /// What kernels and collectives of a program cost.
    fn costs(&self, scenario: &Scenario, program: &Program) -> Costs {
        let model = CostModel::new(&self.profile, self.regime).with(self.software);
        let mut known = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        costs(scenario, (program, &[]), &model, &mut known).0
    }

    /// Walks of all classes of a plan; none where its programs are too long for a bound.
    pub fn walks(&self, scenario: &Scenario, plan: &Plan) -> Option<Vec<Stage>> {
        let flight = plan.compile_within(MOST).ok()?;
        let stage = |program: &Arc<Program>| {
            let costs = self.costs(scenario, program);
            Stage { walked: walk(program, &costs), outside: outside(scenario, program) }
        };
        Some(flight.classes.iter().map(stage).collect())
    }

    /// The same of a plan that many share.
    pub fn shared(&self, scenario: &Scenario, plan: Plan) -> Option<Arc<[Stage]>> {
        let walks = || self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hasher = DefaultHasher::new();
        plan.hash(&mut hasher);
        let hash = hasher.finish();
        let same = |known: &&(Plan, _)| known.0 == plan;
        if let Some((_, known)) = walks().get(&hash).and_then(|known| known.iter().find(same)) {
            return known.clone();
        }
        let found = self.walks(scenario, &plan).map(Arc::from);
        walks().entry(hash).or_default().push((plan, found.clone()));
        found
    }
}

impl Floors {
    /// The machine and the software of a scenario.
    pub(super) fn setting(&self, scenario: &Scenario) -> Arc<Setting> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = settings.iter().find(|known| known.is_of(scenario)) {
            return Arc::clone(known);
        }
        let setting = Arc::new(Setting {
            topology: scenario.topology.clone(),
            profile: Arc::clone(&scenario.profile),
            regime: scenario.regime,
            software: scenario.software,
            costs: Mutex::default(),
            walks: Mutex::default(),
        });
        settings.push(Arc::clone(&setting));
        setting
    }
}
