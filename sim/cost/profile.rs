//! A profile: everything measured about one chip and the fabric it sits on, in one diffable file.
//!
//! The file as written is `Written` (unknown keys are errors, quantities are strings with units); the file as
//! understood is [`Profile`], checked and ready to answer. Shipped profiles live in `sim/cost/profiles/` and are
//! embedded; [`Profile::load`] reads a user's own. Nothing in a profile comes from a training run: parts only.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::attention::{self, Attention};
use super::batched::Batched;
use super::clock::{self, Clock};
use super::collective::{self, Collectives};
use super::cublas::{self, Cublas};
use super::deepep::DeepEp;
use super::fusion::Fusion;
use super::grouping::{self, Grouped, Streams};
use super::host::{Class, Host, Lazy, Overheads};
use super::hybridep::HybridEp;
use super::matmul::{self, Matmul};
use super::memory::{self, Memory};
use super::overlap::Overlap;
use super::registry;
use super::waves::Chip;
use crate::files::{Output, WriteError, one_line};
use crate::hardware::Place;
use crate::near::did_you_mean;
use crate::tables;
use crate::units::{Bandwidth, Bytes, FlopRate, Frequency, Power};

/// The newest version of the format: 2 has points of a machine of one's own, its versions, and dates.
pub const FORMAT: u32 = 2;
/// The JSON Schema of a profile, `docs/schema/profile.json`.
pub const SCHEMA: &str = include_str!("../../docs/schema/profile.json");
/// The oldest version that this program reads.
const OLDEST: u32 = 1;

/// Why a profile could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file could not be read.
    #[error("cannot read the profile {path}: {why}")]
    Read {
        /// Where it was looked for.
        path: String,
        /// The system's reason.
        why: std::io::Error,
    },
    /// The file could not be written.
    #[error(transparent)]
    Output(#[from] WriteError),
    /// The file that should be written has no profile's name.
    #[error("cannot write {path}: expected a file that ends in .toml")]
    Ending {
        /// Where it should go.
        path: String,
    },
    /// The file is not a profile.
    #[error("{problem}\n{place}")]
    Parse {
        /// What the parser said.
        problem: String,
        /// Where.
        place: Box<Place>,
    },
    /// The file is well-formed but says something that cannot be.
    #[error("{path}: {why}")]
    Meaning {
        /// The file, and the line of the section.
        path: String,
        /// Both figures and the remedy.
        why: String,
    },
    /// The format's version is not this program's.
    #[error(
        "{path} has format {found} but this program reads {OLDEST} to {FORMAT}: write it again with the calibrator of this release"
    )]
    Format {
        /// The file.
        path: String,
        /// The version in it.
        found: u32,
    },
    /// No shipped profile has the name.
    #[error("no profile is named {name:?}{hint}: expected one of {known}, or a path to a .toml file")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Which of them is near, in words.
        hint: String,
        /// The names there are.
        known: String,
    },
}

/// What the points were measured on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The chip, as its vendor names it.
    pub chip: String,
    /// Processors (SMs) that matmul tiles are spread over.
    pub processors: u32,
    /// Peak memory bandwidth.
    pub memory_bandwidth: Bandwidth,
    /// Memory capacity.
    pub memory: Bytes,
    /// What the last cache before that memory holds, where it is stated.
    pub l2: Option<Bytes>,
    /// The board's power limit, where its vendor states one.
    pub power_limit: Option<Power>,
    /// Clock under tensor load, where known.
    pub clock: Option<Frequency>,
    /// Drivers and libraries, where known.
    pub software: String,
    /// Their versions by component: `driver`, `cuda`, `cublas`, `cudnn`, `nccl`.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// When it was measured, UTC.
    pub date: Option<String>,
    /// What measured it, with its commit.
    pub tool: Option<String>,
    /// Where these figures come from.
    pub source: String,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Written {
    format: u32,
    name: String,
    summary: String,
    machine: Machine,
    matmul: WrittenMatmuls,
    #[serde(default)]
    cublas: Vec<Cublas>,
    batched: Option<Batched>,
    streams: Option<Streams>,
    grouped: Option<grouping::Written>,
    deepep: Option<DeepEp>,
    hybridep: Option<HybridEp>,
    layout: Layout,
    fusion: Option<Fusion>,
    clock: Option<clock::Written>,
    attention: attention::Written,
    memory: memory::Written,
    host: Option<Host>,
    event: Option<Class>,
    host_sync: Option<Class>,
    lazy: Option<Lazy>,
    overheads: Option<Overheads>,
    overlap: Overlap,
    collectives: collective::Written,
}

