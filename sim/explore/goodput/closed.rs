//! Closed forms: the expected goodput of an interval between checkpoints, and the interval at which it is best.
//!
//! Interruptions come with rate λ while the job is up. A life from one to the next lasts 1/λ on average. In it the job is up again after
//! R, saves a checkpoint after every cycle of length c, and each counts a time w later. A life therefore saves
//!
//! ```text
//! e^(−λ(R + c + w)) / (1 − e^(−λc))
//! ```
//!
//! checkpoints on average, and takes 1/λ + D with what the job is down. With w = 0 this is the complete model of Daly 2006 (A higher order
//! estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22), equation 20. Its first-order
//! optimum is that of Young 1974 (Communications of the ACM 17).

use super::job::{Job, Save};

/// Young's interval: training between two checkpoints that take `save`, with a mean time between interruptions \[s\].
pub fn young(save: f64, mean: f64) -> f64 {
    (2.0 * save * mean).sqrt()
}

/// Daly's interval of a higher order \[s\] (equation 37).
pub fn daly(save: f64, mean: f64) -> f64 {
    let ratio = save / (2.0 * mean);
    if ratio >= 1.0 {
        return mean;
    }
    young(save, mean) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - save
}

/// Wall-clock time for so much work by Daly's complete model \[s\]: `save` after each `interval`, `restart` after each interruption.
pub fn daly_wall(work: f64, interval: f64, save: f64, restart: f64, mean: f64) -> f64 {
    mean * libm::exp(restart / mean) * libm::expm1((interval + save) / mean) * work / interval
}

/// The expected share of wall-clock time that counts, with `interval` of training between checkpoints.
///
/// Planned stops take a checkpoint and a restart each, and lose nothing. Waiting for nodes that are repaired is not in it.
pub fn expected(job: &Job, interval: f64) -> f64 {
    let Save { blocked, written_after } = job.save;
    let cycle = interval + blocked + (written_after - interval).max(0.0);
    let (rate, planned) = (job.unexpected(), job.planned());
    let up = planned * (job.save.whole() + job.up_again());
    if rate == 0.0 {
        return interval / cycle / (1.0 + up);
    }
    let saved = libm::exp(-rate * (job.up_again() + cycle + written_after)) / -libm::expm1(-rate * cycle);
    let down = job.detection + job.replacement * takes_node(job);
    interval * saved / (1.0 / rate + down) / (1.0 + up)
}

/// The share of unexpected interruptions that take a node.
fn takes_node(job: &Job) -> f64 {
    let unexpected = job.causes.iter().filter(|cause| !cause.planned);
    let (all, node) = unexpected.fold((0.0, 0.0), |(all, node), cause| {
        (all + cause.rate, node + if cause.takes_node { cause.rate } else { 0.0 })
    });
    if all > 0.0 { node / all } else { 0.0 }
}

/// Steps between checkpoints with the best expected goodput, up to `most`: it rises up to there, and then falls.
pub fn best(job: &Job, step: f64, most: u64) -> u64 {
    let of = |steps: u64| expected(job, steps as f64 * step);
    // Beyond so many mean times between interruptions nothing is ever saved.
    let useless = 40.0 / job.unexpected().max(f64::MIN_POSITIVE) / step;
    let (mut low, mut high) = (1, most.min(useless as u64).max(1));
    while high - low > 2 {
        let third = (high - low) / 3;
        let (left, right) = (low + third, high - third);
        if of(left) < of(right) { low = left + 1 } else { high = right }
    }
    (low..=high).reduce(|best, steps| if of(steps) > of(best) { steps } else { best }).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::job::{Cause, End};
    use super::*;

    fn job(rate: f64, save: Save, restart: f64) -> Job {
        let cause = Cause { name: "all".to_owned(), rate, takes_node: true, planned: false };
        Job {
            end: End::Work(1e6),
            interval: 100.0,
            save,
            load: 0.0,
            restart,
            detection: 0.0,
            replacement: 0.0,
            repair: 0.0,
            spares: None,
            elastic: None,
            causes: vec![cause],
        }
    }

    proptest! {
        #[test]
        fn a_checkpoint_that_counts_at_once_is_dalys_model(
            mean in 1e3..1e6_f64, save in 1.0..100.0_f64, restart in 0.0..1e3_f64, interval in 10.0..1e4_f64,
        ) {
            let job = job(1.0 / mean, Save { blocked: save, written_after: 0.0 }, restart);
            let wall = daly_wall(1.0, interval, save, restart, mean);
            prop_assert!((1.0 / expected(&job, interval) / wall - 1.0).abs() < 1e-9);
        }

        #[test]
        fn the_best_interval_is_dalys(mean in 1e4..1e6_f64, save in 1.0..60.0_f64) {
            let job = job(1.0 / mean, Save { blocked: save, written_after: 0.0 }, 60.0);
            let step = 0.01;
            let best = best(&job, step, 1 << 40) as f64 * step;
            prop_assert!((best / daly(save, mean) - 1.0).abs() < 0.005, "{best} {}", daly(save, mean));
        }

        #[test]
        fn no_other_interval_is_better(mean in 1e3..1e6_f64, save in 0.0..60.0_f64, behind in 0.0..600.0_f64, step in 0.5..30.0_f64) {
            let job = job(1.0 / mean, Save { blocked: save, written_after: behind }, 60.0);
            let most = 1_000_000;
            let steps = best(&job, step, most);
            let goodput = expected(&job, steps as f64 * step);
            for other in [1, steps / 2, steps - 1, steps + 1, 2 * steps, 10 * steps, most] {
                let other = other.clamp(1, most);
                prop_assert!(expected(&job, other as f64 * step) <= goodput * (1.0 + 1e-12), "{other} and not {steps}");
            }
        }
    }

    #[test]
    fn youngs_interval_is_dalys_where_saving_is_short() {
        assert!((young(1.0, 1e8) / daly(1.0, 1e8) - 1.0).abs() < 1e-3);
        // Where saving takes longer than the job lives, there is no other choice than to save once in a life.
        assert_eq!(daly(300.0, 100.0), 100.0);
    }
}
