//! The answer for people: the verdict first, then each machine's ranking, then what the rest is about.

use std::fmt::Write as _;

use super::answer::{Answer, OnSite, Ranked};
use super::money::Interval;
use super::words::{alike, difference, layout};
use crate::engine::Breakdown;
use crate::explore::words::{gib, percent, thousands};
use crate::report::text::{self, table_within};
use crate::units::Time;

/// Reasons for refusals that are listed.
const LISTED: usize = 3;

/// The report, for so many columns.
pub fn report(answer: &Answer, width: usize) -> String {
    let mut out = subject(answer) + "\n";
    for note in &answer.request.notes {
        let _ = writeln!(out, "{}", wrapped(&format!("note: {note}"), width));
    }
    let _ = writeln!(out, "\n{}", wrapped(&verdict(answer), width));
    for fact in facts(answer) {
        let _ = writeln!(out, "  {}", wrapped(&fact, width));
    }
    if answer.sites.len() > 1 {
        let _ = writeln!(out, "\nThe best plan of each machine\n{}", machines(answer, width));
    }
    for on in &answer.sites {
        out += "\n";
        out += &site(answer, on, width);
    }
    out
}

/// What was asked.
pub(super) fn subject(answer: &Answer) -> String {
    let request = &answer.request;
    format!(
        "{}: {} sequences of {} tokens a step ({} tokens)",
        request.model.name,
        thousands(request.sequences),
        thousands(request.sequence),
        thousands(request.sequences * request.sequence)
    )
}

/// Lines of words under a margin of so many columns.
fn wrapped(text: &str, width: usize) -> String {
    text::wrapped(text, width.max(44) - 4).join("\n    ")
}

/// The winner, in a sentence.
pub(super) fn verdict(answer: &Answer) -> String {
    let Some(place) = answer.winner() else {
        return missed(answer);
    };
    let on = &answer.sites[place];
    let Some(first) = on.best() else { return String::new() };
    let framework = first.plan.candidate.runtime.written();
    let by = match (answer.sites.len(), answer.is_priced()) {
        (1, _) => "Fastest",
        (_, true) => "Cheapest for a token",
        (_, false) => "Fastest",
    };
    let by = if answer.is_partial() { format!("{by} so far") } else { by.to_owned() };
    format!("{by}: {framework} on {}, {}", on.site.title(), layout(&first.plan, &alike(on, framework)))
}

/// By how much the fastest plan of each machine misses what was asked.
fn missed(answer: &Answer) -> String {
    let by = |on: &OnSite| {
        let first = on.ranked.first()?;
        Some(format!(" On {}: {}.", on.site.title(), first.broken.join("; ")))
    };
    let machines: String = answer.sites.iter().filter_map(by).collect();
    format!("No plan keeps to the limits of days and money.{machines} The closest are below.")
}

/// The winner's figures, a line each.
pub(super) fn facts(answer: &Answer) -> Vec<String> {
    let Some(on) = answer.winner().map(|place| &answer.sites[place]) else { return vec![] };
    let Some(first) = on.best() else { return vec![] };
    let plan = &first.plan;
    let (low, high) = plan.interval;
    let sure = if plan.sure { "" } else { ", which may not fit" };
    let mut lines = vec![
        format!(
            "{} a step ({} to {}), {:.0} tokens/s/chip, {} MFU, bound by {}",
            seconds(plan.step),
            seconds(low),
            seconds(high),
            plan.rate,
            percent(plan.mfu),
            plan.bound
        ),
        format!("{} of {} on the fullest device{sure}", gib(plan.memory), gib(plan.capacity)),
    ];
    if answer.request.interrupted {
        let goodput = percent(plan.goodput);
        lines.push(format!("{goodput} expected goodput once it is interrupted, which days and money count"));
    }
    if let (Some(days), Some(tokens)) = (first.bill.days, answer.request.tokens) {
        let hours = first.bill.chip_hours.map_or(String::new(), |hours| format!(", {} chip-hours", short(hours.value)));
        lines.push(format!("{} tokens take {} days{hours}", short(tokens), interval(days, 1)));
    }
    if let Some(tokens) = first.bill.tokens_in_days {
        let days = answer.request.limits.days.unwrap_or_default();
        let (low, high) = (short(tokens.low), short(tokens.high));
        lines.push(format!("{days} days train on {} tokens ({low} to {high})", short(tokens.value)));
    }
    if let (Some(each), Some(price)) = (first.bill.per_billion_tokens, &on.site.price) {
        let currency = &price.currency;
        let all = first.bill.money.map_or(String::new(), |all| {
            format!("{} {currency} in all ({} to {}), ", short(all.value), short(all.low), short(all.high))
        });
        let date = if price.date.is_empty() { String::new() } else { format!(", {}", price.date) };
        let per_hour = price.per_chip_hour;
        lines.push(format!(
            "{all}{} {currency} for a billion tokens, at {per_hour} {currency} a chip-hour ({}{date})",
            interval(each, 0),
            price.source
        ));
    }
    lines
}

