//! The file of points while it grows: only ever appended to, one line for each point, so that whatever ends the program
//! costs at most the point in the making.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use windtunnel::files::{self, Output};

use crate::points::{self, Compiled, Line, Machine, Point, Regime, Skipped, What};

/// Why a file of points cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not one, it is another machine's, or the file system says no.
    #[error("{0}")]
    Input(String),
    /// Somebody else writes to it.
    #[error("{0}")]
    Busy(String),
}

/// A file of points, open for more.
pub struct Journal {
    file: File,
    path: PathBuf,
    known: BTreeSet<(What, Regime)>,
    skipped: BTreeSet<Skipped>,
    compiled: BTreeSet<(What, String)>,
}

impl Journal {
    /// Opens a file of points for a machine, or starts one. What an interrupt left half-written is cut off; a file of
    /// another machine, and one that another program writes to, are refused.
    pub fn open(path: &Path, machine: &Machine) -> Result<Self, Refused> {
        let name = path.display();
        Self::try_out(path)?;
        let io = |why: std::io::Error| Refused::Input(format!("{name}: {why}"));
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        // Some file systems have no locks; there nobody is kept out.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let remedy = "wait for it, or name another file";
            return Err(Refused::Busy(format!("{name}: another calibration writes to it: {remedy}")));
        }
        let bytes = file.seek(SeekFrom::Start(0)).and_then(|_| files::all(&mut file)).map_err(io)?;
        let old = points::parse(&name.to_string(), &bytes).map_err(|why| Refused::Input(why.to_string()))?;
        if let Some(other) = old.machines.last() {
            same_machine(&name.to_string(), other, machine)?;
        }
        if old.half.is_some() {
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            file.set_len(whole as u64).map_err(io)?;
        } else if bytes.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").map_err(io)?;
        }
        // What was measured beside others' work is measured again where nobody else works.
        let quiet = |at: usize| machine.disturbed.is_some() || old.machines[at].disturbed.is_none();
        let known = old.points.into_iter().filter(|(at, _)| quiet(*at));
        let known = known.map(|(_, point)| (point.what, point.regime)).collect();
        let skipped = old.skipped.into_iter().collect();
        let compiled = old.compiled.into_iter().map(|compiled| (compiled.what, compiled.slice)).collect();
        let mut journal = Self { file, path: path.to_owned(), known, skipped, compiled };
        if old.machines.last().map(undated) != Some(undated(machine)) {
            journal.write(&Line::Machine(machine.clone()))?;
        }
        Ok(journal)
    }

    /// Whether a file of points can be written, before a device is looked for; nothing changes.
    pub fn try_out(path: &Path) -> Result<(), Refused> {
        let refused = |why: String| Err(Refused::Input(why));
        match std::fs::metadata(path) {
            Ok(there) if there.is_file() => match OpenOptions::new().append(true).open(path) {
                Ok(_) => Ok(()),
                Err(why) => refused(format!("cannot write {}: {why}", path.display())),
            },
            // A device or a pipe may never end, and nothing that is written there can be gone on with.
            Ok(_) => refused(format!("{}: not a plain file: name a file for the points", path.display())),
            Err(_) => Output::try_new(path).or_else(|why| refused(why.to_string())),
        }
    }

    /// Whether this has been measured.
    pub fn knows(&self, what: &What, regime: Regime) -> bool {
        self.known.contains(&(what.clone(), regime))
    }

    /// Whether a compiler has been asked about this for a slice.
    pub fn compiled(&self, what: &What, slice: &str) -> bool {
        self.compiled.contains(&(what.clone(), slice.to_owned()))
    }

    /// Adds what a compiler says.
    pub fn compile(&mut self, compiled: Compiled) -> Result<(), Refused> {
        self.compiled.insert((compiled.what.clone(), compiled.slice.clone()));
        self.write(&Line::Compiled(compiled))
    }

    /// Points in the file.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Adds a point, and sees to it that it is on the disk.
    pub fn add(&mut self, point: Point) -> Result<(), Refused> {
        self.write(&Line::Point(point.clone()))?;
        self.known.insert((point.what, point.regime));
        Ok(())
    }

    /// Writes down what could not be measured; the same reason once, however often it is tried.
    pub fn skip(&mut self, what: &What, regime: Regime, why: &str) -> Result<(), Refused> {
        let skipped = Skipped { what: what.clone(), regime, why: why.to_owned() };
        if self.skipped.insert(skipped.clone()) { self.write(&Line::Skipped(skipped)) } else { Ok(()) }
    }

    fn write(&mut self, line: &Line) -> Result<(), Refused> {
        let io = |why: std::io::Error| Refused::Input(format!("{}: {why}", self.path.display()));
        let whole = self.file.metadata().map_err(io)?.len();
        let written = self.file.write_all(line.text().as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|why| {
            // A disk that is full takes the beginning of a line; should cutting fail too, the next opening cuts.
            let _ = self.file.set_len(whole);
            io(why)
        })
    }
}

fn undated(machine: &Machine) -> Machine {
    Machine { date: String::new(), ..machine.clone() }
}

/// Points of different chips, and of one chip under different power limits, do not belong into one profile.
fn same_machine(path: &str, old: &Machine, new: &Machine) -> Result<(), Refused> {
    let differs = |what: &str, old: String, new: String| {
        Err(Refused::Input(format!(
            "{path} holds points of another machine: its {what} is {old}, here it is {new}: name another file"
        )))
    };
    if old.chip != new.chip {
        return differs("chip", old.chip.clone(), new.chip.clone());
    }
    if old.processors != new.processors {
        return differs("number of processors", old.processors.to_string(), new.processors.to_string());
    }
    if let (Some(old), Some(new)) = (old.power_limit, new.power_limit)
        && (old - new).abs() > 1.0
    {
        return differs("power limit", format!("{old} W"), format!("{new} W"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "journal/tests.rs"]
mod tests;
