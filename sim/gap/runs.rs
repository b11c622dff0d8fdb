//! What two lists have in common, in order: runs of equal items, in time that grows with the lists and not with their product.
//!
//! The longest common subsequence (E. Myers, "An O(ND) difference algorithm and its variations", 1986) takes as long as the two lists
//! differ, times their length. Of long lists it is asked only between anchors: items that occur as often in one as in the other, the
//! first with the first, the second with the second, as far as these pairs keep their order. Where a stretch between two anchors is long
//! too, it is asked of a window at a time.

use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Equal items that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it begins in the first list.
    pub old: usize,
    /// Where it begins in the second.
    pub new: usize,
    /// How many items it has.
    pub length: usize,
}

/// Lists whose lengths have at most this product are compared at once: a third of a second where nothing is alike.
const AT_ONCE: usize = 1 << 27;
/// The same of a stretch between anchors, of which there may be many.
const BETWEEN: usize = 1 << 16;
/// Items of each list in a window.
const WINDOW: usize = 256;

/// The runs, in order. Items are numbers from 0 without large gaps.
pub(super) fn runs(a: &[u32], b: &[u32]) -> Vec<Run> {
    let mut found = Found::default();
    if a.len().saturating_mul(b.len()) <= AT_ONCE {
        found.compare(a, b, (0, 0));
        return found.0;
    }
    let (mut from, mut to) = (0, 0);
    for (old, new) in anchors(a, b) {
        found.between(&a[from..old], &b[to..new], (from, to));
        found.add(Run { old, new, length: 1 });
        (from, to) = (old + 1, new + 1);
    }
    found.between(&a[from..], &b[to..], (from, to));
    found.0
}

#[derive(Default)]
struct Found(Vec<Run>);

impl Found {
    /// Adds a run, to the last one if it follows on it.
    fn add(&mut self, run: Run) {
        match self.0.last_mut() {
            Some(last) if (last.old + last.length, last.new + last.length) == (run.old, run.new) => {
                last.length += run.length;
            }
            _ => self.0.push(run),
        }
    }

    /// Lists as they are, which begin at these places.
    fn compare(&mut self, a: &[u32], b: &[u32], at: (usize, usize)) {
        for op in capture_diff_slices(Algorithm::Patience, a, b) {
            if let DiffOp::Equal { old_index, new_index, len } = op {
                self.add(Run { old: at.0 + old_index, new: at.1 + new_index, length: len });
            }
        }
    }

    /// A stretch between two anchors.
    fn between(&mut self, mut a: &[u32], mut b: &[u32], (mut old, mut new): (usize, usize)) {
        while a.len().saturating_mul(b.len()) > BETWEEN {
            let (near, far) = (&a[..a.len().min(WINDOW)], &b[..b.len().min(WINDOW)]);
            let before = self.0.len();
            self.compare(near, far, (old, new));
            // On behind the last pair; by half a window at least, so that it comes to an end.
            let end = self.0[before..]
                .last()
                .map_or((near.len(), far.len()), |run| (run.old + run.length - old, run.new + run.length - new));
            let (left, right) = match end.0.max(end.1) < WINDOW / 2 {
                true => (near.len() / 2, far.len() / 2),
                false => end,
            };
            (a, b) = (&a[left..], &b[right..]);
            (old, new) = (old + left, new + right);
        }
        if !a.is_empty() && !b.is_empty() {
            self.compare(a, b, (old, new));
        }
    }
}

/// Pairs of items that occur as often in one list as in the other, of one rank among their equals: the longest list of these in which both
/// places grow.
fn anchors(a: &[u32], b: &[u32]) -> Vec<(usize, usize)> {
    let items = a.iter().chain(b).max().map_or(0, |&item| item as usize + 1);
    let (left, right) = (places(a, items), places(b, items));
    let alike = left.into_iter().zip(right).filter(|(left, right)| left.len() == right.len());
    let mut pairs: Vec<(usize, usize)> = alike.flat_map(|(left, right)| left.into_iter().zip(right)).collect();
    pairs.sort_unstable();
    growing(&pairs)
}

