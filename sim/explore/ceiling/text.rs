//! The ceiling as a person reads it: the answer, what binds there, and what the way there costs.

use std::fmt;

use super::{Ceiling, Checked, End};
use crate::explore::Point;
use crate::explore::fixed::Fixed;
use crate::explore::words::{gib, percent, relative_change, thousands};
use crate::program::Category;
use crate::report::lacks;
use crate::report::text::{Page, table, table_within, whose};
use crate::scenario::Scenario;
use crate::units::Bytes;

/// Writes the report, for so many columns.
pub fn report(scenario: &Scenario, ceiling: &Ceiling, width: usize) -> String {
    let mut page = Page::new(width, false);
    // Writing to a string cannot fail.
    let _ = write(&mut page, scenario, ceiling);
    page.text()
}

fn write(page: &mut Page, scenario: &Scenario, ceiling: &Ceiling) -> fmt::Result {
    page.title(&scenario.description)?;
    page.paragraph(&subject(scenario))?;
    page.gap()?;
    for (name, line) in answer(scenario, ceiling) {
        page.line(name, &line)?;
    }
    let top = ceiling.top().map_or(0, |top| top.sequence);
    if let Some(positions) = scenario.job.model().context.filter(|&positions| top > positions) {
        let positions = thousands(positions);
        let model = &scenario.job.model().name;
        page.line(
            "note",
            &format!("{model} is made for {positions} positions: longer sequences need its RoPE scaled"),
        )?;
    }
    if let Some((header, rows)) = binding(ceiling) {
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        page.heading(&binding_title(ceiling))?;
        page.lines(&table(&header, rows, 1))?;
    }
    if let Some(first) = ceiling.ladder.first() {
        page.heading("Up to the ceiling")?;
        page.lines(&ladder(ceiling, page.width()))?;
        let bound = same_bound(ceiling).map_or(String::new(), |bound| format!("Bound by {bound} at every length. "));
        page.gap()?;
        page.sentence(&format!("{bound}MFU: {}.", first.convention))?;
    }
    for (sequence, reason) in &ceiling.refused {
        page.item(&format!("{} tokens are refused: {reason}", thousands(*sequence)))?;
    }
    Ok(())
}

/// What flies: lane, model, machine, batch.
pub(in crate::explore) fn subject(scenario: &Scenario) -> String {
    let (job, topology) = (&scenario.job, &scenario.topology);
    format!(
        "{} · {} · {} × {} · {} sequence{} × {} micro-batch{} per {}",
        scenario.runtime.lane(),
        job.model(),
        topology.chips(),
        topology.chip.name,
        job.batch(),
        if job.batch() == 1 { "" } else { "s" },
        job.micro_batches(),
        if job.micro_batches() == 1 { "" } else { "es" },
        whose(job),
    )
}

/// The answer, line by line.
pub(super) fn answer(scenario: &Scenario, ceiling: &Ceiling) -> Vec<(&'static str, String)> {
    let mut lines = vec![];
    match (&ceiling.longest, &ceiling.beyond) {
        _ if !ceiling.checked.is_empty() => lines.extend(by_compiler(ceiling)),
        (Some(top), _) => {
            let (total, capacity) = (top.memory.device_total(), top.memory.capacity);
            let held = format!("{} of {} per device", gib(total), gib(capacity));
            lines.push(("ceiling", format!("{} tokens: {held}", thousands(top.sequence))));
            if ceiling.own > top.sequence {
                lines.push(("", format!("the file asks for {}", thousands(ceiling.own))));
            }
        }
        (None, Some(first)) => {
            lines.push(("ceiling", format!("none: not even {} tokens fit", thousands(first.sequence))));
        }
        (None, None) => lines.push(("ceiling", "none".to_owned())),
    }
    lines.push(("ends because", ends(ceiling)));
    lines.extend(
        ceiling
            .longer
            .iter()
            .map(|(change, longest)| ("longer with", format!("{change}: {} tokens fit", thousands(*longest)))),
    );
    if let Some(top) = ceiling.top() {
        lines.extend(doubt(ceiling, top).map(|line| ("safe up to", line)));
        lines.extend(stalls(ceiling).map(|line| ("note", line)));
        lines.extend(gain(ceiling, top).map(|line| ("trade-off", line)));
    }
    lines.extend(compiled(ceiling).into_iter().map(|line| ("compiled", line)));
    let tokens = ceiling.top().map_or(String::new(), |top| format!(" and {} at the ceiling", thousands(top.tokens)));
    lines.push(("fixed", Fixed::of(scenario).words() + &tokens));
    let step = thousands(ceiling.options.step);
    lines.push(("searched", format!("in steps of {step} tokens; lengths simulated to find it: {}", ceiling.flown)));
    lines
}

