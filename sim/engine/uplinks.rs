//! Uplinks that ranks share ([`crate::hardware::uplink`]), and which collectives and messages cross each.
//!
//! In a full run every uplink is a place, and each copy of a group that crosses it is one flow. In a folded run one flow stands for
//! all copies that find the same classes, so it crosses with a weight: as many copies as cross there. Uplinks that the same flows
//! cross with the same weights are one place.
//!
//! Where all uplinks that copies of one kind cross are alike, a folded run agrees with a full one to the picosecond. Where they are
//! not, such as where a leaf holds the end of one pipeline stage and the beginning of the next, the folded flow moves at the pace
//! of its slowest copy.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::hardware::Uplink;

use super::Class;
use super::cast::Cast;
use super::parts::NONE;

/// What crosses an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Crosses {
    /// A copy of a group, in the order of their meetings.
    Meeting { copy: u32 },
    /// One end of a message of a simulated rank.
    Message { rank: u32, transfer: u32 },
}

/// What crosses, and how many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crossed {
    pub(super) what: Crosses,
    pub(super) weight: u32,
}

/// All uplinks of a run; none where ranks share no links.
#[derive(Debug, Default)]
pub(super) struct Uplinks {
    /// The outer level that each leads into.
    levels: Vec<usize>,
    /// What crosses, uplink after uplink, and the end of each.
    pub(super) crossing: Vec<Crossed>,
    ends: Vec<u32>,
    /// Uplinks that copies, and behind them transfers of ranks, cross, one after the other, and the end of each.
    pub(super) crossed: Vec<u32>,
    crossed_ends: Vec<u32>,
    /// Uplinks above each simulated rank, one after the other, and the end of each.
    pub(super) above: Vec<u32>,
    above_ends: Vec<u32>,
    /// Copies that there are, and transfers of each rank.
    copies: u32,
    transfers: u32,
    /// Last search that came by.
    pub(super) visits: Vec<u32>,
}

