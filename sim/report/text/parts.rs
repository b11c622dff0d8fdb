//! How the step divides by part of the model, where layers are of several kinds.

use std::fmt;

use super::super::format::{gib, shares, table_within};
use super::page::Page;
use crate::scenario::predict::PartShare;
use crate::scenario::{Prediction, Scenario};
use crate::units::{Bytes, Flops, Time};

pub(super) fn parts(page: &mut Page, scenario: &Scenario, answer: &Prediction) -> fmt::Result {
    let parts = answer.by_part_if_mixed(scenario);
    if parts.is_empty() {
        return Ok(());
    }
    page.heading("By part of the model")?;
    page.lines(&table_within(&HEADER, rows(&parts), &[1, 2, 3, 4, 5, 6], page.width()))?;
    page.sentence(&sums(&parts, answer.classes.len() > 1))
}

/// What the columns of the table are.
pub(crate) const HEADER: [&str; 7] =
    ["", "layers", "kernels run", "of that time", "model FLOPs", "parameters", "activations"];

/// A row for each part: its layers, the time that its kernels run, and its shares.
pub(crate) fn rows(parts: &[PartShare]) -> Vec<Vec<String>> {
    let column = |of: fn(&PartShare) -> u128| shares(&parts.iter().map(of).collect::<Vec<_>>());
    let columns = [
        column(|part| part.busy.0.into()),
        column(|part| part.model_flops.0),
        column(|part| part.params.into()),
        column(|part| part.activations.0.into()),
    ];
    let row = |(at, part): (usize, &PartShare)| {
        let layers = if part.layers > 0 { part.layers.to_string() } else { String::new() };
        let own = [part.owner.label().to_owned(), layers, part.busy.to_string()];
        own.into_iter().chain(columns.iter().map(|column| column[at].clone().unwrap_or_default())).collect()
    };
    parts.iter().enumerate().map(row).collect()
}

/// What is divided, in a sentence or two.
pub(crate) fn sums(parts: &[PartShare], staged: bool) -> String {
    let busy: Time = parts.iter().map(|part| part.busy).sum();
    let flops: Flops = parts.iter().map(|part| part.model_flops).sum();
    let params: u64 = parts.iter().map(|part| part.params).sum();
    let held = Bytes(parts.iter().map(|part| part.activations.0).sum());
    let ranks = if staged { " (the mean of all ranks)" } else { "" };
    let activations = match held.0 {
        0 => String::new(),
        _ => format!(", {} of activations at the peak", gib(held)),
    };
    format!(
        "Shares are of {busy} of kernels without communication{ranks}, {flops} of model FLOPs (6·N + 12·L·H·S), {:.3} B \
         parameters{activations}.",
        params as f64 / 1e9
    )
}