/// The headline where a compiler was asked: its own ceiling, and below it what was predicted, if that is another.
fn by_compiler(ceiling: &Ceiling) -> Vec<(&'static str, String)> {
    let predicted = ceiling.longest.as_ref().map(|point| point.sequence);
    let capacity = apart(ceiling).map(|point| point.memory.capacity);
    let mut lines = vec![];
    let headline = match ceiling.compiled() {
        (Some(fits), _) => {
            let of = capacity.map_or(String::new(), |capacity| format!(" of {}", gib(capacity)));
            let held = fits.bytes.map_or("it fits".to_owned(), |bytes| format!("{}{of} per device", gib(bytes)));
            format!("{} tokens by {}: {held}", thousands(fits.sequence), fits.compiler)
        }
        (None, refused) => {
            let down = refused.map_or(0, |refused| refused.sequence);
            format!("none known: the compiler refuses every length asked about, down to {} tokens", thousands(down))
        }
    };
    lines.push(("ceiling", headline));
    if predicted != ceiling.compiled().0.map(|fits| fits.sequence) {
        let says = match predicted.and_then(|length| ceiling.check(length)) {
            Some(checked) if !checked.fits => ", which the compiler refuses",
            _ => "",
        };
        let length = predicted.map_or("none".to_owned(), |length| format!("{} tokens", thousands(length)));
        lines.push(("predicted", format!("{length}{says}")));
    }
    let own = ceiling.compiled().0.is_some_and(|fits| ceiling.own > fits.sequence);
    lines.extend(own.then(|| ("", format!("the file asks for {}", thousands(ceiling.own)))));
    lines
}

/// What a compiler says, where one decides what fits.
fn compiled(ceiling: &Ceiling) -> Vec<String> {
    if ceiling.compiles && ceiling.checked.is_empty() {
        return vec![
            "no: every length is predicted; --compile-check asks the compiler about the ceiling and the next"
                .to_owned(),
        ];
    }
    let says = |checked: &Checked| {
        let says = match (checked.fits, checked.bytes) {
            (true, Some(peak)) => format!("it fits, and takes {}", gib(peak)),
            (true, None) => "it fits".to_owned(),
            (false, Some(needed)) => format!("it does not fit, and needs {}", gib(needed)),
            (false, None) => "it does not fit".to_owned(),
        };
        format!("{} tokens by {}: {says}", thousands(checked.sequence), checked.compiler)
    };
    ceiling.checked.iter().map(says).chain(compilers_ceiling(ceiling)).collect()
}

/// The compiler's own ceiling, where it is not the predicted one.
fn compilers_ceiling(ceiling: &Ceiling) -> Option<String> {
    let (fits, refused) = ceiling.compiled();
    let predicted = ceiling.longest.as_ref().map(|point| point.sequence);
    if fits.is_some() && fits.map(|fits| fits.sequence) == predicted {
        return None;
    }
    let all =
        |refused: &Checked| format!("all that were asked, down to {} tokens, are refused", thousands(refused.sequence));
    let text = match (fits, refused) {
        (Some(fits), Some(refused)) if refused.sequence - fits.sequence <= ceiling.options.step => {
            format!("so the compiler's ceiling is {} tokens", thousands(fits.sequence))
        }
        (Some(fits), Some(refused)) => {
            format!(
                "so its ceiling is from {} to below {} tokens",
                thousands(fits.sequence),
                thousands(refused.sequence)
            )
        }
        (Some(fits), None) => format!("so its ceiling is at least {} tokens", thousands(fits.sequence)),
        (None, Some(refused)) => all(refused),
        (None, None) => return None,
    };
    let more = if ceiling.to_ask().is_some() { "; more --compilations find it" } else { "" };
    Some(text + more)
}

