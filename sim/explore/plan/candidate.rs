//! A plan of the space: a framework with a value for each of its keys.

use super::request::Request;
use super::site::Site;
use super::space::Keys;
use crate::scenario::{Draft, Runtime, Scenario, ScenarioError};

/// A framework with a value for each of its keys.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its place in the space.
    pub(super) place: usize,
    /// The framework.
    pub runtime: Runtime,
    /// Its keys, in the order of the space.
    pub keys: Keys,
}

impl Candidate {
    /// The plan as a scenario file.
    pub(super) fn draft(&self, request: &Request, site: &Site) -> Draft {
        let mut draft = request.draft(site, self.runtime);
        for (key, value) in &self.keys {
            draft.set(key, value.clone());
        }
        draft
    }

    /// The plan, checked as if it had been read from a file.
    pub(super) fn scenario(&self, request: &Request, site: &Site) -> Result<Scenario, ScenarioError> {
        self.draft(request, site).tried(None)
    }
}
