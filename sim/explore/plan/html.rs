//! The answer as one page: the verdict, the front as a plot that can be pointed at, a table for each machine that can be sorted.

use maud::{Markup, html};

use super::answer::{Answer, OnSite, Ranked};
use super::planned::Planned;
use super::text;
use super::words::{alike, layout};
use crate::explore::words::{gib, percent, thousands};
use crate::report::page;
use crate::units::{Bytes, Time};

const STYLE: &str = include_str!("html/plan.css");
const SCRIPT: &str = include_str!("html/plan.js");

/// Parts of a step with the class of their colour.
const PARTS: [(&str, &str); 5] =
    [("compute", "k5"), ("exposed communication", "k1"), ("bubble", "k3"), ("host", "k6"), ("waiting", "k4")];

/// Classes of colours for machines.
const MACHINES: [&str; 7] = ["k0", "k1", "k5", "k6", "k2", "k4", "k3"];

/// The page.
pub fn page(answer: &Answer) -> String {
    let title = format!("{}: which layout, on which machine", answer.request.model.name);
    let body = html! {
        h1 { (title) }
        p.soft { (text::subject(answer)) }
        @for note in &answer.request.notes { p.soft { "Note: " (note) } }
        p class=(if answer.winner().is_some() { "verdict yes" } else { "verdict no" }) { (text::verdict(answer)) }
        ul { @for line in text::facts(answer) { li { (line) } } }
        h2 { "Throughput against memory" }
        p { "Every plan that was simulated and fits. Filled marks are on the front: no other plan is better in throughput, free memory and \
             price at once. Point at a mark, or step to it with the tab key." }
        (plot(answer))
        p #pointed role="status" aria-live="polite" { "Point at a plan to see it here." }
        @for (place, on) in answer.sites.iter().enumerate() { (machine(answer, place, on)) }
    };
    page::scripted(&title, &body, (STYLE, SCRIPT))
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;

/// A figure between two ends on the page.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Scale {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let margin = 0.06 * (high - low).max(1e-9 * high.abs().max(1.0)).max(0.02 * high.abs());
        Scale { low: low - margin, high: high + margin, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        ((self.from + share * (self.to - self.from)) * 10.0).round() / 10.0
    }

    /// Round values between the ends.
    fn ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.0;
        let decade = libm::pow(10.0, libm::floor(libm::log10(rough)));
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * decade).into_iter().find(|&step| step >= rough);
        let step = step.unwrap_or(decade * 10.0);
        let first = (self.low / step).ceil();
        (0..12).map(|count| (first + f64::from(count)) * step).take_while(|&value| value <= self.high).collect()
    }
}

fn rate(plan: &Planned) -> f64 {
    plan.tokens as f64 / plan.step.seconds()
}

/// Tokens per second of the job against the memory of the fullest device.
fn plot(answer: &Answer) -> Markup {
    let plans: Vec<(usize, usize, &Planned)> = answer
        .sites
        .iter()
        .enumerate()
        .flat_map(|(site, on)| on.all().enumerate().map(move |(place, plan)| (site, place, plan)))
        .collect();
    let x = Scale::of(plans.iter().map(|(.., plan)| plan.memory.gib()), (LEFT, WIDTH - RIGHT));
    let y = Scale::of(plans.iter().map(|(.., plan)| rate(plan)), (HEIGHT - BOTTOM, TOP));
    let bottom = HEIGHT - BOTTOM;
    html! {
        figure {
            (page::drawing(&html! { svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="group"
                aria-label="throughput against memory" font-size="12" {
                @for value in x.ticks() {
                    line.grid x1=(x.at(value)) x2=(x.at(value)) y1=(TOP) y2=(bottom) {}
                    text x=(x.at(value)) y=(bottom + 18.0) text-anchor="middle" { (format!("{value:.0}")) }
                }
                @for value in y.ticks() {
                    line.grid x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y.at(value)) y2=(y.at(value)) {}
                    text x=(LEFT - 8.0) y=(y.at(value) + 4.0) text-anchor="end" { (thousands(value.round() as u64)) }
                }
                line.axis-line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(bottom) y2=(bottom) {}
                line.axis-line x1=(LEFT) x2=(LEFT) y1=(TOP) y2=(bottom) {}
                text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 10.0) text-anchor="middle" { "memory of the fullest device [GiB]" }
                text x="14" y=((TOP + bottom) / 2.0) text-anchor="middle"
                    transform=(format!("rotate(-90 14 {})", (TOP + bottom) / 2.0)) { "tokens/s, whole job" }
                @for (site, place, plan) in &plans {
                    @let filled = answer.front.contains(&(*site, *place));
                    @let words = said(answer, *site, plan);
                    circle class=(format!("dot stroke {} {}", MACHINES[site % MACHINES.len()], if filled { "fill" } else { "hollow" }))
                        cx=(x.at(plan.memory.gib())) cy=(y.at(rate(plan))) r="5" stroke-width="1.5" tabindex="0" role="img"
                        aria-label=(words) data-words=(words) { title { (words) } }
                }
            } }))
            @if answer.sites.len() > 1 {
                ul.legend { @for (site, on) in answer.sites.iter().enumerate() {
                    li { i class=(MACHINES[site % MACHINES.len()]) {} (on.site.title()) }
                } }
            }
        }
    }
}

