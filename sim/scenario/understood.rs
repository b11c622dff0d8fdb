//! The scenario as understood: every decision taken, every default named.

use std::sync::Arc;

use toml::Spanned;

use super::assumption::Assumption;
use super::draft::Draft;
use super::entry::{Base, Decided, Runtime};
use super::error::ScenarioError;
use super::interruptions::{self, Asked};
use super::machine::{profile, topology};
use super::measured::{self, Measured};
use super::places::Places;
use super::ranks::{self, Ranks};
use super::reader::{How, Idle, Reader};
use super::source::Source;
use super::{batch, experts, gate, idle, limits, model, plain, releases, written};
use crate::cost::{Profile, Regime, Software};
use crate::files::one_line;
use crate::hardware::{Place, Topology};
use crate::runtime::{Parts, Plan};
use crate::tables::Unread;

/// A scenario, fully decided: which model, on which machine, trained how.
///
/// It is read from a file ([`Scenario::load`], [`Scenario::parse`]) or built in Rust ([`Scenario::builder`]). Either way every default
/// that was taken is listed in [`Scenario::assumptions`].
///
/// ```
/// use windtunnel::Scenario;
///
/// let scenario = Scenario::load("scenarios/llama3.1-8b-fsdp2-8xh100.toml")?;
/// assert_eq!(scenario.runtime.written(), "fsdp2");
/// for line in scenario.assumption_lines() {
///     println!("{line}");
/// }
///
/// // Errors name the place in the file and what to write.
/// let error = Scenario::parse("mine.toml", "runtime = \"fsdp3\"").unwrap_err();
/// assert!(error.to_string().contains("mine.toml"));
/// # Ok::<(), windtunnel::ScenarioError>(())
/// ```
#[derive(Debug)]
pub struct Scenario {
    /// The file it came from.
    pub file: String,
    /// What the run is.
    pub description: String,
    /// The framework.
    pub runtime: Runtime,
    /// The machine.
    pub topology: Topology,
    /// Its measured costs.
    pub profile: Arc<Profile>,
    /// Clock regime.
    #[doc(hidden)]
    pub regime: Regime,
    /// Software settings that costs depend on.
    #[doc(hidden)]
    pub software: Software,
    /// `CUDA_LAUNCH_BLOCKING`.
    #[doc(hidden)]
    pub launch_blocking: bool,
    /// Whether the device takes what all streams are given from one queue (`CUDA_DEVICE_MAX_CONNECTIONS=1`).
    #[doc(hidden)]
    pub one_queue: bool,
    #[doc(hidden)]
    /// The job.
    pub job: Plan,
    /// `expandable_segments`.
    #[doc(hidden)]
    pub expandable_segments: bool,
    /// Its keys, to change: what every what-if is made of.
    #[doc(hidden)]
    pub draft: Draft,
    /// Where the file says what a step's length hangs on; a draft has no places.
    #[doc(hidden)]
    pub places: Option<Places>,
    /// The text of the file; a draft has none.
    #[doc(hidden)]
    pub text: String,
    /// What the file left open, and what was taken for it.
    pub assumptions: Vec<Assumption>,
    /// Keys of the file that change nothing in this plan.
    pub idle: Vec<Idle>,
    /// How ranks differ from one another, if they do.
    pub ranks: Option<Ranks>,
    /// The release of the framework that ran, where the file has the defaults of another one.
    pub unknown_release: Option<String>,
    /// Switches of the run that are not simulated, each with what it changes.
    pub not_simulated: Vec<String>,
    /// What the run has measured, where it has been run.
    pub measured: Option<Measured>,
    /// What the file says of interruptions.
    #[doc(hidden)]
    pub interruptions: Asked,
}

/// Whether a draft is a scenario that there are rules for.
fn reads(draft: &Draft, how: How<'_>) -> bool {
    let read = Scenario::read(draft.file(), &Source::draft(draft.table()), how);
    read.is_ok_and(|scenario| scenario.job.refuses().is_none())
}

impl Draft {
    /// The scenario as understood. A draft that is none is written out: what is wrong is then said with its place and its words.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        self.tried(None).or_else(|_| Scenario::parse(self.file(), &self.text()))
    }

    /// The same, on the machine of another topology file if there is one; of a draft that is no scenario nobody is told why.
    pub fn tried(&self, topology: Option<&str>) -> Result<Scenario, ScenarioError> {
        let read = Scenario::read(self.file(), &Source::draft(self.table()), How { trial: true, topology, reads });
        read.map(|scenario| Scenario { draft: scenario.draft.clone().sharing(self), ..scenario })
    }
}

