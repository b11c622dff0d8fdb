//! What the planner answers: ranked plans for each machine, the front of all, and what the winner wins by.

use super::money::{Bill, bill, broken};
use super::planned::Planned;
use super::request::Request;
use super::search::{Counts, Found};
use super::site::Site;
use super::sure::{TIE, beats};
use crate::units::{Bytes, Time};

/// A plan with its place in the ranking.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// Its figures.
    pub plan: Planned,
    /// Days and money.
    pub bill: Bill,
    /// The probability that the first plan of the machine is faster.
    pub behind: f64,
    /// Which limits of days and money it breaks, in words.
    pub broken: Vec<String>,
}

impl Ranked {
    /// Whether it is too close to the first for the order to be known.
    pub fn is_tied(&self) -> bool {
        self.behind < TIE
    }
}

/// The answer for one machine.
#[derive(Clone, Debug)]
pub struct OnSite {
    /// The machine.
    pub site: Site,
    /// The best plans, the fastest first, as many as were asked for.
    pub ranked: Vec<Ranked>,
    /// Plans that were simulated and fit, behind the ranked ones.
    pub others: Vec<Planned>,
    /// How many plans were looked at.
    pub counts: Counts,
    /// Why plans were refused, each with how many.
    pub refused: Vec<(String, usize)>,
    /// The least memory that a legal plan needs by its bound \[B\].
    pub least: Option<Bytes>,
    /// The lowest bound of a step among plans that are not decided, zero if some have none yet; none where all are decided.
    pub possible: Option<Time>,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What was asked.
    pub request: Request,
    /// Machine by machine, in the order of the request.
    pub sites: Vec<OnSite>,
    /// Whether every legal plan was simulated.
    pub exhaustive: bool,
    /// Plans on the front of throughput, memory and price: places in `sites` and among its ranked plans and others.
    pub front: Vec<(usize, usize)>,
}

impl OnSite {
    /// What was found on a machine, ranked.
    pub fn of(request: &Request, site: &Site, found: Found) -> OnSite {
        let Found { mut plans, counts, refused, least, possible } = found;
        let others = plans.split_off(plans.len().min(request.top));
        let first = plans.first().map(|first| (first.step, first.candidate.runtime));
        let rank = |plan: Planned| {
            let behind = first.map_or(0.5, |(step, runtime)| beats(step, plan.step, runtime == plan.candidate.runtime));
            let bill = bill(request, site, &plan);
            Ranked { broken: broken(request, &bill), bill, behind, plan }
        };
        let ranked = plans.into_iter().map(rank).collect();
        OnSite { site: site.clone(), ranked, others, counts, refused, least, possible }
    }

    /// Every plan that was simulated and fits, the fastest first.
    pub fn all(&self) -> impl Iterator<Item = &Planned> {
        self.ranked.iter().map(|ranked| &ranked.plan).chain(&self.others)
    }

    /// The best plan that keeps to the limits of days and money.
    pub fn best(&self) -> Option<&Ranked> {
        self.ranked.first().filter(|first| first.broken.is_empty())
    }
}

impl Answer {
    pub(super) fn of(request: Request, sites: Vec<OnSite>, exhaustive: bool) -> Answer {
        let front = front(&request, &sites);
        Answer { request, sites, exhaustive, front }
    }

    /// The machine with the best plan: the cheapest for a token where all have prices, else the fastest.
    pub fn winner(&self) -> Option<usize> {
        let with: Vec<(usize, &Ranked)> =
            self.sites.iter().enumerate().filter_map(|(place, on)| Some((place, on.best()?))).collect();
        let cost = |ranked: &Ranked| ranked.bill.per_billion_tokens.map(|cost| cost.value);
        let priced = with.iter().all(|(_, ranked)| cost(ranked).is_some());
        let key = |ranked: &Ranked| match (priced, cost(ranked)) {
            (true, Some(cost)) => cost,
            _ if self.request.interrupted => ranked.plan.step.seconds() / ranked.plan.goodput,
            _ => ranked.plan.step.seconds(),
        };
        with.into_iter().min_by(|one, other| key(one.1).total_cmp(&key(other.1))).map(|(place, _)| place)
    }

    /// Whether the search was ended before it had decided every plan.
    pub fn is_partial(&self) -> bool {
        self.sites.iter().any(|on| on.counts.undecided > 0)
    }

    /// Whether every machine with a plan has a price.
    pub fn is_priced(&self) -> bool {
        self.sites.iter().filter(|on| !on.ranked.is_empty()).all(|on| on.site.price.is_some())
    }
}

/// Plans that no other is better than in throughput, in free memory and in price at once; machine by machine, the fastest first.
fn front(request: &Request, sites: &[OnSite]) -> Vec<(usize, usize)> {
    let points: Vec<((usize, usize), [f64; 3])> = sites
        .iter()
        .enumerate()
        .flat_map(|(at, on)| {
            on.all().enumerate().map(move |(place, plan)| {
                let cost = bill(request, &on.site, plan).per_billion_tokens.map_or(0.0, |cost| cost.value);
                let rate = plan.tokens as f64 / plan.step.seconds();
                ((at, place), [-rate, -(plan.headroom().0 as f64), cost])
            })
        })
        .collect();
    let better =
        |one: &[f64; 3], other: &[f64; 3]| one != other && one.iter().zip(other).all(|(one, other)| one <= other);
    let on_front = |point: &[f64; 3]| points.iter().all(|(_, other)| !better(other, point));
    points.iter().filter(|(_, point)| on_front(point)).map(|&(at, _)| at).collect()
}
