//! Progress on standard error: bars and notes, of which a command that was asked to be quiet shows none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

use super::terminal::complain;

/// Whether the user asked for no more than results and errors.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From here on no progress and no notes are shown.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether that was asked for.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Tells the user something on standard error that is no error.
pub fn note(text: &str) {
    if !is_quiet() {
        complain(text);
    }
}

/// A bar of so many steps, or one whose length comes later, in a style of indicatif's. It is hidden where standard error is no
/// terminal.
pub fn bar(length: Option<u64>, style: &str) -> ProgressBar {
    let target = if is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(length, target).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// What turns while something is done whose length nobody knows, with the time it has taken.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = bar(None, "{spinner} {msg}, {elapsed}").with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