impl Scenario {
    /// Understands a scenario's text; `file` names it in errors and is what paths in it are relative to. An error is the first
    /// problem: [`Scenario::proofread`] looks for all.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let source = Source::parse(text).map_err(|error| unread(file, text, &error))?;
        Scenario::understood(file, &source)
    }

    /// Understands the keys of a file.
    pub(super) fn understood(file: &str, source: &Source<'_>) -> Result<Scenario, ScenarioError> {
        Scenario::read(file, source, How { trial: false, topology: None, reads })
    }

    /// Understands a scenario; of a remedy on trial nothing is looked for that would mend it.
    fn read(file: &str, source: &Source<'_>, how: How<'_>) -> Result<Scenario, ScenarioError> {
        let mut scenario = source.written().map_err(|error| unread(file, source.text(), &error))?;
        let table = source.table();
        let mut reader = Reader { file, framework: "", source, table, assumptions: vec![], idle: vec![], how };
        let runtime = runtime(&reader, &scenario.runtime)?;
        reader.framework = runtime.written();
        releases::fill(&mut reader, &mut scenario, runtime)?;
        understand(&mut reader, &scenario, runtime)
    }
}

impl Scenario {
    /// Where to point at in the file. A draft is written out for that.
    pub(super) fn places(&self) -> Places {
        let written = || Scenario::parse(&self.file, &self.draft.text()).ok()?.places;
        self.places.clone().or_else(written).unwrap_or_else(|| {
            let whole = Place::of(&self.file, "", 0..0);
            Places { sequence: whole.clone(), model: whole.clone(), documents: whole.clone(), length: whole }
        })
    }
}

/// What a parser says of a scenario, in the user's words.
pub(super) fn unread(file: &str, text: &str, error: &Unread) -> ScenarioError {
    let span = error.span().unwrap_or(0..0);
    let problem = plain::words(error.message(), text, span.clone());
    ScenarioError::Written { problem, place: Box::new(Place::of(file, text, span)) }
}

impl Scenario {
    /// The same scenario with another job: a what-if.
    #[doc(hidden)]
    pub fn with(&self, job: Plan, expandable_segments: bool) -> Scenario {
        Scenario {
            file: self.file.clone(),
            description: self.description.clone(),
            text: self.text.clone(),
            topology: self.topology.clone(),
            profile: Arc::clone(&self.profile),
            places: self.places.clone(),
            assumptions: self.assumptions.clone(),
            idle: self.idle.clone(),
            measured: self.measured.clone(),
            ranks: self.ranks.clone(),
            unknown_release: self.unknown_release.clone(),
            not_simulated: self.not_simulated.clone(),
            interruptions: self.interruptions.clone(),
            draft: self.draft.clone(),
            job,
            expandable_segments,
            ..*self
        }
    }
}

/// The first compute capability of chips on which nobody asks for one queue: Blackwell's.
const MANY_QUEUES: f64 = 10.0;

/// `framework.device_max_connections`: whether the device takes what all streams are given from one queue. From how many it does
/// otherwise changes nothing here.
fn one_queue(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    job: &Plan,
    topology: &Topology,
) -> Result<bool, ScenarioError> {
    const KEY: &str = "framework.device_max_connections";
    let Some(at) = &scenario.framework.device_max_connections else {
        let known = topology.chip.compute_capability;
        let asked = job.asks_for_one_queue() && known.is_none_or(|known| known < MANY_QUEUES);
        return Ok(asked
            && match known {
                Some(_) => reader.assume(KEY, true, 1),
                None => {
                    let why = "chip.compute_capability is not stated: as before Blackwell";
                    reader.assume_for(KEY, true, 1, why)
                }
            });
    };
    match *at.get_ref() {
        1 => Ok(true),
        2..=32 => Ok(false),
        other => {
            let problem = format!("CUDA_DEVICE_MAX_CONNECTIONS is 1 to 32, and {KEY} is {other}");
            Err(reader.plan(at, problem, "write 1 for one queue, or 8, which is CUDA's default"))
        }
    }
}

