//! Which readings of a run are of steady steps.
//!
//! **The rule**: the first reading is warm-up, and so is every one after it until three in a row are within 5 % of the median of the
//! second half. All readings after that count, slow ones too: checkpoints, garbage collection and retries are part of what was measured,
//! and the median does not mind them.

use crate::statistics::median;

/// In a row.
const IN_A_ROW: usize = 3;
/// Around the median of the second half.
const WITHIN: f64 = 0.05;

/// Readings without warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Steady {
    /// Those that count.
    pub readings: Vec<f64>,
    /// How many were dropped as warm-up.
    pub dropped: usize,
    /// Whether steps ever became steady; if not, the second half counts.
    pub settled: bool,
}

impl Steady {
    /// Drops warm-up.
    pub fn of(all: &[f64]) -> Steady {
        if all.len() <= IN_A_ROW {
            // Of so few nobody can tell which are steady: the first is not, if there is another.
            let dropped = usize::from(all.len() > 1);
            return Steady { readings: all[dropped..].to_vec(), dropped, settled: false };
        }
        let middle = median(all[all.len() / 2..].iter().copied()).expect("a list that is not empty has a second half");
        let near = |reading: &f64| (reading / middle - 1.0).abs() <= WITHIN;
        let first = (1..=all.len() - IN_A_ROW).find(|&at| all[at..at + IN_A_ROW].iter().all(near));
        let dropped = first.unwrap_or(all.len() / 2);
        Steady { readings: all[dropped..].to_vec(), dropped, settled: first.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_ends_where_three_in_a_row_are_usual() {
        let steady = Steady::of(&[30.0, 2.0, 1.0, 1.5, 1.01, 0.99, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0]);
        assert_eq!((steady.dropped, steady.settled), (4, true));
        assert!(steady.readings.contains(&3.0), "a checkpoint counts");
    }

    #[test]
    fn the_first_step_is_always_warm_up_and_few_steps_are_never_steady() {
        assert_eq!(Steady::of(&[1.0; 10]).dropped, 1);
        assert_eq!(Steady::of(&[5.0, 1.0]), Steady { readings: vec![1.0], dropped: 1, settled: false });
        assert_eq!(Steady::of(&[5.0]), Steady { readings: vec![5.0], dropped: 0, settled: false });
        let restless: Vec<f64> = (1..=10).map(f64::from).collect();
        let half = Steady::of(&restless);
        assert_eq!((half.dropped, half.settled), (5, false));
    }
}
