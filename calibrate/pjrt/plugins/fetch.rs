//! Fetches a plugin: pip downloads the wheel, so that the user's own index, proxy and certificates count; its hash is
//! checked, and its library unpacked.
//!
//! All happens in a folder of its own, which goes when this ends; what a killed process left goes with the next fetch.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};
use windtunnel::files;
use zip::ZipArchive;

use super::{HASH, Release};
use crate::interrupt::Stop;
use crate::pjrt::cache::{hex, replace, sweep};
use crate::pjrt::child::Group;

/// What is said when somebody asked to stop.
pub const INTERRUPTED: &str = "interrupted; nothing is left behind";

/// Fetches a release into `cache`, from a wheel that is here or from PyPI. Gives the library's place.
///
/// # Errors
/// No pip, pip's refusal, another hash, a full disk, an interrupt; nothing is left behind.
pub fn fetch(release: &Release, wheel: Option<&Path>, cache: &Path, stop: &Stop) -> Result<PathBuf, String> {
    let place = release.place(cache);
    let (folder, plugins) = (place.parent().unwrap_or(cache), cache.join("plugins"));
    let named = |path: &Path| path.display().to_string();
    fs::create_dir_all(&plugins).map_err(|why| format!("{}: {why}", named(&plugins)))?;
    let workshop = Workshop::open(&plugins).map_err(|why| format!("{}: {why}", named(&plugins)))?;
    let wheel = wheel.map_or_else(|| download(release, &workshop.path, stop), |wheel| Ok(wheel.to_owned()))?;
    // A pipe or a device may never end.
    if fs::metadata(&wheel).is_ok_and(|there| !there.is_file()) {
        return Err(format!("{}: is not a plain file: name the wheel that pip or PyPI gave", named(&wheel)));
    }
    let mut file = File::open(&wheel).map_err(|why| format!("{}: {why}", named(&wheel)))?;
    let found = hash(&mut file, stop).map_err(|why| format!("{}: {why}", named(&wheel)))?;
    if let Some(known) = release.wheel.filter(|known| *known != found) {
        return Err(format!(
            "{}: is not the wheel of {release} that is known: its SHA-256 is {found}, not {known}",
            named(&wheel)
        ));
    }
    fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", named(folder)))?;
    sweep(folder);
    let unpacked = unpack(release, file, &place, stop);
    if unpacked.is_err() && !place.is_file() {
        let _ = fs::remove_dir_all(folder);
    }
    unpacked.map(|()| place)
}

/// A folder that goes when its owner does.
struct Workshop {
    path: PathBuf,
    _held: File,
}

