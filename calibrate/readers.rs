//! What this crate reads that another program wrote, from bytes alone: where fuzzing begins (`tests/fuzz`).
//!
//! Each function reads one format as the command would and says whether it was accepted.

use crate::import::tables::Table;
use crate::import::{csv_points, nccl_tests};
use crate::pjrt::hlo::{self, collectives, cycles, flops, flow, print};

/// A log of nccl-tests, or what its `-J` writes.
pub fn nccl_tests(bytes: &[u8]) -> bool {
    nccl_tests::understand("log.txt", bytes, &nccl_tests::Known::default()).is_ok()
}

/// A table of measured times as CSV.
pub fn points(bytes: &[u8]) -> bool {
    Table::parse("table.csv", bytes)
        .is_ok_and(|table| csv_points::understand("table.csv", &table, Some("h100")).is_ok())
}

/// A compiled program as a plugin gives it, and all that is derived from it.
pub fn program(bytes: &[u8]) -> bool {
    let Ok(program) = hlo::read(bytes, "hlo") else { return false };
    // What is derived must not panic; what it says of a made-up program means nothing.
    let _ = (flops::flops(&program), collectives::collectives(&program, 8), cycles::cycles(&program));
    let _ = (flow::entered(&program), print::text(&program));
    true
}
