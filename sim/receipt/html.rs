//! A check as one HTML page with a plot: nothing is loaded from anywhere.

use maud::{Markup, html};

use super::case::Judged;
use super::check::Outcome;
use super::summary::{Errors, Group, worst};
use crate::report::page;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 16.0;
const RIGHT: f64 = 32.0;
/// Errors beyond this are drawn at the edge.
const MOST: f64 = 0.5;
/// Colours of lanes, classes of the page's style: people who see red and green alike can tell them apart.
const COLOURS: [&str; 7] = ["k0", "k1", "k5", "k6", "k2", "k4", "k3"];

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn cell(errors: Option<Errors>, figure: fn(&Errors) -> f64) -> String {
    errors.as_ref().map_or_else(|| "·".to_owned(), |e| percent(figure(e)))
}

/// The page.
pub fn page(outcome: &Outcome, groups: &[Group]) -> String {
    let body = html! {
        h1 { "Predicted against measured" }
        p { (outcome.judged.len()) " receipts were checked, " (outcome.skipped.len()) " were not." }
        (table(groups))
        h2 { "Error of the step time, receipt by receipt" }
        p { "Each point is a receipt; above zero the prediction is too slow. The grey band is ± 5 %, about what two runs of one configuration differ by." }
        (plot(outcome))
        h2 { "Furthest off" }
        (furthest(outcome))
    };
    page::page("Predicted against measured", &body)
}

fn table(groups: &[Group]) -> Markup {
    let header = ["lane", "hardware", "rows", "step", "p90", "bias", "reserved", "allocated", "MFU"];
    let row = |g: &Group| {
        vec![
            g.lane.clone(),
            g.hardware.clone(),
            format!("{} of {}", g.covered, g.rows),
            cell(g.step, |e| e.median),
            cell(g.step, |e| e.p90),
            cell(g.step, |e| e.bias),
            cell(g.reserved, |e| e.median),
            cell(g.allocated, |e| e.median),
            cell(g.mfu, |e| e.median),
        ]
    };
    let rows: Vec<Vec<String>> = groups.iter().filter(|g| g.rows > 0).map(row).collect();
    page::table("errors by lane and hardware", &header, &rows, &[0, 1])
}

fn furthest(outcome: &Outcome) -> Markup {
    let header = ["receipt", "bound by", "measured", "predicted", "error"];
    let row = |row: &Judged| {
        let pair = row.step?;
        let [measured, predicted] = [pair.measured, pair.predicted].map(|seconds| format!("{seconds:.3} s"));
        let error = format!("{:+.1} %", 100.0 * pair.error());
        Some(vec![row.id.clone(), row.bound.to_string(), measured, predicted, error])
    };
    let rows: Vec<Vec<String>> = worst(outcome, 20).into_iter().filter_map(row).collect();
    page::table("receipts furthest off", &header, &rows, &[0, 1])
}

/// Error over the measured step time, which spans decades: a logarithmic axis.
fn plot(outcome: &Outcome) -> Markup {
    let rows: Vec<&Judged> = outcome.judged.iter().filter(|row| row.step.is_some()).collect();
    let seconds = |row: &&Judged| row.step.map_or(1.0, |pair| pair.measured);
    let low = rows.iter().map(seconds).fold(f64::INFINITY, f64::min);
    let high = rows.iter().map(seconds).fold(0.0, f64::max);
    if rows.is_empty() {
        return html! { p { "No receipt states a step time." } };
    }
    let (first, last) =
        (libm::floor(libm::log10(low)), libm::ceil(libm::log10(high)).max(libm::floor(libm::log10(low)) + 1.0));
    let x = |s: f64| LEFT + (libm::log10(s) - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |e: f64| TOP + (MOST - e.clamp(-MOST, MOST)) / (2.0 * MOST) * (HEIGHT - TOP - BOTTOM);
    let mut lanes: Vec<&str> = rows.iter().map(|row| row.lane.as_str()).collect();
    lanes.sort_unstable();
    lanes.dedup();
    let colour = |lane: &str| COLOURS[lanes.iter().position(|l| *l == lane).unwrap_or(0) % COLOURS.len()];
    let decades: Vec<f64> = (0..=(last - first) as i32).map(|n| libm::pow(10.0, first + f64::from(n))).collect();
    page::drawing(&html! {
        svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label="error of the step time over the measured step time" {
            rect x=(LEFT) y=(y(0.05)) width=(WIDTH - LEFT - RIGHT) height=(y(-0.05) - y(0.05)) class="band" {}
            @for tick in [-0.5, -0.25, 0.0, 0.25, 0.5] {
                line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y(tick)) y2=(y(tick)) class=(if tick == 0.0 { "axis-line" } else { "grid" }) {}
                text x=(LEFT - 8.0) y=(y(tick) + 4.0) text-anchor="end" font-size="12" { (if tick == 0.0 { "0 %".to_owned() } else { format!("{:+.0} %", 100.0 * tick) }) }
            }
            @for decade in &decades {
                line x1=(x(*decade)) x2=(x(*decade)) y1=(TOP) y2=(HEIGHT - BOTTOM) class="grid" {}
                text x=(x(*decade)) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" font-size="12" { (format!("{decade} s")) }
            }
            text x="14" y=((TOP + HEIGHT - BOTTOM) / 2.0) text-anchor="middle" font-size="12"
                transform=(format!("rotate(-90 14 {})", (TOP + HEIGHT - BOTTOM) / 2.0)) { "predicted over measured, less one" }
            text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" font-size="12" { "measured step time [s]" }
            @for row in &rows {
                @if let Some(pair) = row.step {
                    circle cx=(format!("{:.1}", x(pair.measured))) cy=(format!("{:.1}", y(pair.error()))) r="3.5" class={ "fill " (colour(&row.lane)) } fill-opacity="0.6" {
                        title { (row.id) ": " (format!("{:+.1} %", 100.0 * pair.error())) }
                    }
                }
            }
            @for (at, lane) in lanes.iter().enumerate() {
                circle cx=(LEFT + 14.0) cy=(TOP + 12.0 + 18.0 * at as f64) r="4" class={ "fill " (colour(lane)) } {}
                text x=(LEFT + 24.0) y=(TOP + 16.0 + 18.0 * at as f64) font-size="12" { (lane) }
            }
        }
    })
}
