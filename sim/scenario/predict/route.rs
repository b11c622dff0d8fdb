//! The routes that groups and messages of a program take through the fabric: what they send through shared uplinks, and how often
//! they cross each level.

use std::collections::BTreeMap;

use crate::cost::Route;
use crate::hardware::uplink::{crossing, crossing_messages};
use crate::hardware::{Hops, Topology, Uplink};
use crate::program::{Direction, Group, GroupId, Transfer};

/// Routes by group and by message, found once.
pub(super) struct Routes<'t> {
    topology: &'t Topology,
    uplinks: Vec<Uplink>,
    groups: BTreeMap<GroupId, Route>,
    messages: BTreeMap<(GroupId, u32), Route>,
}

impl<'t> Routes<'t> {
    /// None is known yet.
    pub(super) fn new(topology: &'t Topology, uplinks: &[Uplink]) -> Routes<'t> {
        Routes { topology, uplinks: uplinks.to_vec(), groups: BTreeMap::new(), messages: BTreeMap::new() }
    }

    /// Of a group, of which all copies with members among `ranks`, the ranks of a class, are at it at once. What other classes do at
    /// the same time the engine finds out.
    pub(super) fn of(&mut self, id: GroupId, group: &Group, ranks: &[u32]) -> &Route {
        let Routes { topology, uplinks, groups, .. } = self;
        groups.entry(id).or_insert_with(|| {
            let hops = topology.hops(group.size, group.stride);
            if uplinks.is_empty() {
                return Route { crossings: vec![], hops };
            }
            let chips = topology.ranks();
            let mut lowest: Vec<u32> = ranks.iter().filter_map(|&rank| Some(group.place(rank)?.0)).collect();
            lowest.sort_unstable();
            lowest.dedup();
            let of = |&rank: &u32| group.members(rank).take_while(move |&member| member < chips);
            let copies = || lowest.iter().map(of);
            let crossings = uplinks.iter().filter_map(|uplink| crossing(*uplink, chips, copies())).collect();
            Route { crossings, hops }
        })
    }

    /// Of a message to or from the member so many places ahead, which all of `ranks` send or receive at once.
    pub(super) fn between(&mut self, id: GroupId, group: &Group, transfer: &Transfer, ranks: &[u32]) -> &Route {
        let Routes { topology, uplinks, messages, .. } = self;
        let (ahead, sends) = (transfer.ahead, transfer.direction == Direction::Send);
        messages.entry((id, if sends { ahead } else { u32::MAX - ahead })).or_insert_with(|| {
            let ends = || ranks.iter().filter_map(|&rank| Some((rank, group.peer(rank, ahead)?)));
            let messages = || ends().map(|(rank, peer)| if sends { (rank, peer) } else { (peer, rank) });
            let all = topology.ranks();
            let crossings = uplinks.iter().filter_map(|uplink| crossing_messages(*uplink, all, messages())).collect();
            let level = messages().map(|(from, to)| topology.level_between(from, to)).max().unwrap_or(0);
            let latency = topology.fabric[level].latency;
            Route { crossings, hops: vec![Hops { level, latency, ring: 1, doublings: 0.0 }] }
        })
    }
}
