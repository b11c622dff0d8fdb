//! One step of one rank, from the traces of one or several ranks, against a scenario's prediction.

use super::late::waits;
use super::measured::measured;
use super::parts::{Gap, Match, Part, gap};
use super::predicted::predicted;
use super::side::Side;
use super::text::About;
use super::{choose, side};
use crate::program::Pass;
use crate::scenario::{Prediction, Scenario};
use crate::trace::Trace;

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The number in the step's mark; none: a step of median length.
    pub step: Option<u64>,
    /// The rank; none: the first whose trace is there.
    pub rank: Option<u32>,
}

/// A comparison, with the two steps it is of.
#[derive(Debug)]
pub struct Compared {
    /// What it is about.
    pub about: About,
    /// Where the difference comes from.
    pub gap: Gap,
    /// The predicted step.
    pub predicted: Side,
    /// The measured step.
    pub measured: Side,
}

/// Compares traces, each with its file's name, with the prediction of a scenario, which must have been recorded.
///
/// # Errors
///
/// A sentence that says what does not fit: a rank or a step that is not there, a job of another size, two traces of one rank.
pub fn compare(
    scenario: &Scenario,
    prediction: &Prediction,
    traces: &[(String, Trace)],
    choice: Choice,
) -> Result<Compared, String> {
    let chips = prediction.class_of.len();
    let mut notes = vec![];
    // Where each rank's trace is: which file, which device.
    let mut all: Vec<(u32, usize, u32)> = vec![];
    for (at, (file, trace)) in traces.iter().enumerate() {
        if let Some(world) = trace.world.filter(|&world| world as usize != chips) {
            return Err(format!(
                "{file} is of a job of {world} ranks, {} of one of {chips}\nwrite the scenario of the job that was traced",
                scenario.file
            ));
        }
        for (rank, device) in choose::ranks(trace) {
            if let Some((_, other, _)) = all.iter().find(|(known, ..)| *known == rank) {
                let other = &traces[*other].0;
                return Err(format!("{file} and {other} are both of rank {rank}: give one trace of each rank"));
            }
            all.push((rank, at, device));
        }
    }
    all.sort_unstable();
    let known: Vec<String> = all.iter().map(|(rank, ..)| rank.to_string()).collect();
    let first = all.first().ok_or("no trace has a kernel of a device: were they recorded with CUDA activities?")?;
    let rank = choice.rank.unwrap_or(first.0);
    let &(_, at, device) = all
        .iter()
        .find(|(known, ..)| *known == rank)
        .ok_or_else(|| format!("--rank {rank}: there is no trace of this rank: write one of {}", known.join(", ")))?;
    let (file, trace) = &traces[at];
    let step = choose::step(trace, device, choice.step)?;
    let marked = &trace.steps[step.at()];
    let mut sides: Vec<(u32, Side)> = vec![];
    for &(rank, at, device) in &all {
        let trace = &traces[at].1;
        // The same step on every rank, by the number in its mark.
        let same = if marked.number.is_some() {
            choose::step(trace, device, marked.number)
        } else {
            choose::step(trace, device, None)
        };
        match same.ok().and_then(|step| measured(trace, device, step)) {
            Some(side) => sides.push((rank, side)),
            None => {
                notes.push(format!("The trace of rank {rank} has no such step: what others wait for it is not told."))
            }
        }
    }
    notes.extend(waits(&mut sides));
    let found = sides.into_iter().find(|(known, _)| *known == rank).map(|(_, side)| side);
    let measured = found.ok_or_else(|| format!("{file}: rank {rank} ran nothing of the step"))?;
    let predicted = predicted(prediction, rank).ok_or_else(|| {
        format!("{file} is of rank {rank}, {} has ranks 0 to {}", scenario.file, chips.saturating_sub(1))
    })?;
    let step = marked.name.map_or("the whole trace as one step", |name| trace.name(name)).to_owned();
    notes.extend(cautions(trace, &measured, all.len(), chips));
    let gap = gap(&predicted, &measured);
    notes.extend(missing(&gap));
    notes.extend(another(&gap, &measured));
    let about = About { scenario: scenario.file.clone(), trace: file.clone(), rank, step, notes };
    Ok(Compared { about, gap, predicted, measured })
}

/// Passes of which the trace has nothing, though they were predicted: it may be of something else than a training step.
fn missing(gap: &Gap) -> Option<String> {
    let of = |pass: Pass| gap.parts.iter().filter(move |part| part.pass == Some(pass));
    let absent =
        |pass: &Pass| of(*pass).any(|part| part.predicted.count > 0) && of(*pass).all(|part| part.measured.count == 0);
    let absent: Vec<&str> = [Pass::Forward, Pass::Backward, Pass::Optimizer]
        .iter()
        .filter(|pass| absent(pass))
        .map(|pass| pass.name())
        .collect();
    let words = "which were predicted: is it of a whole training step?";
    (!absent.is_empty()).then(|| format!("The trace's step has no kernels of {}, {words}", absent.join(" and ")))
}

/// A tenth of what has a shape must have that of something predicted, or the trace is of another job.
const ALIKE: u64 = 10;

/// What to say of a trace whose matmuls and attentions have no shape that was predicted.
fn another(gap: &Gap, measured: &Side) -> Option<String> {
    use side::Class::{Attention, GroupedMatmul, Matmul};
    let shaped = |part: &&Part| [Matmul, GroupedMatmul, Attention].contains(&part.class);
    let all: u64 = gap.parts.iter().filter(shaped).map(|part| part.measured.count).sum();
    let same = gap.parts.iter().filter(shaped).filter(|part| part.matched == Match::Same);
    let alike: u64 = same.map(|part| part.measured.count).sum();
    // Without shapes nobody can tell, which is said already.
    (alike * ALIKE < all && !measured.items.iter().any(unshaped)).then(|| {
        format!(
            "Of {all} matmuls and attentions in the trace's step, {alike} have the shape of one that was predicted: is it of this scenario?"
        )
    })
}

fn unshaped(item: &side::Item) -> bool {
    item.class == side::Class::Matmul && item.shape == side::Shape::None
}

/// What the reader of a comparison should know about the trace.
fn cautions(trace: &Trace, measured: &Side, ranks: usize, chips: usize) -> Vec<String> {
    let mut notes = trace.notes.clone();
    if ranks < chips && measured.items.iter().any(|item| item.class.is_exchange()) {
        let words = "whether an exchange is slow or waits for a rank without a trace cannot be told";
        notes.push(format!("Traces of {ranks} of {chips} ranks: {words}."));
    }
    if measured.items.iter().any(unshaped) {
        notes.push("Some matmuls have no shapes: profile with record_shapes=True.".to_owned());
    }
    notes
}
