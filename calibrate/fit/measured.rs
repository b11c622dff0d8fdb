//! From a file of points measured on one machine to a profile of it.
//!
//! Each family of points makes its sections (`fit/measured/`), with errors by leaving out one point at a time. The
//! sections then go into a base profile of the same chip under the rule that merging has: the stronger evidence wins, so
//! what was measured beats what was published, and what was not measured stays as it was, to the byte. Of what was measured
//! several times the median counts. Points that cannot be used are counted by reason (`sift`), never dropped silently.

mod attention;
mod calls;
mod collectives;
mod matmul;
mod memory;
mod sift;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use windtunnel::cost::Profile;
use windtunnel::cost::sections::{Decision, Section, Sections};

pub use matmul::left_out;

use super::{Residual, evidence, median, quantile};
use crate::points::{Machine, Point, Points, Regime, What};

/// Why points make no profile.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The file holds no points.
    #[error("{0} holds no points: measure some with `windtunnel calibrate cuda`")]
    Nothing(String),
    /// It holds points, and none of them can be used.
    #[error("none of the {points} points of {path} can be used:\n{}", reasons(left_out))]
    Unusable {
        /// The file.
        path: String,
        /// Its points.
        points: usize,
        /// How many of them for each reason.
        left_out: BTreeMap<String, usize>,
    },
    /// The points are of several chips.
    #[error("{path} holds points of {first} and of {second}: fit each chip's points alone")]
    SeveralChips {
        /// The file.
        path: String,
        /// A chip.
        first: String,
        /// Another.
        second: String,
    },
    /// The points are of boards that cannot be told apart by name but differ.
    #[error("{path} holds points of unlike machines, {first} and {second}: fit each machine's points alone")]
    UnlikeMachines {
        /// The file.
        path: String,
        /// A machine.
        first: String,
        /// Another.
        second: String,
    },
    /// The base is of another chip.
    #[error(
        "the points are of {measured:?}, which is not known to be {chip}, the chip of the base profile {name}: choose a \
         base of the same chip with --base, or say the chip when importing"
    )]
    NamedChip {
        /// The chip as the imported log or table names it; empty if it does not.
        measured: String,
        /// The base profile.
        name: String,
        /// Its chip.
        chip: String,
    },
    /// Points of one chip, a base of another.
    #[error(
        "the points are of {measured} ({processors} processors, {bandwidth:.0} GB/s) but the base profile {name} is of \
         {chip} ({base_processors} processors, {base_bandwidth:.0} GB/s): choose a base of the same chip with --base"
    )]
    OtherChip {
        /// The machine's chip.
        measured: String,
        /// Its processors.
        processors: u32,
        /// Its memory bandwidth \[GB/s\].
        bandwidth: f64,
        /// The base profile.
        name: String,
        /// Its chip.
        chip: String,
        /// Its processors.
        base_processors: u32,
        /// Its memory bandwidth \[GB/s\].
        base_bandwidth: f64,
    },
    /// A family of points could not be fitted.
    #[error("{family}: {why}")]
    Family {
        /// The family.
        family: &'static str,
        /// What is wrong.
        why: String,
    },
    /// What came out is not a profile.
    #[error("the profile made of the points is not readable: {0}")]
    Profile(#[from] windtunnel::cost::ProfileError),
}

/// How far a bandwidth by the driver's clock and the one in a profile may lie apart and still be one chip's, relative.
const SAME_BANDWIDTH: f64 = 0.1;
/// How far a power limit may lie from the base's without a note, relative.
const SAME_POWER: f64 = 0.05;
/// No section claims a smaller error: clocks and temperatures differ by more from run to run.
const LEAST_ERROR: f64 = 0.01;

/// Points of one machine, one of each kind, with the profile they go into.
pub struct Measured<'a> {
    machine: &'a Machine,
    points: BTreeMap<(&'a What, Regime), Point>,
    base: &'a Profile,
    /// The base as text.
    sections: &'a Sections,
}

/// What a family of points makes.
#[derive(Debug, Default)]
struct Made {
    sections: Vec<(String, String)>,
    residuals: Vec<Residual>,
    /// How many points are not used, by reason.
    left_out: BTreeMap<String, usize>,
    /// What was measured and is not trusted, and other remarks.
    notes: Vec<String>,
}

impl Made {
    /// Counts points that are not used.
    fn leave(&mut self, points: usize, why: impl Into<String>) {
        if points > 0 {
            *self.left_out.entry(why.into()).or_default() += points;
        }
    }
}

/// A profile made of points, and how it came about.
#[derive(Debug)]
pub struct Fitted {
    /// The profile.
    pub text: String,
    /// Errors of the fits on points they were not given.
    pub residuals: Vec<Residual>,
    /// What became of each section.
    pub decisions: Vec<Decision>,
    /// Sections that stay as they were in the base.
    pub kept: Vec<String>,
    /// How many points are not used, by reason.
    pub left_out: BTreeMap<String, usize>,
    /// What was measured and is not trusted, and other remarks.
    pub notes: Vec<String>,
}

