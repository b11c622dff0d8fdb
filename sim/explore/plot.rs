//! Plots as inline SVG: figures against sequence length, one line for each series, the regime as the shape of a mark.
//!
//! Sequence length runs in octaves, for that is how the lengths are spaced. Nothing is loaded from anywhere, and
//! coordinates are rounded to a tenth of a pixel, so that the same answer gives the same page.

use maud::{Markup, html};

use super::words::thousands;
use crate::report::page::drawing;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;

/// Colours of series, classes of the page's style: people with any colour vision can tell them apart.
const COLORS: [&str; 7] = ["k0", "k1", "k5", "k6", "k2", "k4", "k3"];

/// Regimes with the class of their colour, in the order of the legend; the shape goes by the place in this list.
const REGIMES: [(&str, &str); 5] =
    [("compute", "k5"), ("memory bandwidth", "k0"), ("communication", "k1"), ("host", "k6"), ("waiting", "k3")];

/// Classes of marks and lines that stand for no series and no regime.
const NEUTRAL: &str = "k3";

/// One value at one length.
pub(super) struct Dot {
    pub(super) sequence: u64,
    pub(super) value: f64,
    /// What bounds the step there.
    pub(super) bound: &'static str,
    /// Whether the plan runs; hollow where it does not.
    pub(super) runs: bool,
}

/// A line of dots.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) dots: Vec<Dot>,
}

/// Levels to be seen against, such as what devices hold, in ascending order.
pub(super) struct Levels {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) values: Vec<f64>,
}

/// How the vertical axis runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// From zero.
    Linear,
    /// In decades.
    Decades,
}

/// One metric against sequence length.
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// What the vertical axis shows, with its unit in brackets.
    pub(super) label: &'static str,
    pub(super) axis: Axis,
    pub(super) series: Vec<Series>,
    pub(super) levels: Option<Levels>,
}

/// Where values lie on the page.
struct Scale {
    axis: Axis,
    low: (f64, f64),
    high: (f64, f64),
}

impl Scale {
    fn of(plot: &Plot) -> Option<Scale> {
        let dots = || plot.series.iter().flat_map(|series| &series.dots);
        let octaves = dots().map(|dot| (dot.sequence as f64).log2());
        let (first, last) = octaves.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        let values = || dots().map(|dot| dot.value).chain(plot.levels.iter().flat_map(|levels| levels.values.clone()));
        let most = values().fold(0.0, f64::max);
        if first > last || most <= 0.0 {
            return None;
        }
        let least = values().filter(|&value| value > 0.0).fold(most, f64::min);
        let (bottom, top) = match plot.axis {
            Axis::Linear => (0.0, most * 1.08),
            Axis::Decades => ((least / 1.3).log10(), (most * 1.3).log10()),
        };
        let margin = 0.03 * (last - first).max(1.0);
        Some(Scale { axis: plot.axis, low: (first - margin, bottom), high: (last + margin, top) })
    }

    fn x(&self, sequence: f64) -> f64 {
        let share = (sequence.log2() - self.low.0) / (self.high.0 - self.low.0);
        tenth(LEFT + share * (WIDTH - LEFT - RIGHT))
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.axis == Axis::Decades { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let share = (value - self.low.1) / (self.high.1 - self.low.1);
        tenth(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP))
    }

    /// Powers of two on the page, no more than fit beside each other.
    fn lengths(&self) -> Vec<u64> {
        let (first, last) = (self.low.0.ceil().max(0.0) as u32, self.high.0.floor().max(0.0) as u32);
        let every = (last.saturating_sub(first) / 10 + 1) as usize;
        (first..=last.min(62)).step_by(every).map(|octave| 1 << octave).collect()
    }

    /// Round values on the page.
    fn values(&self) -> Vec<f64> {
        match self.axis {
            Axis::Linear => {
                let rough = (self.high.1 - self.low.1) / 6.0;
                let decade = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * decade).into_iter().find(|&step| step >= rough);
                let step = step.unwrap_or(decade * 10.0);
                (0..).map(|count| f64::from(count) * step).take_while(|&value| value <= self.high.1).collect()
            }
            Axis::Decades => {
                let decades = self.low.1.floor() as i32..=self.high.1.ceil() as i32;
                let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(decade)));
                all.filter(|value| (self.low.1..=self.high.1).contains(&value.log10())).collect()
            }
        }
    }
}