impl Written {
    fn read(path: &str, text: &str) -> Result<Written, ProfileError> {
        tables::read(text).map_err(|why| ProfileError::Parse {
            problem: why.message().to_owned(),
            place: Box::new(Place::of(path, text, why.span().unwrap_or(0..0))),
        })
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenMatmuls {
    bf16: matmul::Written,
    fp8: matmul::Written,
    tf32: matmul::Written,
    fp32: matmul::Written,
}

/// Where nothing is known of a factor.
fn one() -> f64 {
    1.0
}

/// Time of the gradient matmuls over the forward one of the same shape.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// `dx = dy·W`.
    pub data_gradient: f64,
    /// `dW = dyᵀ·x`.
    pub weight_gradient: f64,
    /// The same added to a main gradient in the matmul, without the traffic of that; left out: as the plain one.
    pub main_gradient: Option<f64>,
    /// Either in fp8, whose operands lie as the forward one's: gradients are summed in full precision
    /// (`CUBLASLT_MATMUL_DESC_FAST_ACCUM` off).
    #[serde(default = "one")]
    pub fp8_gradient: f64,
    /// What they rest on.
    pub evidence: super::Evidence,
}

/// What kernels, collectives and host calls cost on one chip and its fabric, by measurement.
///
/// ```
/// use windtunnel::Profile;
///
/// let profile = Profile::find("h100-sxm-80gb")?;
/// println!("{}: {}, {} in bf16", profile.name, profile.summary, profile.bf16_peak());
/// assert!(Profile::names().contains(&"h100-sxm-80gb"));
/// # Ok::<(), windtunnel::ProfileError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name, such as `h200-sxm-141gb`.
    pub name: String,
    /// One sentence on what it is and whence.
    pub summary: String,
    /// What the points were measured on.
    #[doc(hidden)]
    pub machine: Machine,
    /// Matmuls in bf16 and fp16.
    #[doc(hidden)]
    pub bf16: Matmul,
    /// Matmuls in fp8.
    #[doc(hidden)]
    pub fp8: Matmul,
    /// Matmuls in tf32.
    #[doc(hidden)]
    pub tf32: Matmul,
    /// Matmuls in true fp32.
    #[doc(hidden)]
    pub fp32: Matmul,
    /// Other releases of cuBLAS.
    #[doc(hidden)]
    pub cublas: Vec<Cublas>,
    /// Batched matmuls of rows that are not aligned, where somebody measured them.
    #[doc(hidden)]
    pub batched: Option<Batched>,
    /// Matmuls of groups on several streams, where somebody measured them.
    #[doc(hidden)]
    pub streams: Option<Streams>,
    /// Matmuls of groups of any rows in one kernel, where somebody measured them.
    #[doc(hidden)]
    pub grouped: Option<Grouped>,
    /// DeepEP's kernels, where somebody measured them.
    #[doc(hidden)]
    pub deepep: Option<DeepEp>,
    /// Hybrid-EP's kernels, where somebody measured them.
    #[doc(hidden)]
    pub hybridep: Option<HybridEp>,
    /// Gradient layouts.
    #[doc(hidden)]
    pub layout: Layout,
    /// What fusion adds to the matmuls of a program compiled whole, where it was measured.
    #[doc(hidden)]
    pub fusion: Option<Fusion>,
    /// Sustained over burst clocks.
    #[doc(hidden)]
    pub clock: Clock,
    /// Attention.
    #[doc(hidden)]
    pub attention: Attention,
    /// Memory-bound kernels.
    #[doc(hidden)]
    pub memory: Memory,
    /// Host costs; none for a chip that runs programs compiled whole.
    #[doc(hidden)]
    pub host: Option<Host>,
    /// How long after an event a stream that waits for it goes on; none for a chip that runs programs compiled whole.
    #[doc(hidden)]
    pub event: Option<Class>,
    /// What a program compiled whole loses each time that its host waits for it before starting more.
    #[doc(hidden)]
    pub host_sync: Option<Class>,
    /// What PyTorch/XLA takes on the host to write a step down; none where nobody runs it.
    #[doc(hidden)]
    pub lazy: Option<Lazy>,
    /// Memory that no tensor owns.
    #[doc(hidden)]
    pub overheads: Overheads,
    /// Interference of collectives with compute.
    #[doc(hidden)]
    pub overlap: Overlap,
    /// Collectives.
    #[doc(hidden)]
    pub collectives: Collectives,
}

impl Profile {
    /// A shipped profile by name, or a user's by path (anything that ends in `.toml`).
    pub fn find(name: &str) -> Result<Profile, ProfileError> {
        Profile::shared(name).map(Arc::unwrap_or_clone)
    }

