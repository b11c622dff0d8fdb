//! A comparison as a person reads it: both sides, then what each difference does.
//!
//! Every column is rounded to one quantum before differences are taken, so that the rows on the page add up as well.

use super::unit::FRAMEWORK;
use super::words::Fold;
use super::{Change, Comparison, Figures, Row};
use crate::explore::words::{relative_change, thousands};
use crate::report::text::{broken, gib, table, wrapped};

/// Columns of a change's figures, beside its words.
const FIGURES: usize = 70;

/// A column: its title, and a figure in quanta of which hundred make a unit.
struct Column {
    title: String,
    quanta: Box<dyn Fn(&Figures) -> i128>,
}

/// Unit of time that leaves a step of this length some four digits before the point \[ps\].
fn unit(longest: u64) -> (&'static str, u64) {
    match longest {
        10_000_000_000_000.. => ("s", 1_000_000_000_000),
        10_000_000_000.. => ("ms", 1_000_000_000),
        _ => ("µs", 1_000_000),
    }
}

fn columns(total: &Change) -> Vec<Column> {
    let (name, picoseconds) = unit(total.from.step.0.max(total.to.step.0));
    let round = |value: i128, unit: i128| (200 * value + unit).div_euclid(2 * unit);
    let column = |title: &str, quanta: Box<dyn Fn(&Figures) -> i128>| Column { title: title.to_owned(), quanta };
    vec![
        column(&format!("step time [{name}]"), Box::new(move |f| round(f.step.0.into(), picoseconds.into()))),
        column("alloc. [GiB]", Box::new(move |f| round(f.allocated.0.into(), 1 << 30))),
        column("reserved [GiB]", Box::new(move |f| round(f.reserved.0.into(), 1 << 30))),
        column("MFU [%]", Box::new(move |f| round(f.mfu_billionths.into(), 10_000_000))),
    ]
}

fn hundredths(quanta: i128) -> String {
    format!("{:.2}", quanta as f64 / 100.0)
}

fn signed(quanta: i128) -> String {
    if quanta == 0 { "0".to_owned() } else { format!("{:+.2}", quanta as f64 / 100.0) }
}

/// Writes the report, for so many columns.
pub fn report(answer: &Comparison, width: usize, fold: Fold) -> String {
    let mut out = String::new();
    for (letter, (name, description)) in ["A", "B"].iter().zip(&answer.sides) {
        let side = format!("{letter}  {name}   {description}");
        out += &match side.chars().count() > width {
            true => format!("{letter}  {name}\n   {}\n", wrapped(description, width.saturating_sub(3)).join("\n   ")),
            false => side + "\n",
        };
    }
    out.extend(batches(answer).map(|line| format!("\n{}\n", wrapped(&line, width).join("\n"))));
    out += &format!("\n{}\n", shown(sides(answer), 1));
    if answer.rows.is_empty() {
        out += "\nNo key differs: the two are the same run.\n";
    } else {
        out += "\nApplied to A one after the other\n";
        out += &format!("{}\n", without_groups(attribution(answer, width, fold)));
    }
    if answer.rows.len() > 1 {
        out += &format!(
            "\nEach change alone, applied to A: the order of the rows above matters\n{}\n",
            without_groups(alone(answer, width, fold))
        );
    }
    for remark in remarks(answer, fold) {
        out += &format!("\n  {}\n", wrapped(&remark, width.saturating_sub(4)).join("\n    "));
    }
    let (follows, left) = fold.follows(&answer.follows, other_framework(answer));
    if !answer.follows.is_empty() {
        out += "\nDefaults that change as a result\n";
        for difference in &follows {
            out += &format!("  {}\n", wrapped(&fold.words(difference), width.saturating_sub(4)).join("\n    "));
        }
        let more = if follows.is_empty() { "" } else { "and " };
        if left > 0 {
            out += &format!("  {more}{left} that only one of the two frameworks has\n");
        }
    }
    let mut written = answer.rows.iter().map(|row| row.differences.as_slice());
    if left > 0 || written.any(|row| fold.shortens(row)) {
        out += "\n  --all writes every key and value, and so does --json.\n";
    }
    out
}

/// Said first where the two do not train on as many tokens a step: their steps are not the same work.
pub(super) fn batches(answer: &Comparison) -> Option<String> {
    let [a, b] = [&answer.total.from, &answer.total.to].map(|figures| figures.tokens);
    (a != b).then(|| {
        format!(
            "Not the same work: {} tokens a step in A, {} in B ({:.3} ×); compare tokens/s per chip, not step time",
            thousands(a),
            thousands(b),
            b as f64 / a.max(1) as f64
        )
    })
}

/// Columns and rows.
pub(super) type Rows = (Vec<String>, Vec<Vec<String>>);

fn shown((header, rows): Rows, left: usize) -> String {
    table(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows, left)
}

