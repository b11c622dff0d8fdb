//! Robust fitting: Nelder–Mead on the mean absolute log error, and quantiles.
//!
//! Parameters are fitted in log space, so they stay positive. The absolute error (not its square) keeps contaminated
//! rows from pulling the fit. Deterministic: no random starts, portable `libm`, fixed iteration count. J. A. Nelder and
//! R. Mead, "A simplex method for function minimization", 1965.

/// Minimises `loss` over positive parameters from `start`.
pub fn positive(start: &[f64], steps: usize, loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let up = |x: &[f64]| -> Vec<f64> { x.iter().map(|v| libm::exp(*v)).collect() };
    let eval = |x: &[f64]| {
        let value = loss(&up(x));
        if value.is_finite() { value } else { f64::MAX }
    };
    let origin: Vec<f64> = start.iter().map(|v| libm::log(*v)).collect();
    let mut simplex: Vec<(Vec<f64>, f64)> = vec![(origin.clone(), eval(&origin))];
    for axis in 0..origin.len() {
        let mut corner = origin.clone();
        corner[axis] += 0.25;
        let value = eval(&corner);
        simplex.push((corner, value));
    }
    let worst = simplex.len() - 1;
    for _ in 0..steps {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        let centre: Vec<f64> = (0..origin.len())
            .map(|axis| simplex[..worst].iter().map(|(x, _)| x[axis]).sum::<f64>() / worst as f64)
            .collect();
        let toward = |by: f64| -> (Vec<f64>, f64) {
            let x: Vec<f64> = centre.iter().zip(&simplex[worst].0).map(|(c, w)| c + by * (w - c)).collect();
            let value = eval(&x);
            (x, value)
        };
        let reflected = toward(-1.0);
        if reflected.1 < simplex[0].1 {
            let expanded = toward(-2.0);
            simplex[worst] = if expanded.1 < reflected.1 { expanded } else { reflected };
        } else if reflected.1 < simplex[worst - 1].1 {
            simplex[worst] = reflected;
        } else {
            let contracted = toward(if reflected.1 < simplex[worst].1 { -0.5 } else { 0.5 });
            if contracted.1 < simplex[worst].1.min(reflected.1) {
                simplex[worst] = contracted;
            } else {
                let best = simplex[0].0.clone();
                for (x, value) in &mut simplex[1..] {
                    for (v, b) in x.iter_mut().zip(&best) {
                        *v = b + 0.5 * (*v - b);
                    }
                    *value = eval(x);
                }
            }
        }
    }
    simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
    up(&simplex[0].0)
}

/// The value below which a share `q` of the values lies; zero of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => sorted[(q * (n - 1) as f64).round() as usize],
    }
}

/// Median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Relative error of a model against a measurement.
pub fn error(model: f64, measured: f64) -> f64 {
    (model / measured - 1.0).abs()
}

/// Four significant digits, so that a profile does not change with the last bit.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contaminated_line_is_fitted_by_the_clean_points() {
        let points: Vec<(f64, f64)> = (1u32..40)
            .map(|x| (f64::from(x), if x.is_multiple_of(9) { 50.0 } else { 3.0 + 2.0 * f64::from(x) }))
            .collect();
        let best = positive(&[1.0, 1.0], 300, |p| {
            points.iter().map(|(x, y)| libm::fabs(libm::log((p[0] + p[1] * x) / y))).sum()
        });
        assert!((best[0] - 3.0).abs() < 0.01 && (best[1] - 2.0).abs() < 0.01, "{best:?}");
    }

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert!((median(&values) - 3.0).abs() < 1e-12);
        assert!((quantile(&values, 1.0) - 5.0).abs() < 1e-12);
        assert!(quantile(&[], 0.5).abs() < 1e-12);
    }

    #[test]
    fn figures_are_rounded_to_four_digits() {
        assert!((rounded(0.123_456) - 0.1235).abs() < 1e-12);
    }
}
