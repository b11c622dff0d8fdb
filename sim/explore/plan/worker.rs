//! Simulates plans in a process of its own, for a [`Search`](super::Search) in another.
//!
//! Both read the same request, so a plan is named by its machine and its place in the machine's space.

use super::candidate::Candidate;
use super::request::Request;
use super::search::{Simulated, candidates, simulate};
use crate::scenario::ScenarioError;

/// The plans of a request, listed once.
pub struct Worker {
    request: Request,
    /// Machine by machine.
    plans: Vec<Vec<Candidate>>,
}

impl Worker {
    /// Lists the plans on all machines of a request.
    pub fn new(request: Request) -> Worker {
        let plans = request.sites.iter().map(|site| candidates(&request, site)).collect();
        Worker { request, plans }
    }

    /// Simulates the plan at a place in the space of a machine; none if there is no such plan. The search has found the plan
    /// legal, so an error means that this process cannot read a file.
    pub fn simulate(&self, site: usize, place: usize) -> Option<Result<Simulated, ScenarioError>> {
        let (at, plan) = (self.request.sites.get(site)?, self.plans.get(site)?.get(place)?);
        let scenario = plan.scenario(&self.request, at);
        Some(scenario.map(|scenario| simulate(&self.request, &scenario)))
    }
}
