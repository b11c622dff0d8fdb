//! DeepEP's kernels in normal mode (deepseek-ai/DeepEP, `csrc/kernels/legacy`), on 20 of the chip's processors; on another number they take
//! as many times as long as `processors` says.
//!
//! Each processor copies rows; a token is read once and goes once to every rank on which it has an expert. Of a rank's T
//! tokens, rows of w bytes and r ranks reached:
//!
//! ```text
//! inside a node   launch + T · max(per_token + w/token, r·(per_row + w/row))
//! across nodes    across.launch + T · max(r₈·w/across.row, out·w/(efficiency·rail)), or what shared uplinks make of it
//! r    = n·(1 − C(E − E/n, k) / C(E, k))       r₈: of a node's ranks; out: of the other nodes
//! ```
//!
//! Both ways have constants of their own. Where a profile has no such section, rows are priced as the all-to-all of what
//! they are, and said to be assumed.

use serde::Deserialize;

use super::basis::{Basis, Evidence};
use super::collective::Collectives;
use super::comm::{CommCost, OnNodes};
use super::route::Route;
use crate::program::{Collective, Rows, Way};
use crate::units::{Bandwidth, Bytes, Time};

/// The section.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeepEp {
    /// Rows to experts.
    pub dispatch: Inside,
    /// Rows back.
    pub combine: Inside,
    /// Over several nodes.
    pub across: Across,
    /// On another number of processors.
    pub processors: OnProcessors,
}

/// How a node's exchange depends on how many processors it runs on.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OnProcessors {
    /// Numbers of processors, in ascending order.
    pub count: Vec<u32>,
    /// Time of rows to experts, over that which the other sections give.
    pub dispatch: Vec<f64>,
    /// The same of rows back.
    pub combine: Vec<f64>,
    /// What they rest on.
    pub evidence: Evidence,
}

impl OnProcessors {
    /// How many times as long rows take on `processors`, and whether so many were measured: on the line over 1/processors between
    /// two that were, and beyond them as the nearest.
    fn longer(&self, way: Way, processors: Option<u32>) -> (f64, bool) {
        let (Some(processors), true) = (processors, way != Way::Notify) else { return (1.0, true) };
        let times = if way == Way::Combine { &self.combine } else { &self.dispatch };
        let above = self.count.partition_point(|&count| count < processors);
        if above == self.count.len() || (above == 0 && self.count[0] != processors) {
            return (times[above.min(times.len() - 1)], false);
        }
        if self.count[above] == processors {
            return (times[above], true);
        }
        let inverse = |count: u32| 1.0 / f64::from(count);
        let (low, high) = (inverse(self.count[above - 1]), inverse(self.count[above]));
        let along = (inverse(processors) - low) / (high - low);
        (times[above - 1] + along * (times[above] - times[above - 1]), true)
    }

    fn check(&self) -> Result<(), String> {
        if self.count.is_empty() || [&self.dispatch, &self.combine].iter().any(|times| times.len() != self.count.len())
        {
            return Err("processors: each of count needs a time of dispatch and one of combine".to_owned());
        }
        if !self.count.is_sorted_by(|a, b| a < b) || self.count[0] == 0 {
            return Err("processors: count must be above zero and ascend".to_owned());
        }
        if self.dispatch.iter().chain(&self.combine).any(|&time| !(time > 0.0 && time.is_finite())) {
            return Err("processors: times must be above zero".to_owned());
        }
        Ok(())
    }
}

/// Constants of one way inside a node.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// Time of a few tokens.
    pub launch: Time,
    /// Time of a token, whatever its size \[ns\].
    pub per_token_ns: f64,
    /// Rate at which tokens are read.
    pub token: Bandwidth,
    /// Time of a row, whatever its size \[ns\].
    pub per_row_ns: f64,
    /// Rate at which rows go out.
    pub row: Bandwidth,
    /// What they rest on.
    pub evidence: Evidence,
}