fn tenth(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

/// A length as the axis writes it: k is 1,024 tokens.
fn short(length: u64) -> String {
    if length >= 1024 { format!("{}k", thousands(length / 1024)) } else { length.to_string() }
}

/// A value with as many digits as a tick needs.
fn tick(value: f64) -> String {
    if value == 0.0 || value >= 10.0 {
        thousands(value.round() as u64)
    } else {
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

fn regime(bound: &str) -> usize {
    REGIMES.iter().position(|&(name, _)| name == bound).unwrap_or(0)
}

/// A mark at a place: its shape is the regime.
fn mark(x: f64, y: f64, bound: &str, color: &str, runs: bool, title: &str) -> Markup {
    let class = format!("stroke {color} {}", if runs { "fill" } else { "hollow" });
    let at = |dx: f64, dy: f64| format!("{},{}", tenth(x + dx), tenth(y + dy));
    let polygon = |corners: &[(f64, f64)]| corners.iter().map(|&(x, y)| at(x, y)).collect::<Vec<_>>().join(" ");
    let shape = match regime(bound) {
        0 => {
            return html! {
                circle cx=(x) cy=(y) r="4.5" class=(class) stroke-width="1.5" { title { (title) } }
            };
        }
        1 => polygon(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        2 => polygon(&[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)]),
        3 => polygon(&[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)]),
        _ => polygon(&[(0.0, 5.5), (5.0, -4.0), (-5.0, -4.0)]),
    };
    html! { polygon points=(shape) class=(class) stroke-width="1.5" { title { (title) } } }
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> Markup {
    html! { text x=(tenth(x)) y=(tenth(y)) text-anchor=(anchor) { (words) } }
}

/// The plot as a figure.
pub(super) fn figure(plot: &Plot) -> Markup {
    let Some(scale) = Scale::of(plot) else {
        return html! { figure { figcaption { (plot.title) } p { "nothing to plot" } } };
    };
    html! {
        figure {
            figcaption { (plot.title) }
            (drawing(&html! { svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label=(plot.title) font-size="12" {
                (axes(plot, &scale))
                @if let Some(levels) = &plot.levels { (self::levels(levels, &scale)) }
                @for (index, series) in plot.series.iter().enumerate() { (line(plot, series, index, &scale)) }
                (legend(plot))
            } }))
        }
    }
}

fn axes(plot: &Plot, scale: &Scale) -> Markup {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let middle = (TOP + bottom) / 2.0;
    html! {
        @for value in scale.values() {
            line x1=(LEFT) y1=(scale.y(value)) x2=(right) y2=(scale.y(value)) class="grid" {}
            (text(LEFT - 8.0, scale.y(value) + 4.0, "end", &tick(value)))
        }
        @for length in scale.lengths() {
            @let x = scale.x(length as f64);
            line x1=(x) y1=(bottom) x2=(x) y2=(bottom + 5.0) class="axis-line" {}
            (text(x, bottom + 19.0, "middle", &short(length)))
        }
        path d=(format!("M{LEFT},{TOP} V{bottom} H{right}")) class="axis-line" {}
        (text((LEFT + right) / 2.0, HEIGHT - 10.0, "middle", "sequence length [tokens, k = 1,024]"))
        text x="16" y=(middle) text-anchor="middle" transform=(format!("rotate(-90 16 {middle})")) { (plot.label) }
    }
}

/// A line for each level; those too close for two labels share one.
fn levels(levels: &Levels, scale: &Scale) -> Markup {
    let near = |low: &f64, high: &f64| scale.y(*low) - scale.y(*high) < 14.0;
    html! {
        @for &value in &levels.values {
            @let y = scale.y(value);
            line x1=(LEFT) y1=(y) x2=(WIDTH - RIGHT) y2=(y) class="limit" stroke-dasharray="6 4" {}
        }
        @for close in levels.values.chunk_by(near) {
            @let words = close.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" or ");
            @let y = scale.y(close.last().copied().unwrap_or_default());
            (text(LEFT + 8.0, y - 5.0, "start", &format!("{} {words} {}", levels.what, levels.unit)))
        }
    }
}

fn color(plot: &Plot, index: usize, bound: &str) -> &'static str {
    if plot.series.len() == 1 { REGIMES[regime(bound)].1 } else { COLORS[index % COLORS.len()] }
}

fn line(plot: &Plot, series: &Series, index: usize, scale: &Scale) -> Markup {
    let at = |dot: &Dot| format!("{},{}", scale.x(dot.sequence as f64), scale.y(dot.value));
    let path = series.dots.iter().map(at).collect::<Vec<_>>().join(" ");
    let stroke = if plot.series.len() == 1 { NEUTRAL } else { COLORS[index % COLORS.len()] };
    html! {
        polyline points=(path) fill="none" class={ "stroke " (stroke) } stroke-width="1.5" {}
        @for dot in &series.dots {
            @let words = format!("{} tokens: {}, bound by {}", thousands(dot.sequence), tick(dot.value), dot.bound);
            (mark(scale.x(dot.sequence as f64), scale.y(dot.value), dot.bound, color(plot, index, dot.bound), dot.runs, &words))
        }
    }
}

/// Series, where there are several, and the regimes that occur.
fn legend(plot: &Plot) -> Markup {
    let dots = || plot.series.iter().flat_map(|series| &series.dots);
    let occurring: Vec<&(&str, &str)> =
        REGIMES.iter().filter(|(name, _)| dots().any(|dot| dot.bound == *name)).collect();
    let (x, several) = (WIDTH - RIGHT + 16.0, plot.series.len() > 1);
    let named = if several { plot.series.len() } else { 0 };
    let y = |row: usize| TOP + 12.0 + 18.0 * row as f64;
    html! {
        @if several {
            @for (row, series) in plot.series.iter().enumerate() {
                line x1=(x) y1=(y(row) - 4.0) x2=(x + 18.0) y2=(y(row) - 4.0) class={ "stroke " (COLORS[row % COLORS.len()]) } stroke-width="3" {}
                (text(x + 26.0, y(row), "start", &series.name))
            }
        }
        @for (row, (name, own)) in occurring.iter().enumerate() {
            @let y = y(named + row) + if several { 8.0 } else { 0.0 };
            (mark(x + 9.0, y - 4.0, name, if several { NEUTRAL } else { own }, true, name))
            (text(x + 26.0, y, "start", &format!("bound by {name}")))
        }
        @if dots().any(|dot| !dot.runs) {
            @let y = y(named + occurring.len()) + if several { 8.0 } else { 0.0 };
            (mark(x + 9.0, y - 4.0, "compute", NEUTRAL, false, "does not fit"))
            (text(x + 26.0, y, "start", "hollow: does not fit"))
        }
    }
}
