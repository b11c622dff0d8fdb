//! PyTorch's pointwise kernels over operands whose dimensions do not merge (`MemoryKind::Strided`), as Liger-Kernel's benchmark of
//! Megatron's SwiGLU measured them on one H100: `silu` of the first half of each row, and its product with the second.
//!
//! `strided.csv` holds the medians of the provider `torch` in `benchmark/data/all_benchmark_data.csv` (linkedin/Liger-Kernel@ead96b618e5c,
//! `megatron_swiglu`, 2048 × 4 rows in bf16, 2026-07-26): the forward alone, and both passes with the sum and its gradient that the
//! benchmark needs.
//!
//! Both kernels take as long for an element, though one moves four bytes of it and the other six: it is the addresses that take the time,
//! so another chip is as fast as its processors are many and their clock is high.

use super::chips::{CHIPS, ChipSpec};
use super::kernels::{CARRIED_OVER, Held, numbers};
use super::tables::{Table, Tables};
use super::{ImportError, evidence, fit, memory};

/// Profile of the chip that the kernels ran on.
const CHIP: &str = "h100-sxm-80gb";

/// Bytes that are counted of an element: [`windtunnel::program::MemoryKind::Strided`].
const COUNTED: f64 = 4.0;

const SOURCE: &str =
    "calibrate/import/strided.csv: linkedin/Liger-Kernel@ead96b618e5c, silu and product of halves of rows on one H100";

/// The family's name in a profile, its share of a chip's stream, and what that rests on.
pub fn family(tables: &Tables, chip: &ChipSpec) -> Result<(&'static str, f64, String), ImportError> {
    let measured = CHIPS.iter().find(|spec| spec.name == CHIP).expect("a chip of the table");
    let (stream, table) = (memory::curve(tables, measured)?, table()?);
    let mut shares = vec![];
    for [kernels, elements, us] in rows(&table, "forward")? {
        shares.extend(crate::fit::memory::share(&stream, COUNTED * elements, us * 1e-6 / kernels));
    }
    let share = fit::median(&shares);
    let errors: Vec<f64> = shares.iter().map(|other| fit::error(*other, share)).collect();
    let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9).max(0.02));
    if chip.name == CHIP {
        return Ok(("strided", share, evidence("published", shares.len(), median, p90, SOURCE)));
    }
    let source = format!("{SOURCE}, carried over");
    let e = evidence("extrapolated", shares.len(), median + CARRIED_OVER / 2.0, p90 + CARRIED_OVER, &source);
    Ok(("strided", Held::Arithmetic.carried(share, measured, chip), e))
}

fn table() -> Result<Table, ImportError> {
    Table::parse("calibrate/import/strided.csv", include_bytes!("strided.csv"))
}

/// Kernels, elements of each and time of them all \[us\], for one part of the benchmark.
fn rows(table: &Table, part: &str) -> Result<Vec<[f64; 3]>, ImportError> {
    let of_part = table.rows().filter(|row| row.text("part") == part);
    let found: Vec<_> =
        of_part.map(|row| numbers(table, &row, ["kernels", "elements", "us"])).collect::<Result<_, _>>()?;
    match found.is_empty() {
        true => Err(table.error(&format!("no rows of {part}"))),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use windtunnel::cost::{CostModel, Profile, Regime};
    use windtunnel::program::{MemoryKind, Work};
    use windtunnel::units::Bytes;

    use super::*;

    /// Forward is fitted; with the backward, the sum and the copy that puts both halves' gradients side by side it is not.
    #[test]
    fn both_passes_of_an_activation_over_halves_of_rows_take_what_was_measured() {
        let profile = Profile::find(CHIP).expect("a shipped profile");
        let costs = CostModel::new(&profile, Regime::Burst);
        let us = |kind, read: f64, written: f64| {
            let work = Work::Memory { kind, read: Bytes(read as u64), written: Bytes(written as u64) };
            costs.work(&work).time.seconds() * 1e6
        };
        let table = table().expect("the file is a table");
        let rows = rows(&table, "both").expect("it has such rows");
        assert_eq!(rows.len(), 6);
        for [kernels, elements, measured] in rows {
            let strided = kernels * us(MemoryKind::Strided, 2.0 * elements, 2.0 * elements);
            let sum = us(MemoryKind::Elementwise, 2.0 * elements, 2.0);
            let side_by_side = us(MemoryKind::Copy, 4.0 * elements, 4.0 * elements);
            let off = (strided + sum + side_by_side) / measured - 1.0;
            assert!(off.abs() < 0.12, "{elements} elements: {:+.1} %", 100.0 * off);
        }
    }
}
