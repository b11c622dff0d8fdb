//! What the first word of a command names: a scenario, another framework's configuration, a shipped sample or a shipped model.

use std::path::{Path, PathBuf};

use super::import::On;
use super::{Failure, read};
use windtunnel::explore::values;
use windtunnel::files;
use windtunnel::hardware::{self, Topology, Vendor};
use windtunnel::import::{self, Importer, Machine, Request};
use windtunnel::model::Position;
use windtunnel::model::huggingface::{self, shipped};
use windtunnel::scenario::fresh::Fresh;
use windtunnel::scenario::samples::{self, Sample};
use windtunnel::scenario::{Runtime, Scenario};

/// Tokens of a sequence where a model is run and nobody says how many, unless the model is for less.
const SEQUENCE: u64 = 4096;

/// What errors call a scenario that no file describes.
const COMMAND_LINE: &str = "the command line";

/// The machine on which a model's operators are listed, of which the list shows nothing.
const ANY_MACHINE: &str = "h100-sxm-80gb";

/// A run, by its first word and what stands beside it.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// A scenario file; another framework's configuration (see windtunnel import) with --on; a shipped model's name with --on and
    /// --framework (see windtunnel models); or a sample's name (see windtunnel new --list).
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Keys to change: those of a scenario, such as batch.micro=2, or the framework's own of its configuration.
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// What stands on the framework's own command line, as it is written there: --key value, --key=value.
    #[arg(value_name = "WORDS", last = true)]
    words: Vec<String>,
    #[command(flatten)]
    machine: On,
    /// The framework that trains a shipped model or a config.json: fsdp2, megatron, deepspeed, xla and others.
    #[arg(long, value_name = "NAME")]
    framework: Option<String>,
}

impl Named {
    /// The scenario that is meant.
    pub fn load(&self) -> Result<Scenario, Failure> {
        let keys = [self.keys.as_slice(), self.words.as_slice()].concat();
        load(&self.scenario, &keys, &self.machine, self.framework.as_deref())
    }
}

/// The scenario at `path`, which may be another framework's configuration on the machine `on`.
pub fn at(path: &Path, on: &On) -> Result<Scenario, Failure> {
    load(path, &[], on, None)
}

fn load(path: &Path, keys: &[String], on: &On, framework: Option<&str>) -> Result<Scenario, Failure> {
    if let Some(model) = named_model(path) {
        return fresh(model, keys, on, framework);
    }
    let (file, text) = read(path)?;
    let Some(importer) = import::recognise(&file, &text).map_err(Failure::input)? else {
        if on.is_written() || framework.is_some() {
            let message = format!(
                "{file} is a scenario, which names its machine, its model and its framework itself: leave out --on, --nodes, --chips, --slice, --slices, --model and --framework"
            );
            return Err(Failure::input(message));
        }
        let scenario = Scenario::proofread(&file, &text).map_err(Failure::input)?;
        return with(scenario, keys);
    };
    match (framework, importer.name) {
        (None, _) => imported(importer, (&file, &text), keys, on),
        // A bare model says no framework.
        (Some(_), "hf") => fresh(&file, keys, on, framework),
        (Some(name), of) => {
            Err(Failure::input(format!("{file} is a configuration of {of}: leave out --framework {name}")))
        }
    }
}

/// The shipped model that a word names, if no file does.
fn named_model(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    (!path.exists() && shipped::shipped(name).is_some()).then_some(name)
}

fn imported(
    importer: &Importer,
    (file, text): (&str, &str),
    overrides: &[String],
    on: &On,
) -> Result<Scenario, Failure> {
    let request = Request { file, text, overrides, machine: on.machine()?, model: on.model(), version: None };
    let imported = import::import(importer, &request).map_err(Failure::input)?;
    let scenario = imported.scenario().map_err(Failure::input)?;
    files::note(&format!("note: {file} was read as a configuration of {} ({})", imported.of, imported.basis));
    imported.warnings().iter().for_each(|line| files::note(&format!("note: {line}")));
    Ok(scenario)
}

