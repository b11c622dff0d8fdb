//! What many timings say together: a median, how far it can be trusted, and how many timings stand apart.
//!
//! The confidence interval of a median needs no distribution: of `n` sorted values, those of rank `(n ± 1.96·√n) / 2`
//! enclose it with 95 % (the binomial's normal approximation; Conover, Practical Nonparametric Statistics, §3.2).

/// Timings, summed up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle value.
    pub median: f64,
    /// The smallest value that a tenth of the values do not exceed.
    pub p10: f64,
    /// The smallest value that nine tenths of the values do not exceed.
    pub p90: f64,
    /// Half the width of the median's 95 % confidence interval, over the median.
    pub uncertainty: f64,
    /// Values more than five median absolute deviations from the median.
    pub outliers: u32,
}

/// Sums up; none of no values.
pub fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = quantile(&sorted, 0.5)?;
    let mut away: Vec<f64> = sorted.iter().map(|value| (value - median).abs()).collect();
    away.sort_by(f64::total_cmp);
    // Clocks tick: below a thousandth of the median nothing stands apart.
    let spread = quantile(&away, 0.5)?.max(median * 1e-3);
    let outliers = away.iter().filter(|distance| **distance > 5.0 * spread).count() as u32;
    Some(Summary {
        median,
        p10: quantile(&sorted, 0.1)?,
        p90: quantile(&sorted, 0.9)?,
        uncertainty: uncertainty(&sorted, median),
        outliers,
    })
}

/// The smallest value that at least a share of the values does not exceed, as `windtunnel::statistics` has it. Written here once more
/// because `xla-rs`, which shares this file, does not depend on the simulator.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let count = ((share - 1e-9) * sorted.len() as f64).ceil() as usize;
    sorted.get(count.max(1) - 1).copied()
}

fn uncertainty(sorted: &[f64], median: f64) -> f64 {
    let n = sorted.len() as f64;
    let reach = 1.96 * n.sqrt();
    let (low, high) = (((n - reach) / 2.0).floor(), ((n + reach) / 2.0 + 1.0).ceil());
    if low < 1.0 || high > n {
        return f64::INFINITY;
    }
    (sorted[high as usize - 1] - sorted[low as usize - 1]) / 2.0 / median
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_tenths_lie_where_they_should() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let summary = summary(&values).unwrap();
        assert_eq!((summary.p10, summary.median, summary.p90), (10.0, 50.0, 90.0));
        assert_eq!(summary.outliers, 0);
    }

    #[test]
    fn the_median_of_an_even_count_is_the_lower_of_the_middle_two() {
        let summary = summary(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.p10, summary.median, summary.p90), (1.0, 2.0, 4.0));
    }

    #[test]
    fn a_few_values_are_no_certainty() {
        assert_eq!(summary(&[1.0, 1.0, 1.0]).unwrap().uncertainty, f64::INFINITY);
        assert_eq!(summary(&[1.0; 10]).unwrap().uncertainty, 0.0);
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn the_interval_shrinks_as_values_come() {
        let at = |count: usize| {
            let values: Vec<f64> = (0..count).map(|turn| 10.0 + ((turn * 7919) % 101) as f64 / 101.0).collect();
            summary(&values).unwrap().uncertainty
        };
        assert!(at(400) < at(100) / 1.5, "{} {}", at(400), at(100));
        assert!(at(100) < at(25) / 1.5, "{} {}", at(100), at(25));
    }

    #[test]
    fn an_interrupted_timing_counts_as_an_outlier_and_moves_no_median() {
        let mut values = vec![10.0, 10.08, 9.92, 10.0, 10.05, 9.95, 10.0, 10.0, 10.02];
        values.push(55.0);
        let summary = summary(&values).unwrap();
        assert_eq!(summary.outliers, 1);
        assert!((summary.median - 10.0).abs() < 0.02);
    }
}
