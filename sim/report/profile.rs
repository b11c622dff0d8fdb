//! Profiles as text: what each section rests on, and what two profiles say differently.

use std::fmt::Write as _;

use crate::cost::sections::{Decision, Section, Sections};
use crate::cost::{Backend, CostModel, Evidence, Profile, Regime};
use crate::program::{AttentionShape, DType, MatmulLayout, MemoryKind, Work};
use crate::units::Bytes;

fn evidence(e: &Evidence) -> String {
    let error = format!("{:5.1} % {:5.1} %", 100.0 * e.median, 100.0 * e.p90);
    format!("{:17} {:6} {error}", e.basis.label(), e.points)
}

/// The machine and, section by section, evidence and source.
pub fn show(profile: &Profile, sections: &Sections) -> String {
    let m = &profile.machine;
    let mut text = format!("{}\n{}\n\n", profile.name, profile.summary);
    let power = m.power_limit.map_or(String::new(), |power| format!(", {:.0} W", power.0));
    let clock = m.clock.map_or(String::new(), |clock| format!(", {:.0} MHz", clock.0 / 1e6));
    let _ = writeln!(
        text,
        "{}: {} processors, {:.0} GB/s, {:.1} GiB{power}{clock}",
        m.chip,
        m.processors,
        m.memory_bandwidth.0 / 1e9,
        m.memory.0 as f64 / 1024f64.powi(3),
    );
    let versions: Vec<String> = m.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = writeln!(text, "software: {}", if versions.is_empty() { m.software.clone() } else { versions.join(", ") });
    if let (Some(date), Some(tool)) = (&m.date, &m.tool) {
        let _ = writeln!(text, "measured {date} by {tool}");
    }
    let _ = writeln!(text, "source: {}\n", m.source);
    let _ = writeln!(text, "{:46} {:17} {:>6} {:>7} {:>7}  source", "section", "basis", "points", "median", "p90");
    for section in &sections.list {
        if let Some(e) = section.evidence() {
            let _ = writeln!(text, "{:46} {}  {}", section.name, evidence(&e), e.source);
        }
    }
    text
}

/// Kernels that two profiles are compared at.
fn kernels() -> Vec<(String, Work)> {
    let mut list = vec![];
    let matmul = |dtype, layout, m, n, k| {
        (format!("{} matmul {m} x {n} x {k}", DType::name(dtype)), Work::Matmul { m, n, k, dtype, layout })
    };
    for (m, n, k) in [(4096, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (16384, 8192, 8192)] {
        list.push(matmul(DType::Bf16, MatmulLayout::Forward, m, n, k));
    }
    list.push(matmul(DType::Fp8, MatmulLayout::Forward, 8192, 14336, 4096));
    let (name, work) = matmul(DType::Bf16, MatmulLayout::WeightGradient, 14336, 4096, 8192);
    list.push((format!("{name}, weight gradient"), work));
    for backward in [false, true] {
        let shape = AttentionShape {
            batch: 1,
            heads: 32,
            kv_heads: 8,
            queries: 8192,
            keys: 8192,
            head_dim: 128,
            causal: true,
            window: None,
            squares: None,
        };
        let pass = if backward { "backward" } else { "forward" };
        list.push((
            format!("causal attention {pass}, 8192 tokens, 32 x 128"),
            Work::Attention { shape, dtype: DType::Bf16, backward },
        ));
    }
    let kinds = [("pointwise", MemoryKind::Elementwise), ("norm", MemoryKind::Norm), ("copy", MemoryKind::Copy)];
    for (name, kind) in kinds {
        let half = Bytes(64 << 20);
        list.push((format!("{name}, 128 MiB"), Work::Memory { kind, read: half, written: half }));
    }
    list
}

/// What the second says otherwise than the first: evidence section by section, and times of some kernels.
pub fn compare(a: (&Profile, &Sections), b: (&Profile, &Sections)) -> String {
    let mut text = format!("A  {}\nB  {}\n\n", a.0.name, b.0.name);
    let mut same = 0;
    for section in &a.1.list {
        match b.1.get(&section.name) {
            None => {
                let _ = writeln!(text, "{}: in A alone", section.name);
            }
            Some(other) if other.text.trim() == section.text.trim() => same += 1,
            Some(other) => text.push_str(&differs(section, other)),
        }
    }
    for section in b.1.list.iter().filter(|section| a.1.get(&section.name).is_none()) {
        let _ = writeln!(text, "{}: in B alone", section.name);
    }
    let _ = writeln!(text, "{same} sections are the same\n");
    let _ = writeln!(text, "{:56} {:>11} {:>11} {:>8}", "at sustained clocks", "A", "B", "B over A");
    for backend in [Backend::Flash2, Backend::Cudnn] {
        let costs = |profile| {
            let software = crate::cost::Software { attention: backend, ..Default::default() };
            CostModel::new(profile, Regime::Sustained).with(software)
        };
        let (a, b) = (costs(a.0), costs(b.0));
        for (name, work) in kernels() {
            let attention = matches!(work, Work::Attention { .. });
            if !attention && backend != Backend::Flash2 {
                continue;
            }
            let name = if attention { format!("{} {name}", backend.name()) } else { name };
            let [a, b] = [a.work(&work), b.work(&work)].map(|cost| cost.time.seconds() * 1e6);
            let _ = writeln!(text, "{name:56} {a:8.1} us {b:8.1} us {:>+7.1} %", 100.0 * (b / a - 1.0));
        }
    }
    text
}

fn differs(a: &Section, b: &Section) -> String {
    match (a.evidence(), b.evidence()) {
        (Some(ea), Some(eb)) => {
            format!("{}\n  A {}  {}\n  B {}  {}\n", a.name, evidence(&ea), ea.source, evidence(&eb), eb.source)
        }
        _ => format!("{}: differs\n", a.name),
    }
}

/// Which sections were taken, which were not, and why.
pub fn decisions(decisions: &[Decision]) -> String {
    let mut text = String::new();
    for decision in decisions {
        let _ =
            writeln!(text, "{} {}: {}", if decision.taken { "taken " } else { "not   " }, decision.name, decision.why);
    }
    text
}
