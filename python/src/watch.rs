//! Work on other threads, while the caller's own looks at signals and tells progress: Python wants both there.

use std::iter;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use rayon::ThreadPool;

use windtunnel::explore::plan::{Progress, Told};

/// How long the caller's thread waits before it looks at signals.
const PATIENCE: Duration = Duration::from_millis(100);

/// The payload that unwinds a search whose caller has stopped waiting.
struct Stopped;

/// Passes on what is sent until all senders are gone, or until `tick` fails. While nothing is sent, `tick` is called with nothing.
pub fn listen<T>(heard: &Receiver<T>, mut tick: impl FnMut(Vec<T>) -> PyResult<()>) -> PyResult<()> {
    loop {
        let news = match heard.recv_timeout(PATIENCE) {
            Ok(first) => iter::once(first).chain(heard.try_iter()).collect(),
            Err(RecvTimeoutError::Timeout) => vec![],
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        tick(news)?;
    }
}

/// Searches for plans in a pool. `tick` hears on this thread how far the search has come; an error of it ends the search.
///
/// A search cannot be asked to stop, but it tells its progress after every plan. To end it, that call unwinds, and what it has found is
/// dropped.
pub fn search<T: Send>(
    pool: &ThreadPool,
    work: impl FnOnce(&Told<'_>) -> T + Send,
    tick: impl FnMut(Vec<Progress>) -> PyResult<()>,
) -> PyResult<T> {
    let enough = AtomicBool::new(false);
    let (tell, heard) = mpsc::channel();
    thread::scope(|scope| {
        let enough = &enough;
        let thread = scope.spawn(move || {
            let told = |progress: Progress| {
                if enough.load(Ordering::Relaxed) {
                    resume_unwind(Box::new(Stopped));
                }
                // Nobody listens after an error, and then nothing is told.
                let _ = tell.send(progress);
            };
            pool.install(|| work(&told))
        });
        let listened = listen(&heard, tick);
        enough.store(listened.is_err(), Ordering::Relaxed);
        let done = thread.join();
        listened?;
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
