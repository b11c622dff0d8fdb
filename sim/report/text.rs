//! The report a person reads: the verdict first, then the figures, what would change them, where they come from, and how far to
//! trust them.
//!
//! [`page`] knows how wide the page is and whether it has colour; [`figures`], [`advice`], [`memory`],
//! [`time`], [`parts`] and [`sure`] write a section each.

mod advice;
mod figures;
mod memory;
mod page;
mod parts;
mod ranks;
mod sure;
mod time;

pub(crate) use super::format::{broken, gib};
pub use super::format::{table, table_within, wrapped};
pub(crate) use page::Page;
pub use page::WIDTH;

use std::fmt;

use super::layout::Training;
use super::{pipeline, start_up, training, verdict};
use crate::scenario::Prediction;
use crate::scenario::Scenario;
use crate::scenario::advice::{Advice, Unstated};

pub(crate) use figures::whose;
pub(crate) use parts::{HEADER as PARTS, rows as part_rows, sums as part_sums};
pub(crate) use ranks::rank as slow_rank;
pub(super) use sure::confidence;

/// What to print, and how.
#[derive(Clone, Copy, Debug)]
pub struct Detail<'a> {
    /// Every MFU convention instead of the first.
    pub all_conventions: bool,
    /// Everything: all kernels, what was assumed, what each number rests on.
    pub verbose: bool,
    /// Single changes that were simulated, if they were.
    pub advice: Option<&'a Advice>,
    /// Where throughput lies at other values of what decides it, if they were simulated.
    pub unstated: Option<&'a Unstated>,
    /// The training that the step is part of, if it was asked for.
    pub training: Option<&'a Training>,
    /// Columns of the page.
    pub width: usize,
    /// Whether headings and the verdict are coloured.
    pub colour: bool,
}

impl Default for Detail<'_> {
    fn default() -> Self {
        Detail {
            all_conventions: false,
            verbose: false,
            advice: None,
            unstated: None,
            training: None,
            width: WIDTH,
            colour: false,
        }
    }
}

impl Prediction {
    /// The report that `windtunnel run --verbose` prints, without changes that were tried.
    pub fn text(&self, scenario: &Scenario) -> String {
        report(scenario, self, Detail { verbose: true, ..Detail::default() })
    }
}

/// Writes the report.
pub fn report(scenario: &Scenario, answer: &Prediction, detail: Detail<'_>) -> String {
    let mut page = Page::new(detail.width, detail.colour);
    // Writing to a string cannot fail.
    let _ = write(&mut page, scenario, answer, detail);
    page.text()
}

fn write(page: &mut Page, scenario: &Scenario, answer: &Prediction, detail: Detail<'_>) -> fmt::Result {
    page.title(&scenario.description)?;
    page.verdict(&verdict::verdict(answer))?;
    figures::figures(page, scenario, answer, detail.unstated, detail.all_conventions)?;
    if let Some(of) = detail.training {
        training::text(page, of, detail.verbose)?;
    }
    advice::fitting(page, answer)?;
    if let Some(table) = pipeline::text(scenario, answer, page.width()) {
        page.heading("Ranks of the pipeline, shares of the step")?;
        page.lines(&table)?;
    }
    advice::faster(page, answer, detail.advice)?;
    ranks::ranks(page, answer, detail.verbose)?;
    memory::memory(page, answer, detail.verbose)?;
    time::time(page, answer, detail.verbose)?;
    parts::parts(page, scenario, answer)?;
    start_up::text(page, scenario, answer)?;
    sure::sure(page, scenario, answer, detail.verbose)?;
    advice::defaults(page, scenario, detail.advice, detail.verbose)
}
