//! Numbers that stand for what a program lists once: kernels, groups, streams, buffers and the like.

use super::Owner;

/// Index of a [`Kernel`](super::Kernel) in [`Program::kernels`](super::Program::kernels).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(pub u32);

/// Index of a [`Comm`](super::Comm) in [`Program::comms`](super::Program::comms).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// Index of a [`Transfer`](super::Transfer) in [`Program::transfers`](super::Program::transfers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// Index of a group of transfers in [`Program::exchanges`](super::Program::exchanges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub u32);

/// Index of a [`Group`](super::Group) in [`Program::groups`](super::Program::groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// Index of a stream in [`Program::streams`](super::Program::streams); the allocator keeps one pool per stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct StreamId(pub u8);

/// Index of an event: a mark on a stream that other streams or the host can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// Index of a [`Buffer`](super::Buffer) in [`Program::buffers`](super::Program::buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// A module or region by its place in [`Program::scopes`](super::Program::scopes), and the part of the model that is at work there: the
/// lowest bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(u16);

/// Bits that say the part of the model.
const PART: u16 = 4;

// The four bits hold all parts.
const _: () = assert!(Owner::COUNT <= 1 << PART);

impl ScopeId {
    /// Modules and regions that a program may have: a few for each layer.
    pub const MOST: usize = 1 << (u16::BITS - PART as u32);

    /// The last of these, and no part of the model.
    pub(super) const LAST: ScopeId = ScopeId(((ScopeId::MOST - 1) as u16) << PART);

    /// The scope at a place, one of [`ScopeId::MOST`], and no part of the model.
    pub(super) fn at(place: usize) -> Option<ScopeId> {
        (place < ScopeId::MOST).then_some(ScopeId((place as u16) << PART))
    }

    /// Its place among the program's scopes.
    pub fn place(self) -> usize {
        usize::from(self.0 >> PART)
    }

    /// The same scope where a part of the model is at work.
    #[must_use]
    pub fn of(self, owner: Owner) -> ScopeId {
        ScopeId(self.0 & !((1 << PART) - 1) | owner as u16)
    }

    /// The part of the model that is at work, by its place in [`Owner::ALL`].
    #[inline]
    pub fn part(self) -> usize {
        usize::from(self.0 & ((1 << PART) - 1))
    }

    /// The part of the model that is at work.
    pub fn owner(self) -> Owner {
        Owner::ALL[self.part()]
    }
}

/// Index of a [`Rename`](super::Rename) in [`Program::renames`](super::Program::renames).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RenameId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_keeps_its_place_whatever_part_is_at_work() {
        for place in [0, 1, 1_030, ScopeId::MOST - 1] {
            let scope = ScopeId::at(place).expect("it is one of those that a program may have");
            for &owner in Owner::ALL {
                let at_work = scope.of(Owner::Optimizer).of(owner);
                assert_eq!((at_work.place(), at_work.owner()), (place, owner));
            }
        }
        assert_eq!((ScopeId::at(ScopeId::MOST - 1), ScopeId::at(ScopeId::MOST)), (Some(ScopeId::LAST), None));
    }
}