/// The same without the group of each change, for which a page of text has no room.
fn without_groups((header, mut rows): Rows) -> String {
    rows.iter_mut().for_each(|row| drop(row.remove(0)));
    shown((header[1..].to_vec(), rows), 1)
}

/// Both sides.
pub(super) fn sides(answer: &Comparison) -> Rows {
    let Change { from, to } = &answer.total;
    let mut rows: Vec<Vec<String>> = columns(&answer.total)
        .iter()
        .map(|column| {
            let (before, after) = ((column.quanta)(from), (column.quanta)(to));
            let change = relative_change(before as f64, after as f64);
            vec![column.title.clone(), hundredths(before), hundredths(after), signed(after - before), change]
        })
        .collect();
    let rate = |figures: &Figures| format!("{:.0}", figures.rate);
    let change = relative_change(from.rate, to.rate);
    rows.push(vec![
        "tokens/s per chip".to_owned(),
        rate(from),
        rate(to),
        format!("{:+.0}", to.rate - from.rate),
        change,
    ]);
    rows.push(vec!["tokens a step".to_owned(), thousands(from.tokens), thousands(to.tokens)]);
    if from.host.0 > 0 || to.host.0 > 0 {
        let bytes = |figures: &Figures| gib(figures.host);
        rows.push(vec!["host memory a node".to_owned(), bytes(from), bytes(to)]);
    }
    rows.push(vec!["fits".to_owned(), fits(from), fits(to)]);
    rows.iter_mut().for_each(|row| row.resize(5, String::new()));
    (["", "A", "B", "B − A", ""].map(str::to_owned).to_vec(), rows)
}

fn fits(figures: &Figures) -> String {
    figures.verdict.to_string()
}

fn header(columns: &[Column]) -> Vec<String> {
    let titles = columns.iter().map(|column| column.title.as_str());
    ["", "change"].into_iter().chain(titles).chain(["then fits"]).map(str::to_owned).collect()
}

fn cells(names: [String; 2], change: &Change, columns: &[Column]) -> Vec<String> {
    let cell = |column: &Column| signed((column.quanta)(&change.to) - (column.quanta)(&change.from));
    names.into_iter().chain(columns.iter().map(cell)).chain([fits(&change.to)]).collect()
}

/// What each difference does, one after the other.
pub(super) fn attribution(answer: &Comparison, width: usize, fold: Fold) -> Rows {
    let columns = &columns(&answer.total);
    let mut rows: Vec<_> = answer.rows.iter().map(|row| cells(names(row, width, fold), &row.change, columns)).collect();
    rows.push(cells([String::new(), "all together".to_owned()], &answer.total, columns));
    (header(columns), rows)
}

/// What each difference does by itself.
pub(super) fn alone(answer: &Comparison, width: usize, fold: Fold) -> Rows {
    let columns = &columns(&answer.total);
    let row = |row: &Row| match &row.alone {
        // What a plan that cannot run would take is no figure.
        Ok(change) if change.to.refused && !answer.total.from.refused => {
            names(row, width, fold).into_iter().chain(["does not fit".to_owned()]).collect()
        }
        Ok(change) => cells(names(row, width, fold), change, columns),
        Err(_) => names(row, width, fold).into_iter().chain(["no scenario".to_owned()]).collect(),
    };
    let mut rows: Vec<Vec<String>> = answer.rows.iter().map(row).collect();
    rows.iter_mut().for_each(|row| row.resize(columns.len() + 3, String::new()));
    (header(columns), rows)
}

/// Whether the two run under different frameworks.
pub(super) fn other_framework(answer: &Comparison) -> bool {
    answer.rows.iter().flat_map(|row| &row.differences).any(|one| one.key == FRAMEWORK)
}

/// Why differences were joined, why some are no scenario alone, and what a plan on the way is that does not fit.
pub(super) fn remarks(answer: &Comparison, fold: Fold) -> Vec<String> {
    let mut list = vec![];
    if other_framework(answer) {
        list.push(format!("{FRAMEWORK} is one row with the keys that only one of the two frameworks reads"));
    }
    for row in &answer.rows {
        let keys = fold.keys(&row.differences);
        list.extend(row.joined.iter().map(|why| format!("{keys} only together; {why}")));
        list.extend(row.alone.as_ref().err().map(|why| format!("{keys} not alone on A: {why}")));
    }
    let between = answer.rows.iter().rev().skip(1);
    if between.filter(|row| row.change.to.refused).count() > 0 {
        list.push("a plan between A and B that does not fit is shown with the memory that it would take".to_owned());
    }
    list
}

fn names(row: &Row, width: usize, fold: Fold) -> [String; 2] {
    let group = row.differences.first().map_or("", |first| first.group().name()).to_owned();
    let room = width.saturating_sub(FIGURES).max(26);
    [group, fold.lines(&row.differences).iter().map(|line| broken(line, room)).collect::<Vec<_>>().join("\n")]
}
