//! The plugins that are known: which versions were tried, where they come from, and which are here.
//!
//! A version is one wheel of PyPI; of it one library is kept. Of those in [`RELEASES`] both hashes are known. Any other version of
//! libtpu that PyPI has is taken as it comes, since each release of jax and of torch_xla pins its own: the hash of its library is
//! written down when it is fetched, and held against it from then on.

pub mod fetch;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::cache::hex;
use super::ffi::Setting;

/// What a plugin compiles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// The CPU.
    Cpu,
    /// Google's TPUs, here or not.
    Tpu,
}

/// A version of a plugin.
#[derive(Clone, Debug)]
pub struct Release {
    /// What it is for.
    pub kind: Kind,
    /// Its package on PyPI.
    pub package: &'static str,
    /// Its version.
    pub version: Cow<'static, str>,
    /// The wheel's tags: Python, interface, platform. The library does not need that Python, or any.
    pub tags: [&'static str; 3],
    /// SHA-256 of the wheel, of those that were tried.
    pub wheel: Option<&'static str>,
    /// The library's place in the wheel.
    pub library: &'static str,
    /// SHA-256 of the library, of those that were tried.
    pub sha256: Option<&'static str>,
    /// The licence's place in the wheel, and what it says in a few words.
    pub licence: (Option<&'static str>, &'static str),
}

/// The file beside a library with its hash.
pub const HASH: &str = "SHA256";

const GOOGLE: (Option<&str>, &str) =
    (Some("libtpu/LICENSE"), "proprietary: Google Cloud's terms of service; not to be passed on");

/// All versions, of each plugin the one that is taken unasked first.
pub const RELEASES: [Release; 3] = [
    Release {
        kind: Kind::Cpu,
        package: "xla-cpu-pjrt",
        version: Cow::Borrowed("0.0.1"),
        tags: ["py3", "none", "manylinux_2_27_x86_64"],
        wheel: Some("55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc"),
        library: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        sha256: Some("88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc"),
        licence: (None, "OpenXLA is Apache-2.0; the wheel itself states none"),
    },
    Release {
        kind: Kind::Tpu,
        package: "libtpu",
        version: Cow::Borrowed("0.0.51"),
        tags: ["cp311", "cp311", "manylinux_2_31_x86_64"],
        wheel: Some("ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34"),
        library: "libtpu/libtpu.so",
        sha256: Some("ad0b2a3bc5d4de96f653b3701aaed8769a691776ca0e14c791dcdca785d43e42"),
        licence: GOOGLE,
    },
    Release {
        kind: Kind::Tpu,
        package: "libtpu",
        version: Cow::Borrowed("0.0.42.1"),
        tags: ["cp311", "cp311", "manylinux_2_31_x86_64"],
        wheel: Some("4d9975c446f594b0b517510b3db2fc9df65acd9a08f253c638fff5eb6bce163e"),
        library: "libtpu/libtpu.so",
        sha256: Some("ff7fdcc8ea756da03d407ea01ff5690cfd7cf067b87f06b13006e8e4206506b4"),
        licence: GOOGLE,
    },
];

impl Release {
    /// By its version; without one the one that is taken unasked.
    ///
    /// # Errors
    /// A version that is none, or, of another plugin than libtpu, one that is not known.
    pub fn find(kind: Kind, version: Option<&str>) -> Result<Self, String> {
        let mut all = RELEASES.iter().filter(|release| release.kind == kind);
        let known: Vec<&str> = all.clone().map(|release| &*release.version).collect();
        if let Some(release) = all.find(|release| version.is_none_or(|version| version == release.version)) {
            return Ok(release.clone());
        }
        let asked = version.unwrap_or_default();
        let numbered = asked.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        match RELEASES.iter().find(|release| release.kind == kind) {
            Some(usual) if kind == Kind::Tpu && numbered => {
                Ok(Self { version: Cow::Owned(asked.to_owned()), wheel: None, sha256: None, ..usual.clone() })
            }
            _ if kind == Kind::Tpu => Err(format!(
                "{asked:?} is no version of libtpu: write numbers, as 0.0.50; `pip show libtpu` says which is installed, and \
                 `python -c \"import importlib.metadata as m; print(m.requires('jax'))\"` which one jax pins"
            )),
            _ => Err(format!("no version {asked:?} of {kind} is known; versions are: {}", known.join(", "))),
        }
    }

    /// The hash that its library had when it was fetched, or that is known.
    fn kept(&self, path: &Path) -> Option<String> {
        let written = || windtunnel::files::text(&path.with_file_name(HASH)).ok().map(|text| text.trim().to_owned());
        self.sha256.map(str::to_owned).or_else(written)
    }

