//! An interval from what measured runs said of predictions.
//!
//! `sim/cost/profiles/measured-runs.csv` holds the logarithm of measured over predicted step time of every public run that can be
//! simulated, with its [`Kind`] and its [`Reasons`]. An error is divided by its reasons' [`Reasons::scale`] to the power of [`SAYS`]; the
//! interval's ends are the 10th and the 90th percentile of such quotients, weighed by how much of their kind they share with the run that
//! is predicted, times its own scale. This is weighted split conformal prediction (Tibshirani et al., "Conformal Prediction Under
//! Covariate Shift", NeurIPS 2019) with normalised scores (Lei et al., "Distribution-Free Predictive Inference for Regression", 2018).
//!
//! All runs count a little for any other ([`ALL`]). A run of another kind says how far a prediction may be off, not which way: the less it
//! shares, the more its error counts with both signs. What other hosts may do ([`Reasons::hosts`]) is added in quadrature, each side for
//! itself.
//!
//! Runs of one model by one publisher are a *family*: they err alike, so a family of n runs counts as n^0.9. A run whose
//! family is in the file is judged without it. The point is never moved by a measured run.
//!
//! [`LIKENESS`], [`ALL`], [`TOGETHER`] and [`SAYS`] were found by a search over a small grid of round numbers. With families left out, intervals
//! hold 80 % of all runs and what is asked of each lane, host share and size (`witnesses/tests.rs`). None of the numbers names a framework, a
//! model or a machine.

mod held;

use std::sync::LazyLock;

pub use held::Held;

use super::kind::Kind;
use super::reasons::Reasons;
use crate::units::Time;

/// How much a run says of another that differs from it in one part of its kind, by [`Kind::PARTS`].
const LIKENESS: [f64; 6] = [0.02, 0.07, 0.05, 0.02, 0.1, 0.1];
/// As how many runs all runs together count, whatever their kind.
const ALL: f64 = 1.0;
/// A family of n runs counts as n to this power; among all runs, as the root of n.
const TOGETHER: f64 = 0.9;
/// Of two runs of one kind, that whose reasons make twice the error is off by 2 to this power as much: runs of one kind err alike
/// for reasons that nobody knows.
const SAYS: f64 = 0.3;
/// Standard deviations from the middle of a normal distribution to its 90th percentile.
const NINETIETH: f64 = 1.281_551_565_5;

/// A run that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Witness {
    /// Runs that were measured together: a model by a publisher.
    pub family: String,
    /// The lane of receipts that it is counted in.
    pub lane: String,
    /// What kind of run it is.
    pub kind: Kind,
    /// Chips of the job.
    pub chips: u32,
    /// One over the runs of the same configuration.
    pub weight: f64,
    /// What of its step predictions err on.
    pub reasons: Reasons,
    /// The logarithm of measured over predicted step time.
    pub error: f64,
}

impl Witness {
    /// The names of the file's columns.
    pub fn columns() -> String {
        let kind = Kind::PARTS.join(",");
        let reasons = Reasons::PARTS.join(",");
        format!("family,lane,{kind},chips,weight,{reasons},log_measured_over_predicted")
    }

    /// A line of the file.
    pub fn line(&self) -> String {
        let family = self.family.replace(',', ";");
        let kind = self.kind.parts().join(",");
        let reasons: Vec<String> = self.reasons.parts().iter().map(|part| short(*part)).collect();
        let (chips, weight, reasons) = (self.chips, short(self.weight), reasons.join(","));
        format!("{family},{},{kind},{chips},{weight},{reasons},{}", self.lane, short(self.error))
    }

    fn read(line: &str) -> Option<Witness> {
        let mut fields = line.split(',');
        let mut text = || fields.next().map(str::to_owned);
        let (family, lane) = (text()?, text()?);
        let [framework, machine, parallelism, blocks, matmuls, nodes] =
            [text()?, text()?, text()?, text()?, text()?, text()?];
        let kind = Kind { framework, machine, parallelism, blocks, matmuls, nodes };
        let chips = text()?.parse().ok()?;
        let mut number = || fields.next()?.parse::<f64>().ok();
        let weight = number()?;
        let mut parts = [0.0; Reasons::PARTS.len()];
        for part in &mut parts {
            *part = number()?;
        }
        let error = number()?;
        let reasons = Reasons::from_parts(parts);
        fields.next().is_none().then_some(Witness { family, lane, kind, chips, weight, reasons, error })
    }

    /// Its error over how far its reasons make such steps err, the host's part of them included.
    fn quotient(&self) -> f64 {
        let (fast, slow) = self.reasons.hosts();
        let host = if self.error < 0.0 { fast } else { slow };
        self.error / libm::hypot(said(&self.reasons), host / NINETIETH)
    }
}

/// A number with up to four decimals.
fn short(number: f64) -> String {
    let text = format!("{:.4}", number + 0.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// How far reasons make a step err, as far as that is believed.
fn said(reasons: &Reasons) -> f64 {
    libm::pow(reasons.scale(), SAYS)
}

/// All of the file; families lie together.
pub(super) static WITNESSES: LazyLock<Vec<Witness>> = LazyLock::new(|| {
    let text = include_str!("../../cost/profiles/measured-runs.csv");
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| Witness::read(line).expect("a test reads every line of measured-runs.csv")).collect()
});

/// The quotient of each ([`Witness::quotient`]).
static QUOTIENTS: LazyLock<Vec<f64>> = LazyLock::new(|| WITNESSES.iter().map(Witness::quotient).collect());

/// A run that was measured, and its quotient.
type Seen<'w> = (&'w Witness, f64);