/// Where each item stands in a list, in order.
fn places(list: &[u32], items: usize) -> Vec<Vec<usize>> {
    let mut places = vec![vec![]; items];
    for (at, &item) in list.iter().enumerate() {
        places[item as usize].push(at);
    }
    places
}

/// The longest subsequence of pairs, which are in the order of their first numbers, whose second numbers grow, too (C. Schensted, 1961).
fn growing(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // The pair that ends a subsequence of each length with the smallest number, and the one before each pair.
    let mut ends: Vec<usize> = vec![];
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (at, &(_, new)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < new);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut list: Vec<(usize, usize)> =
        std::iter::successors(ends.last().copied(), |&at| before[at]).map(|at| pairs[at]).collect();
    list.reverse();
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paired(runs: &[Run]) -> usize {
        runs.iter().map(|run| run.length).sum()
    }

    fn hold(a: &[u32], b: &[u32], runs: &[Run]) {
        let mut end = (0, 0);
        for run in runs {
            assert!(run.length > 0 && run.old >= end.0 && run.new >= end.1, "{run:?} after {end:?}");
            end = (run.old + run.length, run.new + run.length);
            assert_eq!(a[run.old..end.0], b[run.new..end.1]);
        }
    }

    /// A step of layers that are all alike: eleven kernels each, of which one is the layer's own.
    fn layers(count: u32, own: u32) -> Vec<u32> {
        (0..count).flat_map(|layer| (0..10).chain([if own == 0 { 10 } else { 1_000 + layer % own }])).collect()
    }

    #[test]
    fn long_steps_that_differ_in_a_kernel_now_and_then_line_up_but_for_these() {
        let all = layers(20_000, 0);
        // Of each hundredth layer the eighth kernel is not there, and each seventieth has another one more.
        let some: Vec<u32> = all
            .chunks(11)
            .enumerate()
            .flat_map(|(layer, kernels)| {
                let gone = if layer % 100 == 0 { 7 } else { 11 };
                let more = if layer % 70 == 0 { Some(99) } else { None };
                kernels
                    .iter()
                    .enumerate()
                    .filter(move |(at, _)| *at != gone)
                    .map(|(_, &kernel)| kernel)
                    .chain(more)
                    .collect::<Vec<u32>>()
            })
            .collect();
        let found = runs(&all, &some);
        hold(&all, &some, &found);
        assert_eq!(paired(&found), some.len() - 20_000_usize.div_ceil(70));
    }

    #[test]
    fn a_long_stretch_on_one_side_costs_what_follows_nothing() {
        let all = layers(20_000, 0);
        let mut more = all.clone();
        // An optimizer's kernels in the midst: none is of the layers.
        more.splice(110_000..110_000, 500..9_000);
        let found = runs(&all, &more);
        hold(&all, &more, &found);
        assert_eq!(paired(&found), all.len());
    }

    #[test]
    fn a_million_kernels_of_another_job_are_through_at_once() {
        let (a, b) = (layers(91_000, 0), layers(80_000, 17));
        // Nothing in common; and the same kernels in the opposite order, of which few can be lined up.
        let other: Vec<u32> = a.iter().map(|kernel| kernel + 5_000).collect();
        assert_eq!(runs(&a, &other), []);
        let backwards: Vec<u32> = b.iter().rev().copied().collect();
        let found = runs(&a, &backwards);
        hold(&a, &backwards, &found);
        assert!(paired(&found) > 80_000);
    }

    proptest! {
        /// The long way is taken of short lists, too: what it finds is in order and equal, and never more than there is.
        #[test]
        fn stretches_and_anchors_are_in_order(
            a in prop::collection::vec(0..6_u32, 0..900),
            b in prop::collection::vec(0..6_u32, 0..900),
        ) {
            let mut found = Found::default();
            found.between(&a, &b, (0, 0));
            hold(&a, &b, &found.0);
            for pair in anchors(&a, &b).windows(2) {
                prop_assert!(pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
            }
            prop_assert!(anchors(&a, &b).iter().all(|&(old, new)| a[old] == b[new]));
        }
    }
}
