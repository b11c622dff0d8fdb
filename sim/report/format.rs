//! How reports write shares, sizes and tables.

use std::borrow::Cow;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

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

/// A table of at most so many columns of text: what is in `right` is aligned there and never wraps, other cells do. It is wider only where
/// words would have to be cut.
pub fn table_within(header: &[&str], mut rows: Vec<Vec<String>>, right: &[usize], width: usize) -> String {
    narrowed(header, &mut rows, right, width);
    let header = stacked(header, &rows, right, width);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let whole = whole_words(&header, &rows, right, width);
    let (indent, after) = margins(&header, &rows, right, width);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        let before = if index == 0 { indent } else { 1 };
        column.set_padding((before, after));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        } else if let Some(&Some(text)) = whole.get(index) {
            let with_padding = u16::try_from(text).unwrap_or(u16::MAX).saturating_add(before + after);
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(with_padding)));
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
    let widths: Vec<usize> = (0..header.len()).map(|at| most(header, rows, at, |text| text.chars().count())).collect();
    let all: usize = widths.iter().map(|width| width + PADDING).sum::<usize>() + 1;
    let words = (0..header.len()).filter(|at| !right.contains(at));
    let Some(widest) = words.max_by_key(|&at| widths[at]).filter(|_| all > width) else { return };
    let room = widths[widest].saturating_sub(all - width).max(NARROWEST);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(widest)) {
        *cell = broken(cell, room);
    }
}

/// Spaces before a table, and after each column beside the one before the next: two and one, or fewer where the table would else be wider
/// than the page.
fn margins(header: &[&str], rows: &[Vec<String>], right: &[usize], width: usize) -> (u16, u16) {
    match least(header, rows, right).saturating_sub(width) {
        0 => (2, 1),
        1 => (1, 1),
        2 => (0, 1),
        _ => (0, 0),
    }
}

/// Columns of text that a table takes at least: figures do not wrap, words stay whole.
fn least(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> usize {
    let line = |text: &str| text.split('\n').map(|part| part.chars().count()).max().unwrap_or(0);
    let column = |at: usize| {
        if right.contains(&at) { most(header, rows, at, line) } else { most(header, rows, at, longest_word) }
    };
    // One more before the first column, and none after the last.
    (0..header.len()).map(|at| column(at) + PADDING).sum()
}

fn longest_word(text: &str) -> usize {
    text.split([' ', '\n']).map(|part| part.chars().count()).max().unwrap_or(0)
}

/// Headers, those of figures with their words below each other where the table would be wider than the page.
fn stacked(header: &[&str], rows: &[Vec<String>], right: &[usize], width: usize) -> Vec<String> {
    let fits = least(header, rows, right) <= width;
    let stack = |(at, &title): (usize, &&str)| match fits || !right.contains(&at) {
        true => title.to_owned(),
        false => {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
            wrapped(title, cells.unwrap_or(0).max(longest_word(title))).join("\n")
        }
    };
    header.iter().enumerate().map(stack).collect()
}

/// The most that a column's header and cells have of something.
fn most(header: &[&str], rows: &[Vec<String>], at: usize, of: impl Fn(&str) -> usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(at)).map(String::as_str);
    cells.chain([header[at]]).map(of).max().unwrap_or(0)
}

/// Widths of columns, where the table's own wrapping would cut a word. That wrapping gives all columns which do not hold their text an equal
/// share of the room. Here a column has at least its longest word, and the share of the others is the largest for which the table is
/// not wider than the page, if there is one. The table's own wrapping decides on columns without a width, and on all if it cuts nothing.
fn whole_words(header: &[&str], rows: &[Vec<String>], right: &[usize], width: usize) -> Vec<Option<usize>> {
    let longest = |text: &str, ends: &[char]| text.split(ends).map(|part| part.chars().count()).max().unwrap_or(0);
    let columns = 0..header.len();
    let lines: Vec<usize> = columns.clone().map(|at| most(header, rows, at, |text| longest(text, &['\n']))).collect();
    let words: Vec<usize> =
        columns.clone().map(|at| most(header, rows, at, |text| longest(text, &['\n', ' ']))).collect();
    let wraps = |at: &usize| !right.contains(at);
    let fixed: usize = columns.clone().filter(|at| !wraps(at)).map(|at| lines[at]).sum();
    let room = width.saturating_sub(fixed + PADDING * header.len() + 1);
    let at_share = |at: usize, share: usize| share.clamp(words[at], lines[at]);
    let taken = |share: usize| columns.clone().filter(wraps).map(|at| at_share(at, share)).sum::<usize>();
    let share = (0..=room).rev().find(|&share| taken(share) <= room).unwrap_or(0);
    let cuts = columns.clone().filter(wraps).any(|at| words[at] > share);
    let decided = |at: &usize| cuts && wraps(at) && (words[*at] > share || lines[*at] <= share);
    columns.map(|at| decided(&at).then(|| at_share(at, share))).collect()
}

/// Lines of words of at most so many columns. A longer word has a line to itself.
pub fn wrapped(text: &str, columns: usize) -> Vec<Cow<'_, str>> {
    let options = textwrap::Options::new(columns).break_words(false);
    textwrap::wrap(text, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
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

    #[test]
    fn no_word_of_a_table_is_cut() {
        let header = ["", "plan", "step", "bound by"];
        let row = ["1", "dp_shard 64, tensor parallel 2, full recompute", "1.234 s", "exposed communication"];
        for width in 10..100 {
            let rows = vec![row.map(str::to_owned).to_vec()];
            let text = super::table_within(&header, rows, &[2], width);
            for word in ["tensor", "parallel", "recompute", "1.234 s", "exposed", "communication"] {
                assert!(text.contains(word), "{word:?} in {width} columns:\n{text}");
            }
            // One column, 9 of "recompute", 7 of a time and 13 of "communication", each but the first with a space around it.
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width.max(1 + 9 + 7 + 13 + 9)), "{width} columns:\n{text}");
        }
    }

    #[test]
    fn lines_are_as_long_as_they_may_be_and_long_words_stay_whole() {
        let lines = super::wrapped("−1 ms of a well-known step, measured_with_one_very_long_name twice", 14);
        assert_eq!(lines, ["−1 ms of a", "well-known", "step,", "measured_with_one_very_long_name", "twice"]);
        assert_eq!(super::wrapped("", 14), [""]);
    }
}
