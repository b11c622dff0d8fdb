//! How reports write shares, sizes and tables.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

use crate::units::{Bytes, Time};

/// A part of a time, in per cent.
pub(super) fn percent(part: Time, whole: Time) -> f64 {
    if whole.0 == 0 { 0.0 } else { 100.0 * part.0 as f64 / whole.0 as f64 }
}

/// Shares of the sum in tenths of a per cent, rounded so that they add up to 100.0 %: those that lose most by being cut are given one more.
/// Nothing of nothing is no share.
pub(super) fn shares(parts: &[u128]) -> Vec<Option<String>> {
    const ALL: u128 = 1_000;
    let sum: u128 = parts.iter().sum();
    if sum == 0 {
        return vec![None; parts.len()];
    }
    // A part of so many bits leaves room for the factor.
    let shift = (u128::BITS - sum.leading_zeros()).saturating_sub(100);
    let (parts, sum): (Vec<u128>, u128) = {
        let cut: Vec<u128> = parts.iter().map(|part| part >> shift).collect();
        let sum = cut.iter().sum::<u128>().max(1);
        (cut, sum)
    };
    let mut tenths: Vec<u128> = parts.iter().map(|part| part * ALL / sum).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(parts[at] * ALL % sum), at));
    let missing = ALL.saturating_sub(tenths.iter().sum()) as usize;
    order.into_iter().take(missing).for_each(|at| tenths[at] += 1);
    let text = |(&tenths, &part): (&u128, &u128)| (part > 0).then(|| format!("{}.{} %", tenths / 10, tenths % 10));
    tenths.iter().zip(&parts).map(text).collect()
}

/// A size with two decimals.
pub(crate) fn gib(bytes: Bytes) -> String {
    format!("{:.2} GiB", bytes.gib())
}

/// A table with right-aligned columns after the first `left`.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, left: usize) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// A table of at most so many columns of text: what is in `right` is aligned there and never wraps, other cells do.
pub(crate) fn table_within(header: &[&str], mut rows: Vec<Vec<String>>, right: &[usize], width: usize) -> String {
    narrowed(header, &mut rows, right, width);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 1 }, 1));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Columns of a column besides its text.
const PADDING: usize = 2;
/// No column becomes narrower.
const NARROWEST: usize = 12;

/// Breaks the cells of the widest column of words where names may be broken, so that the table is not wider than the page: a table's
/// own wrapping would cut names anywhere.
fn narrowed(header: &[&str], rows: &mut [Vec<String>], right: &[usize], width: usize) {
    let longest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([header[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(longest).collect();
    let all: usize = widths.iter().map(|width| width + PADDING).sum::<usize>() + 1;
    let words = (0..header.len()).filter(|at| !right.contains(at));
    let Some(widest) = words.max_by_key(|&at| widths[at]).filter(|_| all > width) else { return };
    let room = widths[widest].saturating_sub(all - width).max(NARROWEST);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(widest)) {
        *cell = broken(cell, room);
    }
}

/// Lines of at most so many characters, broken at spaces and after the joints of a name.
pub(crate) fn broken(text: &str, room: usize) -> String {
    let (mut lines, mut line) = (vec![], String::new());
    for piece in text.split_inclusive([' ', '_', '-']) {
        if !line.is_empty() && line.chars().count() + piece.trim_end().chars().count() > room {
            lines.push(std::mem::take(&mut line));
        }
        line += piece;
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares_add_up_to_all_whatever_is_divided() {
        let mut seed = 7_u128;
        for count in 1..40 {
            let parts: Vec<u128> = (0..count)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 20) % (1 << (seed % 90))
                })
                .collect();
            let shares = super::shares(&parts);
            let tenths = |text: &String| text.replace(['.', ' ', '%'], "").parse::<u64>().expect("a number");
            let sum: u64 = shares.iter().flatten().map(tenths).sum();
            assert_eq!(sum, if parts.iter().all(|&part| part == 0) { 0 } else { 1_000 }, "{parts:?}");
        }
        assert_eq!(
            super::shares(&[1, 1, 1, 0]).into_iter().flatten().collect::<Vec<_>>(),
            ["33.4 %", "33.3 %", "33.3 %"]
        );
        assert_eq!(super::shares(&[0, 0]), [None, None]);
    }

    #[test]
    fn a_name_is_broken_at_its_joints_alone() {
        let name = "aten._scaled_dot_product_flash_attention_backward (cudnn)";
        let broken = super::broken(name, 30);
        assert_eq!(broken, "aten._scaled_dot_product_\nflash_attention_backward\n(cudnn)");
        assert_eq!(super::broken("compute", 30), "compute");
    }
}
