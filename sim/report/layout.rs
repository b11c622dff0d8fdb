//! What `--json` writes, as plain data: [`Report`] and its sections.
//!
//! Every name carries its unit: `_s` is seconds, `_bytes` is bytes. Fields are in alphabetical order, so that a report that serde
//! writes directly has its keys in the same order as the file. `docs/json.md` and `docs/schema/report-1.json` are generated from
//! these structs and their comments. To add a field: here, and in `json.rs`; then `UPDATE=1 cargo test --lib report`.

use std::collections::BTreeMap;

use serde::Serialize;
#[cfg(test)]
use {
    crate::cost::Basis,
    crate::program::Owner,
    crate::scenario::predict::{Confidence, Verdict},
    schemars::JsonSchema,
};

#[cfg(test)]
mod tests;
mod training;
mod uncertain;

pub use training::{Interrupted, Money, Percentiles, SavedState, SpentOn, Training, TriedInterval};
pub use uncertain::Uncertain;

/// Version of this layout. It rises when a key changes its meaning or goes; a new key alone does not raise it.
pub const FORMAT: u32 = 1;

/// The JSON Schema of this layout, `docs/schema/report-1.json`.
pub const SCHEMA: &str = include_str!("../../docs/schema/report-1.json");

/// A prediction with the scenario that it is of: what `windtunnel run --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Report {
    /// What the allocator's calls to the device add to the step, in seconds. It is part of the step time.
    pub allocator_stall_s: f64,
    /// A line for each key that the file leaves out, with the value taken for it, and remarks on the plan.
    pub assumptions: Vec<String>,
    /// What bounds the step: the largest of its parts.
    #[cfg_attr(test, schemars(extend("enum" = ["communication", "compute", "host", "memory bandwidth", "waiting"])))]
    pub bound_by: &'static str,
    /// Where the step's time went: the mean of all ranks. The parts add up to the step.
    pub breakdown_s: Breakdown,
    /// Share of rank-time that a pipeline leaves without work; 0 without a pipeline.
    pub bubble: f64,
    /// How the step divides by part of the model, the part with the most time first; absent where a compiler has made one program of the
    /// whole step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_part: Vec<ByPart>,
    /// Single changes that were simulated; absent where none were (`--changes`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Changes"))]
    pub changes: Option<Changes>,
    /// What the run is, in the file's own words.
    pub description: String,
    /// Share of the step that rests on each kind of evidence, by kind.
    pub evidence: BTreeMap<&'static str, f64>,
    /// Version of this layout.
    #[cfg_attr(test, schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// Keys of the file that change nothing in this plan.
    pub keys_without_effect: Vec<KeyWithoutEffect>,
    /// The framework, by its name in reports.
    pub lane: &'static str,
    /// Peak memory of the device with the least to spare.
    pub memory: Memory,
    /// Model FLOPs utilisation, once for each convention in use.
    pub mfu: Vec<Mfu>,
    /// The model.
    pub model: Model,
    /// Switches of the run that are not simulated, each with what it changes; the interval is wider by what they may do.
    pub not_simulated: Vec<String>,
    /// Kernels, collectives and messages of the step, by their time. The longest is first.
    pub parts: Vec<Part>,
    /// What every report says about itself: topology, start-up, workload, path, target shape.
    pub questions: Vec<Question>,
    /// What ranks that differ do to the step; absent where all are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Ranks"))]
    pub ranks: Option<Ranks>,
    /// Half the width of an 80 % interval by the costs' uncertainty alone, as a share of the step.
    pub residual_half_width: f64,
    /// Measured runs of the same kind, which the interval rests on.
    pub runs_like_it: RunsLikeIt,
    /// The scenario's file.
    pub scenario: String,
    /// Sequences of one step of the whole job.
    pub sequences_per_step: u64,
    /// Memory and time of each rank of a pipeline; empty where all ranks are alike.
    pub stages: Vec<Stage>,
    /// What compiling costs the run; null where the step is not compiled whole.
    pub start_up: Option<StartUp>,
    /// How much the step time is worth, in a word, by the width of its interval.
    #[cfg_attr(test, schemars(extend("enum" = Confidence::ALL.iter().map(|one| one.word()).collect::<Vec<_>>())))]
    pub step_time_confidence: &'static str,
    /// An 80 % interval around the step time, in seconds: from, to.
    pub step_time_interval_80_s: [f64; 2],
    /// Time of the steady step, in seconds.
    pub step_time_s: f64,
    /// What makes the step time uncertain, with its share of that, the largest first.
    pub step_time_uncertain_by: Vec<Uncertain>,
    /// Tokens per second and chip.
    pub tokens_per_second_per_chip: f64,
    /// Tokens of one step of the whole job.
    pub tokens_per_step: u64,
    /// The machine.
    pub topology: Topology,
    /// Numbers of the machine's file that differ from the shipped machine of the same profile and change nothing.
    pub topology_without_effect: Vec<String>,
    /// The whole training with its interruptions; absent without `--for`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Training"))]
    pub training: Option<Training>,
    /// Where throughput lies if defaults that decide it are not what runs; absent where none moves it, or none was simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unstated: Option<Unstated>,
    /// The version of Windtunnel that wrote the report.
    pub windtunnel: &'static str,
}

