//! The table `[batch]`: sequences of a micro-batch, micro-batches of a step, and the global batch that they make together.
//!
//! `batch.global = replicas × batch.micro × batch.accumulation`, in sequences; `batch.global_tokens` is that × `batch.sequence`.
//! Where a file writes the global batch, `batch.accumulation` follows from it.

use toml::Spanned;

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::{TORCH_XLA, XLA};
use super::reader::{MOST_SMALL, Reader};

use super::{written, xla};
use crate::hardware::Topology;
use crate::model::preference::SEQUENCES_OF_A_PAIR;
use crate::runtime::Plan;

/// Tokens of a sequence, sequences of a micro-batch, micro-batches of a step.
pub(super) fn batch(
    reader: &mut Reader<'_>,
    scenario: &written::Scenario,
    (runtime, topology): (Runtime, &Topology),
) -> Result<(u64, u64, u64), ScenarioError> {
    let batch = &scenario.batch;
    let seq = reader.count(&written::Batch::sequence, &batch.sequence)?;
    let samples = match &batch.per_device_batch_size {
        Some(at) if runtime != XLA => {
            let problem = "batch.per_device_batch_size is a key of XLA's";
            return Err(reader.plan(at, problem, "write batch.micro: sequences per rank and micro-batch"));
        }
        Some(at) => per_device(reader, at, scenario)?,
        None => reader.count_or(&written::Batch::micro, batch.micro.as_ref(), 1)?,
    };
    // Of a preference a sample is a pair of sequences.
    let (micro, counted) = match scenario.dpo {
        Some(_) => (SEQUENCES_OF_A_PAIR * samples, format!("{samples} pairs")),
        None => (samples, samples.to_string()),
    };
    let Some((at, sequences)) = global(reader, batch, seq)? else {
        let accumulation = reader.count_or(&written::Batch::accumulation, batch.accumulation.as_ref(), 1)?;
        return Ok((seq, micro, accumulation));
    };
    let written = batch.accumulation.as_ref();
    let written = written.map(|at| reader.count(&written::Batch::accumulation, at)).transpose()?;
    // A mesh that does not tile the machine is refused by what reads it.
    let Some(replicas) = replicas(scenario, (runtime, topology)) else {
        return Ok((seq, micro, written.unwrap_or(1)));
    };
    let each = replicas * micro;
    if !sequences.is_multiple_of(each) {
        let problem = format!(
            "{sequences} sequences a step do not divide into {replicas} replicas of the model × batch.micro = {counted}, which are {each}"
        );
        return Err(reader.plan(at, problem, instead(batch, seq, sequences.next_multiple_of(each))));
    }
    let accumulation = sequences / each;
    match written {
        Some(written) if written != accumulation => {
            let makes = written * each;
            let problem = format!("batch.accumulation = {written} makes {makes} sequences a step, not {sequences}");
            let remedy = format!("remove batch.accumulation, or {}", instead(batch, seq, makes));
            Err(reader.plan(at, problem, remedy))
        }
        Some(_) => Ok((seq, micro, accumulation)),
        None if accumulation > MOST_SMALL.unsigned_abs() => {
            let problem = format!("{sequences} sequences a step are {accumulation} micro-batches of {each}");
            let remedy = instead(batch, seq, each * MOST_SMALL.unsigned_abs());
            Err(reader.plan(at, problem, format!("{remedy} at most, or a larger batch.micro")))
        }
        None => {
            let why = format!("{sequences} sequences / {replicas} replicas / micro {counted}");
            Ok((seq, micro, reader.assume_for("batch.accumulation", accumulation, accumulation, why)))
        }
    }
}

