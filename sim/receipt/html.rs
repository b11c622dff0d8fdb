//! A check as one HTML page with a plot: nothing is loaded from anywhere.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::case::Judged;
use super::check::Outcome;
use super::summary::{Errors, Group, worst};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 16.0;
const RIGHT: f64 = 32.0;
/// Errors beyond this are drawn at the edge.
const MOST: f64 = 0.5;
/// Colours of lanes, told apart by people who see red and green alike.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:900px;color:#222}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #ddd}\
td{white-space:nowrap}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}td:first-child{white-space:normal;overflow-wrap:anywhere}svg{width:100%;height:auto}\
.scroll{overflow-x:auto}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}";

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn cell(errors: Option<Errors>, figure: fn(&Errors) -> f64) -> String {
    errors.as_ref().map_or_else(|| "·".to_owned(), |e| percent(figure(e)))
}

/// The page.
pub fn page(outcome: &Outcome, groups: &[Group]) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Predicted against measured" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Predicted against measured" }
                p { (outcome.judged.len()) " receipts simulated, " (outcome.skipped.len()) " not." }
                (table(groups))
                h2 { "Error of the step time, receipt by receipt" }
                p { "Each point is a receipt; above zero the prediction is too slow. The grey band is ± 5 %, about what two runs of one configuration differ by." }
                (plot(outcome))
                h2 { "Furthest off" }
                (furthest(outcome))
            }
        }
    };
    crate::files::plain(&markup.into_string())
}

fn table(groups: &[Group]) -> Markup {
    html! {
        div.scroll {
            table {
                tr { @for name in ["lane", "hardware", "rows", "step", "p90", "bias", "reserved", "allocated", "MFU"] { th { (name) } } }
                @for g in groups.iter().filter(|g| g.rows > 0) {
                    tr {
                        td { (g.lane) }
                        td { (g.hardware) }
                        td { (g.covered) " of " (g.rows) }
                        td { (cell(g.step, |e| e.median)) }
                        td { (cell(g.step, |e| e.p90)) }
                        td { (cell(g.step, |e| e.bias)) }
                        td { (cell(g.reserved, |e| e.median)) }
                        td { (cell(g.allocated, |e| e.median)) }
                        td { (cell(g.mfu, |e| e.median)) }
                    }
                }
            }
        }
    }
}

fn furthest(outcome: &Outcome) -> Markup {
    html! {
        div.scroll {
            table {
                tr { @for name in ["receipt", "bound by", "measured", "predicted", "error"] { th { (name) } } }
                @for row in worst(outcome, 20) {
                    @if let Some(pair) = row.step {
                        tr {
                            td { (row.id) }
                            td { (row.bound) }
                            td { (format!("{:.3} s", pair.measured)) }
                            td { (format!("{:.3} s", pair.predicted)) }
                            td { (format!("{:+.1} %", 100.0 * pair.error())) }
                        }
                    }
                }
            }
        }
    }
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
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label="error of the step time over the measured step time" {
            rect x=(LEFT) y=(y(0.05)) width=(WIDTH - LEFT - RIGHT) height=(y(-0.05) - y(0.05)) fill="#eee" {}
            @for tick in [-0.5, -0.25, 0.0, 0.25, 0.5] {
                line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y(tick)) y2=(y(tick)) stroke=(if tick == 0.0 { "#444" } else { "#ccc" }) {}
                text x=(LEFT - 8.0) y=(y(tick) + 4.0) text-anchor="end" font-size="12" { (if tick == 0.0 { "0 %".to_owned() } else { format!("{:+.0} %", 100.0 * tick) }) }
            }
            @for decade in &decades {
                line x1=(x(*decade)) x2=(x(*decade)) y1=(TOP) y2=(HEIGHT - BOTTOM) stroke="#ccc" {}
                text x=(x(*decade)) y=(HEIGHT - BOTTOM + 18.0) text-anchor="middle" font-size="12" { (format!("{decade} s")) }
            }
            text x="14" y=((TOP + HEIGHT - BOTTOM) / 2.0) text-anchor="middle" font-size="12"
                transform=(format!("rotate(-90 14 {})", (TOP + HEIGHT - BOTTOM) / 2.0)) { "predicted over measured, less one" }
            text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" font-size="12" { "measured step time [s]" }
            @for row in &rows {
                @if let Some(pair) = row.step {
                    circle cx=(format!("{:.1}", x(pair.measured))) cy=(format!("{:.1}", y(pair.error()))) r="3.5" fill=(colour(&row.lane)) fill-opacity="0.6" {
                        title { (row.id) ": " (format!("{:+.1} %", 100.0 * pair.error())) }
                    }
                }
            }
            @for (at, lane) in lanes.iter().enumerate() {
                circle cx=(LEFT + 14.0) cy=(TOP + 12.0 + 18.0 * at as f64) r="4" fill=(colour(lane)) {}
                text x=(LEFT + 24.0) y=(TOP + 16.0 + 18.0 * at as f64) font-size="12" { (lane) }
            }
        }
    }
}
