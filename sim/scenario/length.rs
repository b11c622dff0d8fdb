//! Whether the programs of a job are short enough to be written, laid out and run.
//!
//! There is one bound, on instructions, which everything that makes a step long comes down to: layers, micro-batches, experts in
//! a loop, parts of a loss, stages, buckets. They are counted as they are written ([`crate::program::Budget`]), so no factor can be
//! forgotten.

use std::fmt;

use super::error::ScenarioError;
use super::predict::Settings;
use super::understood::Scenario;
use crate::model::experts::Implementation;
use crate::model::head::Loss;
use crate::program::TooLong;
use crate::runtime::{Flight, Parts, Plan};
use crate::schedule::order;
use crate::units::thousands;

/// Instructions of all classes of ranks together. An instruction takes 70 to 100 B and 0.2 to 1.5 µs (the most in models of
/// thousands of layers, whose buffers lie far apart) until its step has been simulated, so that the largest jobs take 0.4 GB and 7 s.
const MOST: u64 = 4_000_000;
/// The same under ZeRO, whose hooks look parameters up around every operator: up to 4 µs an instruction where parameters
/// lie on disks.
const MOST_ZERO: u64 = 2_000_000;
/// The same where ranks split a model on Megatron's axes: buffers of a micro-batch are used again by the next, and an instruction takes
/// 22 to 40 B (the most under a distributed optimizer that overlaps on many queues), so that the largest take 1.0 GB and 8 s. A
/// trillion parameters in 64 stages and 512 micro-batches are 20 million.
const MOST_SPLIT: u64 = 25_000_000;
/// The same under nanotron, which leaves thousands of free blocks of like sizes behind: up to 0.8 µs an instruction.
const MOST_SCATTERED: u64 = 8_000_000;
/// Rounds of micro-batches from which on two and three of them are written first, to see how long all would be.
const MANY: u64 = 8;
/// Instructions of all ranks, where each is simulated for itself: one takes 22 B of memory and 0.25 µs.
const FULL: u64 = 30_000_000;
/// Instructions of the ranks that are simulated, where a trace is kept: one is 165 B of the file.
const TRACED: u64 = 2_000_000;

/// A step \[ps\]: ten days, which are 2⁶⁰.
const STEP: u128 = 10 * 86_400 * 1_000_000_000_000;

impl Scenario {
    /// What the job's ranks run; an error if it is too long to be written.
    #[doc(hidden)]
    pub fn flight(&self) -> Result<Flight, ScenarioError> {
        let settings = Settings::default();
        self.written(&self.job, self.most(settings)).map_err(|TooLong| self.too_long(settings))
    }

    /// What a job's ranks run as this scenario runs them, in at most so many instructions; of a few of its micro-batches, with as many
    /// rounds more.
    pub(super) fn written(&self, job: &Plan, most: u64) -> Result<Flight, TooLong> {
        // A host that waits for each launch is told so by three more instructions.
        let heavier = self.launch_blocking && !matches!(job.parts(), Parts::Split(_));
        let all = self.job.micro_batches();
        let further = job.split().map_or(0, |few| all.saturating_sub(few.micro_batches) / few.round());
        let flight = self.draft.programs().of(job, further, if heavier { most / 4 } else { most })?;
        let flight = if self.launch_blocking { flight.blocking() } else { flight };
        Ok(if self.one_queue { flight.in_one_queue() } else { flight })
    }

    /// How many instructions there may be.
    pub(super) fn most(&self, settings: Settings) -> u64 {
        match self.job {
            _ if settings.record => TRACED,
            Plan::Torch(_) | Plan::Xla(_) => MOST,
            Plan::Zero(_) => MOST_ZERO,
            Plan::Megatron(_) | Plan::InternEvo(_) => MOST_SPLIT,
            Plan::Nanotron(_) => MOST_SCATTERED,
        }
    }

    /// Whether the job is known to be too long before it is written.
    pub(super) fn far_too_long(&self, settings: Settings) -> Option<FarTooLong> {
        let (job, most) = (&self.job, self.most(settings));
        let round = round(job);
        let rounds = u64::from(job.micro_batches() / round);
        let first = || job.with_micro_batches(round)?.compile_within(most).ok();
        if rounds < MANY || first().is_none_or(|first| first.instructions() * rounds <= most) {
            return None;
        }
        // Where two or three rounds are too long, so are all.
        match Lengths::of(job, most) {
            Some(lengths) if lengths.all <= most => None,
            lengths => Some(FarTooLong(lengths)),
        }
    }

    /// The plan with as many micro-batches as can be recorded, where all of them are too many to be.
    #[doc(hidden)]
    pub fn recordable(&self) -> Option<Plan> {
        let recorded = Settings { record: true, ..Settings::default() };
        let fitting = u32::try_from(Lengths::of(&self.job, self.most(recorded))?.fitting).ok()?;
        if fitting >= self.job.micro_batches() { None } else { self.job.with_micro_batches(fitting) }
    }

