//! What the fits are held to, on the points that the repository holds.

use std::collections::BTreeMap;

use windtunnel::cost::Profile;

use super::attention::{self, Point};
use super::matmul::{Points, Spec};
use super::{error, median, quantile, trial};

/// All published bf16 matmuls of a chip: lines of n, k and a time for each m of the heading.
fn published(table: &str) -> Points {
    let mut lines = table.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    let size = |text: &str| text.parse::<u64>().expect("a size");
    let mut points = Points::new();
    for line in lines {
        for (m, text) in heading.iter().zip(&line).skip(2).filter(|(_, text)| !text.is_empty()) {
            let micros: f64 = text.parse().expect("a time");
            points.insert((size(m), size(line[0]), size(line[1])), micros * 1e-6);
        }
    }
    points
}

/// A chip as its profile has it.
fn spec(name: &str) -> Spec {
    let profile = Profile::find(name).expect("shipped");
    let bandwidth = profile.machine.memory_bandwidth.0 / 1e9;
    Spec {
        processors: profile.machine.processors,
        peak: profile.bf16_peak().0 / 1e12,
        size: 2.0,
        measured_bandwidth: bandwidth,
        own_bandwidth: bandwidth,
    }
}

/// Shapes of every size, down to one row, are predicted from the others; so are those alone that training issues most.
fn holds(name: &str, table: &str) {
    let all = published(table);
    assert_eq!(all.len(), 35_700, "{name}");
    let large: Points =
        all.iter().filter(|((m, n, k), _)| *m >= 256 && *n >= 256 && *k >= 512).map(|(s, t)| (*s, *t)).collect();
    assert_eq!(large.len(), 12_582, "{name}");
    for points in [all, large] {
        let trial = trial::leave_one_out(&points, &spec(name)).expect("a grid");
        let figures = [&trial.model, &trial.waves, &trial.constant].map(|e| (quantile(e, 0.5), quantile(e, 0.9)));
        println!("{name}: {} points, model, waves, constant: {figures:.4?}", points.len());
        let [(median, p90), waves, constant] = figures;
        assert!(median <= 0.03 && p90 <= 0.09, "{name}: {median} {p90}");
        assert!(median < waves.0 && p90 < waves.1 && waves.0 < constant.0, "{name}: {figures:?}");
    }
}

#[test]
fn a_matmul_left_out_is_predicted_within_3_percent_on_h200() {
    holds("h200-sxm-141gb", include_str!("../../tests/costs/matmul_h200_all.csv"));
}

#[test]
fn a_matmul_left_out_is_predicted_within_3_percent_on_h100() {
    holds("h100-sxm-80gb", include_str!("../../tests/costs/matmul_h100_all.csv"));
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
