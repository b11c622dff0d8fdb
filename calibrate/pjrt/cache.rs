//! Answers of compilers, kept on disk: a training step takes minutes to compile.
//!
//! A file is named by the SHA-256 of all that the answer depends on, and appears whole or not at all: it is written beside
//! its place and renamed. What an ended process left half-written is removed by the next that writes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The folder of all that this program keeps: `$WINDTUNNEL_CACHE`, else `$XDG_CACHE_HOME/windtunnel`, else
/// `~/.cache/windtunnel`.
///
/// # Errors
/// No such variable is set.
pub fn folder() -> Result<PathBuf, String> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("WINDTUNNEL_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("windtunnel")))
        .or_else(|| named("HOME").map(|path| path.join(".cache/windtunnel")))
        .ok_or_else(|| "no place to keep things: set WINDTUNNEL_CACHE to a folder".to_owned())
}

/// Compiled programs, by key.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// That of compiled programs within `folder`.
    pub fn within(folder: &Path) -> Self {
        Self { folder: folder.join("compiled") }
    }

    /// The key of an answer that depends on `parts`, in their order.
    pub fn key(parts: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hex(&hash.finalize())
    }

    /// What is kept under a key.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        windtunnel::files::bytes(&self.folder.join(key)).ok()
    }

    /// Keeps `bytes` under a key.
    ///
    /// # Errors
    /// The file system's.
    pub fn put(&self, key: &str, bytes: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        sweep(&self.folder);
        replace(&self.folder.join(key), |file| file.write_all(bytes))
    }
}

/// Ending of what is being written.
const PART: &str = "part";

/// Writes a file beside its place, and puts it there when it is whole. Whatever goes wrong, nothing is left.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{PART}", std::process::id()));
    let part = path.with_file_name(name);
    let done = (|| {
        let mut file = File::create(&part)?;
        // Held until the file has its name: a file that nobody holds is a leftover. Some file systems have no locks.
        let _ = file.try_lock();
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&part, path)
    })();
    if done.is_err() {
        let _ = fs::remove_file(&part);
    }
    done
}

/// Removes what ended processes left half-written.
pub fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let left = path.extension().is_some_and(|ending| ending == PART);
        if left && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_knows_where_a_part_ends() {
        assert_ne!(Cache::key(&[b"ab", b"c"]), Cache::key(&[b"a", b"bc"]));
        assert_eq!(Cache::key(&[b"ab", b"c"]), Cache::key(&[b"ab", b"c"]));
    }

    #[test]
    fn the_hash_is_sha_256() {
        // FIPS 180-2, B.1.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&Sha256::digest(b"abc")), known);
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let folder = std::env::temp_dir().join(format!("windtunnel-cache-{}", std::process::id()));
        let cache = Cache::within(&folder);
        cache.put("key", b"old").unwrap();
        let place = folder.join("compiled/key");
        replace(&place, |file| {
            file.write_all(b"ne")?;
            Err(std::io::Error::other("full"))
        })
        .unwrap_err();
        assert_eq!(cache.get("key").unwrap(), b"old");
        fs::write(folder.join("compiled/other.1.part"), b"half").unwrap();
        cache.put("second", b"new").unwrap();
        let mut names: Vec<_> =
            fs::read_dir(folder.join("compiled")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["key", "second"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