impl Uplinks {
    /// Finds out who crosses what. `meeting_of` are the meetings of simulated ranks, of which there are `meetings`, on `streams`.
    pub(super) fn new(cast: &Cast<'_>, meeting_of: &[u32], meetings: usize, streams: u32, transfers: u32) -> Uplinks {
        let Class { costs, .. } = cast.job.classes[0];
        let copies = meetings as u32 / streams.max(1);
        let mut uplinks = Uplinks { copies, transfers, ..Uplinks::default() };
        // Simulated ranks, and the uplinks above the ranks that they stand for.
        let mut pairs: Vec<(u32, u32)> = vec![];
        for uplink in &costs.uplinks {
            // Uplinks by what crosses them, in the order in which they come.
            let mut known: BTreeMap<Vec<Crossed>, u32> = BTreeMap::new();
            let mut places: BTreeMap<u32, u32> = BTreeMap::new();
            let crossings = crossings(cast, uplink, meeting_of, streams);
            for at in crossings.chunk_by(|one, next| one.0 == next.0) {
                let kinds = at.chunk_by(|one, next| one.1 == next.1);
                let here: Vec<Crossed> =
                    kinds.map(|kind| Crossed { what: kind[0].1, weight: kind.len() as u32 }).collect();
                let place = *known.entry(here).or_insert_with_key(|here| {
                    uplinks.crossing.extend(here);
                    uplinks.ends.push(uplinks.crossing.len() as u32);
                    uplinks.levels.push(uplink.level - 2);
                    uplinks.levels.len() as u32 - 1
                });
                places.insert(at[0].0, place);
            }
            let above = (0..cast.job.class_of.len() as u32).map(|rank| (rank, places.get(&uplink.of(rank))));
            pairs.extend(above.filter_map(|(rank, place)| Some((cast.player(rank), *place?))));
        }
        if uplinks.levels.is_empty() {
            return uplinks;
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut pairs = pairs.into_iter().peekable();
        for rank in 0..cast.ranks.len() as u32 {
            while let Some((_, uplink)) = pairs.next_if(|pair| pair.0 == rank) {
                uplinks.above.push(uplink);
            }
            uplinks.above_ends.push(uplinks.above.len() as u32);
        }
        uplinks.visits = vec![0; uplinks.levels.len()];
        uplinks.turn_round(cast.ranks.len() as u32);
        uplinks
    }

    /// Fills in which uplinks each copy and each transfer cross.
    fn turn_round(&mut self, ranks: u32) {
        let mut pairs: Vec<(u32, u32)> = vec![];
        for uplink in 0..self.levels.len() as u32 {
            pairs.extend(self.crossing[self.of(uplink)].iter().map(|crossed| (self.index(crossed.what), uplink)));
        }
        pairs.sort_unstable();
        let mut pairs = pairs.into_iter().peekable();
        for index in 0..self.copies + ranks * self.transfers {
            while let Some((_, uplink)) = pairs.next_if(|pair| pair.0 == index) {
                self.crossed.push(uplink);
            }
            self.crossed_ends.push(self.crossed.len() as u32);
        }
    }

    fn index(&self, what: Crosses) -> u32 {
        match what {
            Crosses::Meeting { copy } => copy,
            Crosses::Message { rank, transfer } => self.copies + rank * self.transfers + transfer,
        }
    }

    /// Whether ranks share no links.
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// The outer level that an uplink leads into.
    pub(super) fn level(&self, uplink: u32) -> usize {
        self.levels[uplink as usize]
    }

    /// What crosses an uplink: where it lies in `crossing`.
    pub(super) fn of(&self, uplink: u32) -> Range<usize> {
        span(&self.ends, uplink)
    }

    /// The uplinks above a simulated rank: where they lie in `above`.
    pub(super) fn above(&self, rank: u32) -> Range<usize> {
        if self.levels.is_empty() { 0..0 } else { span(&self.above_ends, rank) }
    }

    /// The uplinks that something crosses: where they lie in `crossed`.
    pub(super) fn crossed_by(&self, what: Crosses) -> Range<usize> {
        if self.levels.is_empty() { 0..0 } else { span(&self.crossed_ends, self.index(what)) }
    }
}

/// From where to where the entries of the `index`-th lie.
fn span(ends: &[u32], index: u32) -> Range<usize> {
    let first = index.checked_sub(1).map_or(0, |before| ends[before as usize]);
    first as usize..ends[index as usize] as usize
}

/// Every crossing of an uplink of one level, by uplink and by what crosses it, in order; as often as it crosses.
fn crossings(cast: &Cast<'_>, uplink: &Uplink, meeting_of: &[u32], streams: u32) -> Vec<(u32, Crosses)> {
    let first = cast.job.classes[0].program;
    let mut found = vec![];
    let mut here = vec![];
    for (id, group) in first.groups.iter().enumerate() {
        let is_lowest = |rank: &u32| group.place(*rank).is_some_and(|(_, member)| member == 0);
        for lowest in (0..first.ranks).filter(is_lowest) {
            let meeting = meeting_of[id * cast.ranks.len() + cast.player(lowest) as usize];
            if meeting == NONE {
                continue;
            }
            here.clear();
            here.extend(group.members(lowest).map(|rank| uplink.of(rank)));
            let instance = |of: &u32| of / uplink.positions;
            if here.iter().all(|of| instance(of) == instance(&here[0])) {
                continue;
            }
            here.sort_unstable();
            here.dedup();
            found.extend(here.iter().map(|&of| (of, Crosses::Meeting { copy: meeting / streams })));
        }
    }
    for (rank, &class) in (0..).zip(cast.job.class_of) {
        for (transfer, of) in cast.job.classes[class as usize].program.transfers.iter().enumerate() {
            let Some(peer) = first.group(of.group).peer(rank, of.ahead) else { continue };
            if uplink.instance(peer) != uplink.instance(rank) {
                let what = Crosses::Message { rank: cast.player(rank), transfer: transfer as u32 };
                found.push((uplink.of(rank), what));
            }
        }
    }
    found.sort_unstable();
    found
}