/// Constants over several nodes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Across {
    /// Most nodes that were measured.
    pub nodes: u32,
    /// Time of a few tokens.
    pub launch: Time,
    /// Time in which ranks tell each other how many rows will come.
    pub notify: Time,
    /// Rate at which rows to experts go on inside a node.
    pub dispatch: Bandwidth,
    /// Rate at which rows back come together inside a node.
    pub combine: Bandwidth,
    /// Share of the line rate of a GPU's NICs that is reached.
    pub efficiency: f64,
    /// What they rest on.
    pub evidence: Evidence,
}

impl DeepEp {
    pub(super) fn check(self) -> Result<DeepEp, String> {
        self.processors.check()?;
        let inside = [&self.dispatch, &self.combine];
        let rates =
            inside.iter().flat_map(|way| [way.token, way.row]).chain([self.across.dispatch, self.across.combine]);
        if rates.map(|rate| rate.0).any(|rate| rate <= 0.0) {
            return Err("rates must be above zero".to_owned());
        }
        if inside.iter().any(|way| way.per_token_ns < 0.0 || way.per_row_ns < 0.0) {
            return Err("times of a token and of a row must not be below zero".to_owned());
        }
        match self.across.efficiency {
            share if share > 0.0 && share <= 1.0 => Ok(self),
            share => {
                Err(format!("across.efficiency is {share}: expected a share of the line rate, above 0, at most 1"))
            }
        }
    }
}

impl Inside {
    /// Seconds of `tokens` tokens, each in `reached` rows of `width` bytes.
    pub fn seconds(&self, tokens: f64, reached: f64, width: f64) -> f64 {
        let token = self.per_token_ns * 1e-9 + width / self.token.0;
        let rows = reached * (self.per_row_ns * 1e-9 + width / self.row.0);
        self.launch.seconds() + tokens * token.max(rows)
    }
}

