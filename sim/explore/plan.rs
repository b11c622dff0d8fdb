//! The planner: which layout of a model on which machine trains fastest, for how many days and how much money.
//!
//! ```text
//! Request ─► Space ─► candidates ─► gate ─► bounds ─► simulations, best bound first ─► Answer
//! ```
//!
//! A request names a model, machines and a batch. Each framework has a table of what may vary ([`space`]). The search proves what it
//! skips ([`mod@search`]). A plan is left out for one of three reasons: the scenario's checks refuse it, a lower bound of its memory
//! exceeds the device, or a lower bound of its time exceeds the last plan that is ranked. What is ranked was simulated.

mod answer;
mod candidate;
mod error;
mod figures;
mod frameworks;
pub mod html;
pub mod json;
mod money;
mod nearest;
mod planned;
mod request;
mod search;
mod site;
mod sites;
mod space;
mod sure;
pub mod text;
mod words;
mod worker;

pub use answer::{Answer, OnSite, Ranked};
pub use candidate::Candidate;
pub use error::PlanError;
pub use figures::Figures;
pub use money::{Bill, Interval};
pub use planned::Planned;
pub use request::{Limits, Request};
pub use search::{Counts, Found, Progress, Search, Simulated, Stop, Told};
pub use site::Site;
pub use space::Keys;
pub use sure::TIE;
pub use worker::Worker;

pub use super::prices::Price;

use crate::files::Answers;
use crate::scenario::Draft;
use crate::scenario::predict::Floors;
use crate::units::thousands;

/// Answers a request; if `exhaustive`, every legal plan is simulated.
pub fn plan(request: Request, exhaustive: bool, told: &Told<'_>) -> Result<Answer, PlanError> {
    plan_until(request, exhaustive, told, (&|| false, None))
}

/// The same until it is to end: then the answer is what was found so far, and says what is not decided. Plans whose answers are known are
/// not simulated again.
pub fn plan_until(
    request: Request,
    exhaustive: bool,
    told: &Told<'_>,
    (stop, known): (&Stop<'_>, Option<&Answers>),
) -> Result<Answer, PlanError> {
    let floors = Floors::default();
    let mut sites = vec![];
    for site in &request.sites {
        let found = search::search((&request, site), &floors, exhaustive, told, (stop, known));
        sites.push(OnSite::of(&request, site, found));
    }
    answer(request, sites, exhaustive, &floors, (told, stop))
}

/// The answer of what was found on each machine. If nothing was, requests near this one are searched for the error's text.
pub fn answer(
    request: Request,
    sites: Vec<OnSite>,
    exhaustive: bool,
    floors: &Floors,
    (told, stop): (&Told<'_>, &Stop<'_>),
) -> Result<Answer, PlanError> {
    if sites.iter().all(|on| on.ranked.is_empty()) {
        let undecided: usize = sites.iter().map(|on| on.counts.undecided).sum();
        if undecided > 0 {
            let plans: usize = sites.iter().map(|on| on.counts.tried).sum();
            let [undecided, plans] = [undecided, plans].map(|count| thousands(count as u64));
            let problem = format!("the search ended before it found a plan: {undecided} of {plans} are not decided");
            return Err(PlanError::request(problem, "give it more time, or fewer plans: --vary, --set or --framework"));
        }
        return Err(nearest::nothing(&request, &sites, (floors, told, stop)));
    }
    Ok(Answer::of(request, sites, exhaustive))
}

/// Every plan that a request's search looks at, as scenario files.
pub fn drafts(request: &Request) -> Vec<Draft> {
    let of = |site| search::candidates(request, site).into_iter().map(move |plan| plan.draft(request, site));
    request.sites.iter().flat_map(of).collect()
}

impl Answer {
    /// A ranked plan as a scenario file for the working directory: `rank` counts from 0.
    pub fn draft(&self, site: usize, rank: usize) -> Option<Draft> {
        let on = self.sites.get(site)?;
        let ranked = on.ranked.get(rank)?;
        let mut draft = ranked.plan.candidate.draft(&self.request, &on.site).located();
        let title = on.site.title();
        draft.set("description", format!("{} on {title}, plan {}", self.request.model.name, rank + 1));
        Some(draft)
    }
}
