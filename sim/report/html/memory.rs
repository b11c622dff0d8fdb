//! Memory over the step by category, as a stack of areas under what the device has, and a table of the peak.
//!
//! The curve is what the program asks the allocator for, at the times at which the host asks; of a compiled step, what is live while the
//! device runs. It is drawn in columns. A column shows the moment of its most bytes, so that no peak is lost.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::recorded::Recorded;
use super::scale::{Scale, UNITS};
use super::timeline;
use crate::program::{Category, Discipline, Instr, Program};
use crate::report::format::gib;
use crate::report::page;
use crate::report::trace::memory::Live;
use crate::scenario::Prediction;
use crate::units::{Bytes, Time};

/// Columns of the curve.
const COLUMNS: u64 = 800;
/// Height of the drawing, in its own units.
const HEIGHT: u64 = 1000;
/// The class of what lies outside the allocator.
const OUTSIDE: usize = 16;
/// The class of a reference model.
const REFERENCE: usize = 17;

type Totals = [u64; Category::COUNT];

/// What is asked for, column by column.
struct Curve {
    columns: Vec<Totals>,
    /// When most is asked for, and what.
    peak: (Time, Totals),
}

fn sum(totals: &Totals) -> u64 {
    totals.iter().sum()
}

impl Curve {
    /// Of a program whose host issues its instructions at these times.
    fn of(program: &Program, times: &[Time], scale: &Scale) -> Curve {
        let mut live = Live::at_start(program);
        let mut columns: Vec<Totals> = vec![];
        let mut most = live.totals;
        let mut peak = (scale.from, live.totals);
        for (instr, &time) in program.step.iter().zip(times) {
            let column = scale.x(time) * COLUMNS / UNITS;
            while (columns.len() as u64) < column {
                columns.push(most);
                most = live.totals;
            }
            live.apply(program, instr);
            if live.total() > sum(&most) {
                most = live.totals;
            }
            if live.total() > sum(&peak.1) {
                peak = (time, live.totals);
            }
        }
        while (columns.len() as u64) < COLUMNS {
            columns.push(most);
            most = live.totals;
        }
        Curve { columns, peak }
    }

    /// The upper edge of all bytes up to a category, with what lies outside the allocator, as an area down to zero.
    fn area(&self, upto: usize, outside: Bytes, axis: &Axis) -> String {
        let mut path = format!("M0 {HEIGHT}");
        let mut before = None;
        for (column, totals) in self.columns.iter().enumerate() {
            let y = axis.y(outside.0 + totals[..upto].iter().sum::<u64>());
            if before != Some(y) {
                // Writing to a string cannot fail.
                let _ = write!(path, "H{}V{y}", column as u64 * UNITS / COLUMNS);
                before = Some(y);
            }
        }
        path + &format!("H{UNITS}V{HEIGHT}z")
    }
}

/// The vertical axis, from zero to more than is needed and more than there is.
struct Axis {
    most: u64,
}

impl Axis {
    fn y(&self, bytes: u64) -> u64 {
        HEIGHT - (u128::from(bytes.min(self.most)) * u128::from(HEIGHT) / u128::from(self.most.max(1))) as u64
    }

    /// How high a value stands [per cent].
    fn height(&self, bytes: u64) -> f64 {
        100.0 * (HEIGHT - self.y(bytes)) as f64 / HEIGHT as f64
    }

    /// Round values [GiB].
    fn levels(&self) -> Vec<u64> {
        let rough = Bytes(self.most).gib() / 6.0;
        let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
        let step = steps.into_iter().find(|&step| step as f64 >= rough).unwrap_or(10_000);
        (0..8).map(|count| count * step).filter(|&level| level << 30 <= self.most).collect()
    }
}

/// The section.
pub(super) fn section(answer: &Prediction, recorded: Option<&Recorded<'_>>) -> Markup {
    let memory = &answer.memory;
    let staged = if answer.classes.len() > 1 {
        format!(" of pipeline rank {}, the fullest,", answer.tightest)
    } else {
        String::new()
    };
    html! {
        p {
            "The peak" (staged) " is in " (memory.report.peak_phase) ": "
            @if memory.report.compiled { "the compiler places " (gib(memory.report.peak_allocated)) " at once. " }
            @else {
                "tensors occupy " (gib(memory.report.peak_allocated)) ", and the allocator takes " (gib(memory.report.peak_reserved))
                " from the device. "
            }
            @if memory.outside.0 > 0 {
                "With " (gib(memory.outside)) " outside the allocator, the device holds " (gib(memory.device_total())) "."
            }
        }
        @if let Some(recorded) = recorded { (chart(answer, recorded)) }
        (peak(answer))
    }
}

