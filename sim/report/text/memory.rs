//! Memory at the peak, by category.

use std::fmt;

use super::super::format::{gib, table_within};
use super::page::Page;
use crate::program::Category;
use crate::scenario::Prediction;
use crate::units::Bytes;

pub(super) fn memory(page: &mut Page, answer: &Prediction, verbose: bool) -> fmt::Result {
    let report = &answer.memory.report;
    let live = report.live(&answer.classes[answer.tightest].program);
    page.heading(&format!("Memory at the peak ({})", report.peak_phase))?;
    let total = report.breakdown.total();
    let named = if verbose { 3 } else { 2 };
    let row = |category: Category, bytes: Bytes| {
        let of_it = live.iter().filter(|live| live.category == category).take(named);
        let names: Vec<String> = of_it.map(|live| format!("{} × {}", live.count, live.name)).collect();
        let share = format!("{:.1} %", 100.0 * bytes.0 as f64 / total.0 as f64);
        vec![category.label().to_owned(), gib(bytes), share, names.join(", ")]
    };
    let categories = report.breakdown.sorted().into_iter();
    let mut rows: Vec<Vec<String>> = categories.map(|(category, bytes)| row(category, bytes)).collect();
    let cached = report.peak_reserved.saturating_sub(report.peak_allocated);
    for (what, bytes) in [("cached by the allocator", cached), ("context and communicators", answer.memory.outside)] {
        rows.push(vec![what.to_owned(), gib(bytes), String::new(), String::new()]);
    }
    page.lines(&table_within(&["", "size", "share", "largest"], rows, &[1, 2], page.width()))?;
    let pool = answer.classes[answer.tightest].program.graph_pool;
    if let Some(pools) = pool.and_then(|pool| report.reserved_by_stream.get(usize::from(pool.0)..)) {
        let held = Bytes(pools.iter().map(|pool| pool.0).sum());
        page.sentence(&format!("The CUDA graphs' pool holds {} of this until the run ends.", gib(held)))?;
    }
    Ok(())
}
