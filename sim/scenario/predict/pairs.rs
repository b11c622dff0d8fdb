//! By how much errors of two runs of one family on one machine differ: what a comparison of two predictions may be off by.

use std::sync::LazyLock;

use super::witnesses::{WITNESSES, Witness};

/// Share of a normal distribution within one deviation of its middle.
const WITHIN: f64 = 0.682_689_492;

/// Deviations of the difference of two errors: of runs of one kind, and of all runs of one family on one machine.
static DEVIATIONS: LazyLock<[f64; 2]> = LazyLock::new(|| {
    let all: Vec<&Witness> = WITNESSES.iter().collect();
    [deviation_of(&all, true), deviation_of(&all, false)]
});

/// The deviation of the difference of two errors, as a logarithm; `alike` if both runs are of one framework.
pub fn deviation(alike: bool) -> f64 {
    DEVIATIONS[usize::from(!alike)]
}

/// Pairs of a family on a machine: the median family counts as much as the largest, so pairs are weighed by family.
fn deviation_of(runs: &[&Witness], alike: bool) -> f64 {
    let mut differences: Vec<(f64, f64)> = vec![];
    for (at, one) in runs.iter().enumerate() {
        for other in &runs[at + 1..] {
            let same = one.family == other.family && one.kind.machine == other.kind.machine;
            let framework = one.kind.framework == other.kind.framework;
            if same && (framework || !alike) {
                let weight = one.weight * other.weight / family_weight(runs, one);
                differences.push(((one.error - other.error).abs(), weight));
            }
        }
    }
    differences.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all: f64 = differences.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let within = differences.iter().find(|(_, weight)| {
        sum += weight;
        sum >= WITHIN * all
    });
    within.map_or(1.0, |(difference, _)| difference.max(1e-6))
}

fn family_weight(runs: &[&Witness], one: &Witness) -> f64 {
    let mine = runs.iter().filter(|other| other.family == one.family && other.kind.machine == one.kind.machine);
    mine.map(|other| other.weight).sum::<f64>().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of pairs of runs of families that were left out, as many lie within the deviation as a normal distribution has there.
    #[test]
    fn deviations_hold_for_families_that_they_have_not_seen() {
        let mut families: Vec<&str> = WITNESSES.iter().map(|one| one.family.as_str()).collect();
        families.dedup();
        let (mut inside, mut all) = (0.0, 0.0);
        for family in families {
            let (held, others): (Vec<&Witness>, Vec<&Witness>) = WITNESSES.iter().partition(|one| one.family == family);
            let deviation = deviation_of(&others, true);
            for (at, one) in held.iter().enumerate() {
                for other in held[at + 1..].iter().filter(|other| other.kind.machine == one.kind.machine) {
                    let weight = one.weight * other.weight / family_weight(&held, one);
                    all += weight;
                    inside += if (one.error - other.error).abs() <= deviation { weight } else { 0.0 };
                }
            }
        }
        let share = inside / all;
        assert!((0.6..=0.76).contains(&share), "{share:.3}");
    }

    #[test]
    fn runs_of_one_family_differ_less_than_runs_of_two() {
        let mut errors: Vec<f64> = WITNESSES.iter().map(|one| one.error).collect();
        errors.sort_by(f64::total_cmp);
        let spread = errors[errors.len() * 84 / 100] - errors[errors.len() / 2];
        assert!(deviation(true) < std::f64::consts::SQRT_2 * spread);
    }
}
