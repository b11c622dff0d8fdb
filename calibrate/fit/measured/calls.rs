//! Measured calls, clocks and interference: what a launch costs the host, how far a busy board falls below its burst
//! clocks, and how much a kernel slows while another holds processors or bandwidth.

use std::collections::BTreeMap;

use windtunnel::program::DType;

use super::{FitError, Made, Measured};
use crate::fit::overheads::{write_class, write_overlap};
use crate::fit::{Residual, clock, error, median};
use crate::points::{Point, Regime, What};

/// Calls that are measured, as `calibrate cuda` names them.
pub(super) const CALLS: [&str; 8] =
    ["launch", "launch_rate", "event_record", "stream_wait", "graph_launch", "graph_node", "kernel", "hop"];
/// Kernels that are run beside others.
pub(super) const BESIDE: [&str; 2] = ["copy", "spin"];
/// Host classes that are a launch and nothing else.
const LAUNCHES: [&str; 2] = ["foreach", "extra"];
/// A class has one decimal of a microsecond at least \[us\].
const LEAST: f64 = 0.1;
/// How much longer one launch may take than one of many: the host that issues many pays for each.
const AGREE: f64 = 1.5;
/// Burst durations within a factor of four are one point of the clock's curve.
const BIN: f64 = 1.386;
/// Points that a clock or a factor of overlap needs.
const ENOUGH: usize = 3;

/// Makes the sections `host.…`, `event`, `clock` and `overlap.…`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    launches(measured, made);
    clocks(measured, made);
    overlap(measured, made);
    Ok(())
}

/// A launch is the whole of two classes of host time. The others are Python and dispatchers, which no call here measures:
/// they stay the base's. One figure alone could be a hiccup, so launches one by one and many in a row must agree.
fn launches(measured: &Measured<'_>, made: &mut Made) {
    let calls = measured.points.iter().filter_map(|((what, _), point)| match what {
        What::Overhead { call } => Some((call.as_str(), point)),
        _ => None,
    });
    let mut calls: BTreeMap<&str, _> = calls.collect();
    let (launch, rate) = (calls.remove("launch"), calls.remove("launch_rate"));
    event(measured, made, (calls.remove("kernel"), calls.remove("hop")));
    match (launch, rate) {
        (Some(launch), Some(rate)) if launch.median <= AGREE * rate.median => {
            let floor = measured.floor(|what| matches!(what, What::Overhead { .. }));
            let half = (launch.p90 - launch.p10) / 2.0 / launch.median;
            let source = format!("a launch of an empty kernel, {}", measured.source(&["cuda"]));
            let e = measured.evidence(&[half], 1, floor, &source);
            for class in LAUNCHES {
                let mut text = String::new();
                write_class(&mut text, class, launch.median.max(LEAST), &e);
                made.sections.push((format!("host.{class}"), text));
            }
            made.leave(1, "calls: launch_rate confirms launch");
        }
        (Some(launch), Some(rate)) => {
            made.leave(2, "calls: launches one by one and in a row do not agree");
            made.notes.push(format!(
                "a launch took {:.2} us alone and {:.2} us in a row, where it cannot take less: the base's stay",
                launch.median, rate.median
            ));
        }
        (None, None) => {}
        _ => made.leave(1, "calls: a launch counts when both `launch` and `launch_rate` are measured"),
    }
    made.leave(calls.len(), "calls: no prediction uses them yet");
    if !calls.is_empty() {
        let others: Vec<String> = calls.iter().map(|(call, point)| format!("{call} {:.2} us", point.median)).collect();
        made.notes.push(format!("calls that no prediction uses yet: {}", others.join(", ")));
    }
}

