//! Writing: a file gets its new content at once, when all of it has been written beside it, or keeps its old.
//!
//! An [`Output`] is made before anything is computed, so that a folder that cannot be written to is known at once. Pipes and devices
//! are written to directly.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tempfile::NamedTempFile;

use super::claims::{self, Claim};

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {why}", path.display())]
pub struct WriteError {
    pub(super) path: PathBuf,
    pub(super) why: io::Error,
}

impl WriteError {
    /// Why, without the file.
    pub fn cause(self) -> io::Error {
        self.why
    }
}

/// What stands for standard output in place of a file's name.
pub const STANDARD: &str = "-";

/// A file to be written.
#[derive(Debug)]
pub struct Output {
    /// As the user named it.
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A device, or a pipe that somebody reads.
    Itself(File),
    /// A pipe that nobody reads yet.
    Later,
    /// Standard output, by `-`: for one of a command's outputs, which then stands in the report's stead.
    Standard(Claim),
    /// A file beside, and the place it is then put.
    Beside(NamedTempFile, Claim),
}

impl Output {
    /// Gets ready to write a file, of which nothing changes yet.
    pub fn open(path: &Path) -> Result<Output, WriteError> {
        let failed = |why| WriteError { path: path.to_owned(), why };
        if path == Path::new(STANDARD) {
            let claim = claims::free(path).map_err(failed)?.claim(path.to_owned(), path, None);
            return Ok(Output { path: path.to_owned(), to: To::Standard(claim) });
        }
        let to = match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                return Err(failed(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder: name a file in it")));
            }
            Ok(there) if !there.is_file() => itself(path).map_err(failed)?,
            there => beside(path, there.ok().map(|there| there.permissions())).map_err(failed)?,
        };
        Ok(Output { path: path.to_owned(), to })
    }

    /// The same in a folder that is made if it is not there.
    pub fn open_in_new(path: &Path) -> Result<Output, WriteError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(|why| WriteError { path: path.to_owned(), why })?;
        }
        Output::open(path)
    }

    /// Whether a file that is not there yet could be written, for who will append to it: no interrupt is listened to.
    pub fn try_new(path: &Path) -> Result<(), WriteError> {
        let tried = place(path).and_then(|place| part_in(folder_of(&place)));
        tried.map(drop).map_err(|why| WriteError { path: path.to_owned(), why })
    }

    /// The file's name, as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is standard output.
    pub fn is_standard(&self) -> bool {
        matches!(self.to, To::Standard(_))
    }

    /// Writes all of it.
    pub fn write(self, text: &str) -> Result<(), WriteError> {
        self.write_with(|out| out.write_all(text.as_bytes()))
    }

    /// Writes all that `body` writes.
    pub fn write_with(self, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), WriteError> {
        let Output { path, to } = self;
        let written = match to {
            To::Itself(file) => buffered(&mut &file, body),
            To::Standard(_claim) => buffered(&mut io::stdout().lock(), body),
            To::Later => File::options().write(true).open(&path).and_then(|file| buffered(&mut &file, body)),
            To::Beside(part, claim) => buffered(&mut part.as_file(), body)
                .and_then(|()| part.as_file().sync_all())
                .and_then(|()| part.persist(claim.place()).map(drop).map_err(|failed| failed.error)),
        };
        written.map_err(|why| WriteError { path, why })
    }
}

fn buffered(file: &mut dyn Write, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    body(&mut out)?;
    out.flush()
}

/// What is no plain file is opened at once, lest a pipe's reader be gone when it is written. Nobody may read a named pipe yet; a
/// pipe of the shell's (`>(command)`) that nobody reads is closed.
#[cfg(unix)]
fn itself(path: &Path) -> io::Result<To> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::os::unix::fs::OpenOptionsExt;
    let unread = rustix::io::Errno::NXIO.raw_os_error();
    // To open a pipe is to wait for its reader, unless one asks not to.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    match File::options().write(true).custom_flags(flags).open(path) {
        Ok(file) => {
            fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
            Ok(To::Itself(file))
        }
        Err(why) if why.raw_os_error() != Some(unread) => Err(why),
        Err(_) if path.starts_with("/dev") || path.starts_with("/proc") => Err(io::ErrorKind::BrokenPipe.into()),
        Err(_) => Ok(To::Later),
    }
}

