//! Communicators, and how their members lie among the ranks.
//!
//! Copies of a group tile the ranks in blocks. In a block of `block` ranks there are `block − (size − 1) · stride` copies
//! side by side, the first of them with its lowest member on the block's first rank. A group to which every rank belongs
//! has blocks of `size · stride`. One that only joins the ends of an axis has longer blocks, and the ranks between its
//! members belong to none of its copies:
//!
//! ```text
//! size 2, stride 2, block 4:  0─2 1─3 │ 4─6 5─7        all ranks
//! size 2, stride 6, block 8:  0─6 1─7 │ 8─14 9─15      the first and last of four stages of two ranks
//! ```

use super::Dispatch;
use crate::units::Bytes;

/// A communicator: how many ranks, and how they lie on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The mesh axes it spans, such as `dp_shard`.
    pub name: String,
    /// Number of ranks.
    pub size: u32,
    /// Distance between consecutive members in global rank order (1: neighbours).
    pub stride: u32,
    /// Ranks after which its copies lie again as before.
    pub block: u32,
    /// What each rank has of buffers that the others write into, if they exchange by these and not by NCCL \[B\].
    pub user_buffers: Option<Bytes>,
    /// Whether what it exchanges slows kernels beside it: copy engines do not, nor do kernels on processors set aside.
    pub slows: bool,
}

impl Group {
    /// A group of which every rank belongs to one copy.
    pub fn new(name: impl Into<String>, size: u32, stride: u32) -> Group {
        Group { name: name.into(), size, stride, block: size.saturating_mul(stride), user_buffers: None, slows: true }
    }

    /// The first and the last rank of every line of `size` ranks, `stride` apart: as the stages of a pipeline that share
    /// the embedding.
    pub fn ends(name: impl Into<String>, size: u32, stride: u32) -> Group {
        let last = size.saturating_sub(1);
        let block = size.saturating_mul(stride);
        let stride = stride.saturating_mul(last.max(1));
        Group { name: name.into(), size: size.min(2), stride, block, user_buffers: None, slows: true }
    }

    /// What the host pays for an exchange, or for an end of a message: `torch.distributed`'s call, or a launch from C++.
    pub fn dispatch(&self) -> Dispatch {
        if self.user_buffers.is_some() { Dispatch::Extra } else { Dispatch::Collective }
    }

    /// Copies in each block; none if the group fits no block.
    pub fn copies(&self) -> u32 {
        let span = u64::from(self.size.saturating_sub(1)) * u64::from(self.stride);
        u64::from(self.block).saturating_sub(span) as u32
    }

    /// Whether every rank belongs to a copy.
    pub fn covers(&self) -> bool {
        self.copies() == self.stride
    }

    /// The lowest rank of the copy that `rank` belongs to, and which member `rank` is; none if it belongs to none.
    pub fn place(&self, rank: u32) -> Option<(u32, u32)> {
        let inside = rank % self.block;
        let (member, copy) = (inside / self.stride, inside % self.stride);
        (member < self.size && copy < self.copies()).then(|| (rank - member * self.stride, member))
    }

    /// The global ranks of the copy that `rank` belongs to: `size` members, `stride` apart; nobody if it belongs to none.
    pub fn members(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let (lowest, size) = self.place(rank).map_or((0, 0), |(lowest, _)| (lowest, self.size));
        let stride = self.stride;
        (0..size).map(move |index| lowest + index * stride)
    }

    /// The member `ahead` places after `rank` in its copy, counted round from the last to the first.
    pub fn peer(&self, rank: u32, ahead: u32) -> Option<u32> {
        let (lowest, member) = self.place(rank)?;
        let peer = (u64::from(member) + u64::from(ahead)) % u64::from(self.size);
        Some(lowest + peer as u32 * self.stride)
    }

    /// How many places ahead of a member the one is that lies `by` places from it: −1 is the member before.
    pub fn ahead(&self, by: i64) -> u32 {
        by.rem_euclid(i64::from(self.size.max(1))) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(group: &Group, ranks: u32) -> Vec<Vec<u32>> {
        (0..ranks).map(|rank| group.members(rank).collect()).collect()
    }

    #[test]
    fn copies_of_a_group_tile_the_ranks() {
        let group = Group::new("tp", 2, 2);
        assert!(group.covers());
        let (even, odd) = (vec![0, 2], vec![1, 3]);
        assert_eq!(all(&group, 4), [even.clone(), odd.clone(), even, odd]);
        assert_eq!(group.members(7).collect::<Vec<_>>(), [5, 7]);
    }

    #[test]
    fn the_ends_of_an_axis_meet_and_nobody_between_them() {
        let group = Group::ends("embedding", 4, 2);
        assert!(!group.covers());
        let none = vec![];
        let (even, odd) = (vec![0, 6], vec![1, 7]);
        let expected = [&even, &odd, &none, &none, &none, &none, &even, &odd];
        assert_eq!(all(&group, 8), expected.map(Clone::clone));
        assert_eq!(group.members(9).collect::<Vec<_>>(), [9, 15]);
        assert_eq!(Group::ends("embedding", 2, 3), Group::new("embedding", 2, 3));
        assert_eq!(Group::ends("embedding", 1, 3), Group::new("embedding", 1, 3));
    }

    #[test]
    fn a_peer_is_counted_round_the_group() {
        let group = Group::new("pp", 4, 2);
        let next: Vec<_> = (0..8).map(|rank| group.peer(rank, group.ahead(1))).collect();
        assert_eq!(next, [2, 3, 4, 5, 6, 7, 0, 1].map(Some));
        let previous: Vec<_> = (0..8).map(|rank| group.peer(rank, group.ahead(-1))).collect();
        assert_eq!(previous, [6, 7, 0, 1, 2, 3, 4, 5].map(Some));
        assert_eq!(Group::ends("embedding", 4, 2).peer(3, 1), None);
    }
}