    /// The same, shared by all who ask: a search reads thousands of scenarios, and a shipped profile is parsed once.
    pub fn shared(name: &str) -> Result<Arc<Profile>, ProfileError> {
        static PARSED: Mutex<BTreeMap<String, Arc<Profile>>> = Mutex::new(BTreeMap::new());
        let parsed = || PARSED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parsed().get(name) {
            return Ok(Arc::clone(known));
        }
        let (path, text) = Profile::text(name)?;
        if name.ends_with(".toml") {
            return Profile::parse(&path, &text).map(Arc::new);
        }
        let profile = Arc::new(Profile::understand(&path, &text, Written::read(&path, &text)?)?);
        parsed().insert(name.to_owned(), Arc::clone(&profile));
        Ok(profile)
    }

    /// Dense bf16 peak of the chip that was measured.
    pub fn bf16_peak(&self) -> FlopRate {
        self.bf16.chip.peak
    }

    /// Dense fp8 peak of the chip that was measured; of one without units for it, that of bf16.
    pub fn fp8_peak(&self) -> FlopRate {
        self.fp8.chip.peak
    }

    /// The names of the shipped profiles.
    pub fn names() -> Vec<&'static str> {
        registry::SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// The text of a shipped profile by name, or of a user's by path, with the name that messages give it.
    pub fn text(name: &str) -> Result<(String, String), ProfileError> {
        if name.ends_with(".toml") {
            let read = crate::files::text(Path::new(name));
            return match read {
                Ok(text) => Ok((name.to_owned(), text)),
                Err(why) => Err(ProfileError::Read { path: name.to_owned(), why }),
            };
        }
        match registry::SHIPPED.iter().find(|(known, _)| *known == name) {
            Some((known, text)) => Ok((format!("sim/cost/profiles/{known}.toml"), (*text).to_owned())),
            None => {
                let hint = did_you_mean(name, registry::SHIPPED.iter().map(|(known, _)| *known));
                Err(ProfileError::Unknown { name: name.to_owned(), hint, known: Profile::names().join(", ") })
            }
        }
    }

    /// Checks a profile's text and puts it in a file, all of it or nothing: what was there before is replaced at once.
    #[doc(hidden)]
    pub fn save(output: Output, text: &str) -> Result<Profile, ProfileError> {
        let profile = Profile::parse(&output.path().display().to_string(), text)?;
        output.write(text)?;
        Ok(profile)
    }

    /// Gets ready to write a profile; with the name that it has by its file.
    #[doc(hidden)]
    pub fn output(path: &Path) -> Result<(Output, String), ProfileError> {
        let named = path.file_stem().and_then(|stem| stem.to_str());
        match named.filter(|_| path.extension().is_some_and(|ending| ending == "toml")) {
            Some(name) => Ok((Output::open_in_new(path)?, name.to_owned())),
            None => Err(ProfileError::Ending { path: path.display().to_string() }),
        }
    }

    /// Reads a profile from a file.
    pub fn load(path: &Path) -> Result<Profile, ProfileError> {
        let text =
            crate::files::text(path).map_err(|why| ProfileError::Read { path: path.display().to_string(), why })?;
        Profile::parse(&path.display().to_string(), &text)
    }

    /// Understands the text of a profile; `path` is for messages only.
    pub fn parse(path: &str, text: &str) -> Result<Profile, ProfileError> {
        let written = Written::read(path, text)?;
        match super::sound::unsound(path, text) {
            Some((place, why)) => Err(placed(&place, why)),
            None => Profile::understand(path, text, written),
        }
    }