    /// Whether so many ranks can be simulated one by one.
    pub(super) fn simulated(&self, flight: &Flight, settings: Settings) -> Result<(), ScenarioError> {
        let (most, done) = match settings.record {
            true => (TRACED, "traced rank by rank"),
            false => (FULL, "simulated rank by rank"),
        };
        let all = flight.instructions_of_ranks();
        if settings.fold || all <= most {
            return Ok(());
        }
        let (ranks, all, most) = (flight.class_of.len() as u64, thousands(all), thousands(most));
        let problem =
            format!("a step has {all} instructions on {} ranks, and at most {most} are {done}", thousands(ranks));
        let remedy = "leave out --full: one rank stands for all that are alike, to the picosecond".to_owned();
        Err(ScenarioError::Plan { code: None, problem, place: Box::new(self.places().length), remedy })
    }

    /// Why a job's programs are refused: how long they would be, what makes them so long, and what to write instead.
    pub(super) fn too_long(&self, settings: Settings) -> ScenarioError {
        self.too_long_by(settings, FarTooLong(Lengths::of(&self.job, self.most(settings))))
    }

    /// The same of a job that was asked.
    pub(super) fn too_long_by(&self, settings: Settings, FarTooLong(lengths): FarTooLong) -> ScenarioError {
        let (job, most) = (&self.job, self.most(settings));
        let done = if settings.record { "kept for a trace" } else { "simulated" };
        let factors = factors(job);
        let because: Vec<String> = factors.iter().take(3).map(|factor| factor.to_string()).collect();
        let found = match &lengths {
            Some(known) => format!("{} instructions, and at most {}", thousands(known.all), thousands(most)),
            None => format!("more than the {} instructions that", thousands(most)),
        };
        let problem = match scheduled(job) {
            Some((stages, most)) if most < u64::from(job.micro_batches()) => format!(
                "{stages} stages × {} micro-batches are more than the {} forwards that are scheduled",
                thousands(u64::from(job.micro_batches())),
                thousands(order::CELLS)
            ),
            _ => format!("a step has {found} are {done}: {}", because.join(" × ")),
        };
        let remedy = match (lengths, factors.first()) {
            (Some(lengths), _) if lengths.fitting > 0 => format!(
                "write batch.accumulation = {} or less: every further micro-batch adds the same time",
                lengths.fitting
            ),
            (_, Some(factor)) => format!("write {}{}", factor.instead, factor.key),
            (_, None) => "write a smaller batch.accumulation".to_owned(),
        };
        ScenarioError::Plan { code: None, problem, place: Box::new(self.places().length), remedy }
    }
}

/// That a job is too long, and how long it is if that is known.
pub(super) struct FarTooLong(Option<Lengths>);

/// How long programs are, known from those of fewer micro-batches.
struct Lengths {
    /// Instructions of all micro-batches.
    all: u64,
    /// Micro-batches whose programs are short enough.
    fitting: u64,
}

impl Lengths {
    /// None if a few micro-batches are too many, or all there are. Once a pipeline is full, each round adds as many instructions.
    fn of(job: &Plan, most: u64) -> Option<Lengths> {
        let round = round(job);
        let all = u64::from(job.micro_batches());
        let length = |rounds: u32| {
            let flight = job.with_micro_batches(rounds * round)?.compile_within(most).ok()?;
            Some(flight.instructions())
        };
        let (few, more) = (all > u64::from(3 * round)).then(|| Some((length(2)?, length(3)?)))??;
        let (round, each) = (u64::from(round), more.checked_sub(few)?);
        let rounds = (all - 2 * round).div_ceil(round);
        let fitting = 2 + (most - few) / each.max(1);
        let scheduled = scheduled(job).map_or(u64::MAX, |(_, most)| most / round);
        Some(Lengths { all: few + rounds * each, fitting: fitting.min(scheduled) * round })
    }
}

/// Stages of a pipeline, and how many micro-batches can be scheduled on them; none without a pipeline.
fn scheduled(job: &Plan) -> Option<(u64, u64)> {
    let stages = match job.parts() {
        Parts::Split(job) => u64::from(job.mesh.pp) * u64::from(job.pipeline.virtual_stages),
        Parts::Whole(job) => job.pipeline.as_ref()?.layers.len() as u64,
        Parts::Compiled(_) => return None,
    };
    Some((stages, order::CELLS / stages))
}

/// Micro-batches after which a job's programs repeat themselves.
fn round(job: &Plan) -> u32 {
    match job.parts() {
        Parts::Split(job) => job.mesh.pp.max(2),
        Parts::Whole(job) => job.pipeline.as_ref().map_or(1, |pipeline| pipeline.ranks),
        Parts::Compiled(_) => 1,
    }
}