impl Workshop {
    fn open(parent: &Path) -> std::io::Result<Self> {
        for left in fs::read_dir(parent)?.flatten().map(|entry| entry.path()) {
            let name = left.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let free = || File::open(left.join("lock")).is_ok_and(|file| file.try_lock().is_ok());
            if name.starts_with("fetch-") && free() {
                let _ = fs::remove_dir_all(&left);
            }
        }
        let path = parent.join(format!("fetch-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        let held = File::create(path.join("lock"))?;
        let _ = held.try_lock();
        Ok(Self { path, _held: held })
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Ways to call pip. Python by itself would take a `pip.py` of the folder that it is started in for pip: `-I` keeps it from that.
const PIPS: [&[&str]; 4] = [&["python3", "-I", "-m", "pip"], &["pip3"], &["pip"], &["python", "-I", "-m", "pip"]];

/// Has pip download the wheel into `folder`.
fn download(release: &Release, folder: &Path, stop: &Stop) -> Result<PathBuf, String> {
    let runs = |pip: &&&[&str]| {
        let mut asked = Command::new(pip[0]);
        asked.args(&pip[1..]).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok_and(|status| status.success())
    };
    let [python, interface, platform] = release.tags;
    let pip = PIPS.iter().find(runs).ok_or_else(|| {
        format!(
            "no pip is here: install it, or download the wheel of {release} for {python}-{interface}-{platform} from PyPI \
             and name it by --wheel"
        )
    })?;
    let mut command = Command::new(pip[0]);
    command.args(&pip[1..]).args(["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]);
    command.args(["--platform", platform, "--abi", interface]).args(files::is_quiet().then_some("--quiet"));
    if let Some(version) = python.strip_prefix("cp") {
        command.args(["--implementation", "cp", "--python-version", version]);
    }
    command.arg("--dest").arg(folder).arg(format!("{}=={}", release.package, release.version));
    // pip's own temporary files go with the folder, and what it says goes where messages go.
    command.env("TMPDIR", folder).stdin(Stdio::null()).stdout(std::io::stderr()).process_group(0);
    let mut child = Group(command.spawn().map_err(|why| format!("cannot start pip: {why}"))?);
    let status = loop {
        if stop.asked() {
            return Err(INTERRUPTED.to_owned());
        }
        if let Some(status) = child.0.try_wait().map_err(|why| why.to_string())? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        return Err(format!("pip could not download {release} ({status}); it says why above"));
    }
    let entries = fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let mut found = entries.flatten().map(|entry| entry.path());
    found
        .find(|path| path.extension().is_some_and(|ending| ending == "whl"))
        .ok_or_else(|| "pip said that it downloaded a wheel, and there is none".to_owned())
}

/// SHA-256 of a file.
pub fn hash(file: &mut File, stop: &Stop) -> std::io::Result<String> {
    let mut sha = Sha256::new();
    let size = file.metadata()?.len();
    // Of a file that grows meanwhile, as much as it had.
    copied(&mut file.take(size), size, "checking", stop, |bytes| {
        sha.update(bytes);
        Ok(())
    })?;
    file.rewind()?;
    Ok(hex(&sha.finalize()))
}

fn unpack(release: &Release, wheel: File, place: &Path, stop: &Stop) -> Result<(), String> {
    let lacks = |what: &str, why: zip::result::ZipError| format!("the wheel has no {what} that can be read: {why}");
    let mut archive = ZipArchive::new(wheel).map_err(|why| lacks("index", why))?;
    // Early wheels have no licence beside the library.
    let beside = |name: &&str| release.wheel.is_some() || archive.index_for_name(name).is_some();
    if let Some(name) = release.licence.0.filter(beside) {
        let mut licence = archive.by_name(name).map_err(|why| lacks(name, why))?;
        let beside = place.with_file_name("LICENSE");
        replace(&beside, |file| std::io::copy(&mut licence, file).map(drop)).map_err(|why| why.to_string())?;
    }
    if release.wheel.is_none() {
        // A wheel whose hash nobody knows says itself of which release it is.
        let name = format!("{}-{}.dist-info/METADATA", release.package, release.version);
        archive.by_name(&name).map_err(|why| lacks(&name, why))?;
    }
    let mut member = archive.by_name(release.library).map_err(|why| lacks(release.library, why))?;
    let size = member.size();
    let written = replace(place, |file| {
        let mut sha = Sha256::new();
        copied(&mut member, size, "unpacking", stop, |bytes| {
            sha.update(bytes);
            file.write_all(bytes)
        })?;
        let found = hex(&sha.finalize());
        match release.sha256 {
            Some(known) if known != found => Err(std::io::Error::other(format!("its SHA-256 is {found}, not {known}"))),
            _ => replace(&place.with_file_name(HASH), |file| writeln!(file, "{found}")),
        }
    });
    written.map_err(|why| format!("{}: {why}", place.display()))
}

/// Reads all of something in pieces, and shows how far it is.
fn copied(
    from: &mut impl Read,
    size: u64,
    what: &'static str,
    stop: &Stop,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let bar = files::bar(Some(size), "{msg} {bar:40} {bytes} of {total_bytes}, {eta} left").with_message(what);
    let mut piece = vec![0; 1 << 20];
    loop {
        if stop.asked() {
            return Err(std::io::Error::other(INTERRUPTED));
        }
        let count = from.read(&mut piece)?;
        if count == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        take(&piece[..count])?;
        bar.inc(count as u64);
    }
}
