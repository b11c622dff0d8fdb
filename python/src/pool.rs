//! Threads that simulate. They are made when first used, and anew in a process that was forked: threads do not survive a fork.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The stack of each thread \[B\]: as large as that of a main thread.
const STACK: usize = 8 << 20;

/// The threads of this process, as many as there are processors.
static SHARED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// The threads that all calls of this process share. To be called without the interpreter's lock.
pub fn shared() -> PyResult<Arc<ThreadPool>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match shared.take() {
        Some((of, pool)) if of == process::id() => {
            *shared = Some((of, Arc::clone(&pool)));
            Ok(pool)
        }
        other => {
            // Its threads run in the parent alone, so that nobody here could end them.
            std::mem::forget(other);
            let pool = build(ThreadPoolBuilder::new())?;
            *shared = Some((process::id(), Arc::clone(&pool)));
            Ok(pool)
        }
    }
}

/// So many threads, for one call.
pub fn of(threads: usize) -> PyResult<Arc<ThreadPool>> {
    if threads == 0 {
        return Err(PyValueError::new_err("threads is 0: write 1 or more, or None for all processors"));
    }
    build(ThreadPoolBuilder::new().num_threads(threads))
}

fn build(builder: ThreadPoolBuilder) -> PyResult<Arc<ThreadPool>> {
    let built = builder.stack_size(STACK).build();
    built.map(Arc::new).map_err(|why| PyRuntimeError::new_err(format!("cannot start threads: {why}")))
}