    /// Whether a library is the one that was fetched: it is loaded into this process, so it is looked at each time. Gives its hash.
    fn recognises(&self, path: &Path) -> Result<String, String> {
        let bad = |why: std::io::Error| format!("{}: {why}", path.display());
        let mut sha = Sha256::new();
        std::io::copy(&mut File::open(path).map_err(bad)?, &mut sha).map_err(bad)?;
        let found = hex(&sha.finalize());
        let kept = self.kept(path);
        if kept.as_ref() == Some(&found) {
            return Ok(found);
        }
        Err(format!(
            "{}: is not the library of {self} that was fetched: its SHA-256 is {found}, not {}\nremove it, and fetch it again \
             with `windtunnel calibrate plugins fetch {} --version {}`",
            path.display(),
            kept.as_deref().unwrap_or("written down"),
            self.kind,
            self.version
        ))
    }

    /// Releases of libtpu within the folder of all that is kept, other than those that were tried.
    pub fn others(cache: &Path) -> Vec<Self> {
        let folders = std::fs::read_dir(cache.join("plugins")).into_iter().flatten().flatten();
        let version = |name: std::ffi::OsString| Some(name.to_str()?.strip_prefix("libtpu-")?.to_owned());
        let mut all: Vec<Self> = folders
            .filter_map(|entry| version(entry.file_name()))
            .filter_map(|version| Self::find(Kind::Tpu, Some(&version)).ok())
            .filter(|release| release.sha256.is_none())
            .collect();
        all.sort_by(|one, other| one.version.cmp(&other.version));
        all
    }

    /// Where its library is kept within the folder of all that is kept.
    pub fn place(&self, cache: &Path) -> PathBuf {
        let file = Path::new(self.library).file_name().unwrap_or_default();
        cache.join("plugins").join(format!("{}-{}", self.package, self.version)).join(file)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.version)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Tpu => "tpu",
        })
    }
}

/// A plugin that is here.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// What it is for, if it is one that is known.
    pub kind: Option<Kind>,
    /// Its library.
    pub path: PathBuf,
    /// Which release, with its library's hash.
    release: Option<(Release, String)>,
}

impl Plugin {
    /// By what a user writes: `tpu`, `tpu@0.0.42.1`, `cpu`, or a file.
    ///
    /// # Errors
    /// A version that is not known, a plugin that was not fetched yet, or a file that is not there.
    pub fn named(text: &str, cache: &Path) -> Result<Self, String> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let kind = [Kind::Cpu, Kind::Tpu].into_iter().find(|kind| kind.to_string() == name);
        let Some(kind) = kind else {
            let path = PathBuf::from(text);
            return match path.is_file() {
                true => Ok(Self { kind: None, path: path.canonicalize().unwrap_or(path), release: None }),
                false => Err(format!("no plugin {text:?}: write tpu, cpu, tpu@VERSION, or the path of one")),
            };
        };
        let release = Release::find(kind, version)?;
        let path = release.place(cache);
        if !path.is_file() {
            let version = version.map(|version| format!(" --version {version}")).unwrap_or_default();
            return Err(format!(
                "{release} is not here: fetch it with `windtunnel calibrate plugins fetch {kind}{version}`"
            ));
        }
        let hash = release.recognises(&path)?;
        Ok(Self { kind: Some(kind), path, release: Some((release, hash)) })
    }

    /// What tells it from others: its name and hash, or of a file its place, size and time.
    pub fn identity(&self) -> String {
        if let Some((release, hash)) = &self.release {
            return format!("{} {} {hash}", release.package, release.version);
        }
        let (size, time) = std::fs::metadata(&self.path).map_or((0, None), |of| (of.len(), of.modified().ok()));
        let nanos = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_nanos());
        format!("{} {size} {nanos}", self.path.display())
    }

    /// Why it can have no devices here, if that is certain: without a TPU libtpu would look for one for minutes.
    pub fn no_device(&self) -> Option<&'static str> {
        let files = ["/dev/accel0", "/dev/vfio/0"];
        let none = self.kind == Some(Kind::Tpu) && !files.iter().any(|path| Path::new(path).exists());
        none.then_some(
            "no TPU is here: name a slice to compile for (--topology v6e:4x4), or another plugin (--plugin cpu)",
        )
    }

    /// How its client is told to have as many devices, where it can be told.
    pub fn client_settings(&self, devices: u32) -> Vec<(String, Setting)> {
        match self.kind {
            Some(Kind::Cpu) => vec![("cpu_device_count".to_owned(), Setting::Int(i64::from(devices)))],
            _ => vec![],
        }
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.release {
            Some((release, _)) => release.fmt(f),
            None => write!(f, "{}", self.path.display()),
        }
    }
}
