//! How many instructions the programs of a job may have together.
//!
//! Layers, micro-batches, experts, parts of a loss, steps of a ring and buckets all multiply, so nobody knows how long a
//! program is before it is written. [`super::Builder`] therefore counts: it takes every instruction from a budget that all
//! programs of the job share, and where the budget is spent, writing stops, however deep in an operator's rule that is.
//! Rules cannot fail otherwise, so the stack is unwound up to [`Budget::write`], which is the only place that sees it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is taken from a budget at a time, so that threads seldom meet there.
const TAKEN: u64 = 1 << 10;
/// What threads may hold of a budget without having written it: so many may write at once.
const HELD: u64 = TAKEN << 10;

/// Instructions that programs may still have, shared by all who write them.
#[derive(Clone, Debug)]
pub struct Budget(Arc<AtomicU64>);

/// The programs of a job have more instructions than their budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Budget {
    /// No bound: for programs whose length is known to be small.
    pub fn unlimited() -> Budget {
        Budget(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// What `write` makes, if that has no more than `most` instructions. The answer is the same however threads take turns.
    pub fn write<T>(most: u64, write: impl FnOnce(&Budget) -> T) -> Result<T, TooLong> {
        let budget = Budget(Arc::new(AtomicU64::new(most + HELD)));
        let written = catch_unwind(AssertUnwindSafe(|| write(&budget)));
        let written = written.map_err(|payload| match payload.downcast::<TooLong>() {
            Ok(too_long) => *too_long,
            Err(other) => resume_unwind(other),
        })?;
        if budget.0.load(Ordering::Relaxed) < HELD { Err(TooLong) } else { Ok(written) }
    }

    /// Stops writing unless there is room for so many instructions.
    pub fn check(&self, instructions: u64) {
        if instructions > self.0.load(Ordering::Relaxed) {
            self.exceed();
        }
    }

    /// Stops writing: what is to be written is known to be too long.
    pub fn exceed(&self) -> ! {
        stop()
    }

    fn take(&self) -> u64 {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(TAKEN));
        if left.is_err() {
            stop();
        }
        TAKEN
    }
}

/// No panic: nothing is printed, and nothing went wrong.
fn stop() -> ! {
    resume_unwind(Box::new(TooLong))
}

/// What one writer holds of a budget. What is left over goes back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    left: u64,
}

impl Share {
    pub(super) fn of(budget: &Budget) -> Share {
        Share { budget: budget.clone(), left: 0 }
    }

    /// Counts some instructions.
    #[inline]
    pub(super) fn count(&mut self, instructions: u64) {
        while self.left < instructions {
            self.left += self.budget.take();
        }
        self.left -= instructions;
    }

    /// How many instructions there are still room for, those of others included.
    pub(super) fn room(&self) -> u64 {
        self.left + self.budget.0.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::builder::Section;
    use crate::program::{Builder, Dispatch};
    use rayon::prelude::*;

    fn programs(each: u64, count: u64, budget: &Budget) -> usize {
        let program = |_| {
            let mut builder = Builder::within(budget, 1, &["default"]);
            builder.section(Section::Step);
            (0..each).for_each(|_| builder.host(Dispatch::StepOverhead, 1));
            builder.finish().step.len()
        };
        (0..count).into_par_iter().map(program).sum()
    }

    #[test]
    fn programs_as_long_as_their_budget_are_written_and_one_instruction_more_is_not() {
        for (each, count) in [(1, 1), (5_000, 7), (1_024, 300), (1, 5_000)] {
            let all = each * count;
            assert_eq!(Budget::write(all, |budget| programs(each, count, budget)), Ok(all as usize));
            assert_eq!(Budget::write(all - 1, |budget| programs(each, count, budget)), Err(TooLong));
        }
    }

    #[test]
    fn writing_stops_soon_after_the_budget_is_spent() {
        let written = |budget: &Budget| programs(u64::MAX, 2, budget);
        assert_eq!(Budget::write(1_000_000, written), Err(TooLong));
    }

    #[test]
    fn a_panic_of_another_kind_goes_on() {
        let caught = catch_unwind(|| Budget::write(1, |_| resume_unwind(Box::new("another"))).map(|(): ()| ()));
        assert!(caught.is_err_and(|payload| payload.downcast_ref::<&str>() == Some(&"another")));
    }
}
