//! Writing: a file gets its new content at once, when all of it has been written beside it, or keeps its old.
//!
//! An [`Output`] is made before anything is computed, so that a folder that cannot be written to is known at once. Pipes and devices
//! are written to directly.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use tempfile::NamedTempFile;

use super::terminal::complain;

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {why}", path.display())]
pub struct WriteError {
    path: PathBuf,
    why: io::Error,
}

/// A file to be written.
#[derive(Debug)]
pub struct Output {
    /// As the user named it.
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A pipe or a device.
    Itself,
    /// A file beside, and the place it is then put.
    Beside(NamedTempFile, PathBuf),
}

impl Output {
    /// Gets ready to write a file, of which nothing changes yet.
    pub fn open(path: &Path) -> Result<Output, WriteError> {
        let failed = |why| WriteError { path: path.to_owned(), why };
        let to = match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                return Err(failed(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder: name a file in it")));
            }
            Ok(there) if !there.is_file() => To::Itself,
            there => beside(path, there.ok().map(|there| there.permissions())).map_err(failed)?,
        };
        Ok(Output { path: path.to_owned(), to })
    }

    /// The file's name, as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all of it.
    pub fn write(self, text: &str) -> Result<(), WriteError> {
        self.write_with(|out| out.write_all(text.as_bytes()))
    }

    /// Writes all that `body` writes.
    pub fn write_with(self, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), WriteError> {
        let Output { path, to } = self;
        let written = match to {
            To::Itself => File::options().write(true).open(&path).and_then(|file| buffered(&file, body)),
            To::Beside(part, place) => {
                let name = part.path().to_owned();
                let written = buffered(part.as_file(), body)
                    .and_then(|()| part.as_file().sync_all())
                    .and_then(|()| part.persist(place).map(drop).map_err(|failed| failed.error));
                forget(&name);
                written
            }
        };
        written.map_err(|why| WriteError { path, why })
    }
}

fn buffered(file: &File, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    body(&mut out)?;
    out.flush()
}

/// A new file in the folder of another, with its permissions if it is there.
fn beside(path: &Path, permissions: Option<Permissions>) -> io::Result<To> {
    let place = match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => fs::canonicalize(path).or_else(|_| {
            let target = fs::read_link(path)?;
            Ok::<_, io::Error>(path.parent().map_or(target.clone(), |folder| folder.join(&target)))
        })?,
        _ => path.to_owned(),
    };
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".windtunnel-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let part = builder.tempfile_in(folder)?;
    if let Some(permissions) = permissions {
        if permissions.readonly() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only"));
        }
        part.as_file().set_permissions(permissions)?;
    }
    remember(part.path(), path);
    Ok(To::Beside(part, place))
}

/// Files that are being written, each with the name that the user gave: an interrupt removes them.
static PARTS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(vec![]);

fn remember(part: &Path, path: &Path) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(remove_when_interrupted);
    if let Ok(mut parts) = PARTS.lock() {
        parts.push((part.to_owned(), path.to_owned()));
    }
}

fn forget(part: &Path) {
    if let Ok(mut parts) = PARTS.lock() {
        parts.retain(|(known, _)| known != part);
    }
}

/// Ends the program as an interrupt does, after it has removed what was half-written.
#[cfg(unix)]
fn remove_when_interrupted() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM, SIGXFSZ]) else { return };
    std::thread::spawn(move || {
        // A file that grows beyond its limit is an error of the write.
        for signal in signals.forever().filter(|&signal| signal != SIGXFSZ) {
            // Held to the end: nothing is put in its place any more.
            let parts = PARTS.lock();
            for (part, path) in parts.iter().flat_map(|parts| parts.iter()) {
                let _ = fs::remove_file(part);
                complain(&format!("interrupted: {} is as it was", path.display()));
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
}

#[cfg(not(unix))]
fn remove_when_interrupted() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_content_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().expect("it works");
        let path = folder.path().join("answer.json");
        Output::open(&path).expect("it works").write("old").expect("it works");
        let output = Output::open(&path).expect("it works");
        assert_eq!(fs::read_to_string(&path).expect("it works"), "old");
        let failed = output.write_with(|out| {
            out.write_all(b"ne")?;
            Err(io::Error::other("no space"))
        });
        assert!(failed.expect_err("it fails").to_string().contains("answer.json: no space"));
        assert_eq!(fs::read_to_string(&path).expect("it works"), "old");
        Output::open(&path).expect("it works").write("new").expect("it works");
        assert_eq!(fs::read_to_string(&path).expect("it works"), "new");
        assert_eq!(fs::read_dir(folder.path()).expect("it works").count(), 1, "nothing half-written stays");
    }

    #[test]
    fn a_folder_and_a_place_that_is_not_there_are_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().expect("it works");
        assert!(Output::open(folder.path()).expect_err("it fails").to_string().contains("name a file in it"));
        let missing = folder.path().join("no/such/answer.json");
        assert!(Output::open(&missing).expect_err("it fails").to_string().contains("no/such/answer.json"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_a_file_keeps_its_permissions() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("it works");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").expect("it works");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("it works");
        symlink(&file, &link).expect("it works");
        Output::open(&link).expect("it works").write("new").expect("it works");
        assert!(fs::symlink_metadata(&link).expect("it works").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("it works"), "new");
        assert_eq!(fs::metadata(&file).expect("it works").permissions().mode() & 0o777, 0o640);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_an_error_that_names_it() {
        let why = Output::open(Path::new("/dev/full")).expect("it works").write("answer").expect_err("it fails");
        assert!(why.to_string().starts_with("cannot write /dev/full: "), "{why}");
    }
}
