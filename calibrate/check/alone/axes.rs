//! Along which axes of a program's mesh a collective goes.
//!
//! A compiled collective names devices. The axes are the fewest whose lines hold each of its groups: of a permutation each pair of a
//! sender and a receiver. Devices are counted along the mesh, the last axis fastest, as partitions are.

use std::collections::BTreeMap;

use crate::pjrt::hlo::collectives::Collective;

/// Collectives of one kind along the same axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Along {
    /// How often they run in a step.
    pub times: u64,
    /// Of all the whole buffers \[B\].
    pub bytes: u64,
    /// Of those that start and end apart \[B\].
    pub asynchronous_bytes: u64,
}

/// Axes or the number of ranks, whether between slices, and the kind.
pub type Which = (String, bool, String);

/// All of a step, by axes and kind. `slice` is how many devices one slice has.
pub fn along(collectives: &[Collective], axes: &[(String, u32)], slice: u32) -> BTreeMap<Which, Along> {
    let mut all: BTreeMap<Which, Along> = BTreeMap::new();
    for one in collectives {
        let between = one.groups.iter().any(|group| {
            let at = |device: &u64| device / u64::from(slice.max(1));
            group.iter().any(|device| at(device) != at(&group[0]))
        });
        let sum = all.entry((named(&one.groups, axes), between, one.kind.clone())).or_default();
        sum.times = sum.times.saturating_add(one.count);
        let bytes = one.bytes.saturating_mul(one.count);
        sum.bytes = sum.bytes.saturating_add(bytes);
        if one.asynchronous {
            sum.asynchronous_bytes = sum.asynchronous_bytes.saturating_add(bytes);
        }
    }
    all
}

/// Axes whose lines hold all groups, the fewest devices first; else how many take part.
fn named(groups: &[Vec<u64>], axes: &[(String, u32)]) -> String {
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    let long: Vec<usize> = (0..axes.len()).filter(|&axis| axes[axis].1 > 1).collect();
    let mut sets: Vec<Vec<usize>> = (1..1_u32 << long.len().min(10))
        .map(|set| long.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, &axis)| axis).collect())
        .collect();
    sets.sort_by_key(|set| set.iter().map(|&axis| u64::from(axes[axis].1)).product::<u64>());
    let holds = |set: &&Vec<usize>| groups.iter().all(|group| together(group, set, axes));
    match sets.iter().find(holds) {
        Some(set) if most > 1 => set.iter().map(|&axis| axes[axis].0.as_str()).collect::<Vec<_>>().join(" x "),
        _ if most > 1 => format!("groups of {most}"),
        _ => "unknown devices".to_owned(),
    }
}

/// Whether devices differ along the axes of a set alone.
fn together(group: &[u64], set: &[usize], axes: &[(String, u32)]) -> bool {
    let mut stride = 1_u64;
    axes.iter().enumerate().rev().all(|(at, (_, size))| {
        let size = u64::from((*size).max(1));
        let place = |device: &u64| device / stride % size;
        let same = set.contains(&at) || group.iter().all(|device| place(device) == place(&group[0]));
        stride *= size;
        same
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_goes_along_the_fewest_axes_that_hold_its_groups() {
        let axes = [("slice".to_owned(), 2), ("data".to_owned(), 2), ("model".to_owned(), 2)];
        let one = |groups: &[&[u64]]| named(&groups.iter().map(|group| group.to_vec()).collect::<Vec<_>>(), &axes);
        assert_eq!(one(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]), "model");
        assert_eq!(one(&[&[0, 2], &[1, 3], &[4, 6], &[5, 7]]), "data");
        assert_eq!(one(&[&[0, 4], &[1, 5]]), "slice");
        assert_eq!(one(&[&[0, 1, 2, 3], &[4, 5, 6, 7]]), "data x model");
        // Pairs of a ring of two each, and a group across all.
        assert_eq!(one(&[&[0, 1], &[1, 0]]), "model");
        assert_eq!(one(&[&[0, 7]]), "slice x data x model");
        assert_eq!(named(&[vec![0, 1, 2]], &[]), "groups of 3");
        assert_eq!(named(&[], &axes), "unknown devices");
    }

    #[test]
    fn what_goes_between_slices_is_told_from_what_stays() {
        let axes = [("slice".to_owned(), 2), ("data".to_owned(), 2)];
        let one = |groups: Vec<Vec<u64>>| Collective {
            kind: "all-reduce".to_owned(),
            bytes: 8,
            groups,
            asynchronous: false,
            written: 1,
            count: 3,
        };
        let all = along(&[one(vec![vec![0, 1], vec![2, 3]]), one(vec![vec![0, 2], vec![1, 3]])], &axes, 2);
        let found: Vec<(&str, bool, u64)> =
            all.iter().map(|((axes, between, _), sum)| (axes.as_str(), *between, sum.bytes)).collect();
        assert_eq!(found, [("data", false, 24), ("slice", true, 24)]);
    }
}
