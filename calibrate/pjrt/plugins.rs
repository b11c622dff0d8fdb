//! The plugins that are known: which versions were tried, where they come from, and which are here.
//!
//! A version is one wheel of PyPI, known by its hash; of it one library is kept, known by its own. To add a version: a line
//! in [`RELEASES`].

pub mod fetch;

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
#[derive(Debug)]
pub struct Release {
    /// What it is for.
    pub kind: Kind,
    /// Its package on PyPI.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The wheel's tags: Python, interface, platform. The library does not need that Python, or any.
    pub tags: [&'static str; 3],
    /// SHA-256 of the wheel.
    pub wheel: &'static str,
    /// The library's place in the wheel.
    pub library: &'static str,
    /// SHA-256 of the library.
    pub sha256: &'static str,
    /// The licence's place in the wheel, and what it says in a few words.
    pub licence: (Option<&'static str>, &'static str),
}

const GOOGLE: (Option<&str>, &str) =
    (Some("libtpu/LICENSE"), "proprietary: Google Cloud's terms of service; not to be passed on");

/// All versions, of each plugin the one that is taken unasked first.
pub const RELEASES: [Release; 3] = [
    Release {
        kind: Kind::Cpu,
        package: "xla-cpu-pjrt",
        version: "0.0.1",
        tags: ["py3", "none", "manylinux_2_27_x86_64"],
        wheel: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
        library: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        sha256: "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc",
        licence: (None, "OpenXLA is Apache-2.0; the wheel itself states none"),
    },
    Release {
        kind: Kind::Tpu,
        package: "libtpu",
        version: "0.0.51",
        tags: ["cp311", "cp311", "manylinux_2_31_x86_64"],
        wheel: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
        library: "libtpu/libtpu.so",
        sha256: "ad0b2a3bc5d4de96f653b3701aaed8769a691776ca0e14c791dcdca785d43e42",
        licence: GOOGLE,
    },
    Release {
        kind: Kind::Tpu,
        package: "libtpu",
        version: "0.0.42.1",
        tags: ["cp311", "cp311", "manylinux_2_31_x86_64"],
        wheel: "4d9975c446f594b0b517510b3db2fc9df65acd9a08f253c638fff5eb6bce163e",
        library: "libtpu/libtpu.so",
        sha256: "ff7fdcc8ea756da03d407ea01ff5690cfd7cf067b87f06b13006e8e4206506b4",
        licence: GOOGLE,
    },
];

impl Release {
    /// One that is known; without a version the one that is taken unasked.
    ///
    /// # Errors
    /// A version that is not known.
    pub fn find(kind: Kind, version: Option<&str>) -> Result<&'static Self, String> {
        let mut all = RELEASES.iter().filter(|release| release.kind == kind);
        let known: Vec<&str> = all.clone().map(|release| release.version).collect();
        all.find(|release| version.is_none_or(|version| version == release.version)).ok_or_else(|| {
            let asked = version.unwrap_or_default();
            format!("no version {asked:?} of {kind} is known; versions are: {}", known.join(", "))
        })
    }

    /// Whether a library is the one that is known: it is loaded into this process, so it is looked at each time.
    fn recognises(&self, path: &Path) -> Result<(), String> {
        let bad = |why: std::io::Error| format!("{}: {why}", path.display());
        let mut sha = Sha256::new();
        std::io::copy(&mut File::open(path).map_err(bad)?, &mut sha).map_err(bad)?;
        let found = hex(&sha.finalize());
        if found == self.sha256 {
            return Ok(());
        }
        Err(format!(
            "{}: is not the library of {self} that was fetched: its SHA-256 is {found}, not {}\nremove it, and fetch it again \
             with `windtunnel calibrate plugins fetch {} --version {}`",
            path.display(),
            self.sha256,
            self.kind,
            self.version
        ))
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
    release: Option<&'static Release>,
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
        release.recognises(&path)?;
        Ok(Self { kind: Some(kind), path, release: Some(release) })
    }

    /// What tells it from others: its name and hash, or of a file its place, size and time.
    pub fn identity(&self) -> String {
        if let Some(release) = self.release {
            return format!("{} {} {}", release.package, release.version, release.sha256);
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
        match self.release {
            Some(release) => release.fmt(f),
            None => write!(f, "{}", self.path.display()),
        }
    }
}
