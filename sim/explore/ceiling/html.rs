//! The ceiling as one page: the answer, a plot for each metric, the tables.

use maud::{Markup, html};

use super::{Ceiling, text};
use crate::explore::Point;
use crate::explore::plot::{self, Axis, Dot, Levels, Plot, Series};
use crate::report::page;
use crate::scenario::Scenario;
use crate::units::Bytes;

/// The page.
pub fn page(scenario: &Scenario, ceiling: &Ceiling) -> String {
    let rows: Vec<_> = ceiling.ladder.iter().map(|point| text::figures(ceiling, point)).collect();
    let header = text::HEADER.map(str::to_owned);
    let body = html! {
        h1 { "The longest sequence that fits: " (scenario.description) }
        p.soft { (text::subject(scenario)) }
        (page::facts(&text::answer(scenario, ceiling)))
        (plots(&[("", ceiling)]))
        h2 { "Up to the ceiling" }
        (page::table("lengths up to the ceiling", &header, &rows, &[0]))
        @if let Some((header, rows)) = text::binding(ceiling) {
            h2 { (text::binding_title(ceiling)) }
            (page::table("what binds", &header, &rows, &[0]))
        }
    };
    page::page(&scenario.description, &body)
}

/// Memory against what the device has, step time, throughput and MFU, a line for each ceiling.
pub(in crate::explore) fn plots(ceilings: &[(&str, &Ceiling)]) -> Markup {
    let series = |beyond: bool, value: fn(&Point) -> f64| -> Vec<Series> {
        let dot = |point: &Point| Dot {
            sequence: point.sequence,
            value: value(point),
            bound: point.bound,
            runs: !point.memory.refused(),
        };
        let all = |ceiling: &Ceiling| {
            let next = ceiling.beyond.as_ref().filter(|_| beyond);
            ceiling.ladder.iter().chain(next).map(dot).collect()
        };
        ceilings.iter().map(|(name, ceiling)| Series { name: (*name).to_owned(), dots: all(ceiling) }).collect()
    };
    let mut capacities: Vec<Bytes> = ceilings
        .iter()
        .filter_map(|(_, ceiling)| ceiling.longest.as_ref().or(ceiling.beyond.as_ref()))
        .map(|point| point.memory.capacity)
        .collect();
    capacities.sort_unstable();
    capacities.dedup();
    let values = capacities.into_iter().map(Bytes::gib).collect();
    let plots = [
        Plot {
            title: "Memory of one device, peak",
            label: "memory [GiB]",
            axis: Axis::Linear,
            series: series(true, |point| point.wants().gib()),
            levels: Some(Levels { what: "the device has", unit: "GiB", values }),
        },
        Plot {
            title: "Time of one step",
            label: "step time [s]",
            axis: Axis::Decades,
            series: series(false, |point| point.step.seconds()),
            levels: None,
        },
        Plot {
            title: "Throughput",
            label: "tokens/s per chip",
            axis: Axis::Linear,
            series: series(false, |point| point.rate),
            levels: None,
        },
        Plot {
            title: "Model FLOPs utilisation, and what bounds the step",
            label: "MFU [%]",
            axis: Axis::Linear,
            series: series(false, |point| 100.0 * point.mfu),
            levels: None,
        },
    ];
    html! { @for plot in &plots { (plot::figure(plot)) } }
}
