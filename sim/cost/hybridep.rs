//! NVIDIA's Hybrid-EP (deepseek-ai/DeepEP, branch `hybrid-ep`, `docs/README_Hybrid-EP.md`) inside one NVLink domain.
//!
//! A token goes once to every rank on which it has an expert, as under DeepEP; of a rank's T tokens, rows of w bytes and r ranks
//! reached a call takes
//!
//! ```text
//! T · r · w / rate(ranks)                  on 16 of the chip's processors
//! T · r · w · ((1/rate − 1/links) · 16/p + 1/links)   on p       r = n·(1 − C(E − E/n, k) / C(E, k))
//! ```
//!
//! The rate is that of the whole call, with the kernel that reads the routing; `links` is what more processors do not hasten. Over several
//! domains nobody has published a rate that says which bytes it counts: rows are priced as DeepEP's there, and said to be assumed.

use serde::Deserialize;

use super::basis::{Basis, Evidence};
use super::collective::Collectives;
use super::comm::{CommCost, OnNodes};
use super::deepep::{self, DeepEp};
use super::route::Route;
use crate::program::{Rows, Way};
use crate::units::{Bandwidth, Bytes};

/// The section.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HybridEp {
    /// Ranks that were measured, in ascending order.
    pub ranks: Vec<u32>,
    /// Rates of rows to experts over as many.
    pub dispatch: Vec<Bandwidth>,
    /// Rates of rows back.
    pub combine: Vec<Bandwidth>,
    /// Processors on which these are reached.
    pub processors: u32,
    /// What more processors do not hasten of rows to experts, as a rate over as many ranks.
    pub dispatch_links: Vec<Bandwidth>,
    /// The same of rows back.
    pub combine_links: Vec<Bandwidth>,
    /// Bytes of the rows that were measured.
    pub row: u64,
    /// What they rest on.
    pub evidence: Evidence,
}

impl HybridEp {
    pub(super) fn check(self) -> Result<HybridEp, String> {
        let ways = [&self.dispatch, &self.combine, &self.dispatch_links, &self.combine_links];
        if self.ranks.is_empty() || ways.iter().any(|rates| rates.len() != self.ranks.len()) {
            return Err(
                "each of ranks needs a rate of dispatch and one of combine, and those of their links".to_owned()
            );
        }
        let slower =
            |links: &[Bandwidth], all: &[Bandwidth]| links.iter().zip(all).any(|(links, all)| links.0 <= all.0);
        if slower(&self.dispatch_links, &self.dispatch) || slower(&self.combine_links, &self.combine) {
            return Err("rates of links must be above those of the whole call".to_owned());
        }
        if self.processors == 0 {
            return Err("processors must be above zero".to_owned());
        }
        if !self.ranks.is_sorted_by(|a, b| a < b) || self.ranks[0] == 0 {
            return Err("ranks must be above zero and ascend".to_owned());
        }
        if ways.into_iter().flatten().any(|rate| rate.0 <= 0.0) {
            return Err("rates must be above zero".to_owned());
        }
        Ok(self)
    }

    /// The rate over `ranks` on `processors` \[B/s\]; none: on those of the section.
    pub fn rate(&self, way: Way, ranks: u32, processors: Option<u32>) -> f64 {
        let (all, links) = match way {
            Way::Combine => (&self.combine, &self.combine_links),
            Way::Dispatch | Way::Notify => (&self.dispatch, &self.dispatch_links),
        };
        let (all, links) = (self.over(ranks, all), self.over(ranks, links));
        let fewer = f64::from(self.processors) / f64::from(processors.unwrap_or(self.processors).max(1));
        1.0 / ((1.0 / all - 1.0 / links) * fewer + 1.0 / links)
    }

    /// One of `rates` over `ranks` \[B/s\]: on the line between those that were measured, and beyond them as over the nearest.
    fn over(&self, ranks: u32, rates: &[Bandwidth]) -> f64 {
        let above = self.ranks.partition_point(|&known| known < ranks);
        let at = |index: usize| (f64::from(self.ranks[index]), rates[index].0);
        match above {
            0 => at(0).1,
            index if index == self.ranks.len() => at(index - 1).1,
            index => {
                let ((low, from), (high, to)) = (at(index - 1), at(index));
                from + (to - from) * (f64::from(ranks) - low) / (high - low)
            }
        }
    }
}