/// Time of rows over ranks that lie as `spread` says, with `rail` the line rate of one GPU's NICs.
pub(super) fn cost(
    collectives: &Collectives,
    section: Option<&DeepEp>,
    (rows, bytes): (Rows, Bytes),
    (spread, route): (OnNodes, &Route),
    rail: Option<Bandwidth>,
) -> CommCost {
    let (nodes, ranks) = (u64::from(spread.nodes), u64::from(spread.nodes * spread.ranks_per_node));
    let (tokens, width) = (rows.tokens as f64, bytes.0 as f64 / rows.tokens.max(1) as f64);
    let (reached, out) = (rows.reached(ranks), rows.reached(nodes) * (nodes - 1) as f64 / nodes as f64);
    if rows.way == Way::Notify && (nodes == 1 || section.is_none()) {
        // A few numbers from all to all.
        let counts = Bytes(ranks * (ranks + rows.experts / ranks.max(1)) * 4);
        let cost = collectives.cost(Collective::AllGather, counts, (spread.into(), route), rail);
        return CommCost { basis: cost.basis.and(Basis::Assumed), ..cost };
    }
    let (Some(section), Some(switched)) = (section, collectives.switched()) else {
        let sent = Bytes((tokens * reached * width) as u64);
        let cost = collectives.cost(Collective::AllToAll, sent, (spread.into(), route), rail);
        return CommCost { basis: Basis::Assumed, spread: cost.spread.max(0.5), ..cost };
    };
    let rail = rail.unwrap_or(switched.default_rail());
    let (longer, measured) = section.processors.longer(rows.way, rows.processors);
    let sent = tokens * reached * width;
    let through_link = sent * (ranks - 1) as f64 / ranks.max(1) as f64;
    if nodes == 1 {
        let way = if rows.way == Way::Dispatch { &section.dispatch } else { &section.combine };
        let basis = way.evidence.basis.and(Basis::Interpolated);
        let seconds = way.seconds(tokens, reached, width) * longer;
        let (seconds, moved) = switched.later(seconds, route, through_link / collectives.link.0);
        let (basis, wider) = if moved || !measured { (basis.and(Basis::Extrapolated), 2.0) } else { (basis, 1.0) };
        return switched.finish(seconds, basis, wider * way.evidence.spread(), through_link, 0.0, rail);
    }
    let across = &section.across;
    let rate = if rows.way == Way::Dispatch { across.dispatch } else { across.combine };
    let inner = reached * width / rate.0 * longer;
    let own = out * width / (across.efficiency * rail.0.max(1.0));
    // What leaves a node in an all-to-all in which as many bytes pass each rank.
    let leaving = (ranks - u64::from(spread.ranks_per_node)) as f64 / (ranks - 1).max(1) as f64;
    let passes = out * width / leaving;
    let outer = own.max(passes / route.bandwidth(Collective::AllToAll, 1.0, across.efficiency));
    let (seconds, sent, all) = match rows.way {
        Way::Notify => (across.notify.seconds(), 0.0, 0.0),
        _ => (across.launch.seconds() + tokens * inner.max(outer), tokens * out * width, tokens * passes),
    };
    let (seconds, moved) = switched.later(seconds, route, tokens * inner.max(outer));
    let beyond = spread.nodes > across.nodes || moved || outer > own || !measured;
    let basis = across.evidence.basis.and(if beyond { Basis::Extrapolated } else { Basis::Interpolated });
    let error = across.evidence.spread() * if beyond { 2.0 } else { 1.0 };
    let cost = switched.finish(seconds, basis, error, through_link, sent, rail);
    CommCost { outer: route.uses(Collective::AllToAll, all, seconds), ..cost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Profile;
    use crate::program::ExchangeLibrary;
    use crate::units::Bytes;

    const RAIL: Bandwidth = Bandwidth(50e9);

    /// Microseconds of 4,096 tokens of 7,168 numbers in 8 of 256 experts, as DeepEP's own tests have them.
    fn microseconds(way: Way, row: u64, nodes: u32, processors: Option<u32>) -> f64 {
        let profile = Profile::find("h100-sxm-80gb").expect("a shipped profile");
        let library = ExchangeLibrary::DeepEp;
        let rows = Rows { way, tokens: 4096, experts: 256, top_k: 8, library, processors };
        let spread = OnNodes { ranks_per_node: 8, nodes };
        let (rows, route) = ((rows, Bytes(4096 * row)), Route::default());
        let cost = cost(&profile.collectives, profile.deepep.as_ref(), rows, (spread, &route), Some(RAIL));
        cost.time.seconds() * 1e6
    }

    #[test]
    fn a_node_of_h100_takes_what_was_published() {
        // aiconfigurator, 20 processors: 492 us of rows in fp8 and their scales, 983 us of rows in bf16.
        assert!((microseconds(Way::Dispatch, 7168 + 224, 1, None) / 492.0 - 1.0).abs() < 0.1);
        assert!((microseconds(Way::Combine, 14336, 1, None) / 983.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn four_nodes_are_bound_by_their_network_cards() {
        // 1,801 us and 3,528 us.
        assert!((microseconds(Way::Dispatch, 7168 + 224, 4, None) / 1801.0 - 1.0).abs() < 0.1);
        assert!((microseconds(Way::Combine, 14336, 4, None) / 3528.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn fewer_processors_copy_a_node_s_rows_more_slowly_and_network_cards_do_not_mind() {
        // aiconfigurator, the same shapes on 12 processors: inside a node 1.57 times as long in the median, over four nodes 1.00 to 1.16.
        let longer = |nodes| {
            microseconds(Way::Dispatch, 7168 + 224, nodes, Some(12))
                / microseconds(Way::Dispatch, 7168 + 224, nodes, None)
        };
        assert!((longer(1) / 1.57 - 1.0).abs() < 0.1, "{}", longer(1));
        assert!(longer(4) < 1.2, "{}", longer(4));
    }

    #[test]
    fn ranks_reached_are_the_closed_form() {
        let library = ExchangeLibrary::DeepEp;
        let rows = |experts, top_k| Rows { way: Way::Dispatch, tokens: 1, experts, top_k, library, processors: None };
        assert_eq!(rows(8, 2).reached(8), 2.0);
        assert!((rows(256, 8).reached(8) - 5.2947).abs() < 1e-3);
        // Whoever sends to all experts reaches all ranks.
        assert_eq!(rows(8, 8).reached(4), 4.0);
    }
}
