//! The timeline of a step: a row for each stream of a class of ranks, and in a pipeline an overview of what all ranks compute.
//!
//! Rows are drawings of their own, a hundred thousand units wide, whose labels are ordinary text: so both can be read at any width,
//! and to zoom is to change what part of each drawing is shown (`timeline.js`).

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::marks::{self, KINDS, Mark, Piece, What};
use super::recorded::Recorded;
use super::scale::{Scale, UNITS};
use crate::engine::{self, Span};
use crate::program::{Discipline, Mark as Named, Program};
use crate::scenario::Prediction;
use crate::units::{Time, thousands};

/// Marks on a page, which take about 130 B each.
const BUDGET: usize = 9000;
/// Ranks whose streams are all shown, at most.
const RANKS: usize = 3;
/// Phases are named on the page where they take such a share of it [per cent].
const NAMED: f64 = 7.0;

const PHASE: usize = 7;
const BEFORE: usize = 8;

/// A row of the timeline.
struct Row<'a> {
    name: String,
    pieces: Vec<Piece<'a>>,
}

/// Rows under one heading.
struct Group<'a> {
    heading: String,
    rows: Vec<Row<'a>>,
}

/// The section.
pub(super) fn section(recorded: &Recorded<'_>) -> Markup {
    let answer = recorded.answer();
    let scale = Scale::of(recorded);
    let groups = groups(answer, &scale);
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let all: Vec<&[Piece<'_>]> = rows().map(|row| &row.pieces[..]).collect();
    let resolution = marks::resolution(&all, scale.length(), BUDGET);
    let shown: Vec<usize> =
        (0..KINDS.len()).filter(|&kind| rows().any(|row| row.pieces.iter().any(|piece| piece.kind == kind))).collect();
    html! {
        @if let Some((few, all)) = recorded.shortened {
            p {
                "The step has " (all) " micro-batches, more than are kept for a timeline. The picture shows a step of " (few)
                " micro-batches, simulated in the same way. It takes " (answer.step) "."
            }
        }
        p.soft {
            "One rank stands for all that run the same program. Point at a mark for its name, start and duration."
            @if resolution > Time::ZERO { " Kernels of one kind that follow each other within " (resolution) " are drawn as one mark." }
            @if scale.begin > scale.from { " Times before zero are the lead of the host, while the device still runs the step before." }
        }
        ul.legend { @for kind in shown { li { i class=(format!("k{kind}")) {} (words(kind)) } } }
        div.timeline {
            @for group in &groups {
                h3 { (group.heading) }
                @for row in &group.rows { (drawn(row, answer, &scale, resolution)) }
                (scale.axis())
            }
        }
    }
}

/// A kind as the legend has it.
fn words(kind: usize) -> &'static str {
    match KINDS[kind] {
        "communication" => "copies around collectives",
        "message" => "send, receive",
        "step before" => "still the step before",
        name => name,
    }
}

/// What is shown: of a pipeline what each rank computes, then the streams of the fullest rank, the first and the last.
fn groups<'a>(answer: &'a Prediction, scale: &Scale) -> Vec<Group<'a>> {
    let classes = answer.classes.len();
    let mut groups = vec![];
    if classes > 1 {
        let row = |class: usize| Row { name: format!("rank {class}"), pieces: stream(answer, class, 0, scale) };
        groups.push(Group {
            heading: "What each rank of the pipeline computes".to_owned(),
            rows: (0..classes).map(row).collect(),
        });
    }
    let mut detailed = vec![answer.tightest, 0, classes - 1];
    detailed.sort_unstable();
    detailed.dedup();
    for class in detailed.into_iter().take(RANKS) {
        let stands = answer.classes[class].ranks;
        let heading = match classes {
            1 if stands == 1 => "Streams of the rank".to_owned(),
            1 => format!("Streams of a rank, which stands for all {}", thousands(stands.into())),
            _ => {
                let fullest = if class == answer.tightest { ", which has the least memory to spare" } else { "" };
                format!("Streams of pipeline rank {class}{fullest} (stands for {})", thousands(stands.into()))
            }
        };
        groups.push(Group { heading, rows: rows(answer, class, scale) });
    }
    groups
}

/// The rows of a class: its host, the phases on the device, and each stream on which anything runs.
fn rows<'a>(answer: &'a Prediction, class: usize, scale: &Scale) -> Vec<Row<'a>> {
    let [host, device] = phases(answer, class, scale);
    let named = [("host phases", host), ("device phases", device)];
    let named = named.map(|(name, pieces)| Row { name: name.to_owned(), pieces });
    let program = &answer.classes[class].program;
    let streams = program.streams.iter().enumerate();
    let streams = streams.map(|(id, &name)| {
        let before = program.streams[..id].iter().filter(|&&other| other == name).count();
        let name = match (id, before) {
            (0, _) => "compute".to_owned(),
            (_, 0) => name.to_owned(),
            (_, before) => format!("{name} ({})", before + 1),
        };
        Row { name, pieces: stream(answer, class, id, scale) }
    });
    named.into_iter().chain(streams).filter(|row| !row.pieces.is_empty()).collect()
}

/// The first rank of a class, whose spans and marks are kept.
fn first(answer: &Prediction, class: usize) -> Option<u32> {
    answer.class_of.iter().zip(0..).find(|&(&of, _)| of as usize == class).map(|(_, rank)| rank)
}

fn kind(program: &Program, span: &Span) -> usize {
    let name = match span.what {
        engine::What::Kernel(id) => program.kernel(id).pass.name(),
        engine::What::Comm(_) => "collective",
        engine::What::Exchange(_) => "message",
    };
    KINDS.iter().position(|&known| known == name).unwrap_or(PHASE)
}

