//! The answer as text.

use super::{Found, Timed};

/// The report.
pub fn text(found: &Found) -> String {
    let mut text = format!("{} on {}, {} devices in all\n", found.program, found.slice, found.target.partitions);
    text += &found.mesh().map(|mesh| format!("mesh: {mesh}\n")).unwrap_or_default();
    text += &format!("\n{}\n\nmemory of a device [B]\n", found.verdict());
    for (name, bytes) in found.memory() {
        text += &line(&format!("  {name}"), &thousands(bytes));
    }
    let live = found.live();
    if !live.is_empty() {
        text += "\nthe largest at the peak, besides arguments [B]\n";
        for (bytes, shape, from) in live {
            text += &format!("  {:>16}  {shape:32} {from}\n", thousands(bytes));
        }
    }
    if let Some(compiled) = found.compiler.compiled() {
        text += "\n";
        text += &line("matrix products [FLOP]", &thousands(compiled.flops.matmul));
        text += &exchanges(found);
    }
    text +=
        &found.time.as_ref().map(|time| timed(time, found.at_least(), found.topology.rank_is())).unwrap_or_default();
    text += "\n";
    text += &format!("- {}, {:.1} s to compile\n", found.target.plugin, found.compiler.seconds());
    found.remarks().iter().for_each(|remark| text += &format!("- {remark}\n"));
    if let Some(message) = found.refusal() {
        text += &format!("- the compiler: {message}\n");
    }
    text
}

fn line(name: &str, value: &str) -> String {
    format!("{name:40}{value:>24}\n")
}

/// `131,072`.
pub fn thousands(number: u64) -> String {
    crate::check::report::thousands(number.into())
}

fn exchanges(found: &Found) -> String {
    if found.exchanges.is_empty() {
        return "\nno collectives\n".to_owned();
    }
    let mut text = "\ncollectives of a step, by axis: times, bytes of whole buffers\n".to_owned();
    for ((axes, between, kind), sum) in &found.exchanges {
        let by = if *between { format!("{axes}, between slices") } else { axes.clone() };
        text += &format!("  {by:30} {kind:20}{:>8} x{:>20} B\n", sum.times, thousands(sum.bytes));
    }
    text
}

fn timed(time: &Timed, at_least: bool, rank: &str) -> String {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let priced = &time.priced;
    let step = if at_least { format!("at least {}", ms(priced.step_s)) } else { ms(priced.step_s) };
    let (least, most) = time.between;
    let between = if at_least { format!("{} or more", ms(least)) } else { format!("{} to {}", ms(least), ms(most)) };
    let mut text = "\ntime of a step\n".to_owned();
    text += &line("  step", &step);
    text += &line("  between", &between);
    text += &line(&format!("  of the {rank}'s peak (bf16)"), &format!("{:.1} %", 100.0 * time.utilisation));
    if let Some((binds, _)) = time.parts.first() {
        text += &line("  binds most", binds);
    }
    time.parts.iter().for_each(|(name, seconds)| text += &line(&format!("    {name}"), &ms(*seconds)));
    text += &line("  exchanges, overlapped or not", &ms(priced.exchanges_s));
    for (name, seconds) in &priced.longest {
        text += &line(&format!("    {}", crate::check::report::shortened(name)), &ms(*seconds));
    }
    text
}
