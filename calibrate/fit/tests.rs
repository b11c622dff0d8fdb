//! What the fits are held to, on the points that the repository holds.

use std::collections::BTreeMap;

use windtunnel::cost::Profile;

use super::attention::{self, Point};
use super::matmul::{Points, Spec};
use super::{error, median, quantile, trial};

/// Points of `tests/costs`.
fn points(table: &str) -> impl Iterator<Item = ((u64, u64, u64), f64)> + '_ {
    table.lines().skip(2).map(|line| {
        let row: Vec<f64> = line.split(',').map(|v| v.parse().expect("a number")).collect();
        ((row[0] as u64, row[1] as u64, row[2] as u64), row[3] * 1e-6)
    })
}

/// All published bf16 matmuls of a chip: its profile's table, and what was kept from it.
fn published(name: &str, kept: [&str; 2]) -> (Points, Spec) {
    let profile = Profile::find(name).expect("shipped");
    let all = profile.bf16.table().into_iter().chain(kept.into_iter().flat_map(points)).collect();
    let bandwidth = profile.machine.memory_bandwidth.0 / 1e9;
    let spec = Spec {
        processors: profile.machine.processors,
        peak: profile.bf16_peak().0 / 1e12,
        size: 2.0,
        measured_bandwidth: bandwidth,
        own_bandwidth: bandwidth,
    };
    (all, spec)
}

fn holds(name: &str, kept: [&str; 2]) {
    let (points, spec) = published(name, kept);
    assert!(points.len() > 12_500, "{name}: {} points", points.len());
    let trial = trial::leave_one_out(&points, &spec).expect("a grid");
    let figures = [&trial.model, &trial.waves, &trial.constant].map(|e| (quantile(e, 0.5), quantile(e, 0.9)));
    println!("{name}: {} points, model, waves, constant: {figures:?}", points.len());
    let [(median, p90), waves, constant] = figures;
    assert!(median <= 0.04 && p90 <= 0.12, "{name}: {median} {p90}");
    assert!(median < waves.0 && p90 < waves.1 && waves.0 < constant.0, "{name}: {figures:?}");
}

#[test]
fn a_matmul_left_out_is_predicted_within_4_percent_on_h200() {
    let kept =
        [include_str!("../../tests/costs/matmul_h200.csv"), include_str!("../../tests/costs/matmul_h200_dropped.csv")];
    holds("h200-sxm-141gb", kept);
}

#[test]
fn a_matmul_left_out_is_predicted_within_4_percent_on_h100() {
    let kept =
        [include_str!("../../tests/costs/matmul_h100.csv"), include_str!("../../tests/costs/matmul_h100_dropped.csv")];
    holds("h100-sxm-80gb", kept);
}

/// Sweeps by head dimension, pass and mask.
fn sweeps() -> BTreeMap<(u64, bool, bool), Vec<Point>> {
    let mut sweeps: BTreeMap<_, Vec<Point>> = BTreeMap::new();
    for line in include_str!("../../tests/costs/attention_h200.csv").lines().skip(2) {
        let row: Vec<&str> = line.split(',').collect();
        let number = |at: usize| row[at].parse::<f64>().expect("a number");
        let point = Point { flops: number(3), sequence: number(4), tiles: number(5), seconds: number(6) * 1e-6 };
        sweeps.entry((number(0) as u64, row[1] == "true", row[2] == "true")).or_default().push(point);
    }
    sweeps
}

#[test]
fn an_attention_left_out_is_predicted_within_2_percent_on_h200() {
    let (mut errors, mut constant) = (vec![], vec![]);
    for points in sweeps().values() {
        assert!(points.len() <= 20, "so few are left out one by one");
        errors.extend(attention::left_out(points, 132.0, 700.0));
        let rates: Vec<f64> = points.iter().map(|p| p.flops / p.seconds).collect();
        constant.extend(points.iter().map(|p| error(p.flops / median(&rates), p.seconds)));
    }
    println!("{} points, {:?}, a constant {:?}", errors.len(), quantiles(&errors), quantiles(&constant));
    assert!(errors.len() >= 20);
    assert!(median(&errors) <= 0.02 && quantile(&errors, 0.9) <= 0.06, "{errors:?}");
    assert!(median(&errors) < median(&constant));
}

fn quantiles(errors: &[f64]) -> (f64, f64) {
    (median(errors), quantile(errors, 0.9))
}
