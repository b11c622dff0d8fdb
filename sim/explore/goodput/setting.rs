//! The training of a scenario: what interrupts it, what it saves, and how often.

use super::checkpoint::Checkpoint;
use super::closed;
use super::error::GoodputError;
use super::job::{Cause, Elastic, End, Job};
use super::length::Length;
use crate::failures::Rate;
use crate::scenario::{Every, Interruptions, Prediction, Scenario, Spares};
use crate::units::Span;

/// Interruptions that are drawn in all trainings together.
const MOST_INTERRUPTIONS: f64 = 1e8;

/// A training as it is simulated, with what the report says of it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The training.
    pub job: Job,
    /// Its checkpoint.
    pub checkpoint: Checkpoint,
    /// What was asked for, and what was taken for the rest.
    pub asked: Interruptions,
    /// A step \[s\].
    pub step: f64,
    /// Steps between two checkpoints.
    pub every: u64,
    /// Steps between two checkpoints with the best expected goodput.
    pub best: u64,
}

/// The job of a scenario, with a step between two checkpoints.
fn job(scenario: &Scenario, (asked, checkpoint): (&Interruptions, &Checkpoint), (end, step): (End, f64)) -> Job {
    Job {
        end,
        interval: step,
        save: checkpoint.save,
        load: checkpoint.load,
        restart: asked.restart + asked.recompile,
        detection: asked.detection,
        replacement: asked.replacement,
        repair: asked.repair,
        spares: match asked.spares {
            Spares::Enough => None,
            Spares::Nodes(nodes) => Some(nodes),
        },
        elastic: elastic(scenario, asked),
        causes: causes(scenario, asked),
    }
}

/// Steps between two checkpoints, of which `best` is the best number.
fn every(asked: &Interruptions, best: u64, step: f64) -> u64 {
    match asked.every {
        Every::Best => best,
        Every::Steps(count) => count,
        Every::Time(seconds) => (seconds / step).round().max(1.0) as u64,
    }
}

/// The expected goodput of a long training, by the closed form.
pub fn expected(scenario: &Scenario, answer: &Prediction) -> f64 {
    let asked = scenario.interruptions();
    let checkpoint = Checkpoint::of(scenario, answer, &asked);
    let step = answer.step.seconds();
    let job = job(scenario, (&asked, &checkpoint), (End::Work(f64::MAX), step));
    let best = closed::best(&job, step, 1 << 40);
    closed::expected(&job, every(&asked, best, step) as f64 * step)
}

/// Everything that is decided about a training before one is drawn.
pub fn setting(scenario: &Scenario, answer: &Prediction, length: Length) -> Result<Setting, GoodputError> {
    let asked = scenario.interruptions();
    let checkpoint = Checkpoint::of(scenario, answer, &asked);
    let step = answer.step.seconds();
    let end = match length {
        Length::Wall(seconds) => End::Wall(seconds),
        Length::Tokens(tokens) => End::Work((tokens / answer.tokens as f64).ceil() * step),
    };
    let (End::Wall(whole) | End::Work(whole)) = end;
    if whole < step || step <= 0.0 {
        return Err(GoodputError::Short { length: Span(whole), step: Span(step) });
    }
    let mut job = job(scenario, (&asked, &checkpoint), (end, step));
    let steps = (whole / step).floor().max(1.0) as u64;
    let best = closed::best(&job, step, steps);
    let every = every(&asked, best, step);
    job.interval = every as f64 * step;
    possible(&job, asked.draws)?;
    Ok(Setting { job, checkpoint, asked, step, every, best })
}

/// Refuses a training that is interrupted so often that it hardly gets on.
fn possible(job: &Job, draws: u64) -> Result<(), GoodputError> {
    let rate = job.unexpected() + job.planned();
    let wall = match job.end {
        End::Wall(wall) => wall,
        End::Work(work) => work / closed::expected(job, job.interval).max(f64::MIN_POSITIVE),
    };
    let count = rate * wall * draws as f64;
    if count <= MOST_INTERRUPTIONS {
        return Ok(());
    }
    let (mean, up_again) = (Span(1.0 / rate), Span(job.up_again() + job.save.whole() + job.interval));
    Err(GoodputError::Hopeless { count, most: MOST_INTERRUPTIONS, mean, up_again })
}

/// Replicas that a node takes with it, where the job goes on without.
fn elastic(scenario: &Scenario, asked: &Interruptions) -> Option<Elastic> {
    let copies = u64::from(scenario.job.copies());
    let lost = scenario.job.copies_on_node(scenario.topology.ranks_per_node());
    asked.elastic.then_some(Elastic { copies, lost })
}

fn causes(scenario: &Scenario, asked: &Interruptions) -> Vec<Cause> {
    let chips = scenario.topology.chips();
    let components = asked.rates.components.iter();
    let causes = components.map(|component| Cause {
        name: component.name.clone(),
        rate: component.rate.of_job(chips),
        takes_node: component.takes_node,
        planned: matches!(component.rate, Rate::Planned(_)),
    });
    causes.filter(|cause| asked.planned || !cause.planned).collect()
}