/// A plan in a sentence.
fn said(answer: &Answer, site: usize, plan: &Planned) -> String {
    let on = &answer.sites[site];
    let framework = plan.candidate.runtime.written();
    format!(
        "{}, {framework}: {}. {} a step, {} tokens/s, {} MFU, {} of {}",
        on.site.title(),
        layout(plan, &alike(on, framework)),
        text::seconds(plan.step),
        thousands(rate(plan) as u64),
        percent(plan.mfu),
        gib(plan.memory),
        gib(plan.capacity)
    )
}

/// A figure that sorts by its value.
fn sorted(value: f64, words: String) -> Markup {
    html! { data value=(value) { (words) } }
}

/// Shares of a whole as a bar.
fn bar(parts: &[(String, f64, &'static str)]) -> Markup {
    let whole: f64 = parts.iter().map(|(_, size, _)| size).sum::<f64>().max(f64::MIN_POSITIVE);
    let label: Vec<String> = parts.iter().map(|(name, ..)| name.clone()).collect();
    html! {
        span.shares role="img" aria-label=(label.join(", ")) title=(label.join(", ")) {
            @for (_, size, class) in parts { i class=(format!("swatch {class}")) style=(format!("width:{:.2}%", 100.0 * size / whole)) {} }
        }
    }
}

fn time(plan: &Planned, longest: Time) -> Markup {
    let split = &plan.breakdown;
    let parts = [split.compute, split.exposed_communication, split.bubble, split.host_bound, split.waiting];
    let mut shares: Vec<(String, f64, &'static str)> = PARTS
        .iter()
        .zip(parts)
        .map(|((name, class), time)| (format!("{name} {}", text::seconds(time)), time.seconds(), *class))
        .collect();
    shares.push((String::new(), longest.seconds() - plan.step.seconds(), "none"));
    shares.retain(|(name, ..)| !name.is_empty() || longest > plan.step);
    bar(&shares)
}

/// Categories of memory that are shown by themselves, with the class of their colour.
const HELD: [&str; 6] = ["k0", "k4", "k2", "k5", "k6", "k1"];

fn memory(plan: &Planned) -> Markup {
    let part = |name: &str, bytes: Bytes, class| (format!("{name} {}", gib(bytes)), bytes.gib(), class);
    let (first, rest) = plan.held.split_at(plan.held.len().min(HELD.len()));
    let mut parts: Vec<_> = first.iter().zip(HELD).map(|((name, bytes), class)| part(name, *bytes, class)).collect();
    let rest = Bytes(rest.iter().map(|(_, bytes)| bytes.0).sum());
    parts.push(part("other tensors", rest, "k7"));
    parts.push(part("outside the allocator", plan.outside, "k3"));
    let known = Bytes(plan.held.iter().map(|(_, bytes)| bytes.0).sum::<u64>() + plan.outside.0);
    parts.push(part("reserved beyond tensors", plan.memory.saturating_sub(known), "k8"));
    parts.push(part("free", plan.headroom(), "none"));
    bar(&parts)
}

fn machine(answer: &Answer, place: usize, on: &OnSite) -> Markup {
    let longest = on.ranked.iter().map(|ranked| ranked.plan.step).max().unwrap_or_default();
    let row = |(rank, ranked): (usize, &Ranked)| {
        let plan = &ranked.plan;
        let framework = plan.candidate.runtime.written();
        let tied = if rank > 0 && ranked.is_tied() { " =" } else { "" };
        vec![
            sorted(rank as f64, format!("{}{tied}", rank + 1)),
            html! { (framework) ": " (layout(plan, &alike(on, framework))) },
            sorted(plan.step.seconds(), text::seconds(plan.step)),
            time(plan, longest),
            sorted(plan.rate, format!("{:.0}", plan.rate)),
            sorted(plan.mfu, percent(plan.mfu)),
            sorted(plan.memory.gib(), gib(plan.memory)),
            memory(plan),
            html! { (plan.bound) },
            html! { details { summary { "file" } pre { (answer.draft(place, rank).map_or(String::new(), |draft| draft.text())) } } },
        ]
    };
    let rows: Vec<Vec<Markup>> = on.ranked.iter().enumerate().map(row).collect();
    let header = [
        "",
        "plan",
        "step",
        "where it goes",
        "tokens/s/chip",
        "MFU",
        "memory",
        "what holds it",
        "bound by",
        "scenario",
    ];
    html! {
        h2 { (on.site.title()) }
        @if rows.is_empty() { p { "No plan fits." } } @else {
            p.soft { "Select a heading to sort by it." }
            ul.legend { @for (name, class) in PARTS { li { i class=(class) {} (name) } } }
            div.sortable { (page::table(&format!("plans on {}", on.site.title()), &header, &rows, &[1, 3, 7, 8, 9])) }
        }
        @for remark in text::remarks(answer, on) { p { (remark) } }
    }
}