/// What the step time at the ceiling has in it of the allocator.
fn stalls(ceiling: &Ceiling) -> Option<String> {
    let retries = ceiling.top()?.memory.report.retries;
    let times = if retries == 1 { "once".to_owned() } else { format!("{retries} times") };
    let cost = "what that costs is in the step time, at assumed rates";
    (retries > 0)
        .then(|| format!("the allocator returns its cache to the device {times} a step at the ceiling: {cost}"))
}

/// Why the ceiling is where it is.
pub(in crate::explore) fn ends(ceiling: &Ceiling) -> String {
    let predicted = ceiling.longest.as_ref().map(|point| point.sequence);
    if let (Some(fits), Some(refused)) = ceiling.compiled()
        && Some(fits.sequence) != predicted
    {
        let needs = refused.bytes.map_or(String::new(), |bytes| format!(", and needs {}", gib(bytes)));
        return format!("memory: the compiler refuses {} tokens{needs}", thousands(refused.sequence));
    }
    match (&ceiling.end, &ceiling.beyond) {
        (End::Memory, Some(next)) if ceiling.check(next.sequence).is_some_and(|checked| checked.fits) => {
            let (wanted, capacity) = (gib(next.memory.wanted), gib(next.memory.capacity));
            format!(
                "memory, as predicted: {wanted} of {capacity} at {} tokens; the compiler disagrees",
                thousands(next.sequence)
            )
        }
        (End::Memory, Some(next)) => format!("memory: at {} tokens {}", thousands(next.sequence), lacks(&next.memory)),
        (End::Memory, None) => "memory".to_owned(),
        (End::Positions(positions), _) => {
            format!("the model has a table of {} positions; memory would hold more", thousands(*positions))
        }
        (End::Asked(most), _) => {
            format!("no more than {} tokens were asked for; memory would hold more", thousands(*most))
        }
        (End::Refused { sequence, reason }, _) => format!("{} tokens are refused: {reason}", thousands(*sequence)),
    }
}

/// How far the ceiling holds, where what lives outside the allocator is not known well enough.
fn doubt(ceiling: &Ceiling, top: &Point) -> Option<String> {
    let memory = &top.memory;
    let known = &memory.doubtful;
    match &ceiling.sure {
        Some(sure) if sure.sequence == top.sequence => Some(format!("{} tokens, the same", thousands(sure.sequence))),
        Some(sure) => Some(format!("{} tokens: {known}", thousands(sure.sequence))),
        None => Some(format!("no length: {known}")),
    }
}

/// Whether the gain survives: the scenario's own length against the ceiling.
fn gain(ceiling: &Ceiling, top: &Point) -> Option<String> {
    let own = ceiling.ladder.iter().find(|point| point.sequence == ceiling.own && point.sequence < top.sequence)?;
    Some(format!(
        "from {} tokens to {}: {} → {}, {} tokens/s per chip, MFU {} → {}; bound by {}",
        thousands(own.sequence),
        thousands(top.sequence),
        own.step,
        top.step,
        relative_change(own.rate, top.rate),
        percent(own.mfu),
        percent(top.mfu),
        if own.bound == top.bound {
            format!("{} at both", own.bound)
        } else {
            format!("{}, then {}", own.bound, top.bound)
        },
    ))
}

/// A heading, and columns and rows below it.
pub(super) type Rows = (Vec<String>, Vec<Vec<String>>);

/// The length at which memory is taken apart: the ceiling, or the shortest that does not fit either.
fn apart(ceiling: &Ceiling) -> Option<&Point> {
    ceiling.top().or(ceiling.longest.as_ref()).or(ceiling.beyond.as_ref())
}

pub(super) fn binding_title(ceiling: &Ceiling) -> String {
    let words = |top: &Point| {
        let (length, phase) = (thousands(top.sequence), &top.memory.report.peak_phase);
        format!("Memory at {length} tokens (peak in {phase})")
    };
    apart(ceiling).map_or(String::new(), words)
}

