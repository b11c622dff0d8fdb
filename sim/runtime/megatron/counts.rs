//! How far a rank has come in its list of actions, and what of its messages is waited for at once
//! (`core/pipeline_parallel/schedules.py`, 0.16.1).

/// Counts of a rank's forwards and backwards: which of its messages are waited for at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) forwards: usize,
    pub(super) backwards: usize,
    pub(super) warmup: usize,
    pub(super) total: usize,
    pub(super) last_was_forward: bool,
    /// Portions of messages since the last computation.
    pub(super) portions: usize,
}

impl Counts {
    /// The forwards of the steady state before the last one begun.
    pub(super) fn steady(&self) -> Option<usize> {
        self.forwards.checked_sub(self.warmup + 1).filter(|_| self.backwards > 0)
    }

    /// Whether the messages issued now are waited for only where they are used: those of the steady state.
    pub(super) fn beside(&self) -> bool {
        let steady = self.total - self.warmup;
        if self.last_was_forward {
            // After the last forward of the warm-up the first gradient is asked for, in a call of its own.
            self.forwards > self.warmup || (self.forwards == self.warmup && self.portions == 1 && steady > 0)
        } else {
            self.backwards > 0 && self.backwards <= steady
        }
    }
}
