//! The answer as one page: the verdict, key figures, memory and time as bars, collectives by axis, what takes longest.

use maud::{Markup, html};
use windtunnel::Bytes;
use windtunnel::report::page::{self, Tile};

use super::{Found, Timed, text::thousands};
use crate::pjrt::compile::Compiled;

/// The page.
pub fn page(found: &Found) -> String {
    let class = match found.compiler.fits() {
        Some(true) => "verdict yes",
        Some(false) => "verdict no",
        None => "verdict perhaps",
    };
    let live: Vec<Vec<String>> =
        found.live().into_iter().map(|(bytes, shape, from)| vec![thousands(bytes), shape, from]).collect();
    let body = html! {
        h1 { (found.program) " on " (found.slice) }
        p.soft {
            (found.target.partitions) " devices" @if let Some(mesh) = found.mesh() { ", mesh " (mesh) }
            "; " (found.target.plugin) ", compiled in " (format!("{:.1} s", found.compiler.seconds()))
        }
        p class=(class) { (found.verdict()) }
        (page::tiles(&tiles(found)))
        h2 { "Memory of a device" }
        @if let Some(compiled) = found.compiler.compiled() { (held(compiled, found.capacity())) }
        (page::table("memory of a device", &["", "bytes"], &memory(found), &[0]))
        @if !live.is_empty() {
            h3 { "The largest at the peak, besides arguments" }
            (page::table("live at the peak", &["bytes", "shape", "from"], &live, &[1, 2]))
        }
        @if let Some(time) = &found.time { (timed(time)) }
        @if !found.exchanges.is_empty() {
            h2 { "Collectives of a step, by axis" }
            (page::table("collectives", &["axes", "kind", "times", "bytes of whole buffers", "start and end apart"], &exchanges(found), &[0, 1]))
        }
        h2 { "What to know of these figures" }
        ul { @for remark in found.remarks() { li { (remark) } } @if let Some(message) = found.refusal() { li { "the compiler: " (message) } } }
    };
    page::page(&format!("{} on {}", found.program, found.slice), &body)
}

fn tiles(found: &Found) -> Vec<Tile> {
    let mut all = vec![];
    if let Some((_, peak)) = found.compiler.memory() {
        let share = 100.0 * peak as f64 / found.capacity().max(1) as f64;
        all.push(Tile {
            name: "peak memory",
            figure: page::figure("memory.peak", peak, &format!("{:.2} GiB", Bytes(peak).gib())),
            remark: format!("{share:.0} % of a device"),
        });
    }
    if let Some(time) = &found.time {
        let ms = format!("{:.2} ms", time.priced.step_s * 1e3);
        let before = if found.at_least() { "at least " } else { "" };
        all.push(Tile {
            name: "step",
            figure: page::figure("time.step", time.priced.step_s, &format!("{before}{ms}")),
            remark: match (found.at_least(), time.between) {
                (true, (least, _)) => format!("{:.2} ms or more", least * 1e3),
                (false, (least, most)) => format!("between {:.2} and {:.2} ms", least * 1e3, most * 1e3),
            },
        });
        all.push(Tile {
            name: "of the chip's peak",
            figure: page::figure("time.utilisation", time.utilisation, &format!("{:.1} %", 100.0 * time.utilisation)),
            remark: "matrix products that the compiler shows, in bf16".to_owned(),
        });
        if let Some((binds, seconds)) = time.parts.first() {
            let share = 100.0 * seconds / time.priced.step_s.max(f64::MIN_POSITIVE);
            all.push(Tile {
                name: "binds most",
                figure: html! { (binds) },
                remark: format!("{share:.0} % of the step"),
            });
        }
    }
    all
}

/// What a device's memory holds at the peak.
fn held(compiled: &Compiled, capacity: u64) -> Markup {
    let peak = compiled.peak();
    let arguments = compiled.memory.argument.min(peak);
    let parts = [
        ("arguments", 0, arguments),
        ("temporary and outputs", 1, peak - arguments),
        ("free", 8, capacity.saturating_sub(peak)),
    ];
    bar(&parts
        .map(|(name, kind, bytes)| (name.to_owned(), kind, bytes as f64, format!("{:.2} GiB", Bytes(bytes).gib()))))
}

fn memory(found: &Found) -> Vec<Vec<String>> {
    found.memory().into_iter().map(|(name, bytes)| vec![name.to_owned(), thousands(bytes)]).collect()
}

/// Parts side by side as long as they are large, and their names.
fn bar(parts: &[(String, u8, f64, String)]) -> Markup {
    let all: f64 = parts.iter().map(|(.., size, _)| size).sum();
    let share = |size: f64| if all > 0.0 { 100.0 * size / all } else { 0.0 };
    let words: Vec<String> = parts.iter().map(|(name, .., said)| format!("{name} {said}")).collect();
    html! {
        div.bar role="img" aria-label=(words.join(", ")) {
            @for (name, kind, size, said) in parts.iter().filter(|part| part.2 > 0.0) {
                i class=(format!("k{kind}")) style=(format!("width:{:.3}%", share(*size))) title=(format!("{name}: {said}")) {}
            }
        }
        ul.legend {
            @for (name, kind, size, said) in parts.iter().filter(|part| part.2 > 0.0) {
                li { i class=(format!("k{kind}")) {} (name) ": " (said) (format!(", {:.1} %", share(*size))) }
            }
        }
    }
}

fn timed(time: &Timed) -> Markup {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let kind = |name: &str| match name {
        "matrix products" => 0,
        "what memory bounds" => 2,
        "kernels written by hand" => 4,
        _ => 1,
    };
    let parts: Vec<_> =
        time.parts.iter().map(|(name, seconds)| ((*name).to_owned(), kind(name), *seconds, ms(*seconds))).collect();
    let rows: Vec<Vec<String>> =
        time.priced.longest.iter().map(|(name, seconds)| vec![name.clone(), ms(*seconds)]).collect();
    html! {
        h2 { "Time of a step" }
        (bar(&parts))
        p { "Exchanges take " (ms(time.priced.exchanges_s)) " in all, of which " (ms(time.priced.waiting_s)) " are waited for." }
        h3 { "What takes longest" }
        (page::table("what takes longest", &["instruction and where it comes from", "in a step"], &rows, &[0]))
    }
}

fn exchanges(found: &Found) -> Vec<Vec<String>> {
    let row = |((axes, between, kind), sum): (&super::Which, &super::Along)| {
        let axes = if *between { format!("{axes}, between slices") } else { axes.clone() };
        vec![axes, kind.clone(), thousands(sum.times), thousands(sum.bytes), thousands(sum.asynchronous_bytes)]
    };
    found.exchanges.iter().map(row).collect()
}