fn understand(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    runtime: Runtime,
) -> Result<Scenario, ScenarioError> {
    let topology = topology(reader, &scenario.topology, runtime)?;
    let profile = profile(reader, &scenario.topology, &topology)?;
    let profile = gate::profile(reader, &scenario.topology, &topology, profile)?;
    let mut model = model::model(reader, &scenario.model)?;
    if !runtime.has_multi_token() && std::mem::take(&mut model.mtp_layers) > 0 {
        reader.note(format!("{} is trained without the modules that predict tokens further ahead", model.name));
    }
    let (seq, micro, accumulation) = batch::batch(reader, scenario, (runtime, &topology))?;
    let base = Base { scenario, runtime, topology: &topology, profile: &profile, model, seq, micro, accumulation };
    let Decided { job, regime, software, expandable_segments } = runtime.decide(reader, base)?;
    limits::check(reader, scenario, &job)?;
    batch::check(reader, scenario, &job)?;
    experts::notes(reader, &job);
    let launch_blocking = match job.parts() {
        // One program: the host launches nothing in between.
        Parts::Compiled(_) => false,
        _ => reader.flag(&written::Framework::launch_blocking, scenario.framework.launch_blocking),
    };
    idle::find(reader, (runtime, &topology), &job);
    let one_queue = one_queue(reader, scenario, &job, &topology)?;
    let ranks = ranks::understand(reader, scenario.ranks.as_ref(), &topology)?;
    let interruptions = interruptions::asked(reader, scenario, (&topology, &job))?;
    let unknown_release = scenario.framework.unknown_release.as_ref().map(|at| one_line(at.get_ref()));
    let left_out = scenario.framework.not_simulated.iter().flatten();
    let not_simulated = left_out.map(|at| one_line(at.get_ref())).collect();
    let tokens = job.tokens();
    let names = (runtime.written(), topology.name.as_str());
    let measured = scenario.measured.as_ref();
    let measured =
        measured.map(|at| measured::understand(reader, at, names, (tokens, topology.chips()))).transpose()?;
    Ok(Scenario {
        file: reader.file.to_owned(),
        description: one_line(scenario.description.as_deref().unwrap_or(reader.file)),
        runtime,
        topology,
        profile,
        regime,
        software,
        launch_blocking,
        one_queue,
        job,
        expandable_segments,
        draft: Draft::new(reader.file, reader.table.clone()),
        places: Places::of(reader, scenario),
        text: reader.source.text().to_owned(),
        assumptions: std::mem::take(&mut reader.assumptions),
        idle: std::mem::take(&mut reader.idle),
        ranks,
        unknown_release,
        not_simulated,
        measured,
        interruptions,
    })
}

/// The framework.
pub(super) fn runtime(reader: &Reader<'_>, written: &Spanned<String>) -> Result<Runtime, ScenarioError> {
    Runtime::find(written.get_ref()).ok_or_else(|| {
        let asked = written.get_ref();
        let hint = match Runtime::called(asked) {
            Some(_) => String::new(),
            None => Runtime::near(asked).map_or(String::new(), |near| format!(" (did you mean {:?}?)", near.written())),
        };
        let problem = format!("there is no runtime {asked:?}{hint}");
        let remedy = match Runtime::called(asked) {
            Some(runtime) => format!("write {:?}, which is {}", runtime.written(), runtime.lane()),
            None => {
                let name = |runtime: Runtime| format!("{} ({})", runtime.written(), runtime.name());
                format!("write one of: {}", Runtime::ALL.map(name).join(", "))
            }
        };
        reader.unknown(written, problem, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_read_as_its_text_is() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        for entry in std::fs::read_dir(folder).expect("shipped") {
            let path = entry.expect("shipped").path();
            if path.extension().is_none_or(|end| end != "toml") {
                continue;
            }
            let (file, text) = (path.display().to_string(), std::fs::read_to_string(&path).expect("shipped"));
            let draft = Scenario::parse(&file, &text).expect("shipped").draft;
            let read = [draft.tried(None), Scenario::parse(&file, &draft.text())];
            let [table, written] = read.map(|read| read.expect("a draft of what is shipped"));
            let shown =
                |scenario: Scenario| format!("{:?}", Scenario { places: None, text: String::new(), ..scenario });
            assert!(table.places.is_none() && shown(table) == shown(written), "{file}");
        }
    }
}