/// Where a step's time went. The parts add up to the step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Breakdown {
    /// No kernel ran, and the default stream waited for other ranks, in seconds.
    pub bubble: f64,
    /// A kernel of a pass other than communication ran, in seconds.
    pub compute: f64,
    /// No such kernel ran, but a collective or a message did, in seconds.
    pub exposed_communication: f64,
    /// Nothing ran because the host was behind, in seconds.
    pub host_bound: f64,
    /// Nothing ran otherwise: an event had happened and was not yet visible, in seconds.
    pub waiting: f64,
}

/// What a part of the model has of the step: attention, Mamba-2, experts and so on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct ByPart {
    /// The blocks of its activations that are live at the peak of the device with the least to spare.
    pub activation_bytes: u64,
    /// Time that its kernels ran, but for those of the communication pass, in seconds: the mean of all ranks.
    pub compute_s: f64,
    /// FLOPs that all ranks run for it in a step, recompute included, in decimal digits. The parts add up to those of the convention
    /// `hardware`.
    pub flops_per_step: String,
    /// Layers that have it.
    pub layers: u64,
    /// Its FLOPs of a step of the whole job by the convention `6N + 12LHS`, in decimal digits. The parts add up to those of the convention.
    pub model_flops_per_step: String,
    /// Its parameters. The parts add up to those of the model.
    pub parameters: u64,
    /// The part.
    #[cfg_attr(test, schemars(extend("enum" = Owner::ALL.iter().map(|owner| owner.label()).collect::<Vec<_>>())))]
    pub part: &'static str,
}

/// What ranks that differ do to the step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Ranks {
    /// How long ranks wait for others in the cluster of the middle, by group. The longest is first.
    pub groups: Vec<GroupWaits>,
    /// In the cluster of the middle: slow ranks, and what each costs.
    pub slow: Vec<SlowRank>,
    /// Who says how chips differ; absent if only known ranks do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub source: Option<String>,
    /// The step if all ranks were alike, in seconds.
    pub step_if_alike_s: f64,
    /// The steps of all clusters that were drawn, in seconds. The shortest is first.
    pub steps_s: Vec<f64>,
    /// What stragglers cost the step of the middle, in seconds. It is part of the step time.
    pub stragglers_s: f64,
}

/// How long ranks wait for others in a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct GroupWaits {
    /// The group.
    pub group: String,
    /// The mean of all ranks if all are alike, in seconds.
    pub if_alike_s: f64,
    /// The mean of all ranks, in seconds.
    pub mean_s: f64,
}

/// A rank that is slower than the profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct SlowRank {
    /// By how much the step is shorter if this rank alone is as the profile, in seconds.
    pub costs_s: f64,
    /// How much longer its kernels take than the profile says, as a share.
    pub kernels: f64,
    /// How much longer its links take, as a share.
    pub links: f64,
    /// Which rank.
    pub rank: u32,
}

/// Single changes of the file, each simulated alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Changes {
    /// Defaults that the file does not state and that move the answer, the most decisive first.
    pub defaults: Vec<Default>,
    /// The changes that raise throughput most while the plan fits, best first.
    pub faster: Vec<Change>,
    /// How many changes were simulated.
    pub simulated: usize,
}