fn chart(answer: &Prediction, recorded: &Recorded<'_>) -> Markup {
    let (shown, memory, class) = (recorded.answer(), &answer.memory, answer.tightest);
    let Some(program) = shown.classes.get(class).map(|class| &*class.program) else { return html! {} };
    let fixed = program.memory == Discipline::Static;
    let times = if fixed { compiled_times(shown, class) } else { shown.timeline.host_times[class].clone() };
    let scale = Scale::of(recorded);
    let curve = Curve::of(program, &times, &scale);
    let (at, totals) = curve.peak;
    let asked = Bytes(sum(&totals));
    let total = memory.device_total();
    let tallest = total.max(memory.wanted).max(memory.capacity).max(Bytes(memory.outside.0 + asked.0));
    let axis = Axis { most: tallest.0 + tallest.0 / 12 };
    let used: Vec<Category> = Category::ALL
        .iter()
        .copied()
        .filter(|&category| curve.columns.iter().any(|all| all[category as usize] > 0))
        .collect();
    let x = scale.x(at);
    let left = 100.0 * x as f64 / UNITS as f64;
    let height = axis.height(memory.outside.0 + asked.0);
    let above = if height > 84.0 { height - 12.0 } else { height + 1.0 };
    let line = |bytes: Bytes| format!("M0 {0}H{UNITS}", axis.y(bytes.0));
    let areas: String =
        used.iter().rev().map(|&category| area(&curve, category, &totals, memory.outside, &axis)).collect();
    html! {
        figure {
            figcaption { (if fixed { "What is live, by category" } else { "What is asked of the allocator, by category" }) }
            @if !fixed { p.soft { "Memory is drawn at the time at which the host asks for it, which is before the device runs the kernel." } }
            div.track {
                div.levels aria-hidden="true" {
                    @for level in axis.levels() { span style=(format!("bottom:{:.2}%", axis.height(level << 30))) { (level) " GiB" } }
                }
                div.plot {
                    svg data-row=(HEIGHT) viewBox=(format!("0 0 {UNITS} {HEIGHT}")) preserveAspectRatio="none" role="img"
                        aria-labelledby="memory-title memory-desc" {
                        title id="memory-title" { "Memory over the step by category" }
                        desc id="memory-desc" {
                            "At most " (gib(asked)) " are asked for, " (scale.at(at)) " after the step begins. The device has "
                            (gib(memory.capacity)) "."
                        }
                        (PreEscaped(areas))
                        path.fill.m16 d=(format!("M0 {HEIGHT}V{}H{UNITS}V{HEIGHT}z", axis.y(memory.outside.0))) {
                            title { "context and communicators: " (gib(memory.outside)) }
                        }
                        path.reserved d=(line(total)) { title { "held on the device at most: " (gib(total)) } }
                        path.capacity d=(line(memory.capacity)) { title { "capacity: " (gib(memory.capacity)) } }
                        path.peak d=(format!("M{x} {}V{HEIGHT}", axis.y(memory.outside.0 + asked.0))) {
                            title { "peak: " (gib(asked)) " asked for" }
                        }
                    }
                    span.note data-x=(x)
                        style=(format!("left:{left:.2}%;bottom:{above:.2}%{}", if left > 55.0 { ";transform:translateX(-100%)" } else { "" })) {
                        "peak: " (gib(asked))
                    }
                }
            }
            (scale.axis())
            ul.legend {
                li { i style="background:var(--bad)" {} "capacity, " (gib(memory.capacity)) }
                li { i style="background:var(--ink)" {} "dashed: held on the device at most, " (gib(total)) }
            }
            ul.legend {
                @for &category in used.iter().rev() {
                    li { i class={ "swatch m" (colour(category)) } {} (category.label()) }
                }
                li { i class={ "swatch m" (OUTSIDE) } {} "context and communicators" }
            }
        }
    }
}

/// The number of a category's class, which gives it its colour.
fn colour(category: Category) -> usize {
    if category == Category::Reference { REFERENCE } else { category as usize }
}

/// A category's area, down to zero: those below are drawn over it.
fn area(curve: &Curve, category: Category, peak: &Totals, outside: Bytes, axis: &Axis) -> String {
    let index = category as usize;
    let path = curve.area(index + 1, outside, axis);
    let words = format!("{}: {} at the peak", category.label(), gib(Bytes(peak[index])));
    html! { path class=(format!("fill m{}", colour(category))) d=(path) { title { (words) } } }.into_string()
}

/// When each instruction of a compiled step takes effect: nothing runs ahead there, so it is when the last kernel before it ends.
fn compiled_times(answer: &Prediction, class: usize) -> Vec<Time> {
    let spans = timeline::last_step(answer, class, 0);
    let mut ends = spans.iter().map(|span| span.end);
    let mut now = spans.first().map_or(Time::ZERO, |span| span.start);
    let program = &answer.classes[class].program;
    let time = |instr: &Instr| {
        if let Instr::Launch { stream, .. } | Instr::Collective { stream, .. } | Instr::Exchange { stream, .. } = instr
            && stream.0 == 0
        {
            now = ends.next().unwrap_or(now);
        }
        now
    };
    program.step.iter().map(time).collect()
}

/// What the peak is made of.
fn peak(answer: &Prediction) -> Markup {
    let (memory, live) = (&answer.memory, answer.live());
    let report = &memory.report;
    let total = report.breakdown.total();
    let share = |bytes: Bytes| if total.0 == 0 { 0.0 } else { 100.0 * bytes.0 as f64 / total.0 as f64 };
    let largest = |category: Category| {
        let own = live.iter().filter(|live| live.category == category).take(3);
        own.map(|live| format!("{} × {}", live.count, live.name)).collect::<Vec<_>>().join(", ")
    };
    let mut rows: Vec<Vec<Markup>> = vec![];
    for (category, bytes) in report.breakdown.sorted() {
        let name = html! { i class={ "swatch key m" (colour(category)) } {} (category.label()) };
        let size = page::figure(&format!("memory.breakdown_bytes.{}", category.label()), bytes.0, &gib(bytes));
        rows.push(vec![name, size, html! { (format!("{:.1} %", share(bytes))) }, html! { (largest(category)) }]);
    }
    let cached = report.peak_reserved.saturating_sub(report.peak_allocated);
    for (name, bytes) in [("cached by the allocator", cached), ("context and communicators", memory.outside)] {
        rows.push(vec![html! { (name) }, html! { (gib(bytes)) }, html! {}, html! {}]);
    }
    html! {
        h3 { "At the peak" }
        (page::table("memory at the peak", &["category", "size", "share", "largest"], &rows, &[0, 3]))
    }
}
