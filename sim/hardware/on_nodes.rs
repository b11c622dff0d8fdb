//! How a group of ranks lies on the machine: how many nodes it spans, and which level of the fabric holds it.
//!
//! A group has `size` members `stride` apart, counted in global ranks; which group it is follows from the rank
//! asking. With sizes that divide one another, all groups of a kind lie alike:
//!
//! ```text
//! 2 nodes of 4 chips      0 1 2 3 | 4 5 6 7
//! size 4, stride 1        a a a a | b b b b      1 node,  4 ranks on it
//! size 4, stride 2        a b a b | a b a b      2 nodes, 2 ranks on each
//! size 2, stride 4        a b c d | a b c d      2 nodes, 1 rank  on each
//! size 3, stride 1        a a a b | b b           worst case: 2 nodes, up to 2 ranks on one
//! ```
//!
//! Where they lie differently, the answer is the group that spans most, for a collective waits for its slowest link.

use super::{Level, Reach, Topology};

/// How a group of ranks is spread over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OnNodes {
    /// Ranks of the group on the fullest of those nodes.
    pub ranks_per_node: u32,
    /// Nodes that the group spans.
    pub nodes: u32,
}

impl Topology {
    /// How a group of `size` ranks, `stride` apart, is spread over nodes.
    #[doc(hidden)]
    pub fn on_nodes(&self, size: u32, stride: u32) -> OnNodes {
        worst(size, stride, self.ranks_per_node(), self.ranks())
    }

    /// Index in `fabric` of the innermost level that joins two ranks.
    pub fn level_between(&self, one: u32, other: u32) -> usize {
        let joins = |level: &Level| match level.reach {
            Reach::Chips(reach) => one / reach.max(1) == other / reach.max(1),
            Reach::Unbounded => true,
        };
        self.fabric.iter().position(joins).unwrap_or(self.fabric.len().saturating_sub(1))
    }

    /// Index in `fabric` of the innermost level that holds every group of `size` ranks, `stride` apart.
    pub fn level_of(&self, size: u32, stride: u32) -> usize {
        let holds = |level: &Level| match level.reach {
            Reach::Chips(reach) => worst(size, stride, reach, self.ranks()).nodes == 1,
            Reach::Unbounded => true,
        };
        // The reader has checked that the outermost level joins every chip.
        self.fabric.iter().position(holds).unwrap_or(self.fabric.len().saturating_sub(1))
    }
}

/// The worst spread of groups of `size` ranks, `stride` apart, over blocks of `block` of the `ranks` there are.
pub(super) fn worst(size: u32, stride: u32, block: u32, ranks: u32) -> OnNodes {
    let (stride, block, ranks) = (u64::from(stride.max(1)), u64::from(block.max(1)), u64::from(ranks.max(1)));
    // Ranks that the machine does not have are on no node.
    let size = u64::from(size.max(1)).min(ranks.div_ceil(stride));
    let span = size * stride;
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    if block.is_multiple_of(span) || block >= ranks {
        return OnNodes { nodes: 1, ranks_per_node: count(size) };
    }
    if stride.is_multiple_of(block) {
        return OnNodes { nodes: count(size), ranks_per_node: 1 };
    }
    if block.is_multiple_of(stride) && span.is_multiple_of(block) {
        return OnNodes { nodes: count(span / block), ranks_per_node: count(block / stride) };
    }
    // Groups and blocks fall into step again after `block` spans, so later groups lie like earlier ones.
    let starts = (0..block).map(|group| group * span).take_while(|&start| start < ranks);
    let firsts = starts.flat_map(|start| start..(start + stride).min(ranks));
    let worst = firsts.map(|first| one(first, size, stride, block, ranks)).max();
    let (nodes, ranks_per_node) = worst.unwrap_or((1, 1));
    OnNodes { nodes: count(nodes), ranks_per_node: count(ranks_per_node) }
}

/// Blocks that the group beginning at `first` spans, and its members in the fullest of them.
fn one(first: u64, size: u64, stride: u64, block: u64, ranks: u64) -> (u64, u64) {
    let (mut blocks, mut fullest, mut run, mut last) = (0, 0, 0, None);
    for rank in (0..size).map_while(|index| first.checked_add(index * stride).filter(|&rank| rank < ranks)) {
        let here = Some(rank / block);
        if here != last {
            (blocks, run, last) = (blocks + 1, 0, here);
        }
        run += 1;
        fullest = fullest.max(run);
    }
    (blocks, fullest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over_nodes(size: u32, stride: u32, block: u32, ranks: u32) -> (u32, u32) {
        let spread = worst(size, stride, block, ranks);
        (spread.nodes, spread.ranks_per_node)
    }

    #[test]
    fn the_picture_above_is_what_is_computed() {
        assert_eq!(over_nodes(4, 1, 4, 8), (1, 4));
        assert_eq!(over_nodes(4, 2, 4, 8), (2, 2));
        assert_eq!(over_nodes(2, 4, 4, 8), (2, 1));
        assert_eq!(over_nodes(3, 1, 4, 6), (2, 2));
    }

    #[test]
    fn the_short_cuts_agree_with_counting() {
        for block in 1..=8 {
            for size in 1..=12 {
                for stride in 1..=9 {
                    let ranks = size * stride * block;
                    let starts = (0..ranks).step_by((size * stride) as usize);
                    let firsts = starts.flat_map(|start| start..start + stride);
                    let counted = firsts
                        .map(|first| one(first.into(), size.into(), stride.into(), block.into(), ranks.into()))
                        .max()
                        .map(|(nodes, fullest)| (nodes as u32, fullest as u32));
                    assert_eq!(Some(over_nodes(size, stride, block, ranks)), counted, "{size} by {stride} on {block}");
                }
            }
        }
    }

    #[test]
    fn a_group_larger_than_the_machine_is_no_panic() {
        assert_eq!(over_nodes(u32::MAX, u32::MAX, 3, 5), (1, 1));
        assert_eq!(over_nodes(0, 0, 0, 0), (1, 1));
    }
}
