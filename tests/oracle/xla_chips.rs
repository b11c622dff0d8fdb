//! Steps in MaxText's layout compiled for v5p and v5e (`oracles/xla-chips.json`, by `oracles/xla_edge.py`): how well peaks and doubts
//! that were read off v6e hold on other chips.

use super::xla_edge::{Row, at, errors, memory, read};

fn of<'r>(rows: &'r [Row], chip: &str) -> Vec<&'r Row> {
    rows.iter().filter(|row| row.name.starts_with(chip)).collect()
}

#[test]
fn peaks_on_other_chips_are_close_in_the_median_though_every_rule_was_read_off_v6e() {
    let rows = read("xla-chips.json");
    for (chip, steps, median) in [("v5p-", 23, 0.015), ("v5e-", 37, 0.015)] {
        let of = of(&rows, chip);
        assert_eq!(of.len(), steps, "{chip}");
        let errors = errors(&of);
        assert!(at(&errors, 0.5) <= median && at(&errors, 1.0) <= 0.3, "{chip}: {errors:?}");
    }
}

#[test]
fn doubts_of_other_chips_hold_eight_steps_in_ten() {
    let rows = read("xla-chips.json");
    for chip in ["v5p-", "v5e-"] {
        let inside = |row: &&Row| {
            let memory = memory(row);
            memory.report.peak_allocated.0.abs_diff(row.peak) <= memory.doubt.0
        };
        let of = of(&rows, chip);
        let held = of.iter().filter(|row| inside(row)).count();
        assert!(held * 10 >= of.len() * 8, "{chip}: {held} of {}", of.len());
    }
}

#[test]
fn what_other_chips_take_and_refuse_is_never_said_otherwise_beyond_doubt() {
    for row in read("xla-chips.json") {
        let memory = memory(&row);
        let (least, most) = (memory.wanted.saturating_sub(memory.doubt), memory.wanted + memory.doubt);
        let right = if row.fits { least <= memory.capacity } else { most > memory.capacity };
        assert!(right, "{}: {} of {} wanted, fits: {}", row.name, memory.wanted, memory.capacity, row.fits);
    }
}
