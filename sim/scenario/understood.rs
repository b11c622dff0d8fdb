//! The scenario as understood: every decision taken, every default named.

use std::path::Path;

use toml::Spanned;

use super::error::ScenarioError;
use super::machine::{cublas, profile, rail, topology};
use super::measured::{self, Measured};
use super::{experts, gate, limits, model, plain, recompute, sharding, tensor, training, written};
use crate::cost::{Backend, Profile, Regime, Software};
use crate::hardware::{Place, Topology};
use crate::model::style::{Rope, Style};
use crate::model::{ModelConfig, Norm, Position};
use crate::program::{DType, Dispatch};
use crate::runtime::eager::Settings;
use crate::runtime::eager::offload::Offload;
use crate::runtime::fsdp::MixedPrecision;
use crate::runtime::train::Job;

/// The framework whose program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// PyTorch `fully_shard`.
    Fsdp2,
    /// PyTorch `FullyShardedDataParallel`.
    Fsdp1,
    /// PyTorch on one device, with nothing around the model.
    SingleDevice,
}

impl Runtime {
    /// All runtimes with the names a scenario writes: the registry.
    pub const ALL: [(&'static str, Runtime); 3] =
        [("fsdp2", Runtime::Fsdp2), ("fsdp1", Runtime::Fsdp1), ("single_device", Runtime::SingleDevice)];

    /// As a scenario writes it.
    pub fn written(self) -> &'static str {
        Self::ALL.iter().find(|(_, runtime)| *runtime == self).map_or("", |(name, _)| name)
    }

    /// The framework's short name.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Fsdp2 => "FSDP2",
            Runtime::Fsdp1 => "FSDP1",
            Runtime::SingleDevice => "one device",
        }
    }

    /// The lane's name in reports.
    pub fn lane(self) -> &'static str {
        match self {
            Runtime::Fsdp2 => "FSDP2 (PyTorch fully_shard, CUDA)",
            Runtime::Fsdp1 => "FSDP1 (PyTorch FullyShardedDataParallel, CUDA)",
            Runtime::SingleDevice => "one device (PyTorch, CUDA)",
        }
    }
}

/// A scenario, fully decided.
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
    pub profile: Profile,
    /// Clock regime.
    pub regime: Regime,
    /// Software settings that costs depend on.
    pub software: Software,
    /// The job.
    pub job: Job,
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// Whether the file gives some blocks a resharding policy of their own.
    pub overrides: bool,
    /// Where the file says how long sequences are: what to point at when a step turns out too long.
    pub sequence_at: Place,
    /// Where the file names the model.
    pub model_at: Place,
    /// What the file left open, and what was taken for it.
    pub assumptions: Vec<String>,
    /// What the run has measured, where it has been run.
    pub measured: Option<Measured>,
}

/// Reads places and collects assumptions while the file is understood.
pub(super) struct Reader<'t> {
    pub file: &'t str,
    pub text: &'t str,
    pub assumptions: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn place<T>(&self, at: &Spanned<T>) -> Box<Place> {
        Box::new(Place::of(self.file, self.text, at.span()))
    }

    pub(super) fn plan<T>(
        &self,
        at: &Spanned<T>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ScenarioError {
        ScenarioError::Plan { problem: problem.into(), place: self.place(at), remedy: remedy.into() }
    }

    /// A count between 1 (or `least`) and `most`.
    pub(super) fn count(&self, key: &str, at: &Spanned<i64>, least: i64, most: i64) -> Result<u64, ScenarioError> {
        let value = *at.get_ref();
        if (least..=most).contains(&value) {
            Ok(value.unsigned_abs())
        } else {
            let problem = format!("{key} = {value} is out of range: expected {least} to {most}");
            Err(ScenarioError::Written { problem, place: self.place(at) })
        }
    }

    pub(super) fn count_or(
        &mut self,
        key: &str,
        at: Option<&Spanned<i64>>,
        least: i64,
        most: i64,
        default: u64,
    ) -> Result<u64, ScenarioError> {
        match at {
            Some(at) => self.count(key, at, least, most),
            None => Ok(self.assume(key, default, &default.to_string())),
        }
    }

    /// Notes that a key was left open.
    pub(super) fn assume<T>(&mut self, key: &str, value: T, shown: &str) -> T {
        self.assumptions.push(format!("{key} = {shown}"));
        value
    }

    pub(super) fn flag(&mut self, key: &str, written: Option<bool>, default: bool) -> bool {
        written.unwrap_or_else(|| self.assume(key, default, &default.to_string()))
    }
}

pub(super) const MOST_RANKS: i64 = limits::RANKS as i64;
pub(super) const MOST_SEQUENCE: i64 = 1 << 26;
pub(super) const MOST_SMALL: i64 = 1 << 16;

impl Scenario {
    /// Reads a scenario file.
    pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError::Unreadable { path: file.clone(), reason: error.to_string() })?;
        Scenario::parse(&file, &text)
    }

    /// Understands a scenario's text; `file` names it in errors and is what paths in it are relative to.
    pub fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: written::Scenario = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let problem = plain::words(error.message(), text, span.clone());
            ScenarioError::Written { problem, place: Box::new(Place::of(file, text, span)) }
        })?;
        let mut reader = Reader { file, text, assumptions: vec![] };
        understand(&mut reader, &scenario)
    }
}

