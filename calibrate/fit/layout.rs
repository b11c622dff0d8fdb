//! Gradient layouts: time of a gradient's matmul over the forward one's at the same arithmetic.

use super::{Section, evidence};
use crate::fit;

/// Ratios by layout.
#[derive(Debug, Default)]
pub struct Ratios {
    /// `dx = dy·W`.
    pub data: Vec<f64>,
    /// `dW = dyᵀ·x`.
    pub weight: Vec<f64>,
    /// The same added to an fp32 main gradient, without the traffic of that.
    pub main: Vec<f64>,
}

/// The section `layout`: medians of the ratios, errors around them.
pub fn section(ratios: &Ratios, basis: &str, source: &str) -> Section {
    let spread = |values: &[f64], centre: f64| -> Vec<f64> { values.iter().map(|v| fit::error(*v, centre)).collect() };
    let (data, weight) = (fit::rounded(fit::median(&ratios.data)), fit::rounded(fit::median(&ratios.weight)));
    let mut errors = [spread(&ratios.data, data), spread(&ratios.weight, weight)].concat();
    let mut main_gradient = String::new();
    if !ratios.main.is_empty() {
        let main = fit::rounded(fit::median(&ratios.main));
        errors.extend(spread(&ratios.main, main));
        main_gradient = format!("main_gradient = {main}\n");
    }
    let text = format!(
        "[layout]\ndata_gradient = {data}\nweight_gradient = {weight}\n{main_gradient}evidence = {}\n",
        evidence(
            basis,
            ratios.data.len().max(ratios.weight.len()),
            fit::median(&errors),
            fit::quantile(&errors, 0.9),
            source
        )
    );
    Section { text, residuals: Vec::new() }
}