/// A model with the defaults of a framework.
fn fresh(model: &str, keys: &[String], on: &On, framework: Option<&str>) -> Result<Scenario, Failure> {
    if let Some(other) = on.model() {
        return Err(Failure::input(format!("{model} is a model: leave out --model {other}")));
    }
    let Machine { on: Some(topology), nodes, chips, slice, slices } = on.machine()? else {
        return Err(Failure::input(format!("{model} is a model: name its machine, such as --on h100-sxm-80gb:1")));
    };
    let size = slice.clone().map_or(hardware::Size::Smallest, hardware::Size::Slice);
    let machine = Topology::load(&topology, &size).map_err(Failure::input)?;
    let is_tpu = machine.chip.vendor == Vendor::Google;
    if is_tpu && slice.is_none() {
        let message = format!("a TPU is rented as slices: write its shape too, such as --on {topology}:4x4");
        return Err(Failure::input(message));
    }
    let runtime = framework.unwrap_or(if is_tpu { "xla" } else { "fsdp2" }).to_owned();
    if framework.is_none() {
        files::note(&format!("note: --framework {runtime} is assumed; others are {}", others(&runtime)));
    }
    let one_node = chips.is_none() && slice.is_none();
    let nodes = nodes.or(one_node.then_some(1));
    let sequence = sequence(model)?;
    let about = format!("description={model}, {runtime}, {}", on.on.as_deref().unwrap_or(&topology));
    let model = model.to_owned();
    let fresh = Fresh { runtime, model, topology, nodes, chips, slice, sequence, micro: 1 };
    let (_, scenario) = fresh.text(COMMAND_LINE).map_err(Failure::input)?;
    if !keys.iter().any(|word| word.starts_with("batch.")) {
        files::note(&format!(
            "note: one sequence of {sequence} tokens per micro-batch is assumed: add batch.sequence=N batch.micro=N"
        ));
    }
    let slices = slices.map(|slices| format!("topology.slices={slices}"));
    with(scenario, &[&[about], slices.as_slice(), keys].concat())
}

/// Tokens of a model's sequence where nobody says how many.
fn sequence(model: &str) -> Result<u64, Failure> {
    let config = match shipped::shipped(model) {
        Some(_) => shipped::named(model),
        None => huggingface::load(Path::new(model)),
    };
    let config = config.map_err(Failure::input)?;
    let table = match config.position {
        Position::Learned { positions } => Some(positions),
        Position::Rope { .. } | Position::Alibi | Position::None => None,
    };
    Ok([config.context, table].into_iter().flatten().fold(SEQUENCE, u64::min))
}

/// A scenario whose model is that of a scenario, of a `config.json` or of a shipped name: to list its operators.
pub fn for_its_model(path: &Path) -> Result<Scenario, Failure> {
    let model = match named_model(path) {
        Some(name) => name.to_owned(),
        None => {
            let (file, text) = read(path)?;
            let importer = import::recognise(&file, &text).map_err(Failure::input)?;
            if importer.is_none_or(|importer| importer.name != "hf") {
                return Scenario::parse(&file, &text).map_err(Failure::input);
            }
            file
        }
    };
    let sequence = sequence(&model)?;
    let fresh = Fresh {
        runtime: "fsdp2".to_owned(),
        topology: ANY_MACHINE.to_owned(),
        chips: Some(1),
        sequence,
        micro: 1,
        model,
        ..Fresh::default()
    };
    files::note(&format!("note: operators are those of PyTorch for one sequence of {sequence} tokens"));
    Ok(fresh.text(COMMAND_LINE).map_err(Failure::input)?.1)
}

/// The other frameworks.
fn others(runtime: &str) -> String {
    let all = Runtime::ALL.into_iter().map(Runtime::written);
    all.filter(|name| *name != runtime).collect::<Vec<_>>().join(", ")
}

/// A scenario with some keys changed. What the run has measured is left behind: nobody has measured the changed one.
fn with(scenario: Scenario, keys: &[String]) -> Result<Scenario, Failure> {
    if keys.is_empty() {
        return Ok(scenario);
    }
    let mut changed = scenario.to_builder();
    for word in keys {
        changed = match values::assignment(word).map_err(Failure::input)? {
            (key, Some(value)) => changed.set(key, value),
            (key, None) => changed.unset(key),
        };
    }
    changed.build().map_err(Failure::input)
}

/// The sample that a word names, if no file does.
pub fn named_sample(path: &Path) -> Option<&'static Sample> {
    samples::sample(path.to_str()?).filter(|_| !path.exists())
}