/// Numbers of points by reason, a line each.
pub fn reasons(left_out: &BTreeMap<String, usize>) -> String {
    let lines: Vec<String> = left_out.iter().map(|(why, points)| format!("{points:7}  {why}")).collect();
    lines.join("\n")
}

impl<'a> Measured<'a> {
    /// Times \[s\] of the points that `take` picks, at burst clocks.
    fn burst<T: Ord>(&self, take: impl Fn(&'a What) -> Option<T>) -> BTreeMap<T, f64> {
        let burst = self.points.iter().filter(|((_, regime), _)| *regime == Regime::Burst);
        burst.filter_map(|((what, _), point)| Some((take(what)?, point.median * 1e-6))).collect()
    }

    /// The least error that a section of some points may claim: what repetitions scatter by.
    fn floor(&self, of: impl Fn(&What) -> bool) -> f64 {
        let own = self.points.iter().filter(|((what, _), _)| of(what));
        let half: Vec<f64> = own.map(|(_, point)| (point.p90 - point.p10) / 2.0 / point.median).collect();
        if half.is_empty() { LEAST_ERROR } else { median(&half).max(LEAST_ERROR) }
    }

    /// Evidence of a section of some points, by its errors on each of them left out. No error is below `floor`.
    fn evidence(&self, errors: &[f64], points: usize, floor: f64, source: &str) -> String {
        let [median, p90] = [0.5, 0.9].map(|share| quantile(errors, share).max(floor));
        evidence("measured", points, median, p90, source)
    }

    /// The machine's processors; a log or a table does not say how many, the base does.
    fn processors(&self) -> u32 {
        if self.machine.processors == 0 { self.base.machine.processors } else { self.machine.processors }
    }

    /// The source of a section, for people: what measured it, when, with which libraries.
    fn source(&self, libraries: &[&str]) -> String {
        let m = self.machine;
        let versions: Vec<String> = ["driver"]
            .iter()
            .chain(libraries)
            .filter_map(|name| m.versions.get(*name).map(|version| format!("{name} {version}")))
            .collect();
        let by = if m.source == "measured" { format!("measured by {}", m.tool) } else { m.source.clone() };
        plain(&format!("{by} on {}, {} ({})", m.chip, m.date, versions.join(", ")))
    }
}

/// A text that may stand between quotes in TOML.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c == '"' || c == '\\' || c.is_control() { '\'' } else { c }).collect()
}

/// Makes a profile of points and a base; `path` and `name` are the points' file and the new profile's name.
pub fn fit(path: &str, points: &Points, base: &Profile, base_text: &str, name: &str) -> Result<Fitted, FitError> {
    let Some((last, _)) = points.points.last() else { return Err(FitError::Nothing(path.to_owned())) };
    let machine = &points.machines[*last];
    if let Some(other) = points.machines.iter().find(|m| m.chip != machine.chip) {
        let (first, second) = (other.chip.clone(), machine.chip.clone());
        return Err(FitError::SeveralChips { path: path.to_owned(), first, second });
    }
    let own = |m: &Machine| (m.processors, m.power_limit);
    if let Some(other) = points.machines.iter().find(|m| own(m) != own(machine)) {
        let words = |m: &Machine| {
            let limit = m.power_limit.map_or("no stated power limit".to_owned(), |watts| format!("{watts} W"));
            format!("{} ({} processors, {limit}, {})", m.chip, m.processors, m.date)
        };
        return Err(FitError::UnlikeMachines { path: path.to_owned(), first: words(other), second: words(machine) });
    }
    same_chip(machine, base)?;
    let sift::Sifted { points: usable, left_out, notes } = sift::sift(points);
    if usable.is_empty() {
        return Err(FitError::Unusable { path: path.to_owned(), points: points.points.len(), left_out });
    }
    let mut sections = Sections::of(base_text);
    let whole = sections.clone();
    let measured = Measured { machine, points: usable, base, sections: &whole };
    let mut made = Made { left_out, notes, ..Made::default() };
    let versions = &points.machines[0].versions;
    if points.machines.iter().any(|m| m.versions != *versions) {
        made.notes
            .push("the libraries changed while it was measured: the last machine's versions are named".to_owned());
    }
    let theirs = base.machine.power_limit.map(|limit| limit.0);
    if let Some((limit, theirs)) =
        machine.power_limit.zip(theirs).filter(|(limit, theirs)| (limit / theirs - 1.0).abs() > SAME_POWER)
    {
        made.notes.push(format!(
            "the points were measured at a power limit of {limit} W, the base's at {theirs} W: what stays of the base is for its limit"
        ));
    }
    matmul::fit(&measured, &mut made)?;
    attention::fit(&measured, &mut made)?;
    memory::fit(&measured, &mut made)?;
    calls::fit(&measured, &mut made)?;
    collectives::fit(&measured, &mut made)?;
    let before: Vec<String> = sections.list.iter().map(|section| section.name.clone()).collect();
    let newcomer = made.sections.into_iter().map(|(name, text)| Section { name, text }).collect();
    let decisions = sections.merge(&Sections { head: String::new(), list: newcomer });
    sections.head = head(machine, base, name);
    sections.put(Section { name: "machine".to_owned(), text: machine_text(machine, base) });
    let text = sections.text().trim_end().to_owned() + "\n";
    Profile::parse(name, &text)?;
    let taken = |name: &String| decisions.iter().any(|d| d.taken && d.name == *name);
    let kept = before.into_iter().filter(|name| name != "machine" && !taken(name)).collect();
    let Made { residuals, left_out, notes, .. } = made;
    Ok(Fitted { text, residuals, decisions, kept, left_out, notes })
}

