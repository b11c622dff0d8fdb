//! Where the step's time went: a bar of its parts, and a table of kernels and collectives with the evidence for each.

use maud::{Markup, html};

use crate::report::layout::Report;
use crate::report::page;
use crate::scenario::Prediction;
use crate::scenario::predict::Part;
use crate::units::Time;

/// Kernels and collectives that are listed at once; the others are one click away.
const LISTED: usize = 15;

/// The section.
pub(super) fn section(answer: &Prediction, report: &Report) -> Markup {
    let split = answer.breakdown;
    let parts = [
        ("compute", "compute", 0, split.compute),
        ("exposed_communication", "exposed communication", 5, split.exposed_communication),
        ("bubble", "waiting for other ranks", 6, split.bubble),
        ("host_bound", "waiting for the host", 2, split.host_bound),
        ("waiting", "waiting for events", 7, split.waiting),
    ];
    let share = |time: Time| if answer.step.0 == 0 { 0.0 } else { 100.0 * time.0 as f64 / answer.step.0 as f64 };
    let words: Vec<String> = parts.iter().map(|(_, name, _, time)| format!("{name} {:.1} %", share(*time))).collect();
    let rows: Vec<Vec<Markup>> = answer.parts.iter().map(|part| row(part, share)).collect();
    let header = ["part", "kernel", "count", "busy", "of step", "exposed", "rests on"];
    let table = |rows: &[Vec<Markup>]| page::table("kernels and collectives", &header, rows, &[0, 1, 6]);
    html! {
        p { "The step takes " (answer.step) " and is bound by " (report.bound_by) "." }
        div.bar role="img" aria-label=(words.join(", ")) {
            @for (_, name, kind, time) in parts.iter().filter(|part| part.3 > Time::ZERO) {
                i class=(format!("k{kind}")) style=(format!("width:{:.3}%", share(*time))) title=(format!("{name}: {time}, {:.1} %", share(*time))) {}
            }
        }
        ul.legend {
            @for (key, name, kind, time) in parts.iter().filter(|part| part.3 > Time::ZERO) {
                li {
                    i class=(format!("k{kind}")) {}
                    (name) ": " (page::figure(&format!("breakdown_s.{key}"), time.seconds(), &time.to_string())) (format!(", {:.1} %", share(*time)))
                }
            }
        }
        h3 { "By kernel and collective" }
        (table(&rows[..rows.len().min(LISTED)]))
        @if rows.len() > LISTED {
            details { summary { (rows.len() - LISTED) " more" } (table(&rows[LISTED..])) }
        }
        @if answer.classes.len() > 1 {
            p.soft { "Counts are those of one rank of each stage together. Times and shares are the mean of all ranks." }
        }
    }
}

fn row(part: &Part, share: impl Fn(Time) -> f64) -> Vec<Markup> {
    let communicates = matches!(part.group, "collective" | "communication");
    let busy = share(part.busy);
    vec![
        html! { (part.group) },
        html! { (part.name) },
        html! { (part.count) },
        html! { (part.busy) },
        html! { span.share { i style=(format!("width:{:.1}%", busy.min(100.0))) {} } (format!("{busy:.1} %")) },
        html! { @if communicates { (format!("{:.1} %", share(part.exposed))) } },
        html! { (part.basis.label()) },
    ]
}
