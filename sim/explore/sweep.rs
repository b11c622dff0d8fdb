//! The sweep: every combination of some keys' values, each simulated as a run of its own.
//!
//! A [`Grid`] says which runs there are and in which order: that of the keys as they are named, where the last changes fastest. Each
//! run is a [`Row`], also one that is refused or does not fit. Threads work on several runs at once, and rows are handed out in the
//! order of the grid. What a row says depends on neither. Runs that are understood as the same plan on the same machine are
//! simulated once.

mod axis;
mod csv;
mod grid;
mod known;
mod order;
mod resume;
mod row;
pub mod text;

pub use axis::AxisError;
pub use csv::csv;
pub use grid::{Grid, MOST};
pub use order::Out;
pub use resume::{Held, Other, held};
pub use row::Row;

use known::{Claim, Known};
use order::InOrder;
use rayon::prelude::*;

use crate::bug::caught;
use crate::scenario::predict::Settings;
use crate::scenario::{Scenario, predict};
use row::Refusal;

/// Simulates the runs of a grid from one on, and hands their rows out in order until all are, or `out` says that it is enough.
pub fn sweep(grid: &Grid, from: u64, out: &mut Out<'_>) {
    let (known, order) = (Known::default(), InOrder::new(from, out));
    let left = (from..grid.runs()).take_while(|_| !order.stopped());
    // Runs are begun in order, so that finished rows wait little for those before them.
    left.par_bridge().for_each(|run| simulate(grid, run, &known, &order));
}

/// Simulates a run, and those that came meanwhile and are the same. No thread waits for another: that could wait for itself.
fn simulate(grid: &Grid, run: u64, known: &Known, order: &InOrder<'_, '_>) {
    let named = |run: u64, row: Row| Row { index: run, varied: grid.varied(run), ..row };
    let scenario = match understood(grid, run) {
        Ok(scenario) => scenario,
        Err(why) => return order.hand(named(run, Row::refused(grid, why))),
    };
    let ticket = match known.claim(&scenario, run) {
        Claim::First(ticket) => ticket,
        Claim::Answered(row) => return order.hand(named(run, *row)),
        Claim::Follows => return,
        Claim::Alone => return order.hand(named(run, flown(grid, &scenario))),
    };
    let row = flown(grid, &scenario);
    let same = known.answer(ticket, &row);
    order.hand(named(run, row.clone()));
    for other in same {
        order.hand(named(other, if row.is_refused() { alone(grid, other) } else { row.clone() }));
    }
}

/// A run whose plan is refused elsewhere in the grid. A refusal names keys as the file writes them, and another file may write the
/// same plan otherwise.
fn alone(grid: &Grid, run: u64) -> Row {
    match understood(grid, run) {
        Ok(scenario) => flown(grid, &scenario),
        Err(why) => Row::refused(grid, why),
    }
}

/// The scenario of a run, or why it is none.
fn understood(grid: &Grid, run: u64) -> Result<Scenario, Refusal> {
    match caught(|| grid.scenario(run)) {
        Ok(Ok(scenario)) => Ok(scenario),
        Ok(Err(error)) => Err(Refusal::of(&error)),
        Err(panic) => Err(Refusal::bug(&panic)),
    }
}

/// What a scenario's run would do, as `windtunnel run` says it. Nothing is looked for that would make it fit.
fn flown(grid: &Grid, scenario: &Scenario) -> Row {
    let settings = Settings { remedies: false, ..Settings::default() };
    match caught(|| predict(scenario, settings)) {
        Ok(Ok(answer)) => Row::of(grid, scenario, &answer),
        Ok(Err(error)) => Row::refused(grid, Refusal::of(&error)),
        Err(panic) => Row::refused(grid, Refusal::bug(&panic)),
    }
}