impl Scenario {
    /// The same scenario with another job: a what-if.
    pub fn with(&self, job: Job, expandable_segments: bool) -> Scenario {
        Scenario {
            file: self.file.clone(),
            description: self.description.clone(),
            topology: self.topology.clone(),
            profile: self.profile.clone(),
            sequence_at: self.sequence_at.clone(),
            model_at: self.model_at.clone(),
            assumptions: self.assumptions.clone(),
            measured: self.measured.clone(),
            job,
            expandable_segments,
            ..*self
        }
    }
}

fn understand(reader: &mut Reader<'_>, scenario: &written::Scenario) -> Result<Scenario, ScenarioError> {
    let runtime = runtime(reader, &scenario.runtime)?;
    let topology = topology(reader, &scenario.topology, runtime)?;
    let profile = profile(reader, &scenario.topology, &topology)?;
    gate::profile(reader, &scenario.topology, &topology, &profile)?;
    let model = model::model(reader, &scenario.model)?;
    let batch = &scenario.batch;
    let seq = reader.count("batch.sequence", &batch.sequence, 1, MOST_SEQUENCE)?;
    let micro = reader.count_or("batch.micro", batch.micro.as_ref(), 1, MOST_SMALL, 1)?;
    let accumulation = reader.count_or("batch.accumulation", batch.accumulation.as_ref(), 1, MOST_SMALL, 1)?;
    let tensor = tensor::tensor(reader, scenario, runtime, &topology)?;
    let count = |reader: &Reader<'_>, key: &str, at: &Spanned<i64>| reader.count(key, at, 1, MOST_RANKS);
    let (shard, replicate) = gate::mesh(reader, &scenario.mesh, (&topology, tensor.ranks), count)?;
    let mixed_precision = precision(reader, &scenario.precision, runtime)?;
    let config = sharding::fsdp(reader, scenario, runtime, &model, (shard, replicate), mixed_precision)?;
    let checkpoint = recompute::checkpoint(reader, &scenario.activation_checkpointing, model.layers)?;
    let offload = recompute::offload(reader, scenario, runtime)?;
    let early_stop =
        reader.flag("activation_checkpointing.early_stop", scenario.activation_checkpointing.early_stop, true);
    let optimizer = training::optimizer(reader, &scenario.optimizer)?;
    let step_in_backward = training::in_backward(reader, &scenario.optimizer, (runtime, accumulation))?;
    let clip = reader.flag("optimizer.clip_grad_norm", scenario.optimizer.clip_grad_norm, true);
    let sync_every = match accumulation {
        1 => true,
        _ => reader.flag("batch.sync_every_micro_batch", batch.sync_every_micro_batch, false),
    };
    let marks_last = match accumulation {
        1 => true,
        _ => reader.flag("batch.set_is_last_backward", batch.set_is_last_backward, false),
    };
    let regime = match scenario.topology.clocks {
        Some(written::Clocks::Burst) => Regime::Burst,
        Some(written::Clocks::Sustained) => Regime::Sustained,
        None => reader.assume("topology.clocks", Regime::Sustained, "\"sustained\""),
    };
    let attention = match &scenario.attention.backend {
        Some(backend) => *backend.get_ref(),
        None => reader.assume("attention.backend", Backend::Flash2, "\"flash2\" (PyTorch's own kernels)"),
    };
    gate::attention(reader, &scenario.attention, &profile, attention)?;
    let tf32 = match (mixed_precision.compute(), scenario.precision.tf32) {
        (DType::Fp32, None) => reader.assume("precision.tf32", false, "false (PyTorch's default)"),
        (_, written) => written.unwrap_or(false),
    };
    let expandable_segments = reader.flag("memory.expandable_segments", scenario.memory.expandable_segments, false);
    let rail = rail(reader, &scenario.topology, &topology)?;
    let cublas = cublas(reader, &scenario.framework, &profile)?;
    let loss = training::loss(reader, &scenario.loss, &scenario.compile)?;
    let experts = experts::implementation(reader, &scenario.framework, &model)?;
    let job = Job {
        batch: micro,
        seq,
        accumulation: accumulation as u32,
        sync_every,
        marks_last,
        fsdp: config,
        tensor,
        checkpoint,
        checkpoint_compiled: scenario.activation_checkpointing.around_compiled.unwrap_or(false),
        compile: reader.flag("compile.blocks", scenario.compile.blocks, false),
        loss,
        unpad: scenario.attention.unpad.as_ref().is_some_and(|at| *at.get_ref()),
        keep_logits: scenario.loss.keep_logits.unwrap_or(false),
        training_loop: training::training_loop(reader, scenario, loss)?,
        style: Style { experts, ..style(&scenario.framework) },
        output: scenario.precision.output.as_ref().map(|at| *at.get_ref()),
        eager: eager(reader, scenario, (&topology, &profile), (&model, early_stop, offload)),
        optimizer,
        clip,
        scale_gradients: scenario.optimizer.scale_gradients.unwrap_or(false),
        step_in_backward,
        max_positions: seq,
        model,
    };
    gate::check(reader, scenario, &job, &topology)?;
    limits::check(reader, scenario, &job)?;
    let tokens = job.tokens();
    let names = (runtime.written(), topology.name.as_str());
    let measured = scenario.measured.as_ref();
    let measured =
        measured.map(|at| measured::understand(reader, at, names, (tokens, topology.chips()))).transpose()?;
    Ok(Scenario {
        file: reader.file.to_owned(),
        description: scenario.description.clone().unwrap_or_else(|| reader.file.to_owned()),
        runtime,
        topology,
        profile,
        regime,
        software: Software { attention, tf32, cublas, rail },
        job,
        expandable_segments,
        overrides: !scenario.fsdp.overrides.is_empty(),
        sequence_at: *reader.place(&batch.sequence),
        model_at: *reader.place(&scenario.model),
        assumptions: std::mem::take(&mut reader.assumptions),
        measured,
    })
}

