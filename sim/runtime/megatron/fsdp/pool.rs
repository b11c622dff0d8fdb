//! `fsdp_double_buffer`: blocks of units alike in size come from two sets that are taken once and kept
//! (`megatron_fsdp/param_and_grad_buffer.py`, `FixedPoolAllocator`, 0.16.1). All others have blocks of their own.

use std::collections::BTreeSet;

use super::cut::Group;

/// The units that share two sets of blocks, if there are sets.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Option<BTreeSet<u64>>);

impl Pool {
    /// The sets of the size that most units have; none where there are no units.
    pub(super) fn of(groups: &[Group]) -> Pool {
        let size = |group: &Group| group.params.iter().map(|(_, place)| place.end - place.start).sum::<u64>();
        let units: Vec<(u64, u64)> = groups.iter().filter_map(|group| Some((group.unit?, size(group)))).collect();
        let mut most: Option<BTreeSet<u64>> = None;
        for &(_, of) in &units {
            let alike: BTreeSet<u64> = units.iter().filter(|(_, size)| *size == of).map(|(unit, _)| *unit).collect();
            if most.as_ref().is_none_or(|most| alike.len() > most.len()) {
                most = Some(alike);
            }
        }
        Pool(most)
    }

    /// Whether there are sets.
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a group's blocks are those of a set.
    pub(super) fn holds(&self, group: &Group) -> bool {
        group.unit.is_some_and(|unit| self.0.as_ref().is_some_and(|units| units.contains(&unit)))
    }

    /// The unit that takes a set, if the group does.
    pub(super) fn taker(&self, group: &Group) -> BTreeSet<Option<u64>> {
        if self.holds(group) { BTreeSet::from([group.unit]) } else { BTreeSet::new() }
    }
}