/// What runs on a stream in the window; of the step before, what the device still runs.
fn stream<'a>(answer: &'a Prediction, class: usize, stream: usize, scale: &Scale) -> Vec<Piece<'a>> {
    let Some(rank) = first(answer, class) else { return vec![] };
    let program = &answer.classes[class].program;
    let last = answer.timeline.ends.len().saturating_sub(1) as u32;
    let spans = answer.timeline.spans.iter();
    let own = spans.filter(|span| (span.rank, usize::from(span.stream.0)) == (rank, stream) && span.end > scale.from);
    let mut pieces: Vec<Piece<'_>> = own
        .map(|span| Piece {
            start: span.start.max(scale.from),
            end: span.end,
            kind: if span.step < last { BEFORE } else { kind(program, span) },
            what: What::Span(span),
        })
        .collect();
    pieces.sort_by_key(|piece| (piece.start, piece.end));
    pieces
}

/// What ran in the last step on a stream of a class.
pub(super) fn last_step(answer: &Prediction, class: usize, stream: u8) -> Vec<&Span> {
    let last = answer.timeline.ends.len().saturating_sub(1) as u32;
    let first = first(answer, class);
    let own = |span: &&Span| Some(span.rank) == first && (span.stream.0, span.step) == (stream, last);
    let mut spans: Vec<&Span> = answer.timeline.spans.iter().filter(own).collect();
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// The phases of the step as the host goes through them, and as the device does.
fn phases<'a>(answer: &'a Prediction, class: usize, scale: &Scale) -> [Vec<Piece<'a>>; 2] {
    let program = &answer.classes[class].program;
    let last = answer.timeline.ends.len().saturating_sub(1) as u32;
    let mut marks: Vec<_> =
        answer.timeline.marks.iter().filter(|mark| (mark.class as usize, mark.step) == (class, last)).collect();
    marks.sort_by_key(|mark| mark.host);
    let (mut host, mut device) = (vec![], vec![]);
    let mut host_from = answer.timeline.host_begins.get(class).copied().unwrap_or(scale.from);
    let mut device_from = marks.iter().filter_map(|mark| mark.device).fold(scale.begin, Time::min);
    for mark in marks {
        let Named::PhaseEnd(name) = &program.marks[mark.mark as usize] else { continue };
        let add = |list: &mut Vec<_>, start: Time, end: Time| {
            if end > start {
                list.push(Piece { start, end, kind: PHASE, what: What::Phase(name) });
            }
        };
        add(&mut host, host_from, mark.host);
        host_from = mark.host;
        if let Some(end) = mark.device {
            add(&mut device, device_from, end);
            device_from = device_from.max(end);
        }
    }
    // The host of a compiled step issues it as one.
    if program.memory == Discipline::Static { [vec![], device] } else { [host, device] }
}

/// A row with its name.
fn drawn(row: &Row<'_>, answer: &Prediction, scale: &Scale, resolution: Time) -> Markup {
    let marks = marks::marks(&row.pieces, resolution);
    let phases = row.pieces.first().is_some_and(|piece| matches!(piece.what, What::Phase(_)));
    let busy: Time = marks.iter().map(|mark| mark.busy).sum();
    let share = 100.0 * busy.seconds() / scale.length().seconds();
    let what = format!("{}: {} marks, busy for {busy}, {share:.0} % of the time shown", row.name, marks.len());
    let mut paths = String::new();
    for mark in &marks {
        // Writing to a string cannot fail.
        let _ = path(&mut paths, row, answer, scale, mark);
    }
    html! {
        div.track {
            span.name { (row.name) }
            div.strip {
                svg data-row="1" viewBox=(format!("0 0 {UNITS} 1")) preserveAspectRatio="none" role="img" aria-label=(what) {
                    (PreEscaped(paths))
                }
                @if phases {
                    @for mark in &marks {
                        @let (from, to) = (scale.x(mark.start), scale.x(mark.end));
                        @let share = (to - from) as f64 / UNITS as f64 * 100.0;
                        @if let (true, What::Phase(name)) = (share > NAMED, row.pieces[mark.longest].what) {
                            span.phase data-x=(from) data-w=(to - from)
                                style=(format!("left:{:.2}%;width:{share:.2}%", from as f64 / UNITS as f64 * 100.0)) { (name) }
                        }
                    }
                }
            }
        }
    }
}

/// A mark as a rectangle with its title.
fn path(out: &mut String, row: &Row<'_>, answer: &Prediction, scale: &Scale, mark: &Mark) -> std::fmt::Result {
    let from = scale.x(mark.start);
    let width = (scale.x(mark.end) - from).max(1);
    let kind = mark.kind;
    let piece = &row.pieces[mark.longest];
    let name = match piece.what {
        What::Phase(name) => name.to_owned(),
        What::Span(span) => {
            let ran = answer.ran_in(span);
            let kind = if piece.kind == BEFORE { "step before" } else { ran.group };
            if ran.scope.is_empty() {
                format!("{} ({kind})", ran.name)
            } else {
                format!("{} in {} ({kind})", ran.name, ran.scope)
            }
        }
    };
    let (start, length) = (scale.at(mark.start), mark.end - mark.start);
    let words = match mark.count {
        1 => format!("{name}\nfrom {start}, lasts {length}"),
        count => format!("{count} in a row, the longest {name}\nfrom {start}, last {length}, busy {}", mark.busy),
    };
    let title = html! { title { (words) } }.into_string();
    write!(out, "<path class=\"k{kind}\" d=\"M{from} 0h{width}v1h-{width}z\">{title}</path>")
}