    /// Understands a text whose numbers were checked one by one, as a shipped profile's are by a test.
    fn understand(path: &str, text: &str, w: Written) -> Result<Profile, ProfileError> {
        if !(OLDEST..=FORMAT).contains(&w.format) {
            return Err(ProfileError::Format { path: path.to_owned(), found: w.format });
        }
        if w.machine.processors == 0 || w.machine.memory_bandwidth.0 <= 0.0 {
            return Err(meaning(
                path,
                text,
                "machine",
                "processors and memory_bandwidth must be above zero".to_owned(),
            ));
        }
        // What a chip that runs programs compiled whole may lack, a GPU's profile must have.
        let here = [
            ("host", w.host.is_some()),
            ("event", w.event.is_some()),
            ("clock", w.clock.is_some()),
            ("overheads", w.overheads.is_some()),
            ("machine.power_limit", w.machine.power_limit.is_some()),
            ("machine.clock", w.machine.clock.is_some()),
        ];
        if let Some((name, _)) = here.iter().find(|(_, there)| !there && !w.collectives.of_a_torus()) {
            let why = format!(
                "{name} is missing, and only the profile of a TPU, with [collectives.torus], does without: copy it from the \
                 shipped profile of a like chip, in sim/cost/profiles/"
            );
            return Err(ProfileError::Meaning { path: path.to_owned(), why });
        }
        let processors = f64::from(w.machine.processors);
        let peak = w.matmul.bf16.peak();
        let chip = Chip { processors, peak: FlopRate(0.0), bandwidth: w.machine.memory_bandwidth };
        let matmul = |section: &str, written, size| {
            Matmul::new(written, chip, size).map_err(|wrong| match wrong.at {
                Some(span) => placed(&Place::of(path, text, span), wrong.why),
                None => meaning(path, text, section, wrong.why),
            })
        };
        Ok(Profile {
            bf16: matmul("matmul.bf16", w.matmul.bf16, 2.0)?,
            fp8: matmul("matmul.fp8", w.matmul.fp8, 1.0)?,
            tf32: matmul("matmul.tf32", w.matmul.tf32, 4.0)?,
            fp32: matmul("matmul.fp32", w.matmul.fp32, 4.0)?,
            streams: (w.streams.map(Streams::check).transpose()).map_err(|why| meaning(path, text, "streams", why))?,
            grouped: match w.grouped {
                Some(w) => Some(Grouped {
                    bf16: matmul("grouped.bf16", w.bf16, 2.0)?,
                    fp8: matmul("grouped.fp8", w.fp8, 1.0)?,
                }),
                None => None,
            },
            cublas: cublas::check(w.cublas).map_err(|why| meaning(path, text, "[cublas]", why))?,
            batched: (w.batched.map(Batched::check).transpose()).map_err(|why| meaning(path, text, "batched", why))?,
            deepep: (w.deepep.map(DeepEp::check).transpose()).map_err(|why| meaning(path, text, "deepep", why))?,
            hybridep: (w.hybridep.map(HybridEp::check).transpose())
                .map_err(|why| meaning(path, text, "hybridep", why))?,
            fusion: (w.fusion.map(Fusion::check).transpose()).map_err(|why| meaning(path, text, "fusion", why))?,
            layout: w.layout.check().map_err(|why| meaning(path, text, "layout", why))?,
            clock: (w.clock.map_or(Ok(Clock::steady()), Clock::new))
                .map_err(|why| meaning(path, text, "clock", why))?,
            attention: Attention::new(w.attention, (processors, peak))
                .map_err(|why| meaning(path, text, "attention", why))?,
            memory: Memory::new(w.memory, w.machine.memory_bandwidth)
                .map_err(|why| meaning(path, text, "memory", why))?,
            host: w.host,
            event: w.event,
            host_sync: w.host_sync,
            lazy: w.lazy,
            overheads: w.overheads.unwrap_or_else(Overheads::none),
            overlap: w.overlap.check().map_err(|why| meaning(path, text, "overlap", why))?,
            collectives: Collectives::new(w.collectives).map_err(|why| meaning(path, text, "collectives", why))?,
            name: one_line(&w.name),
            summary: one_line(&w.summary),
            machine: w.machine,
        })
    }
}

impl Profile {
    /// The same with links inside the node of another bandwidth than the one that was measured.
    #[doc(hidden)]
    pub fn on_link(mut self, link: Bandwidth) -> Profile {
        self.collectives.on_link(link);
        self
    }
}

impl Layout {
    fn check(self) -> Result<Layout, String> {
        let (data, weight, fp8) = (self.data_gradient, self.weight_gradient, self.fp8_gradient);
        let main = self.main_gradient.unwrap_or(weight);
        let factors =
            [("data_gradient", data), ("weight_gradient", weight), ("main_gradient", main), ("fp8_gradient", fp8)];
        for (name, factor) in factors {
            if !(0.5..=2.0).contains(&factor) {
                return Err(format!("{name} is {factor}: expected the time over the forward matmul's, 0.5 to 2"));
            }
        }
        Ok(self)
    }
}

/// An error of meaning at its place.
fn placed(place: &Place, why: String) -> ProfileError {
    ProfileError::Meaning { path: format!("{}:{}:{}", place.file, place.line, place.column), why }
}

/// An error of meaning, placed at the first line of its section.
fn meaning(path: &str, text: &str, section: &str, why: String) -> ProfileError {
    let head = format!("[{section}");
    let place = match text.lines().position(|line| line.starts_with(&head)) {
        Some(line) => format!("{path}:{} [{section}]", line + 1),
        None => format!("{path} [{section}]"),
    };
    ProfileError::Meaning { path: place, why }
}

#[cfg(test)]
mod tests;
