//! Quantiles of values and of weighted values, by one definition.
//!
//! The quantile of a share `q` is the smallest value such that values up to it hold at least that share of the weight: the inverse of the
//! empirical distribution function (R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", 1996, type 1). It is always a
//! value that occurred: nothing is interpolated, and the median of an even count is the lower of the middle two.

/// What a share may miss by rounding: neither 0.1 nor a weight of a third is a binary fraction.
const ROUNDING: f64 = 1e-9;

/// The quantile of a share `q` from 0 to 1; none of no values.
pub fn quantile(values: impl IntoIterator<Item = f64>, q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    of_sorted(&sorted, q).copied()
}

/// The median; none of no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(values, 0.5)
}

/// The quantile of values with their weights; none of no values.
pub fn weighted(values: &[(f64, f64)], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = sorted.iter().map(|&(_, weight)| weight).sum();
    let mut up_to = 0.0;
    let reached = sorted.iter().find(|&&(_, weight)| {
        up_to += weight;
        up_to >= (q - ROUNDING) * all
    });
    reached.or(sorted.last()).map(|&(value, _)| value)
}

/// The quantile of what is sorted already, the smallest first; none of nothing.
pub fn of_sorted<T>(sorted: &[T], q: f64) -> Option<&T> {
    // Of n values the k-th holds a share of k / n: the first that reaches q is the ⌈q·n⌉-th.
    let count = ((q - ROUNDING) * sorted.len() as f64).ceil() as usize;
    sorted.get(count.clamp(1, sorted.len().max(1)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_of_an_odd_count_is_the_middle_and_of_an_even_count_the_lower_of_two() {
        for count in 1..200_u32 {
            let values = (1..=count).rev().map(f64::from);
            assert_eq!(median(values), Some(f64::from(count.div_ceil(2))), "{count}");
        }
        assert_eq!(median([0.0; 0]), None);
    }

    /// In floating point, 0.1 · 30 is 3.0000000000000004: that is the third value, not the fourth.
    #[test]
    fn tenths_of_many_values_are_counted_without_errors_of_rounding() {
        for count in 1..2_000_u32 {
            let values: Vec<u32> = (1..=count).collect();
            for tenths in 1..=10 {
                let exact = (count * tenths).div_ceil(10);
                assert_eq!(of_sorted(&values, f64::from(tenths) / 10.0), Some(&exact), "{tenths} tenths of {count}");
            }
        }
    }

    #[test]
    fn the_ends_are_the_smallest_and_the_largest_value() {
        let values = [3.0, 1.0, 2.0];
        assert_eq!((quantile(values, 0.0), quantile(values, 1.0)), (Some(1.0), Some(3.0)));
        let weights = [(3.0, 1.0), (1.0, 1.0), (2.0, 5.0)];
        assert_eq!((weighted(&weights, 0.0), weighted(&weights, 1.0)), (Some(1.0), Some(3.0)));
        assert_eq!((of_sorted::<u8>(&[], 0.5), weighted(&[], 0.5)), (None, None));
    }

    #[test]
    fn a_value_counts_by_its_weight() {
        // A quarter of the weight is at most 1, three quarters are at most 2.
        let values = [(2.0, 2.0), (1.0, 1.0), (3.0, 1.0)];
        let of = |q| weighted(&values, q);
        assert_eq!([0.25, 0.26, 0.75, 0.76].map(of), [Some(1.0), Some(2.0), Some(2.0), Some(3.0)]);
        let thirds = [(1.0, 1.0 / 3.0), (1.0, 1.0 / 3.0), (1.0, 1.0 / 3.0), (2.0, 1.0)];
        assert_eq!(weighted(&thirds, 0.5), Some(1.0));
    }

    proptest! {
        #[test]
        fn values_of_one_weight_have_the_quantiles_of_values_without_any(
            values in prop::collection::vec(-1e9..1e9_f64, 0..50),
            hundredths in 0..=100_u32,
            weight in 0.01..100.0_f64,
        ) {
            let q = f64::from(hundredths) / 100.0;
            let alike: Vec<(f64, f64)> = values.iter().map(|&value| (value, weight)).collect();
            prop_assert_eq!(weighted(&alike, q), quantile(values.iter().copied(), q));
            prop_assert!(quantile(values.iter().copied(), q).is_none_or(|found| values.contains(&found)));
        }
    }
}
