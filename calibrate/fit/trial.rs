//! Leave-one-out: every point of a grid of matmuls predicted by what the others say about it.
//!
//! For each point the cost model of the simulator is made anew without it and asked for its time:
//!
//! - the wave model is fitted without the point's fold, a fifth of all points, drawn by a hash of the shape (one point in
//!   twelve thousand does not move seven parameters; a fifth at least might);
//! - the table holds all points but the one and its twins, whose sizes are all within 1 % of its own (a grid that has m
//!   and m + 1 would give the answer away), and disturbed ones, as a profile's table does;
//! - the answer is [`Matmul::cost`], as predictions get it. Disturbed points count like all others when they are asked for.
//!
//! Beside it the same is done for two simpler models: the wave-quantised roofline without a table, and a constant share of
//! the peak.

use windtunnel::cost::matmul::Matmul;
use windtunnel::cost::{Basis, Evidence};

use super::grid::same;
use super::matmul::{Points, Spec, clean, fit_waves};
use super::{Residual, error, median};

/// Parts that the points are cut into.
const FOLDS: u64 = 5;

/// Relative errors of three models on points they were not given.
#[derive(Debug, Default)]
pub struct Trial {
    /// The simulator's model.
    pub model: Vec<f64>,
    /// A wave-quantised roofline.
    pub waves: Vec<f64>,
    /// A constant share of the peak.
    pub constant: Vec<f64>,
}

impl Trial {
    /// For reports: the model and its two rivals.
    pub fn residuals(&self, name: &str) -> Vec<Residual> {
        let rows = [
            ("each point left out", &self.model),
            ("a wave-quantised roofline instead", &self.waves),
            ("a constant efficiency instead", &self.constant),
        ];
        rows.map(|(what, errors)| Residual::of(format!("{name}: {what}"), errors.len(), errors)).into()
    }
}

/// Evidence of a model that lives for one trial.
fn nobodys() -> Evidence {
    Evidence { basis: Basis::Published, source: "a trial".to_owned(), points: 0, median: 0.0, p90: 0.0 }
}

fn fold(&(m, n, k): &(u64, u64, u64)) -> u64 {
    let cell = [m & !1, n, k].iter().fold(0x84_2223_25cb_f29c_u64, |hash, v| (hash ^ v).wrapping_mul(0x0100_0000_01b3));
    (cell >> 19) % FOLDS
}

/// Whether two shapes are as good as the same.
pub fn twins(a: (u64, u64, u64), b: (u64, u64, u64)) -> bool {
    same(a.0, b.0) && same(a.1, b.1) && same(a.2, b.2)
}

/// Predicts each point from the rest.
pub fn leave_one_out(points: &Points, spec: &Spec) -> Result<Trial, String> {
    let mut trial = Trial::default();
    let chip = spec.measured();
    for part in 0..FOLDS {
        let given: Points = points.iter().filter(|(shape, _)| fold(shape) != part).map(|(s, t)| (*s, *t)).collect();
        let waves = fit_waves(&given, spec, 3);
        let kept = clean(points, spec, &waves);
        let times: Vec<_> = kept.keys().map(|shape| (*shape, points[shape])).collect();
        let bare = Matmul::bare(nobodys(), chip, waves, spec.size);
        let table = bare.clone().with_table(&times)?;
        let work = |&(m, n, k): &(u64, u64, u64)| 2.0 * m as f64 * n as f64 * k as f64;
        let shares: Vec<f64> = given.iter().map(|(shape, t)| work(shape) / t / chip.peak.0).collect();
        let share = median(&shares);
        for (shape, &seconds) in points.iter().filter(|(shape, _)| fold(shape) == part) {
            let &(m, n, k) = shape;
            // A twin's m is within 1 % too, so only that part of the points is looked through.
            let near = points.range((m * 100 / 101, 0, 0)..=(m + m / 100, u64::MAX, u64::MAX));
            let gone: Vec<_> = near.map(|(other, _)| *other).filter(|other| twins(*other, *shape)).collect();
            let rest = table.without(&gone);
            trial.model.push(error(rest.cost(m, n, k).time.seconds(), seconds));
            trial.waves.push(error(bare.cost(m, n, k).time.seconds(), seconds));
            trial.constant.push(error(work(shape) / (chip.peak.0 * share), seconds));
        }
    }
    Ok(trial)
}