/// The model in a chip's name, as `H100` in `NVIDIA H100 80GB HBM3`: a letter or two, then three digits.
fn model(chip: &str) -> Option<&str> {
    let is_model = |word: &&str| {
        let letters = word.bytes().take_while(u8::is_ascii_uppercase).count();
        matches!(letters, 1 | 2) && word.len() == letters + 3 && word[letters..].bytes().all(|b| b.is_ascii_digit())
    };
    chip.split(|c: char| !c.is_ascii_alphanumeric()).find(is_model)
}

/// Whether a name says that the board is a PCIe card, whose clocks and links are others.
fn pcie(chip: &str) -> bool {
    chip.to_lowercase().contains("pcie")
}

/// Points may only replace sections of a profile of the same chip.
fn same_chip(machine: &Machine, base: &Profile) -> Result<(), FitError> {
    let own = &base.machine;
    if machine.processors == 0 {
        // A log or a table: it names the chip, if anything.
        let same = model(&machine.chip).is_some_and(|name| model(&own.chip) == Some(name))
            && pcie(&machine.chip) == pcie(&own.chip);
        let (measured, name, chip) = (machine.chip.clone(), base.name.clone(), own.chip.clone());
        return if same { Ok(()) } else { Err(FitError::NamedChip { measured, name, chip }) };
    }
    let off = machine.memory_bandwidth / own.memory_bandwidth.0 - 1.0;
    if machine.processors == own.processors && off.abs() <= SAME_BANDWIDTH {
        return Ok(());
    }
    Err(FitError::OtherChip {
        measured: machine.chip.clone(),
        processors: machine.processors,
        bandwidth: machine.memory_bandwidth / 1e9,
        name: base.name.clone(),
        chip: own.chip.clone(),
        base_processors: own.processors,
        base_bandwidth: own.memory_bandwidth.0 / 1e9,
    })
}

fn head(machine: &Machine, base: &Profile, name: &str) -> String {
    let summary =
        plain(&format!("{}, measured {}; what was not measured is of {}", machine.chip, machine.date, base.name));
    format!(
        "# {summary}\n# Written by `windtunnel calibrate fit`; do not edit, run it again. Every section names its source.\n\n\
         format = {}\nname = \"{}\"\nsummary = \"{summary}\"\n\n",
        windtunnel::cost::profile::FORMAT,
        plain(name)
    )
}

fn machine_text(machine: &Machine, base: &Profile) -> String {
    let own = &base.machine;
    let line = |name: &str, value: Option<f64>, unit: &str| {
        value.map_or(String::new(), |value| format!("{name} = \"{value} {unit}\"\n"))
    };
    let mut text = format!(
        "[machine]\nchip = \"{}\"\nprocessors = {}\nmemory_bandwidth = \"{} GB/s\"\nmemory = \"{} B\"\n\
         {}{}software = \"{}\"\n",
        plain(&machine.chip),
        if machine.processors == 0 { own.processors } else { machine.processors },
        // Datasheets round; topologies are compared with the profile's figure.
        own.memory_bandwidth.0 / 1e9,
        if machine.memory == 0 { own.memory.0 } else { machine.memory },
        line("power_limit", machine.power_limit.or(own.power_limit.map(|limit| limit.0)), "W"),
        line("clock", machine.clock.or(own.clock.map(|clock| clock.0 / 1e6)), "MHz"),
        plain(&own.software),
    );
    if !machine.versions.is_empty() {
        let list: Vec<String> = machine
            .versions
            .iter()
            .map(|(name, version)| format!("\"{}\" = \"{}\"", plain(name), plain(version)))
            .collect();
        let _ = writeln!(text, "versions = {{ {} }}", list.join(", "));
    }
    let _ = write!(
        text,
        "date = \"{}\"\ntool = \"{}\"\nsource = \"the machine's own driver; memory bandwidth and what was not measured: {}\"\n",
        plain(&machine.date),
        plain(&machine.tool),
        plain(&own.source)
    );
    text
}

#[cfg(test)]
mod tests;
