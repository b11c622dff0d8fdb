//! Training between two interruptions: the same cycle of steps and a checkpoint again and again, so that any moment of it is a division.
//!
//! ```text
//! │ train │ save │ train │ save │ train …       checkpoint k counts k cycles after the start, plus what is written in the background
//! └──── cycle ───┘
//! ```

use super::job::Save;

/// Steps and a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycle {
    /// Training of it, at full speed \[s\].
    work: f64,
    /// What that takes \[s\].
    train: f64,
    /// What the checkpoint adds \[s\].
    blocked: f64,
    /// From the end of a cycle until its checkpoint counts \[s\].
    lag: f64,
    /// The checkpoint at the end of the training \[s\].
    last: f64,
}

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reached {
    /// Trained, at full speed \[s\].
    pub(super) trained: f64,
    /// Of it, what a restart goes on from \[s\].
    pub(super) saved: f64,
}

/// Sums of equal parts are as long as their product up to rounding.
const ROUNDING: f64 = 1e-9;

impl Cycle {
    /// The cycle of an interval, at a share of full speed. A checkpoint waits until the one before it is written.
    pub(super) fn new(interval: f64, speed: f64, save: Save) -> Cycle {
        let train = interval / speed;
        let waits = (save.written_after - train).max(0.0);
        Cycle { work: interval, train, blocked: save.blocked + waits, lag: save.written_after, last: save.whole() }
    }

    /// Its length \[s\].
    pub(super) fn length(&self) -> f64 {
        self.train + self.blocked
    }

    /// How far training is after so long, with so much of it left at the start \[s\].
    pub(super) fn at(&self, time: f64, left: f64) -> Reached {
        let length = self.length();
        let cycles = (time / length).floor();
        let begun = (time - cycles * length).min(self.train) / self.train * self.work;
        let saved = if time < self.lag { 0.0 } else { ((time - self.lag) / length).floor() * self.work };
        let trained = (cycles * self.work + begun).min(left);
        Reached { trained, saved: saved.min(trained) }
    }

    /// Until so much is trained and saved \[s\]: the last checkpoint is written while nothing trains.
    pub(super) fn until(&self, left: f64) -> f64 {
        let before = ((left / self.work) * (1.0 - ROUNDING)).ceil() - 1.0;
        left / self.work * self.train + before.max(0.0) * self.blocked + self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_counts_once_it_is_written() {
        let blocking = Cycle::new(10.0, 1.0, Save { blocked: 2.0, written_after: 0.0 });
        let reached = |cycle: &Cycle, time: f64| {
            let Reached { trained, saved } = cycle.at(time, 100.0);
            (trained, saved)
        };
        assert_eq!(reached(&blocking, 9.0), (9.0, 0.0));
        assert_eq!(reached(&blocking, 11.0), (10.0, 0.0));
        assert_eq!(reached(&blocking, 12.0), (10.0, 10.0));
        assert_eq!(reached(&blocking, 27.0), (23.0, 20.0));
        // In the background: training goes on while six seconds pass.
        let behind = Cycle::new(10.0, 1.0, Save { blocked: 1.0, written_after: 6.0 });
        assert_eq!(reached(&behind, 16.0), (15.0, 0.0));
        assert_eq!(reached(&behind, 17.0), (16.0, 10.0));
        assert_eq!(reached(&behind, 28.0), (26.0, 20.0));
        // One that takes longer than the interval holds up the next.
        let slow = Cycle::new(10.0, 1.0, Save { blocked: 1.0, written_after: 14.0 });
        assert!((slow.length() - 15.0).abs() < 1e-12);
    }

    #[test]
    fn the_end_is_saved_and_nothing_is_saved_twice() {
        let cycle = Cycle::new(10.0, 1.0, Save { blocked: 2.0, written_after: 0.0 });
        assert!((cycle.until(10.0) - 12.0).abs() < 1e-12);
        assert!((cycle.until(30.0) - 36.0).abs() < 1e-12);
        assert!((cycle.until(31.0) - 39.0).abs() < 1e-12);
        // Half as fast, training takes twice as long.
        let half = Cycle::new(10.0, 0.5, Save { blocked: 2.0, written_after: 0.0 });
        assert!((half.until(20.0) - 44.0).abs() < 1e-12);
        assert_eq!(half.at(10.0, 20.0).trained, 5.0);
    }
}
