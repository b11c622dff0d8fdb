//! Measured calls, clocks and interference: what a launch costs the host, how far a busy board falls below its burst
//! clocks, and how much a kernel slows while another holds processors or bandwidth.

use std::collections::BTreeMap;

use windtunnel::program::DType;

use super::{FitError, Made, Measured};
use crate::fit::overheads::{write_class, write_overlap};
use crate::fit::{Residual, clock, error, evidence, median, quantile};
use crate::points::{Regime, What};

/// Host classes that are a launch and nothing else.
const LAUNCHES: [&str; 2] = ["foreach", "extra"];
/// A class has one decimal of a microsecond at least \[us\].
const LEAST: f64 = 0.1;
/// Burst durations within a factor of four are one point of the clock's curve.
const BIN: f64 = 1.386;
/// Points that a clock or a factor of overlap needs.
const ENOUGH: usize = 3;

/// Makes the sections `host.…`, `clock` and `overlap.…`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    launches(measured, made);
    clocks(measured, made);
    overlap(measured, made);
    Ok(())
}

fn launches(measured: &Measured<'_>, made: &mut Made) {
    let calls = measured.points.iter().filter_map(|((what, _), point)| match what {
        What::Overhead { call } => Some((call.as_str(), *point)),
        _ => None,
    });
    let calls: BTreeMap<&str, _> = calls.collect();
    if let Some(launch) = calls.get("launch") {
        let floor = measured.floor(|what| matches!(what, What::Overhead { .. }));
        let half = (launch.p90 - launch.p10) / 2.0 / launch.median;
        let source = format!("a launch of an empty kernel, {}", measured.source(&["cuda"]));
        let e = evidence("measured", 1, half.max(floor), half.max(floor), &source);
        for class in LAUNCHES {
            let mut text = String::new();
            write_class(&mut text, class, launch.median.max(LEAST), &e);
            made.sections.push((format!("host.{class}"), text));
        }
    }
    let others: Vec<String> = calls
        .iter()
        .filter(|(call, _)| **call != "launch")
        .map(|(call, point)| format!("{call} {:.2} us", point.median))
        .collect();
    if !others.is_empty() {
        made.notes.push(format!("calls that no prediction uses yet: {}", others.join(", ")));
    }
}

/// Burst duration \[s\] and sustained over burst rate of what was measured at both clocks.
fn factors(measured: &Measured<'_>, fp8: bool) -> Vec<(f64, f64)> {
    let both = measured.points.iter().filter_map(|((what, regime), burst)| {
        let What::Matmul { dtype, layout, .. } = what else { return None };
        let wanted = if fp8 { dtype == "fp8_tensor" } else { dtype == "bf16" };
        if *regime != Regime::Burst || !wanted || layout != "forward" {
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
    if pairs.len() < ENOUGH {
        made.notes.push(format!(
            "clock: {} matmuls were measured at both clocks, but {ENOUGH} are needed: the base's stays",
            pairs.len()
        ));
        return;
    }
    let above = pairs.iter().filter(|p| p.1 > 1.0).count();
    if above > 0 {
        made.notes.push(format!("clock: {above} matmuls were faster sustained than in a burst: no factor is above 1"));
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
    let fp8: Vec<f64> = factors(measured, true).iter().map(|p| p.1).collect();
    let (fp8_factor, fp8_note) = if fp8.is_empty() {
        (measured.base.clock.matmul(1e-3, DType::Fp8), "; fp8 as in the base")
    } else {
        (median(&fp8).clamp(0.1, 1.0), "")
    };
    let source =
        format!("the same matmuls in bursts and at the power limit, {}{fp8_note}", measured.source(&["cublas"]));
    let e = evidence("measured", pairs.len(), median(&errors).max(floor), quantile(&errors, 0.9).max(floor), &source);
    made.sections.push(("clock".to_owned(), clock::section(&points, fp8_factor, 1.0, &e)));
    made.residuals.push(Residual::of("clock", pairs.len(), &errors));
}

/// Kernels slowed by one that holds processors, over the same alone. A profile has one factor a class, at the number of
/// processors that collectives hold; of what was measured the nearest number counts. A collective moves data while it
/// holds processors, so points beside a kernel that copies count before those beside one that spins.
fn overlap(measured: &Measured<'_>, made: &mut Made) {
    let held = f64::from(measured.base.overlap.processors);
    for class in ["matmul", "attention", "memory"] {
        let Some((beside, factors)) =
            ["copy", "spin"].into_iter().map(|by| (by, slowdowns(measured, class, by))).find(|(_, f)| !f.is_empty())
        else {
            continue;
        };
        let nearest = factors.iter().map(|f| (f.0 - held).abs()).fold(f64::INFINITY, f64::min);
        let near: Vec<f64> = factors.iter().filter(|f| (f.0 - held).abs() <= nearest).map(|f| f.1).collect();
        if near.len() < ENOUGH {
            made.notes.push(format!(
                "overlap {class}: {} points at one number of processors, but {ENOUGH} are needed: the base's stays",
                near.len()
            ));
            continue;
        }
        let floor = measured.floor(|what| matches!(what, What::Overlap { .. }));
        let factor = crate::fit::rounded(median(&near).clamp(1.0, 10.0));
        let errors: Vec<f64> = near.iter().map(|f| error(factor, *f)).collect();
        let source = format!("beside a kernel that holds processors ({beside}), {}", measured.source(&["cuda"]));
        let e =
            evidence("measured", near.len(), median(&errors).max(floor), quantile(&errors, 0.9).max(floor), &source);
        let mut text = String::new();
        write_overlap(&mut text, class, factor, &e);
        made.sections.push((format!("overlap.{class}"), text));
        made.residuals.push(Residual::of(format!("overlap {class} (in the fit)"), near.len(), &errors));
    }
}

/// Processors held and time over the time alone: what was measured beside a kernel that holds none, or by itself.
fn slowdowns(measured: &Measured<'_>, class: &str, beside: &str) -> Vec<(f64, f64)> {
    let slowed = |what: &'_ What| match what {
        What::Overlap { slowed, beside, processors, .. } => Some(((**slowed).clone(), beside.clone(), *processors)),
        _ => None,
    };
    let mut alone: BTreeMap<What, f64> = BTreeMap::new();
    for ((what, regime), point) in &measured.points {
        if *regime == Regime::Burst {
            alone.entry((*what).clone()).or_insert(point.median);
        }
    }
    for ((what, _), point) in &measured.points {
        if let Some((slowed, _, 0)) = slowed(what) {
            alone.insert(slowed, point.median);
        }
    }
    let factor = |((what, _), point): (&(&What, Regime), &&crate::points::Point)| {
        let (slowed, by, processors) = slowed(what)?;
        let own = match slowed {
            What::Matmul { .. } => "matmul",
            What::Attention { .. } => "attention",
            What::Memory { .. } => "memory",
            _ => return None,
        };
        let counts = own == class && by == beside && processors > 0;
        counts.then(|| Some((f64::from(processors), point.median / alone.get(&slowed)?))).flatten()
    };
    measured.points.iter().filter_map(factor).collect()
}
