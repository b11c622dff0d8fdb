//! A file that grows line by line: whatever ends the program, the lines before stay, and the same command goes on from there.
//!
//! A [`Place`] is taken before anything is computed. Nothing changes in the file until it is opened as a [`Journal`].

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::claims::{self, Claim};
use super::output::{self, Output, WriteError};

/// Where a file of lines is, or will be.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    claim: Claim,
}

impl Place {
    /// Checks that lines could be appended to a file, and has this command read it nowhere else.
    pub fn take(path: &Path) -> Result<Place, WriteError> {
        let failed = |why| WriteError { path: path.to_owned(), why };
        match fs::metadata(path) {
            Ok(there) if there.is_file() => drop(OpenOptions::new().append(true).open(path).map_err(failed)?),
            // A device or a pipe may never end, and nothing that is written there can be gone on with.
            Ok(_) => return Err(failed(io::Error::other("it is no plain file: name a file for the lines"))),
            Err(_) => Output::try_new(path)?,
        }
        let place = output::place(path).map_err(failed)?;
        let claim = claims::free(&place).map_err(failed)?.claim(place, path, None);
        Ok(Place { path: path.to_owned(), claim })
    }

    /// Opens the file for more lines, or makes it. Returns what is in it.
    pub fn open(self) -> Result<(Journal, Vec<u8>), WriteError> {
        let Place { path, claim } = self;
        let failed = |why| WriteError { path: path.clone(), why };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(failed)?;
        // Some file systems have no locks. There nobody is kept out.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let why = "another command writes to it: wait for that, or name another file";
            return Err(failed(io::Error::new(io::ErrorKind::ResourceBusy, why)));
        }
        let held = file.seek(SeekFrom::Start(0)).and_then(|_| super::all(&mut file)).map_err(failed)?;
        Ok((Journal { path, file, _claim: claim }, held))
    }
}

/// A file of lines, open for more. Another process that opens it is refused.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    _claim: Claim,
}

impl Journal {
    /// Keeps so many bytes, and cuts the rest off.
    pub fn cut(&mut self, bytes: u64) -> Result<(), WriteError> {
        let _held = claims::hold();
        self.file.set_len(bytes).map_err(|why| self.failed(why))
    }

    /// Appends a line. It is in the file whole, or not at all.
    pub fn append(&mut self, line: &str) -> Result<(), WriteError> {
        let _held = claims::hold();
        let before = self.file.metadata().map_err(|why| self.failed(why))?.len();
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|why| {
            // A full disk takes the beginning of a line. Should cutting it off fail too, the next command does.
            let _ = self.file.set_len(before);
            self.failed(why)
        })
    }

    /// Waits until all lines are on the disk.
    pub fn finish(self) -> Result<(), WriteError> {
        self.file.sync_data().map_err(|why| self.failed(why))
    }

    fn failed(&self, why: io::Error) -> WriteError {
        WriteError { path: self.path.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_until_the_file_is_opened_again() {
        let folder = tempfile::tempdir().expect("it works");
        let path = folder.path().join("rows.jsonl");
        let place = Place::take(&path).expect("it works");
        assert!(!path.exists(), "nothing is made yet");
        let (mut journal, held) = place.open().expect("it works");
        assert!(held.is_empty());
        ["one", "two"].iter().for_each(|line| journal.append(line).expect("it works"));
        journal.finish().expect("it works");
        let (mut journal, held) = Place::take(&path).and_then(Place::open).expect("it works");
        assert_eq!(held, b"one\ntwo\n");
        journal.cut(4).and_then(|()| journal.append("three")).expect("it works");
        assert_eq!(fs::read_to_string(&path).expect("it works"), "one\nthree\n");
    }

    #[test]
    fn a_file_of_lines_has_one_writer_and_is_not_read_meanwhile() {
        let folder = tempfile::tempdir().expect("it works");
        let path = folder.path().join("rows.jsonl");
        let first = Place::take(&path).and_then(Place::open).expect("it works");
        let why = Place::take(&path).expect_err("it fails").to_string();
        assert!(why.contains("writes it already, as "), "{why}");
        assert!(Output::open(&path).expect_err("it fails").to_string().contains("writes it already"));
        assert!(super::super::text(&path).expect_err("it fails").to_string().contains("would write it, too"));
        drop(first);
        let held = File::open(&path).expect("it works");
        held.try_lock().expect("nobody else has it");
        let why = Place::take(&path).and_then(Place::open).expect_err("it fails").to_string();
        assert!(why.contains("another command writes to it"), "{why}");
    }

    #[test]
    fn what_is_no_plain_file_takes_no_lines() {
        let folder = tempfile::tempdir().expect("it works");
        for path in [folder.path(), Path::new("/dev/null")] {
            assert!(Place::take(path).expect_err("it fails").to_string().contains("no plain file"));
        }
    }
}
