//! Percentiles over trainings, as the report has them.

use super::closed;
use super::draw::{Outcome, Spent};
use super::job::End;
use super::length::Length;
use super::setting::Setting;
use crate::explore::prices::Price;
use crate::report::layout::{Interrupted, Money, Percentiles, SavedState, SpentOn, Training, TriedInterval};
use crate::scenario::{Every, Prediction, Scenario};
use crate::statistics::of_sorted;

/// Seconds of an hour and of a day.
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// What was asked and decided.
pub(super) struct Asked<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) answer: &'a Prediction,
    pub(super) length: Length,
    pub(super) setting: &'a Setting,
    pub(super) price: Option<Price>,
}

/// A kind of time.
type Kind = fn(&Spent) -> f64;

/// The kinds of time, in the words of the report.
const KINDS: [(&str, Kind); 8] = [
    ("useful steps", |spent| spent.useful),
    ("steps trained again", |spent| spent.lost),
    ("saving checkpoints", |spent| spent.saving),
    ("detecting failures", |spent| spent.detection),
    ("waiting for nodes", |spent| spent.nodes),
    ("starting up", |spent| spent.starting),
    ("loading checkpoints", |spent| spent.loading),
    ("slower with fewer replicas", |spent| spent.slower),
];

fn percentiles(values: impl Iterator<Item = f64>) -> Percentiles {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| of_sorted(&sorted, share).copied().unwrap_or(0.0);
    Percentiles { p5: at(0.05), p50: at(0.5), p95: at(0.95) }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0_u32);
    for value in values {
        (sum, count) = (sum + value, count + 1);
    }
    sum / f64::from(count.max(1))
}

/// The report of trainings, and of the same with other intervals.
pub(super) fn summary(asked: &Asked<'_>, outcomes: &[Outcome], others: &[(u64, Vec<Outcome>)]) -> Training {
    let Asked { scenario, answer, setting, .. } = asked;
    let (job, step, chips) = (&setting.job, setting.step, scenario.topology.chips());
    let walls = || outcomes.iter().map(|outcome| outcome.spent.total());
    let days = |outcomes: &[Outcome]| percentiles(outcomes.iter().map(|outcome| outcome.spent.total() / DAY));
    let count = |planned: bool| {
        let counted = move |outcome: &Outcome| {
            let all = outcome.interruptions.iter().zip(&job.causes);
            all.filter(|(_, cause)| cause.planned == planned).map(|(count, _)| *count).sum::<u64>() as f64
        };
        percentiles(outcomes.iter().map(counted))
    };
    let by_cause = job.causes.iter().enumerate().map(|(cause, of)| {
        let counts = || outcomes.iter().map(|outcome| outcome.interruptions[cause] as f64);
        Interrupted { component: of.name.clone(), mean: mean(counts()), percentiles: percentiles(counts()) }
    });
    let tokens_of = |useful: f64| useful / step * answer.tokens as f64;
    let without = match job.end {
        End::Work(work) => work,
        End::Wall(wall) => wall,
    };
    let money = asked.price.as_ref().map(|price| {
        let of = |wall: f64| wall / HOUR * f64::from(chips) * price.per_chip_hour;
        Money {
            currency: price.currency.clone(),
            per_chip_hour: price.per_chip_hour,
            source: price.source.clone(),
            total: percentiles(walls().map(of)),
            without_interruptions: of(without),
        }
    });
    let tried = |every: u64, outcomes: &[Outcome]| TriedInterval {
        every_s: every as f64 * step,
        every_steps: every,
        expected_goodput: closed::expected(job, every as f64 * step),
        goodput: mean(outcomes.iter().map(Outcome::goodput)),
    };
    let mut intervals: Vec<TriedInterval> = others.iter().map(|(every, outcomes)| tried(*every, outcomes)).collect();
    intervals.push(tried(setting.every, outcomes));
    intervals.sort_by_key(|tried| tried.every_steps);
    intervals.dedup_by_key(|tried| tried.every_steps);
    let checkpoint = &setting.checkpoint;
    let spent = KINDS
        .iter()
        .map(|&(kind, of)| SpentOn { kind, mean_s: mean(outcomes.iter().map(|outcome| of(&outcome.spent))) });
    Training {
        assumptions: setting.asked.taken.iter().map(ToString::to_string).collect(),
        best_every_s: setting.best as f64 * step,
        best_every_steps: setting.best,
        checkpoint: SavedState {
            blocked_s: checkpoint.save.blocked,
            bytes: checkpoint.bytes.0,
            bytes_of_rank: checkpoint.of_rank.0,
            every_is_best: setting.asked.every == Every::Best,
            every_s: job.interval,
            every_steps: setting.every,
            load_s: checkpoint.load,
            written_after_s: checkpoint.save.written_after,
        },
        days: days(outcomes),
        days_without_interruptions: without / DAY,
        draws: setting.asked.draws,
        goodput: percentiles(outcomes.iter().map(Outcome::goodput)),
        interruptions: by_cause.collect(),
        intervals,
        is_fixed_time: matches!(asked.length, Length::Wall(_)),
        mean_hours_between: 1.0 / (job.unexpected() * HOUR).max(f64::MIN_POSITIVE),
        money,
        planned: count(true),
        rates: setting.asked.rates.name.clone(),
        seed: setting.asked.seed,
        sources: setting.asked.rates.sources.clone(),
        time: spent.collect(),
        tokens: percentiles(outcomes.iter().map(|outcome| tokens_of(outcome.spent.useful))),
        tokens_without_interruptions: tokens_of(without),
        unexpected: count(false),
    }
}