fn interval(of: Interval, places: usize) -> String {
    format!("{:.places$} ({:.places$} to {:.places$})", of.value, of.low, of.high)
}

/// `2T`, `1.64M`.
fn short(number: f64) -> String {
    let (scaled, letter) = match number {
        1e12.. => (number / 1e12, "T"),
        1e9.. => (number / 1e9, "B"),
        1e6.. => (number / 1e6, "M"),
        1e3.. => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = if scaled >= 100.0 { format!("{scaled:.0}") } else { format!("{scaled:.2}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text };
    format!("{text}{letter}")
}

pub(super) fn seconds(time: Time) -> String {
    match time.seconds() {
        seconds if seconds >= 10.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 1.0 => format!("{seconds:.3} s"),
        seconds => format!("{:.1} ms", 1e3 * seconds),
    }
}

/// A row a machine.
fn machines(answer: &Answer, width: usize) -> String {
    let row = |on: &OnSite| {
        let title = on.site.title();
        let Some(first) = on.ranked.first() else {
            return vec![title, "no plan fits".to_owned()]
                .into_iter()
                .chain(std::iter::repeat_n("·".to_owned(), 6))
                .collect();
        };
        let plan = &first.plan;
        let framework = plan.candidate.runtime.written();
        let days = first.bill.days.map_or("·".to_owned(), |days| format!("{:.1}", days.value));
        let cost = first.bill.per_billion_tokens.zip(first.bill.currency.as_ref());
        let cost = cost.map_or("·".to_owned(), |(cost, currency)| format!("{:.0} {currency}", cost.value));
        vec![
            title,
            format!("{framework}: {}", layout(plan, &alike(on, framework))),
            seconds(plan.step),
            thousands((plan.tokens as f64 / plan.step.seconds()) as u64),
            percent(plan.mfu),
            gib(plan.headroom()),
            days,
            cost,
        ]
    };
    let header = ["machine", "plan", "step", "tokens/s", "MFU", "free", "days", "1B tokens"];
    table_within(&header, answer.sites.iter().map(row).collect(), &[2, 3, 4, 5, 6, 7], width)
}

/// A machine's ranking.
fn site(answer: &Answer, on: &OnSite, width: usize) -> String {
    let mut out = format!("{}\n", on.site.title());
    let several = on.ranked.iter().any(|ranked| ranked.plan.candidate.runtime != on.ranked[0].plan.candidate.runtime);
    let row = |(place, ranked): (usize, &Ranked)| {
        let plan = &ranked.plan;
        let framework = plan.candidate.runtime.written();
        let layout = layout(plan, &alike(on, framework));
        let tied = if place > 0 && ranked.is_tied() { "=" } else { "" };
        vec![
            format!("{}{tied}", place + 1),
            if several { format!("{framework}: {layout}") } else { layout },
            seconds(plan.step),
            format!("{:.0}", plan.rate),
            percent(plan.mfu),
            gib(plan.memory),
            format!("{}{}", gib(plan.headroom()), if plan.sure { "" } else { " ?" }),
            plan.bound.clone(),
        ]
    };
    if !on.ranked.is_empty() {
        let header = ["", "plan", "step", "tokens/s/chip", "MFU", "memory", "free", "bound by"];
        let rows = on.ranked.iter().enumerate().map(row).collect();
        let _ = writeln!(out, "{}", table_within(&header, rows, &[2, 3, 4, 5, 6], width));
    }
    for remark in remarks(answer, on) {
        let _ = writeln!(out, "  {}", wrapped(&remark, width));
    }
    out
}

/// What a ranking is to be read with.
pub(super) fn remarks(answer: &Answer, on: &OnSite) -> Vec<String> {
    let mut remarks = vec![counted(answer, on)];
    if on.ranked.iter().skip(1).any(Ranked::is_tied) {
        remarks.push("= is tied with the first: the order of the two is less than 80 % sure.".to_owned());
    }
    if on.ranked.iter().any(|ranked| !ranked.plan.sure) {
        remarks.push(
            "? may not fit: what it needs and what the device has differ by less than is known of either.".to_owned(),
        );
    }
    if let [first, second, ..] = &on.ranked[..] {
        remarks.push(runner_up(first, second));
    }
    if let Some(first) = on.ranked.first() {
        let framework = first.plan.candidate.runtime.written();
        let all = alike(on, framework);
        if !all.is_empty() {
            let words: Vec<String> = all.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            remarks.push(format!("Every {framework} plan has {}.", words.join(", ")));
        }
    }
    for (why, count) in on.refused.iter().take(LISTED) {
        remarks.push(format!("Refused, {} of them: {why}", thousands(*count as u64)));
    }
    remarks
}

/// How many plans were looked at, and what proves that the rest is not better.
fn counted(answer: &Answer, on: &OnSite) -> String {
    let counts = &on.counts;
    let n = |count: usize| thousands(count as u64);
    let last = on.ranked.len();
    let mut text = format!("{} plans, {} legal, {} simulated", n(counts.tried), n(counts.legal), n(counts.simulated));
    if counts.do_not_fit > 0 {
        let _ = write!(text, " ({} do not fit)", n(counts.do_not_fit));
    }
    if answer.exhaustive {
        return text + ": all of them.";
    }
    if counts.too_large > 0 {
        let _ = write!(text, "; {} cannot fit, by a lower bound of their memory", n(counts.too_large));
    }
    if counts.too_slow > 0 {
        let _ = write!(text, "; {} cannot beat rank {last}, by a lower bound of their step", n(counts.too_slow));
    }
    text + "." + &undecided(on)
}

/// What a search that was ended early leaves open.
fn undecided(on: &OnSite) -> String {
    let (count, Some(possible)) = (thousands(on.counts.undecided as u64), on.possible) else { return String::new() };
    let best = on.ranked.first().map(|first| first.plan.step);
    let open = match best {
        _ if possible == Time::ZERO => "some of them have no bound yet".to_owned(),
        Some(best) if possible < best => {
            let share = percent(1.0 - possible.seconds() / best.seconds());
            format!("none of them takes less than {}, {share} less than the first", seconds(possible))
        }
        Some(_) => format!("none of them beats the first: they take {} or more", seconds(possible)),
        None => format!("none of them takes less than {}", seconds(possible)),
    };
    format!(" The search was ended early: {count} plans are not decided, and {open}.")
}

/// What the second pays for.
fn runner_up(first: &Ranked, second: &Ranked) -> String {
    let (one, other) = (&first.plan, &second.plan);
    let more = other.step.seconds() - one.step.seconds();
    let parts = |b: &Breakdown| [b.compute, b.exposed_communication, b.bubble, b.host_bound, b.waiting];
    let names = ["compute", "exposed communication", "pipeline bubble", "host", "waiting"];
    let mut changes: Vec<(f64, &str)> = (parts(&one.breakdown).into_iter().zip(parts(&other.breakdown)).zip(names))
        .map(|((one, other), name)| (other.seconds() - one.seconds(), name))
        .filter(|(change, _)| change.abs() >= 1e-3 * one.step.seconds())
        .collect();
    changes.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    let signed = |seconds: f64| {
        let (sign, size) = (if seconds < 0.0 { "−" } else { "+" }, seconds.abs());
        if size >= 1.0 { format!("{sign}{size:.2} s") } else { format!("{sign}{:.0} ms", 1e3 * size) }
    };
    let words: Vec<String> = changes.iter().map(|&(change, name)| format!("{} {name}", signed(change))).collect();
    let because = if words.is_empty() { "each part by less than 0.1 %".to_owned() } else { words.join(", ") };
    format!(
        "The second ({}) is {} slower: {because}. The first is faster with a probability of {:.0} %.",
        difference(other, one),
        signed(more).trim_start_matches('+'),
        100.0 * second.behind
    )
}
