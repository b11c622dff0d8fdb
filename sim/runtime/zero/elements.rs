//! Elements of parameters, of the rank's part of each, and of groups of parts that are stepped together.

use super::gather::gathered_elements;
use crate::plan::zero::Zero;
use crate::runtime::train;
use crate::runtime::train::plan::{Part, graphs, layout};

/// Elements of each parameter, in order.
pub(super) fn of(whole: &train::TorchPlan) -> Vec<u64> {
    layout(whole, &graphs(whole), &[Part::whole(whole)]).params.iter().map(|param| param.elements()).collect()
}

/// Elements of the rank's part of each parameter.
pub(super) fn parts(zero: &Zero, elements: &[u64]) -> Vec<u64> {
    elements.iter().map(|&elements| gathered_elements(&[elements], zero.ranks) / u64::from(zero.ranks)).collect()
}

/// Elements of groups of parts: each has as many as `sub_group_size`, or the first more.
pub(super) fn groups(parts: &[u64], sub_group: u64) -> Vec<u64> {
    let mut groups = vec![];
    let mut open = 0;
    for part in parts {
        open += part;
        if open >= sub_group {
            groups.push(std::mem::take(&mut open));
        }
    }
    groups.extend((open > 0).then_some(open));
    groups
}

/// The group of each part.
pub(super) fn of_each(parts: &[u64], sub_group: u64) -> Vec<usize> {
    let (mut group, mut open) = (0, 0);
    let next = |part: &u64| {
        let own = group;
        open += part;
        if open >= sub_group {
            (group, open) = (group + 1, 0);
        }
        own
    };
    parts.iter().map(next).collect()
}
