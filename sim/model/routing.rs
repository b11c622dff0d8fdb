//! How tokens spread over experts: tokens per expert from a stated distribution.
//!
//! Every token goes to k different experts, so an expert gets at most T copies and all together T·k. Shares follow the
//! weights of the distribution; what an expert cannot take goes to the others in proportion; copies left over by
//! rounding go to the largest remainders, the earlier expert first.

use crate::units::Finite;

/// A distribution of tokens over experts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Load {
    /// Every expert gets the same: what a perfect balancing loss would reach.
    #[default]
    Balanced,
    /// The i-th expert's share falls as `i^-exponent`.
    PowerLaw {
        /// 0 is balanced.
        exponent: Finite,
    },
    /// Shares as counted in a run, one number per expert.
    Measured(Vec<u64>),
}

impl Load {
    /// In words, for reports.
    pub fn words(&self) -> String {
        match self {
            Load::Balanced => "balanced".to_owned(),
            Load::PowerLaw { exponent } => format!("a power law of exponent {exponent}"),
            Load::Measured(_) => "as a run counted them".to_owned(),
        }
    }

    fn weight(&self, expert: usize) -> f64 {
        match self {
            Load::Balanced => 1.0,
            Load::PowerLaw { exponent } => libm::pow(expert as f64 + 1.0, -exponent.get()),
            Load::Measured(counts) => counts.get(expert).map_or(0.0, |&count| count as f64),
        }
    }

    /// The largest share of all copies that one of `experts` is asked to take, where that is more than one of each token's.
    pub fn overfull(&self, experts: u64, top_k: u64) -> Option<f64> {
        let weights = || (0..experts as usize).map(|expert| self.weight(expert));
        let share = weights().fold(0.0, f64::max) / weights().sum::<f64>();
        // Rounding is the division's.
        (share * top_k as f64 > 1.0 + 1e-9).then_some(share)
    }

    /// Copies that each of `experts` gets of `tokens` tokens sent to `top_k` experts each. They sum to `tokens·top_k`
    /// where that is possible at all (`top_k` ≤ `experts`), and none exceeds `tokens`.
    pub fn tokens_per_expert(&self, experts: u64, top_k: u64, tokens: u64) -> Vec<u64> {
        let count = experts as usize;
        let mut counts = vec![0; count];
        let mut left = tokens * top_k.min(experts);
        let mut open: Vec<usize> = (0..count).collect();
        while left > 0 && !open.is_empty() {
            let weights: Vec<f64> = open.iter().map(|&expert| self.weight(expert)).collect();
            let sum: f64 = weights.iter().sum();
            // Where nobody wants what is left, all get the same.
            let share = |at: usize| {
                let part = if sum > 0.0 { weights[at] / sum } else { 1.0 / open.len() as f64 };
                left as f64 * part
            };
            let full: Vec<usize> = (0..open.len()).filter(|&at| share(at) >= tokens as f64).collect();
            if full.is_empty() {
                let parts: Vec<f64> = (0..open.len()).map(share).collect();
                spread(&open, &parts, tokens, left, &mut counts);
                break;
            }
            // Those that would get more than there are tokens get all tokens; the others share the rest anew.
            for &at in full.iter().take((left / tokens) as usize) {
                counts[open[at]] = tokens;
                left -= tokens;
            }
            open = (0..open.len()).filter(|at| !full.contains(at)).map(|at| open[at]).collect();
        }
        counts
    }
}

/// Gives each open expert the whole part of its share, and what is left to the largest remainders.
fn spread(open: &[usize], parts: &[f64], most: u64, total: u64, counts: &mut [u64]) {
    let mut left = total;
    for (&expert, &part) in open.iter().zip(parts) {
        counts[expert] = (part as u64).min(most).min(left);
        left -= counts[expert];
    }
    let mut order: Vec<usize> = (0..open.len()).collect();
    order.sort_by(|&a, &b| (parts[b] - parts[b].floor()).total_cmp(&(parts[a] - parts[a].floor())).then(a.cmp(&b)));
    while left > 0 {
        for &at in &order {
            if left > 0 && counts[open[at]] < most {
                counts[open[at]] += 1;
                left -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn power_law(exponent: f64) -> Load {
        Load::PowerLaw { exponent: Finite::nearest(exponent) }
    }

    fn loads() -> impl Strategy<Value = Load> {
        prop_oneof![
            Just(Load::Balanced),
            (0.0..4.0).prop_map(power_law),
            proptest::collection::vec(0..1_000_000_u64, 0..80).prop_map(Load::Measured),
        ]
    }

    proptest! {
        #[test]
        fn every_copy_of_every_token_lands_on_one_expert_and_no_expert_sees_a_token_twice(
            load in loads(), experts in 1..70_u64, top_k in 1..10_u64, tokens in 0..5_000_u64,
        ) {
            let top_k = top_k.min(experts);
            let counts = load.tokens_per_expert(experts, top_k, tokens);
            prop_assert_eq!(counts.len() as u64, experts);
            prop_assert_eq!(counts.iter().sum::<u64>(), tokens * top_k);
            prop_assert!(counts.iter().all(|&count| count <= tokens));
        }

        #[test]
        fn a_power_law_never_gives_a_later_expert_two_more_than_an_earlier_one(
            exponent in 0.0..4.0, experts in 1..70_u64, tokens in 0..5_000_u64,
        ) {
            let counts = power_law(exponent).tokens_per_expert(experts, 1, tokens);
            prop_assert!(counts.windows(2).all(|pair| pair[1] <= pair[0] + 1));
        }
    }

    #[test]
    fn no_expert_takes_more_than_one_copy_of_each_token() {
        assert_eq!(Load::Balanced.overfull(8, 8), None);
        assert_eq!(Load::Measured(vec![2, 1, 1, 0]).overfull(4, 2), None);
        assert_eq!(Load::Measured(vec![3, 1, 0, 0]).overfull(4, 2), Some(0.75));
        assert_eq!(Load::Measured(vec![3, 1, 0, 0]).overfull(4, 1), None);
        assert!(power_law(1.0).overfull(3, 2).is_some(), "6 of 11 copies");
    }

    #[test]
    fn a_balanced_load_is_even_and_a_measured_one_keeps_its_proportions() {
        assert_eq!(Load::Balanced.tokens_per_expert(8, 2, 4096), [1024; 8]);
        assert_eq!(Load::Measured(vec![3, 1, 0, 0]).tokens_per_expert(4, 1, 400), [300, 100, 0, 0]);
        // The first cannot take 1,200 copies of 400 tokens.
        assert_eq!(Load::Measured(vec![6, 1, 1, 0]).tokens_per_expert(4, 2, 400), [400, 200, 200, 0]);
        assert_eq!(power_law(1.0).tokens_per_expert(3, 1, 1100), [600, 300, 200]);
    }
}
