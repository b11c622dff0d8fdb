//! Rows that finish in any order, handed out in the order of the grid: one that is early waits for those before it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::row::Row;

/// What takes rows, in order. It breaks off where no more are wanted.
pub type Out<'o> = dyn FnMut(&Row) -> ControlFlow<()> + Send + 'o;

/// Rows on their way out.
pub(super) struct InOrder<'s, 'o> {
    state: Mutex<State<'s, 'o>>,
    stopped: AtomicBool,
}

struct State<'s, 'o> {
    /// The row that comes next.
    next: u64,
    /// Rows that finished before it.
    early: BTreeMap<u64, Row>,
    out: &'s mut Out<'o>,
}

impl<'s, 'o> InOrder<'s, 'o> {
    /// Rows from this one on.
    pub(super) fn new(next: u64, out: &'s mut Out<'o>) -> InOrder<'s, 'o> {
        let state = Mutex::new(State { next, early: BTreeMap::new(), out });
        InOrder { state, stopped: AtomicBool::new(false) }
    }

    /// Whether no more rows are wanted.
    pub(super) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Takes a row in, and hands out all whose turn it is.
    pub(super) fn hand(&self, row: Row) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.early.insert(row.index, row);
        while !self.stopped()
            && let Some(row) = state.early.remove(&state.next)
        {
            state.next += 1;
            if (state.out)(&row).is_break() {
                self.stopped.store(true, Ordering::Relaxed);
            }
        }
    }
}