/// What is decisive and the file does not state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Unstated {
    /// The defaults, as lines of the file, the one with which throughput moves most first.
    pub defaults: Vec<String>,
    /// Tokens per second and chip at the slowest and the fastest of their values that fit, one changed at a time.
    pub tokens_per_second_per_chip: [f64; 2],
}

/// A single change, and what the run would do with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Change {
    /// The change, as lines of the file.
    pub change: String,
    /// What the fullest device holds, or would have to.
    pub device_total_bytes: u64,
    /// Whether the plan fits.
    pub fits: bool,
    /// Time of the steady step, in seconds.
    pub step_time_s: f64,
    /// Tokens per second and chip.
    pub tokens_per_second_per_chip: f64,
    /// Tokens of one step of the whole job.
    pub tokens_per_step: u64,
}

/// A default that the file does not state, and the other value that moves the answer most.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Default {
    /// The default, as a line of the file.
    pub default: String,
    /// By how much the fullest device's memory changes with the other value, as a share.
    pub memory: f64,
    /// The other value, and what the run would do with it.
    pub other: Change,
    /// By how much tokens per second change with it, as a share.
    pub throughput: f64,
}

/// A key of the file that changes nothing in this plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct KeyWithoutEffect {
    /// The key with its tables, such as `xla.sa_block_size`.
    pub key: String,
    /// Why it changes nothing.
    pub why: String,
}

/// Peak memory of the device with the least to spare, and of its host where the run uses it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Memory {
    /// Most bytes in blocks handed out (`max_memory_allocated`).
    pub allocated_bytes: u64,
    /// How often the allocator had to return cached segments in a step (`num_alloc_retries`).
    pub allocator_retries: u32,
    /// Bytes of blocks by category at the peak of what is allocated; they add up to it.
    pub breakdown_bytes: BTreeMap<&'static str, u64>,
    /// Memory of the device.
    pub capacity_bytes: u64,
    /// The chance that the device has enough, 0 to 1.
    pub chance_to_fit: f64,
    /// Reserved bytes and what lies outside the allocator.
    pub device_total_bytes: u64,
    /// What a rank keeps in files on its node's disks; absent where it keeps nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub disk_bytes: Option<u64>,
    /// How far the device's total may be off.
    pub doubt_bytes: u64,
    /// Whether the plan runs, as far as is known of device and host.
    pub fits: bool,
    /// Whether the plan runs however far the total is off.
    pub fits_beyond_doubt: bool,
    /// What a rank takes of its host's memory; absent where it takes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub host_bytes: Option<u64>,
    /// What all ranks of a node take of its host's memory; absent where they take nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub host_bytes_per_node: Option<u64>,
    /// Memory of a node's host; null where the topology does not say, absent where the run takes nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_capacity_bytes: Option<Option<u64>>,
    /// The pinned part of what a rank takes of its host's memory; absent where it takes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u64"))]
    pub host_pinned_bytes: Option<u64>,
    /// What is live at the peak, largest first.
    pub live_at_peak: Vec<Live>,
    /// Whether the plan may run though the total says that it does not.
    pub may_fit: bool,
    /// All that was tried together, where not even that makes the plan fit; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Remedy"))]
    pub nearest: Option<Remedy>,
    /// The least that the step runs in, where that is near what the device has; else what it would like to have.
    pub needs_bytes: u64,
    /// What lives outside the allocator: the CUDA context and communicators.
    pub outside_allocator_bytes: u64,
    /// The phase of the peak, such as `bwd`.
    pub peak_phase: String,
    /// Phases of the step.
    pub phases: Vec<Phase>,
    /// Changes that would make the plan fit, together where none does alone; empty if it fits.
    pub remedies: Vec<Remedy>,
    /// Most bytes that the allocator took from the device (`max_memory_reserved`).
    pub reserved_bytes: u64,
    /// How much is missing on the device; 0 if it fits.
    pub shortfall_bytes: u64,
    /// Whether the plan runs, in a word.
    #[cfg_attr(test, schemars(extend("enum" = Verdict::ALL.iter().map(Verdict::to_string).collect::<Vec<_>>())))]
    pub verdict: String,
}

/// Tensors of one kind that are live at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Live {
    /// Bytes of the blocks of all of them.
    pub bytes: u64,
    /// Their category, as in `breakdown_bytes`.
    pub category: &'static str,
    /// How many there are.
    pub count: u64,
    /// The operator or parameter.
    pub name: &'static str,
}