/// Time of rows over ranks that lie as `spread` says, with `rail` the line rate of one GPU's NICs.
pub(super) fn cost(
    collectives: &Collectives,
    (own, deepep): (Option<&HybridEp>, Option<&DeepEp>),
    (rows, bytes): (Rows, Bytes),
    (spread, route): (OnNodes, &Route),
    rail: Option<Bandwidth>,
) -> CommCost {
    let (Some(section), Some(switched), 1) = (own, collectives.switched(), spread.nodes) else {
        let cost = deepep::cost(collectives, deepep, (rows, bytes), (spread, route), rail);
        return CommCost { basis: Basis::Assumed, ..cost };
    };
    let ranks = spread.ranks_per_node;
    let sent = bytes.0 as f64 * rows.reached(u64::from(ranks));
    let through_link = sent * f64::from(ranks - 1) / f64::from(ranks.max(1));
    let seconds = sent / section.rate(rows.way, ranks, rows.processors);
    let (seconds, moved) = switched.later(seconds, route, through_link / collectives.link.0);
    let beyond = !(section.ranks[0]..=section.ranks[section.ranks.len() - 1]).contains(&ranks);
    let other_rows = bytes.0 / rows.tokens.max(1) != section.row;
    let other_processors = rows.processors.is_some_and(|count| count != section.processors);
    let (basis, wider) = if beyond || moved || other_rows || other_processors {
        (Basis::Extrapolated, 2.0)
    } else {
        (Basis::Interpolated, 1.0)
    };
    let (basis, error) = (section.evidence.basis.and(basis), wider * section.evidence.spread());
    switched.finish(seconds, basis, error, through_link, 0.0, rail.unwrap_or(switched.default_rail()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Profile;
    use crate::program::ExchangeLibrary;

    /// Microseconds of 4,096 tokens of 7,168 numbers in bf16, in 8 of the experts of which each rank has 8.
    fn rows(way: Way, ranks: u32, processors: Option<u32>) -> Rows {
        let library = ExchangeLibrary::HybridEp;
        Rows { way, tokens: 4096, experts: 8 * u64::from(ranks), top_k: 8, library, processors }
    }

    fn microseconds(way: Way, ranks: u32, processors: Option<u32>) -> f64 {
        let profile = Profile::find("b200-sxm").expect("a shipped profile");
        let rows = rows(way, ranks, processors);
        let spread = OnNodes { nodes: 1, ranks_per_node: ranks };
        let sections = (profile.hybridep.as_ref(), profile.deepep.as_ref());
        let bytes = Bytes(4096 * 7168 * 2);
        let cost = cost(&profile.collectives, sections, (rows, bytes), (spread, &Route::default()), None);
        cost.time.seconds() * 1e6
    }

    #[test]
    fn published_rates_are_met() {
        // GB200, 16 processors, the whole call: rows that reach a rank, over the time.
        for (ranks, dispatch, combine) in [(8, 550.10, 538.44), (16, 472.84, 474.48), (36, 469.96, 418.27)] {
            let bytes = 4096.0 * 7168.0 * 2.0 * rows(Way::Dispatch, ranks, None).reached(u64::from(ranks));
            for (way, rate) in [(Way::Dispatch, dispatch), (Way::Combine, combine)] {
                let own = bytes / microseconds(way, ranks, None) / 1e3;
                assert!((own / rate - 1.0).abs() < 1e-3, "{ranks} ranks, {way:?}: {own} GB/s");
            }
        }
        // Between two, on the line; beyond them, as over the last.
        assert!(microseconds(Way::Dispatch, 20, None) > microseconds(Way::Dispatch, 16, None));
        assert!(microseconds(Way::Combine, 64, None) > microseconds(Way::Combine, 36, None));
    }

    #[test]
    fn more_processors_hasten_a_call_until_the_links_are_full() {
        // The authors' first release went from 362 to 616 GB/s with twice the processors; nobody has seen more than 863 GB/s of rows over
        // an NVLink of 900 GB/s.
        for way in [Way::Dispatch, Way::Combine] {
            let gain = microseconds(way, 8, None) / microseconds(way, 8, Some(32));
            assert!(gain > 1.4 && gain < 1.71, "{way:?}: {gain}");
            let bytes = 4096.0 * 7168.0 * 2.0 * rows(way, 8, None).reached(8);
            assert!(bytes / microseconds(way, 8, Some(32)) / 1e3 < 900.0);
            assert_eq!(microseconds(way, 8, Some(16)), microseconds(way, 8, None));
        }
    }
}