/// What an event adds: kernels that wait for one on the other stream, over kernels of one stream.
fn event(measured: &Measured<'_>, made: &mut Made, both: (Option<&Point>, Option<&Point>)) {
    let (kernel, hop) = match both {
        (Some(kernel), Some(hop)) => (kernel, hop),
        (None, None) => return,
        _ => return made.leave(1, "calls: an event's latency takes both `kernel` and `hop`"),
    };
    let adds = hop.median - kernel.median;
    if adds < LEAST {
        made.leave(2, "calls: a hop takes no longer than a kernel");
        let (hop, kernel) = (hop.median, kernel.median);
        return made.notes.push(format!("a hop took {hop:.2} us and a kernel {kernel:.2} us: the base's event stays"));
    }
    let half = [kernel, hop].map(|point| (point.p90 - point.p10) / 2.0);
    let source = format!("empty kernels on two streams in turns over those of one, {}", measured.source(&["cuda"]));
    let floor = measured.floor(|what| matches!(what, What::Overhead { .. }));
    let e = measured.evidence(&[(half[0].hypot(half[1]) / adds).min(1.0)], 1, floor, &source);
    made.sections.push(("event".to_owned(), format!("[event]\ntime = \"{adds:.1} us\"\nevidence = {e}\n\n")));
    made.leave(1, "calls: `kernel` is what `hop` is held against");
}

/// Whether a matmul's factor between clocks goes into the section.
pub(super) fn clocked(dtype: &str, layout: &str) -> bool {
    matches!(dtype, "bf16" | "fp8_tensor") && layout == "forward"
}

/// Burst duration \[s\] and sustained over burst rate of what was measured at both clocks.
fn factors(measured: &Measured<'_>, fp8: bool) -> Vec<(f64, f64)> {
    let both = measured.points.iter().filter_map(|((what, regime), burst)| {
        let What::Matmul { dtype, layout, .. } = what else { return None };
        let wanted = clocked(dtype, layout) && fp8 == (dtype != "bf16");
        if *regime != Regime::Burst || !wanted {
            return None;
        }
        let sustained = measured.points.get(&(*what, Regime::Sustained))?;
        Some((burst.median * 1e-6, burst.median / sustained.median))
    });
    let mut pairs: Vec<(f64, f64)> = both.collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    pairs
}

fn clocks(measured: &Measured<'_>, made: &mut Made) {
    let pairs = factors(measured, false);
    if pairs.is_empty() {
        return;
    }
    let fp8: Vec<f64> = factors(measured, true).iter().map(|p| p.1).collect();
    if pairs.len() < ENOUGH {
        made.leave(pairs.len() + fp8.len(), format!("clock: {ENOUGH} bf16 matmuls at both clocks are needed"));
        made.notes.push(format!(
            "clock: {} matmuls were measured at both clocks, but {ENOUGH} are needed: the base's stays",
            pairs.len()
        ));
        return;
    }
    let bf16: Vec<f64> = pairs.iter().map(|p| p.1).collect();
    for (format, factors) in [("bf16", &bf16), ("fp8", &fp8)] {
        let above = factors.iter().filter(|factor| **factor > 1.0).count();
        if above > 0 {
            let note =
                format!("clock: {above} {format} matmuls were faster sustained than in a burst: no factor is above 1");
            made.notes.push(note);
        }
    }
    let floor = measured.floor(|what| matches!(what, What::Matmul { .. }));
    let bin = |seconds: f64| libm::floor(libm::log(seconds) / BIN) as i64;
    let mut bins: BTreeMap<i64, Vec<(f64, f64)>> = BTreeMap::new();
    for pair in &pairs {
        bins.entry(bin(pair.0)).or_default().push(*pair);
    }
    let middle = |list: &[(f64, f64)]| {
        let of = |pick: fn(&(f64, f64)) -> f64| median(&list.iter().map(pick).collect::<Vec<_>>());
        (of(|p| p.0), of(|p| p.1).clamp(0.1, 1.0))
    };
    let points: Vec<(f64, f64)> = bins.values().map(|list| middle(list)).collect();
    let without = |out: usize| {
        let (seconds, factor) = pairs[out];
        let rest: Vec<(f64, f64)> = pairs.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, p)| *p).collect();
        let same: Vec<(f64, f64)> = rest.iter().filter(|p| bin(p.0) == bin(seconds)).copied().collect();
        let near = if same.is_empty() { &rest } else { &same };
        if near.is_empty() { 0.0 } else { error(middle(near).1, factor) }
    };
    let errors: Vec<f64> = (0..pairs.len()).map(without).collect();
    let (fp8_factor, fp8_note) = if fp8.len() < ENOUGH {
        made.leave(fp8.len(), format!("clock: {ENOUGH} fp8 matmuls at both clocks are needed"));
        (measured.base.clock.matmul(1e-3, DType::Fp8), "; fp8 as in the base")
    } else {
        (median(&fp8).clamp(0.1, 1.0), "")
    };
    let source =
        format!("the same matmuls in bursts and at the power limit, {}{fp8_note}", measured.source(&["cublas"]));
    let e = measured.evidence(&errors, pairs.len(), floor, &source);
    made.sections.push((
        "clock".to_owned(),
        clock::section(&points, fp8_factor, measured.base.clock.factor_of_attention(), 1.0, &e),
    ));
    made.residuals.push(Residual::of("clock", pairs.len(), &errors));
}