fn runtime(reader: &Reader<'_>, written: &Spanned<String>) -> Result<Runtime, ScenarioError> {
    let known = Runtime::ALL.iter().find(|(name, _)| name == written.get_ref());
    known.map(|&(_, runtime)| runtime).ok_or_else(|| {
        let names = Runtime::ALL.map(|(name, _)| name).join(", ");
        let problem = format!("there is no runtime {:?}", written.get_ref());
        reader.plan(written, problem, format!("write one of: {names}"))
    })
}

fn precision(
    reader: &mut Reader<'_>,
    written: &written::Precision,
    runtime: Runtime,
) -> Result<MixedPrecision, ScenarioError> {
    for (key, dtype) in [
        ("storage", &written.storage),
        ("param", &written.param),
        ("reduce", &written.reduce),
        ("output", &written.output),
    ] {
        if let Some(at) = dtype
            && matches!(at.get_ref(), DType::Int32 | DType::Int64 | DType::Fp8)
        {
            let problem = format!("precision.{key} cannot be {}", at.get_ref().name());
            return Err(reader.plan(at, problem, "write \"bf16\", \"fp16\" or \"fp32\""));
        }
    }
    let get = |at: &Option<Spanned<DType>>| at.as_ref().map(|at| *at.get_ref());
    let storage = get(&written.storage).unwrap_or_else(|| reader.assume("precision.storage", DType::Fp32, "\"fp32\""));
    if runtime == Runtime::SingleDevice {
        if let Some(at) = written.param.as_ref().or(written.reduce.as_ref()) {
            let problem = "on one device parameters are used, and gradients kept, in the type they are stored in";
            return Err(reader.plan(
                at,
                problem,
                "remove precision.param and precision.reduce, or write runtime = \"fsdp2\"",
            ));
        }
        return Ok(MixedPrecision { storage, param: None, reduce: None });
    }
    let param = match get(&written.param) {
        None if storage == DType::Fp32 => Some(reader.assume("precision.param", DType::Bf16, "\"bf16\"")),
        param => param,
    };
    let reduce = match get(&written.reduce) {
        None if storage == DType::Fp32 => Some(reader.assume("precision.reduce", DType::Fp32, "\"fp32\"")),
        None => {
            let same = param.unwrap_or(storage);
            reader.assumptions.push(format!("precision.reduce = \"{}\" (as computed in)", same.name()));
            None
        }
        reduce => reduce,
    };
    Ok(MixedPrecision { storage, param, reduce })
}

/// How eager operators run.
fn eager(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (topology, profile): (&Topology, &Profile),
    (model, early_stop, offload): (&ModelConfig, bool, Option<Offload>),
) -> Settings {
    let framework = &scenario.framework;
    let bias_tensor = match (model.position, scenario.attention.alibi_tensor) {
        (Position::Alibi, None) => reader.assume("attention.alibi_tensor", true, "true"),
        (_, written) => written.unwrap_or(true),
    };
    Settings {
        workspace: profile.overheads.cublas_workspace.0,
        persistent_workspace: reader.flag(
            "framework.persistent_cublas_workspace",
            framework.persistent_cublas_workspace,
            false,
        ),
        fused_rms_norm: match model.norm {
            Norm::Rms => reader.flag("framework.fused_rms_norm", framework.fused_rms_norm, true),
            Norm::Layer { .. } => framework.fused_rms_norm.unwrap_or(true),
        },
        bias_tensor,
        multiprocessors: topology.chip.cores,
        early_stop,
        attention_reads_back: scenario.attention.reads_back.unwrap_or(false),
        offload,
        forward: Dispatch::EagerForward,
        backward: Dispatch::EagerBackward,
    }
}

/// How the model's code is written.
fn style(written: &written::Framework) -> Style {
    let rope = match written.rope {
        None | Some(written::RopeStyle::Complex) => Rope::Complex,
        Some(written::RopeStyle::RotateHalf) => Rope::RotateHalf,
        Some(written::RopeStyle::Stacked) => Rope::Stacked,
    };
    Style { rope, repeat_kv: written.repeat_kv.unwrap_or(false), ..Style::default() }
}