/// A phase of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Phase {
    /// Bytes in blocks handed out at its end.
    pub end_allocated_bytes: u64,
    /// `fwd`, `bwd`, `clip`, `opt` or `zero`, numbered where there are several micro-batches.
    pub name: String,
    /// Most bytes in blocks handed out.
    pub peak_allocated_bytes: u64,
}

/// A change that would make the plan fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Remedy {
    /// The change, as lines of the scenario with commas between.
    pub change: String,
    /// What the device would then have to hold.
    pub device_total_bytes: u64,
}

/// Model FLOPs utilisation by one convention.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Mfu {
    /// The convention's short name.
    pub convention: &'static str,
    /// FLOPs of a step of the whole job, in decimal digits: more than a 64-bit integer holds.
    pub flops_per_step: String,
    /// The FLOPs of a token.
    pub formula: &'static str,
    /// Why it is first in place of the convention that mostly is; null where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Share of the chips' dense peak in the type that the model computes in; where matmuls run in 8 bits, of the bf16 peak.
    pub utilisation: f64,
}

/// The model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Model {
    /// The model's name.
    pub name: String,
    /// All of its parameters.
    pub parameters: u64,
}

/// A kernel, a collective or a kind of message. Times are the mean of all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Part {
    /// The weakest evidence that its time rests on.
    #[cfg_attr(test, schemars(extend("enum" = Basis::ALL.iter().map(|basis| basis.label()).collect::<Vec<_>>())))]
    pub basis: &'static str,
    /// Time it ran in a step, overlapped or not, in seconds.
    pub busy_s: f64,
    /// How often it runs in a step, on one rank of each stage together.
    pub count: u64,
    /// Time it ran with nothing else to do for the rank, in seconds.
    pub exposed_s: f64,
    /// The pass of a kernel, or `collective`.
    pub group: &'static str,
    /// The kernel, or the collective with its group and the group's size.
    pub name: String,
}

/// What a report says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Question {
    /// The answer.
    pub answer: String,
    /// The question, in a word or two.
    pub question: &'static str,
}

/// Measured runs of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct RunsLikeIt {
    /// Configurations that were measured.
    pub configurations: usize,
    /// How far half of the predictions are off at most, as a share of the measured step; 0 without runs.
    pub half_within: f64,
    /// Predicted over measured step time, less 1: the median of them; 0 without runs.
    pub median_error: f64,
    /// Families that they belong to: a model by a publisher.
    pub models: usize,
    /// How far nine in ten of the predictions are off at most.
    pub nine_in_ten_within: f64,
}

/// A rank of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Stage {
    /// Most bytes in blocks handed out.
    pub allocated_bytes: u64,
    /// Where its step's time went.
    pub breakdown_s: Breakdown,
    /// Reserved bytes and what lies outside the allocator.
    pub device_total_bytes: u64,
    /// Whether its device and host hold the plan, as far as is known.
    pub fits: bool,
    /// Layers of each of its stages.
    pub layers: Vec<u64>,
    /// Its place in the pipeline, from 0.
    pub pipeline_rank: u32,
    /// How many ranks are like it.
    pub ranks: u32,
    /// Most bytes that the allocator took from the device.
    pub reserved_bytes: u64,
}

/// What compiling costs a run whose step is compiled whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct StartUp {
    /// The whole run with compiling, in seconds: from, to; null where the file does not say how many steps it has.
    pub cold_run_s: Option<[f64; 2]>,
    /// What compiling takes, in seconds: from, to.
    pub compiling_s: [f64; 2],
    /// The uncertainty of one wait for the host, as a share of it.
    pub host_sync_relative_spread: f64,
    /// One wait for the host, in seconds.
    pub host_sync_s: f64,
    /// How often the host waits in a step.
    pub host_syncs_per_step: u32,
    /// Whether programs are kept in a persistent cache.
    pub persistent_cache: bool,
    /// Shapes of batches, each of which is compiled.
    pub shapes: u64,
    /// Steps of the run; null where the file does not say.
    pub steps: Option<u64>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Topology {
    /// How many chips it has.
    pub chips: u32,
    /// The machine's name.
    pub name: String,
    /// How many nodes it has.
    pub nodes: u32,
}
