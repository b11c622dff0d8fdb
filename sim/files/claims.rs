//! What this process writes: no two outputs share a file, no output is an input, and an interrupt leaves every file whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::terminal::complain;

/// A file that is being written.
#[derive(Debug)]
struct Open {
    /// Where its new content is until it is whole; none for a file that grows.
    part: Option<PathBuf>,
    /// Where it goes.
    place: PathBuf,
    /// The name that the user gave to that.
    path: PathBuf,
}

static HANDLER: Once = Once::new();

/// Files that are being written.
static OPEN: Mutex<Vec<Open>> = Mutex::new(vec![]);

fn open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file is about to be written by this process.
pub(super) fn is_open(path: &Path) -> bool {
    !open().is_empty() && fs::canonicalize(path).is_ok_and(|place| open().iter().any(|open| open.place == place))
}

/// While it lives, no interrupt ends the program.
pub(super) struct Held(MutexGuard<'static, Vec<Open>>);

/// Keeps interrupts waiting, so that what is written is written whole.
pub(super) fn hold() -> Held {
    Held(open())
}

/// The list of files, of which none is this one. From here on interrupts are listened to.
pub(super) fn free(place: &Path) -> io::Result<Held> {
    HANDLER.call_once(leave_files_whole_when_interrupted);
    let open = open();
    match open.iter().find(|other| other.place == place) {
        Some(other) => {
            let why = format!("this command writes it already, as {}: name another file", other.path.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
        }
        None => Ok(Held(open)),
    }
}

impl Held {
    /// Takes a place. An interrupt removes the part, if there is one.
    pub(super) fn claim(&mut self, place: PathBuf, path: &Path, part: Option<&Path>) -> Claim {
        self.0.push(Open { part: part.map(Path::to_owned), place: place.clone(), path: path.to_owned() });
        Claim { place }
    }
}

/// The right to write a place, as long as it lives.
#[derive(Debug)]
pub(super) struct Claim {
    place: PathBuf,
}

impl Claim {
    /// The place, behind links.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        open().retain(|open| open.place != self.place);
    }
}

/// Whether the first interrupt asks a command to end with what it has, and whether it came.
static GENTLE: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// From here on the first interrupt (Ctrl-C) only asks to end early; the second ends the program.
pub fn end_early_when_interrupted() {
    HANDLER.call_once(leave_files_whole_when_interrupted);
    GENTLE.store(true, Ordering::Relaxed);
}

/// Whether an interrupt has asked to end early.
pub fn is_asked_to_end() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Ends the program as an interrupt does, after it has removed what was half-written.
#[cfg(unix)]
fn leave_files_whole_when_interrupted() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]) else { return };
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGINT && GENTLE.load(Ordering::Relaxed) && !ASKED.swap(true, Ordering::Relaxed) {
                continue;
            }
            // Held to the end: nothing is put in its place any more.
            let open = open();
            for file in open.iter() {
                let path = file.path.display();
                match &file.part {
                    Some(part) => {
                        let _ = fs::remove_file(part);
                        complain(&format!("interrupted: {path} is as it was"));
                    }
                    None => complain(&format!("interrupted: {path} keeps its lines, and the same command goes on")),
                }
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}

#[cfg(not(unix))]
fn leave_files_whole_when_interrupted() {}