/// MaxText's count: sequences over all chips, so that those that share sequences have as many together
/// (`configs/types.py`: `global_batch_size = num_devices · per_device_batch_size`).
fn per_device(reader: &mut Reader<'_>, at: &Spanned<f64>, scenario: &written::Scenario) -> Result<u64, ScenarioError> {
    if scenario.batch.micro.is_some() {
        let problem = "batch.micro and batch.per_device_batch_size both say how many sequences a chip has";
        return Err(reader.plan(
            at,
            problem,
            "remove one: batch.micro counts those of chips that share their sequences",
        ));
    }
    let mesh = scenario.mesh.get_ref();
    let axis = |at: &Option<Spanned<i64>>| at.as_ref().map_or(1, |at| (*at.get_ref()).max(1));
    let (tensor, context) = (axis(&mesh.tensor), axis(&mesh.context));
    let shared = (tensor as f64) * (context as f64);
    let each = *at.get_ref();
    let micro = each * shared;
    if micro.fract() != 0.0 || !(1.0..=MOST_SMALL as f64).contains(&micro) {
        let problem = format!(
            "batch.per_device_batch_size = {each} gives {micro} sequences to the {shared} chips that share theirs \
             (mesh.tensor × mesh.context = {tensor} × {context})"
        );
        let least = 1.0 / shared;
        return Err(reader.plan(at, problem, format!("write a multiple of {least}")));
    }
    let why = format!("{each} on each chip × {tensor} of mesh.tensor × {context} of mesh.context");
    Ok(reader.assume_for("batch.micro", micro as u64, micro as u64, why))
}

/// What the job makes of the global batch: it must be as large as the file says.
pub(super) fn check(reader: &Reader<'_>, scenario: &written::Scenario, job: &Plan) -> Result<(), ScenarioError> {
    let batch = &scenario.batch;
    let Some((at, sequences)) = global(reader, batch, job.seq())? else { return Ok(()) };
    let made = job.tokens() / job.seq();
    if made == sequences {
        return Ok(());
    }
    let replicas = made / (job.batch() * u64::from(job.micro_batches())).max(1);
    let each = replicas * u64::from(job.micro_batches()) * job.sequences_of_a_sample();
    let micro = match sequences.is_multiple_of(each) {
        true => format!(", or batch.micro = {}", sequences / each),
        false => String::new(),
    };
    let problem = format!("a step has {made} sequences here, and the file asks for {sequences}");
    Err(reader.plan(at, problem, instead(batch, job.seq(), made) + &micro))
}

/// Sequences of a step, if the file says how many.
fn global<'s>(
    reader: &Reader<'_>,
    batch: &'s written::Batch,
    seq: u64,
) -> Result<Option<(&'s Spanned<i64>, u64)>, ScenarioError> {
    match (&batch.global, &batch.global_tokens) {
        (None, None) => Ok(None),
        (Some(at), None) => Ok(Some((at, reader.count(&written::Batch::global, at)?))),
        (None, Some(at)) => {
            let tokens = reader.count(&written::Batch::global_tokens, at)?;
            if !tokens.is_multiple_of(seq) {
                let problem = format!("{tokens} tokens a step are no whole number of sequences of {seq} tokens");
                let least = tokens.checked_next_multiple_of(seq).unwrap_or(seq);
                return Err(reader.plan(at, problem, format!("write batch.global_tokens = {least}")));
            }
            Ok(Some((at, tokens / seq)))
        }
        (Some(_), Some(at)) => {
            let problem = "batch.global and batch.global_tokens both say how large a step's batch is";
            Err(reader.plan(at, problem, "remove batch.global_tokens, or remove batch.global"))
        }
    }
}

/// The key that the file has, with a batch that is possible.
fn instead(batch: &written::Batch, seq: u64, sequences: u64) -> String {
    match batch.global {
        Some(_) => format!("write batch.global = {sequences}"),
        None => format!("write batch.global_tokens = {}", sequences.saturating_mul(seq)),
    }
}

/// Copies of the model that read sequences of their own; none where the mesh does not tile the machine.
fn replicas(scenario: &written::Scenario, (runtime, topology): (Runtime, &Topology)) -> Option<u64> {
    let mesh = scenario.mesh.get_ref();
    // Stages of a pipeline on XLA have data of their own.
    let axes = match runtime {
        runtime if runtime == XLA => xla::sharers(mesh),
        runtime if runtime == TORCH_XLA => vec![&mesh.expert, &mesh.tensor],
        _ => vec![&mesh.tp, &mesh.cp, &mesh.pp],
    };
    let mut sizes = axes.into_iter().map(|at| at.as_ref().map_or(Some(1), |at| u64::try_from(*at.get_ref()).ok()));
    // A degree may be any number here: it is checked against its bounds where the mesh is read.
    let model = sizes.try_fold(1u64, |all, size| all.checked_mul(size?)).filter(|&size| size > 0)?;
    let chips = u64::from(topology.ranks());
    chips.is_multiple_of(model).then(|| chips / model)
}