#[cfg(not(unix))]
fn itself(path: &Path) -> io::Result<To> {
    File::options().write(true).open(path).map(To::Itself)
}

/// A new file in the folder of another, with its permissions if it is there. From the first moment on an interrupt knows of it.
fn beside(path: &Path, permissions: Option<Permissions>) -> io::Result<To> {
    let place = place(path)?;
    let mut claims = claims::free(&place)?;
    let part = part_in(folder_of(&place))?;
    // Held until it has its name: a file that nobody holds is a leftover. Some file systems have no locks.
    let _ = part.as_file().try_lock();
    if let Some(permissions) = permissions {
        if permissions.readonly() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only"));
        }
        part.as_file().set_permissions(permissions)?;
    }
    let claim = claims.claim(place, path, Some(part.path()));
    Ok(To::Beside(part, claim))
}

/// An empty file in a folder.
fn part_in(folder: &Path) -> io::Result<NamedTempFile> {
    sweep(folder);
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(nameless)
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a file is in truth: behind links, from the root.
pub(super) fn place(path: &Path) -> io::Result<PathBuf> {
    if let Ok(place) = fs::canonicalize(path) {
        return Ok(place);
    }
    // A file that is not there yet, or a link to one.
    let target = match fs::read_link(path) {
        Ok(target) => path.parent().map_or(target.clone(), |folder| folder.join(&target)),
        Err(_) => path.to_owned(),
    };
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(fs::canonicalize(folder_of(&target))?.join(name))
}

/// An error of the file beside without that file's name, which nobody asked for.
fn nameless(why: io::Error) -> io::Error {
    let said = why.to_string();
    io::Error::new(why.kind(), said.split(" at path ").next().unwrap_or(&said).to_owned())
}

const PREFIX: &str = ".windtunnel-";
const SUFFIX: &str = ".part";

/// Removes what killed processes left half-written: what nobody holds, and nobody has touched for a while.
fn sweep(folder: &Path) {
    let forgotten = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let old = || fs::metadata(path)?.modified()?.elapsed().map_err(io::Error::other);
        let ours = name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        ours && old().is_ok_and(|age| age > FORGOTTEN) && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
    };
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| forgotten(path)) {
        let _ = fs::remove_file(path);
    }
}

/// Longer than it takes to lock a file that was just made.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// From here on a file that grows beyond the limit on its size is an error of the write, not the end of the program. To be
/// called once, at the start.
pub fn take_size_limits_as_errors() {
    // It fails where there is no such signal, and then nothing ends the program.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::<AtomicBool>::default());
}

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

    #[test]
    fn a_file_is_written_once_and_not_read_meanwhile() {
        let folder = tempfile::tempdir().expect("it works");
        let (path, same) = (folder.path().join("answer.json"), folder.path().join("./answer.json"));
        let first = Output::open(&path).expect("it works");
        let why = Output::open(&same).expect_err("it fails").to_string();
        assert!(why.contains("writes it already, as ") && why.contains("answer.json"), "{why}");
        fs::write(&path, "old").expect("it works");
        assert!(super::super::text(&same).expect_err("it fails").to_string().contains("would write it, too"));
        drop(first);
        assert_eq!(super::super::text(&same).expect("it works"), "old");
        Output::open(&same).expect("it works").write("new").expect("it works");
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_another_writes_is_not() {
        let folder = tempfile::tempdir().expect("it works");
        let [left, fresh, held, other] = [".windtunnel-a.part", ".windtunnel-b.part", ".windtunnel-c.part", "a.part"]
            .map(|name| folder.path().join(name));
        let long_ago = std::time::SystemTime::now() - 2 * FORGOTTEN;
        for path in [&left, &held, &other] {
            File::create(path).and_then(|file| file.set_modified(long_ago)).expect("it works");
        }
        fs::write(&fresh, "").expect("it works");
        let lock = File::open(&held).expect("it works");
        lock.try_lock().expect("nobody else has it");
        Output::open(&folder.path().join("answer.json")).expect("it works").write("new").expect("it works");
        assert!(!left.exists() && fresh.exists() && held.exists() && other.exists());
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