/// What memory is made of at the ceiling, and what one step more adds to each.
pub(super) fn binding(ceiling: &Ceiling) -> Option<Rows> {
    let top = apart(ceiling)?;
    let after = |next: &&Point| next.sequence > top.sequence;
    let next = ceiling.ladder.iter().find(after).or(ceiling.beyond.as_ref().filter(after));
    let mut rows = vec![];
    let mut row = |name: &str, here: Bytes, then: Option<Bytes>| {
        let share = here.0 as f64 / top.memory.capacity.0.max(1) as f64;
        let more = then.map_or(String::new(), |then| signed(i128::from(then.0) - i128::from(here.0)));
        rows.push(vec![name.to_owned(), gib(here), percent(share), more]);
    };
    let report = &top.memory.report;
    for (category, bytes) in report.breakdown.sorted() {
        let name = match inputs(top).filter(|_| category == Category::Buffer) {
            Some(most) => format!("{}, most of it {most}", category.label()),
            None => category.label().to_owned(),
        };
        row(&name, bytes, next.map(|next| next.memory.report.breakdown.bytes(category)));
    }
    // What the allocator caches where it fails is no answer to what it would cache.
    row("cached by the allocator", report.peak_reserved.saturating_sub(report.peak_allocated), None);
    row("context and communicators", top.memory.outside, next.map(|next| next.memory.outside));
    let mut header = vec![String::new(), "size".to_owned(), "of the device".to_owned()];
    header.push(next.map_or(String::new(), |next| format!("{} more tokens", thousands(next.sequence - top.sequence))));
    Some((header, rows))
}

/// What most of the buffers and inputs are, where that is a tensor of some size: one that grows with the square of a sequence is
/// worth a name.
fn inputs(point: &Point) -> Option<&'static str> {
    let all = point.memory.report.breakdown.bytes(Category::Buffer);
    let most = point.live.iter().find(|live| live.category == Category::Buffer)?;
    (2 * most.bytes.0 > all.0 && 100 * most.bytes.0 > point.memory.capacity.0).then_some(most.name)
}

fn signed(bytes: i128) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib.abs() < 0.005 { "0".to_owned() } else { format!("{gib:+.2} GiB") }
}

/// What bounds every length, if one thing does.
fn same_bound(ceiling: &Ceiling) -> Option<&'static str> {
    let first = ceiling.ladder.first()?.bound;
    ceiling.ladder.iter().all(|point| point.bound == first).then_some(first)
}

fn ladder(ceiling: &Ceiling, width: usize) -> String {
    let left_out = same_bound(ceiling).map(|_| BOUND);
    let kept = |(at, _): &(usize, String)| Some(*at) != left_out;
    let shown = |cells: Vec<String>| cells.into_iter().enumerate().filter(kept).map(|(_, cell)| cell).collect();
    let header: Vec<String> = shown(HEADER.map(str::to_owned).to_vec());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = ceiling.ladder.iter().map(|point| shown(figures(ceiling, point))).collect();
    table_within(&header, rows, &[0, 1, 2, 3, 4, 5, 6], width)
}

/// The column that is a word, and often the same.
const BOUND: usize = 7;

/// Columns of the way to the ceiling.
pub(super) const HEADER: [&str; 9] =
    ["sequence", "step time", "tokens/s/chip", "MFU", "allocated", "reserved", "device", "bound by", "fits"];

/// A row of it.
pub(super) fn figures(ceiling: &Ceiling, point: &Point) -> Vec<String> {
    let memory = &point.memory;
    let mut fits = memory.verdict().to_string();
    if memory.on_device && memory.report.retries > 0 {
        let retries = memory.report.retries;
        fits += &format!(", {retries} alloc {}", if retries == 1 { "retry" } else { "retries" });
    }
    if ceiling.compiles {
        fits += match ceiling.check(point.sequence) {
            Some(Checked { fits: true, .. }) => ", compile-checked",
            Some(_) => ", but the compiler says no",
            None => ", predicted",
        };
    }
    if point.sequence == ceiling.own {
        fits += ", the file's own";
    }
    vec![
        thousands(point.sequence),
        point.step.to_string(),
        format!("{:.0}", point.rate),
        percent(point.mfu),
        gib(memory.report.peak_allocated),
        gib(memory.report.peak_reserved),
        gib(point.wants()),
        point.bound.to_owned(),
        fits,
    ]
}
