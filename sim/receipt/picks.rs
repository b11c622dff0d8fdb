//! How well predictions choose between layouts of one run.
//!
//! Receipts are a *group* if they answer one question: the same publisher, software and its version, machine, model, types, sequence and
//! tokens of a step ([`question`](super::question::question)). Everything else that their scenarios say is a *layout*: axes of the mesh, micro-batch, schedule, stages,
//! recompute, sharding, compilation. It is what a plan may choose. Rows of one layout are averaged, and a group has two layouts at least.
//!
//! Of a group we ask whether the layout with the shortest predicted step is within [`MARGIN`] of the one that was measured to be the
//! fastest. Of each pair of layouts whose measured steps are further apart than that, we ask whether the predictions have the same order.
//! A layout that is predicted not to fit is never picked; where none fits, nothing is. Pairs are ordered by their steps, fit or not. Of
//! layouts that are predicted alike the slowest counts as picked, and their pair as not ordered.

use std::collections::BTreeMap;

use super::case::Judged;

/// How much longer than the best a measured step may be and still be among the best: about what two runs of one configuration differ by.
pub const MARGIN: f64 = 0.03;

/// Receipts of one configuration.
#[derive(Clone, Debug)]
pub struct Layout<'o> {
    /// The receipts.
    pub rows: Vec<&'o Judged>,
    /// The mean of the measured steps \[s\].
    pub measured: f64,
    /// The mean of the predicted steps \[s\].
    pub predicted: f64,
    /// Whether it is predicted to fit.
    pub fits: bool,
}

/// Layouts that answer one question, the fastest as measured first.
#[derive(Clone, Debug)]
pub struct Group<'o>(pub Vec<Layout<'o>>);

/// How well groups are predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Picks {
    /// Groups.
    pub groups: usize,
    /// Groups whose pick is among the best.
    pub right: usize,
    /// In how many groups a random pick is among the best, on average.
    pub chance: f64,
    /// Pairs of layouts that are further apart than the margin.
    pub pairs: usize,
    /// Pairs that are predicted in the order in which they were measured.
    pub ordered: usize,
    /// Layouts that ran and are predicted not to fit.
    pub unfit: usize,
}

/// The groups among receipts, in the order of what they have in common.
pub fn groups<'o>(rows: &[&'o Judged]) -> Vec<Group<'o>> {
    let mut found: BTreeMap<&str, BTreeMap<&str, Vec<&Judged>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.step.is_some()) {
        found.entry(&row.question).or_default().entry(&row.layout).or_default().push(row);
    }
    let several = found.into_values().filter(|layouts| layouts.len() > 1);
    several
        .map(|layouts| {
            let mut layouts: Vec<Layout> = layouts.into_values().map(layout).collect();
            layouts.sort_by(|a, b| a.measured.total_cmp(&b.measured));
            Group(layouts)
        })
        .collect()
}

fn layout(rows: Vec<&Judged>) -> Layout<'_> {
    let steps = || rows.iter().filter_map(|row| row.step);
    let count = steps().count().max(1) as f64;
    let measured = steps().map(|step| step.measured).sum::<f64>() / count;
    let predicted = steps().map(|step| step.predicted).sum::<f64>() / count;
    let fits = rows.iter().all(|row| !row.memory_verdict.0);
    Layout { rows, measured, predicted, fits }
}

impl<'o> Group<'o> {
    /// The layout that is ranked first.
    pub fn pick(&self) -> Option<&Layout<'o>> {
        let fitting = || self.0.iter().filter(|layout| layout.fits);
        let first = fitting().map(|layout| layout.predicted).min_by(f64::total_cmp)?;
        fitting().filter(|layout| layout.predicted <= first).max_by(|a, b| a.measured.total_cmp(&b.measured))
    }

    /// How much longer than the fastest a layout takes, as measured.
    pub fn behind(&self, layout: &Layout<'_>) -> f64 {
        self.0.first().map_or(0.0, |best| layout.measured / best.measured - 1.0)
    }

    /// Whether the pick is among the best.
    pub fn is_right(&self) -> bool {
        self.pick().is_some_and(|pick| self.behind(pick) <= MARGIN)
    }

    /// The share of layouts that are among the best.
    pub fn chance(&self) -> f64 {
        self.0.iter().filter(|layout| self.behind(layout) <= MARGIN).count() as f64 / self.0.len().max(1) as f64
    }

    /// Pairs that are further apart than the margin, and how many of them are in order.
    pub fn pairs(&self) -> (usize, usize) {
        let apart = self.0.iter().enumerate().flat_map(|(at, slow)| {
            self.0[..at]
                .iter()
                .filter(|fast| slow.measured / fast.measured > 1.0 + MARGIN)
                .map(move |fast| (fast, slow))
        });
        apart.fold((0, 0), |(all, right), (fast, slow)| (all + 1, right + usize::from(fast.predicted < slow.predicted)))
    }
}

impl Picks {
    /// Counts over groups; none where there are none.
    pub fn of(groups: &[Group<'_>]) -> Option<Picks> {
        let mut all = Picks { groups: groups.len(), ..Picks::default() };
        for group in groups {
            let (pairs, ordered) = group.pairs();
            all.right += usize::from(group.is_right());
            all.chance += group.chance();
            all.pairs += pairs;
            all.ordered += ordered;
            all.unfit += group.0.iter().filter(|layout| !layout.fits).count();
        }
        (!groups.is_empty()).then_some(all)
    }

    /// The share of groups whose pick is among the best.
    pub fn best(&self) -> f64 {
        self.right as f64 / self.groups as f64
    }

    /// The share of pairs that are in order; none without pairs.
    pub fn order(&self) -> Option<f64> {
        (self.pairs > 0).then(|| self.ordered as f64 / self.pairs as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of layouts: measured, predicted, whether it fits.
    fn group(layouts: &[(f64, f64, bool)]) -> Group<'static> {
        let layout = |&(measured, predicted, fits)| Layout { rows: vec![], measured, predicted, fits };
        Group(layouts.iter().map(layout).collect())
    }

    #[test]
    fn the_pick_is_right_if_it_is_within_three_per_cent_of_the_best() {
        let near = group(&[(1.0, 1.1, true), (1.02, 1.0, true), (2.0, 2.0, true)]);
        assert!(near.is_right() && near.pairs() == (2, 2));
        let far = group(&[(1.0, 1.1, true), (1.04, 1.0, true)]);
        assert!(!far.is_right() && far.pairs() == (1, 0));
        let both = Picks::of(&[near, far]).expect("two groups");
        assert_eq!((both.groups, both.right, both.pairs, both.ordered), (2, 1, 3, 2));
        assert!((both.chance - (2.0 / 3.0 + 0.5)).abs() < 1e-12);
    }

    #[test]
    fn what_is_predicted_alike_counts_against_us() {
        let tied = group(&[(1.0, 1.0, true), (1.5, 1.0, true)]);
        assert!(!tied.is_right() && tied.pairs() == (1, 0));
    }

    #[test]
    fn a_layout_that_is_predicted_not_to_fit_is_never_picked() {
        let best_refused = group(&[(1.0, 1.0, false), (1.5, 1.5, true)]);
        assert!(!best_refused.is_right() && best_refused.pairs() == (1, 1));
        assert!(!group(&[(1.0, 1.0, false), (1.5, 1.5, false)]).is_right());
    }
}