/// All but those that a condition holds of.
fn seen_without(without: impl Fn(&Witness) -> bool) -> Vec<Seen<'static>> {
    WITNESSES.iter().zip(QUOTIENTS.iter().copied()).filter(|(witness, _)| !without(witness)).collect()
}

/// Runs of just the same kind as one that is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alike {
    /// Configurations measured.
    pub runs: usize,
    /// Families they belong to.
    pub families: usize,
    /// Predicted over measured step time less one, the median; 0 without runs.
    pub bias: f64,
    /// How far half of the predictions are off at most, as a share of the measured step; 0 without runs.
    pub half: f64,
    /// How far nine in ten of them are off at most.
    pub nine_in_ten: f64,
}

/// An 80 % interval around a step \[ps\], and the runs of just its kind; runs of `family` are left out.
pub(super) fn interval(step: Time, reasons: &Reasons, kind: &Kind, family: &str) -> ((Time, Time), Alike) {
    let others = seen_without(|witness| !family.is_empty() && witness.family == family);
    let (low, high) = ends(&others, reasons, kind);
    let at = |log: f64| Time::from_seconds(step.seconds() * libm::exp(log));
    ((at(low), at(high)), alike(&others, kind))
}

/// The 10th and the 90th percentile of the logarithm of measured over predicted, below and above 0; `others` lie family by family.
fn ends(others: &[Seen<'_>], reasons: &Reasons, kind: &Kind) -> (f64, f64) {
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(2 * others.len());
    let all: f64 = families(others).map(|family| family.iter().map(|(one, _)| one.weight).sum::<f64>().sqrt()).sum();
    for family in families(others) {
        let likeness: Vec<f64> = family.iter().map(|(one, _)| likeness(&one.kind, kind)).collect();
        let weights: f64 = family.iter().map(|(one, _)| one.weight).sum();
        let alike: f64 = family.iter().zip(&likeness).map(|((one, _), like)| one.weight * like).sum();
        let together = if alike > 0.0 { libm::pow(alike, TOGETHER - 1.0) } else { 0.0 };
        for ((one, quotient), like) in family.iter().zip(likeness) {
            let among_all = 0.5 * ALL * one.weight / weights.sqrt() / all;
            let weight = 0.5 * one.weight * like * together;
            points.push((*quotient, weight * (1.0 + like) + among_all));
            points.push((-quotient, weight * (1.0 - like) + among_all));
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (low, high) = (weighted_quantile(&points, 0.1), weighted_quantile(&points, 0.9));
    let (fast, slow) = reasons.hosts();
    let own = said(reasons);
    (-libm::hypot((low * own).min(0.0), fast), libm::hypot((high * own).max(0.0), slow))
}

/// Runs, family by family.
fn families<'w, 's>(runs: &'s [Seen<'w>]) -> impl Iterator<Item = &'s [Seen<'w>]> {
    runs.chunk_by(|(one, _), (other, _)| one.family == other.family)
}

/// The quantile of sorted values with their weights; without any, what nobody knows.
fn weighted_quantile(points: &[(f64, f64)], share: f64) -> f64 {
    let all: f64 = points.iter().map(|point| point.1).sum();
    let mut sum = 0.0;
    let reached = points.iter().find(|point| {
        sum += point.1;
        sum >= share * all
    });
    reached.map_or(0.0, |point| point.0)
}

/// How much one kind says of another: 1 if they are the same.
fn likeness(one: &Kind, other: &Kind) -> f64 {
    let parts = one.parts().into_iter().zip(other.parts()).zip(LIKENESS);
    parts.map(|((one, other), weight)| if one == other { 1.0 } else { weight }).product()
}

fn alike(others: &[Seen<'_>], kind: &Kind) -> Alike {
    let same: Vec<&Witness> = others.iter().map(|(other, _)| *other).filter(|other| other.kind == *kind).collect();
    let mut families: Vec<&str> = same.iter().map(|other| other.family.as_str()).collect();
    let mut errors: Vec<f64> = same.iter().map(|other| other.error).collect();
    errors.sort_by(f64::total_cmp);
    families.sort_unstable();
    families.dedup();
    let median = match errors.len() {
        0 => 0.0,
        n => 0.5 * (errors[(n - 1) / 2] + errors[n / 2]),
    };
    let all = same.iter().map(|other| other.weight).sum::<f64>();
    let mut misses: Vec<(f64, f64)> = same.iter().map(|other| (miss(other.error).abs(), other.weight)).collect();
    misses.sort_by(|a, b| a.0.total_cmp(&b.0));
    let within = |share: f64| {
        let mut sum = 0.0;
        let reached = misses.iter().find(|(_, weight)| {
            sum += weight;
            sum >= share * all
        });
        reached.map_or(0.0, |(miss, _)| *miss)
    };
    Alike {
        runs: all.round() as usize,
        families: families.len(),
        bias: miss(median),
        half: within(0.5),
        nine_in_ten: within(0.9),
    }
}

/// Predicted over measured less one, of a logarithm of measured over predicted.
fn miss(error: f64) -> f64 {
    libm::exp(-error) - 1.0
}

#[cfg(test)]
mod tests;
