//! Nodes that wait, nodes that are away, and what a job does without.

use std::collections::VecDeque;

use super::job::{Elastic, Job};

/// The nodes of a job that are not in it.
pub(super) struct Nodes {
    /// Those that wait; none: there always is one.
    waiting: Option<u64>,
    /// When those that are away come back \[s\], the earliest first: a repair always takes as long.
    away: VecDeque<f64>,
    /// How many the job goes on without.
    missing: u64,
    elastic: Option<Elastic>,
    repair: f64,
    replacement: f64,
}

impl Nodes {
    pub(super) fn new(job: &Job) -> Nodes {
        let &Job { spares: waiting, elastic, repair, replacement, .. } = job;
        Nodes { waiting, away: VecDeque::new(), missing: 0, elastic, repair, replacement }
    }

    /// Takes in what is repaired: into the job where it goes without, else to those that wait.
    pub(super) fn come_back(&mut self, now: f64) {
        while self.away.front().is_some_and(|&back| back <= now) {
            self.away.pop_front();
            match (self.missing, &mut self.waiting) {
                (0, Some(waiting)) => *waiting += 1,
                (0, None) => {}
                _ => self.missing -= 1,
            }
        }
    }

    /// When a node comes back that the job goes without \[s\].
    pub(super) fn next_back(&self) -> Option<f64> {
        self.away.front().copied().filter(|_| self.missing > 0)
    }

    /// The share of full speed with the replicas that are left.
    pub(super) fn speed(&self) -> f64 {
        self.elastic.map_or(1.0, |elastic| {
            let left = elastic.copies.saturating_sub(self.missing * elastic.lost);
            left.max(1) as f64 / elastic.copies as f64
        })
    }

    /// A node failed at `struck`, which is known `now`: how long the job waits for another \[s\].
    pub(super) fn lose(&mut self, struck: f64, now: f64) -> f64 {
        if self.waiting.is_none() {
            return self.replacement;
        }
        self.away.push_back(struck + self.repair);
        self.come_back(now);
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| **waiting > 0) {
            *waiting -= 1;
            return self.replacement;
        }
        let can = |elastic: Elastic| elastic.copies > (self.missing + 1) * elastic.lost;
        if self.elastic.is_some_and(can) {
            self.missing += 1;
            return 0.0;
        }
        // The node that comes back first takes the place of the one that failed.
        let back = self.away.pop_front().unwrap_or(now);
        (back - now).max(0.0) + self.replacement
    }
}