/// Something that a program's length is a multiple of.
struct Factor {
    count: u64,
    what: &'static str,
    /// The key that sets it.
    key: &'static str,
    /// What to write instead.
    instead: &'static str,
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", thousands(self.count), self.what, self.key)
    }
}

/// What makes a job's programs long, the largest first.
fn factors(job: &Plan) -> Vec<Factor> {
    const SMALLER: &str = "a smaller ";
    let model = job.model();
    let mut factors = vec![];
    let mut add = |count: u64, what, key| factors.push(Factor { count, what, key, instead: SMALLER });
    add(model.layers.count() + model.mtp_layers, "layers", "model.layers");
    add(u64::from(job.micro_batches()), "micro-batches", "batch.accumulation");
    match job.parts() {
        Parts::Whole(job) => {
            add(u64::from(job.context), "ranks that share a sequence", "mesh.cp");
            add(u64::from(job.training_loop.train_metrics), "metrics", "loop.train_metrics");
            add(u64::from(job.training_loop.host_syncs), "numbers read back", "loop.host_syncs_per_step");
            add(job.pipeline.as_ref().map_or(1, |pipeline| pipeline.layers.len() as u64), "stages", "mesh.pp");
            factors.extend(loss(job.loss, model.vocab));
            if let (Implementation::Loop, Some(experts)) = (job.style.experts, model.experts()) {
                let (what, key, instead) = ("experts in a loop", "framework.experts", "another ");
                factors.push(Factor { count: experts.count, what, key, instead });
            }
        }
        Parts::Split(job) => {
            add(u64::from(job.mesh.cp), "ranks that share a sequence", "mesh.cp");
            add(u64::from(job.mesh.pp) * u64::from(job.pipeline.virtual_stages), "stages", "mesh.pp");
        }
        Parts::Compiled(job) => add(u64::from(job.host_syncs), "waits of the host", "xla.host_syncs_per_step"),
    }
    factors.retain(|factor| factor.count > 1);
    factors.sort_by_key(|factor| std::cmp::Reverse(factor.count));
    factors
}

/// Parts that a loss is computed in.
fn loss(loss: Loss, vocab: u64) -> Option<Factor> {
    match loss {
        Loss::VocabularyChunked { words } => {
            let count = vocab.div_ceil(u64::from(words.max(1)));
            Some(Factor { count, what: "parts of the vocabulary", key: "loss.words", instead: "a larger " })
        }
        Loss::ChunkedOutput { chunks, .. } | Loss::ChunkedLinear { chunks } | Loss::ChunkedGradients { chunks, .. } => {
            let count = u64::from(chunks);
            Some(Factor { count, what: "parts of the loss", key: "loss.chunks", instead: "a smaller " })
        }
        _ => None,
    }
}

/// Checks that a step lasts no longer than the engine's clock can count: `total` is what keeps one of its ranks busy \[ps\].
pub(super) fn check_time(scenario: &Scenario, total: u128) -> Result<(), ScenarioError> {
    if total <= STEP {
        return Ok(());
    }
    let days = total / (STEP / 10);
    let rounded = days - days % 10_u128.pow(days.max(1).ilog10());
    let problem = format!("one step would keep a chip busy for more than {rounded} days");
    let remedy = "the simulated clock holds ten: write a shorter batch.sequence, or fewer micro-batches".to_owned();
    Err(ScenarioError::Plan { code: None, problem, place: Box::new(scenario.places().sequence), remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(runtime: &str, mesh: &str, batch: &str) -> Plan {
        let text = format!(
            "runtime = {runtime:?}\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-3.1-8b\"\nlayers = 8\n\
             [mesh]\n{mesh}\n[batch]\nsequence = 1024\n{batch}"
        );
        Scenario::parse("plan.toml", &text).expect(&text).job
    }

    /// A refusal says how long a step would be, and how many micro-batches are short enough, without writing it.
    #[test]
    fn the_length_of_many_micro_batches_follows_from_that_of_a_few() {
        for (runtime, mesh, count) in [
            ("fsdp2", "dp_shard = 8", 11),
            ("fsdp2", "dp_shard = 2\npp = 4", 32),
            ("fsdp1", "dp_shard = 8", 11),
            ("deepspeed-zero", "dp = 8\n[zero]\nstage = 3", 11),
            ("megatron", "tp = 2\npp = 4", 32),
            ("nanotron", "tp = 2\npp = 4", 32),
        ] {
            let job = job(runtime, mesh, &format!("accumulation = {count}"));
            let length = job.compile().instructions();
            let known = Lengths::of(&job, length).expect("there are more than a few");
            assert_eq!((known.all, known.fitting), (length, count), "{runtime} {mesh}");
            let short = Lengths::of(&job, length - 1).expect("there are more than a few").fitting;
            assert!(short < count && short >= count - u64::from(round(&job)), "{runtime} {mesh}: {short}");
            assert!(job.with_micro_batches(short as u32).expect("any number").compile_within(length - 1).is_ok());
        }
    }
}