/// Kernels slowed by one that holds processors, over the same alone. A profile has one factor a class, at the number of
/// processors that collectives hold; of what was measured the nearest number counts. A collective moves data while it
/// holds processors, so points beside a kernel that copies count before those beside one that spins.
fn overlap(measured: &Measured<'_>, made: &mut Made) {
    let held = f64::from(measured.base.overlap.processors);
    for name in ["matmul", "attention", "memory"] {
        let all = BESIDE.map(|by| (by, slowdowns(measured, name, by)));
        let points = all.iter().map(|(_, factors)| factors.len()).sum::<usize>();
        let own =
            |what: &What| matches!(what, What::Overlap { slowed, processors: 1.., .. } if class(slowed) == Some(name));
        let measured_at_all = measured.points.keys().filter(|(what, _)| own(what)).count();
        made.leave(measured_at_all - points, format!("overlap {name}: what was slowed was not measured by itself"));
        let Some((beside, factors)) = all.into_iter().find(|(_, factors)| !factors.is_empty()) else { continue };
        let nearest = factors.iter().map(|f| (f.0 - held).abs()).fold(f64::INFINITY, f64::min);
        let near: Vec<f64> = factors.iter().filter(|f| (f.0 - held).abs() <= nearest).map(|f| f.1).collect();
        made.leave(
            points - near.len(),
            format!("overlap {name}: another kernel beside, or farther from the {held} processors of a collective"),
        );
        if near.len() < ENOUGH {
            made.leave(near.len(), format!("overlap {name}: {ENOUGH} at one number of processors are needed"));
            made.notes.push(format!(
                "overlap {name}: {} points at one number of processors, but {ENOUGH} are needed: the base's stays",
                near.len()
            ));
            continue;
        }
        let floor = measured.floor(|what| matches!(what, What::Overlap { .. }));
        let factor = crate::fit::rounded(median(&near).clamp(1.0, 10.0));
        let errors: Vec<f64> = near.iter().map(|f| error(factor, *f)).collect();
        let source = format!("beside a kernel that holds processors ({beside}), {}", measured.source(&["cuda"]));
        let e = measured.evidence(&errors, near.len(), floor, &source);
        let mut text = String::new();
        write_overlap(&mut text, name, factor, &e);
        made.sections.push((format!("overlap.{name}"), text));
        made.residuals.push(Residual::of(format!("overlap {name} (in the fit)"), near.len(), &errors));
    }
}

/// The section that has a kernel's slow-down.
pub(super) fn class(slowed: &What) -> Option<&'static str> {
    match slowed {
        What::Matmul { .. } => Some("matmul"),
        What::Attention { .. } => Some("attention"),
        What::Memory { .. } => Some("memory"),
        _ => None,
    }
}

/// Processors held and time over the time alone: what was measured beside a kernel that holds none, or by itself.
fn slowdowns(measured: &Measured<'_>, name: &str, by: &str) -> Vec<(f64, f64)> {
    let mut alone: BTreeMap<&What, f64> = BTreeMap::new();
    for ((what, regime), point) in &measured.points {
        match what {
            What::Overlap { slowed, processors: 0, .. } => {
                alone.insert(slowed, point.median);
            }
            _ if *regime == Regime::Burst => {
                alone.entry(what).or_insert(point.median);
            }
            _ => {}
        }
    }
    let factor = |((what, _), point): (&(&What, Regime), &crate::points::Point)| match what {
        What::Overlap { slowed, beside, processors: held @ 1.., .. } if class(slowed) == Some(name) && beside == by => {
            Some((f64::from(*held), point.median / alone.get(slowed.as_ref())?))
        }
        _ => None,
    };
    measured.points.iter().filter_map(factor).collect()
}
