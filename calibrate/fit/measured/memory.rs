//! Measured memory-bound kernels: the stream, each family's share of it, and copies over the host's link.
//!
//! A share is the median over points large enough to stream; its error is that of the median without the point.

use std::collections::BTreeMap;

use windtunnel::cost::curve::Curve;

use super::{FitError, Made, Measured};
use crate::fit::memory::{Stream, share, stream, write_family, write_host, write_stream};
use crate::fit::{Residual, error, median, positive};
use crate::points::What;

/// Smaller kernels tell more of the launch than of the stream \[B\].
const STREAMING: f64 = 4.0 * 1024.0 * 1024.0;
/// Points that the stream's curve needs.
const ENOUGH: usize = 8;
/// Points that a family's share needs.
const SHARE: usize = 4;
/// Sizes of copies that each direction over the host's link needs.
const WAY: usize = 3;
/// Families that a profile has, beside the stream.
pub(super) const FAMILIES: [&str; 9] =
    ["elementwise", "norm", "norm_backward", "softmax", "gather", "scatter", "foreach", "copy", "complex"];

/// Makes the sections `memory.…`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    let wrong = |why: String| FitError::Family { family: "memory", why };
    let mut rows: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (what, seconds) in measured.burst(|what| matches!(what, What::Memory { .. }).then_some(what)) {
        if let What::Memory { family, read, written, .. } = what {
            rows.entry(family).or_default().push((read.saturating_add(*written) as f64, seconds));
        }
    }
    let source = measured.source(&["cuda"]);
    let streaming = rows.get("elementwise").map_or(&[][..], Vec::as_slice);
    if streaming.len() < ENOUGH {
        let points = rows.values().map(Vec::len).sum();
        made.leave(
            points,
            format!("memory: the stream that all families are shares of needs {ENOUGH} elementwise points"),
        );
    } else {
        let fitted = stream(streaming).map_err(wrong)?;
        made.leave(streaming.len() - fitted.errors.len(), "memory elementwise: too small to tell more than the launch");
        let errors = left_out(streaming);
        let floor = measured.floor(|what| matches!(what, What::Memory { family, .. } if family == "elementwise"));
        let mut text = String::new();
        write_stream(&mut text, &fitted, &measured.evidence(&errors, streaming.len(), floor, &source));
        made.residuals.push(Residual::of("memory stream", streaming.len(), &errors));
        made.sections.push(("memory.stream".to_owned(), text));
        let curve = Curve::new(&fitted.points).map_err(wrong)?;
        for family in FAMILIES {
            let own = rows.get(family).map_or(&[][..], Vec::as_slice);
            let floor = measured.floor(|what| matches!(what, What::Memory { family: f, .. } if f == family));
            family_section(measured, made, &curve, (family, floor), own, &source);
        }
    }
    host(measured, made);
    Ok(())
}

/// Errors of the stream on each point, left out.
fn left_out(rows: &[(f64, f64)]) -> Vec<f64> {
    let without = |out: usize| {
        let rest: Vec<_> = rows.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, row)| *row).collect();
        let Stream { points, .. } = stream(&rest).ok()?;
        let curve = Curve::new(&points).ok()?;
        curve.covers(rows[out].0).then(|| error(curve.seconds(rows[out].0), rows[out].1))
    };
    (0..rows.len()).filter_map(without).collect()
}

fn family_section(
    measured: &Measured<'_>,
    made: &mut Made,
    stream: &Curve,
    (family, floor): (&str, f64),
    rows: &[(f64, f64)],
    source: &str,
) {
    let large = rows.iter().filter(|(bytes, _)| *bytes >= STREAMING);
    let shares: Vec<f64> = large.filter_map(|&(bytes, seconds)| share(stream, bytes, seconds)).collect();
    // The stream itself is made of small ones too.
    if family != "elementwise" {
        made.leave(rows.len() - shares.len(), format!("memory {family}: too small to tell its share of the stream"));
    }
    if rows.is_empty() {
        return;
    }
    if shares.len() < SHARE {
        if family != "elementwise" {
            made.leave(shares.len(), format!("memory {family}: too few, a share needs {SHARE} large ones"));
        }
        made.notes.push(format!(
            "memory {family}: {} points large enough to stream, but a share needs {SHARE}: the base's stays",
            shares.len()
        ));
        return;
    }
    let centre = if family == "elementwise" { 1.0 } else { median(&shares).clamp(0.01, 2.0) };
    let errors: Vec<f64> = (0..shares.len())
        .map(|out| {
            let rest: Vec<f64> = shares.iter().enumerate().filter(|(at, _)| *at != out).map(|(_, s)| *s).collect();
            let centre = if family == "elementwise" || rest.is_empty() { centre } else { median(&rest) };
            // Time goes with the inverse of the share.
            error(shares[out], centre)
        })
        .collect();
    let e = measured.evidence(&errors, shares.len(), floor, source);
    let mut text = String::new();
    write_family(&mut text, family, centre, &e);
    made.residuals.push(Residual::of(format!("memory {family}"), shares.len(), &errors));
    made.sections.push((format!("memory.{family}"), text));
}

/// Copies between device and host: one latency, a rate for each direction.
fn host(measured: &Measured<'_>, made: &mut Made) {
    let rows = measured.burst(|what| match what {
        What::HostCopy { bytes, to_host } => Some((*to_host, *bytes)),
        _ => None,
    });
    let both = [false, true].iter().all(|way| rows.keys().filter(|(to_host, _)| to_host == way).count() >= WAY);
    if !both {
        made.leave(rows.len(), format!("host copies: {WAY} sizes each way are needed"));
        return;
    }
    let seconds = |p: &[f64], to_host: bool, bytes: u64| p[0] + bytes as f64 / if to_host { p[2] } else { p[1] };
    let without = |out: Option<usize>| {
        let rest = rows.iter().enumerate().filter(|(at, _)| Some(*at) != out).map(|(_, row)| row);
        positive(&[10e-6, 50e9, 50e9], 300, |p| {
            let off =
                |(&(to_host, bytes), t): (&(bool, u64), &f64)| libm::fabs(libm::log(seconds(p, to_host, bytes) / t));
            rest.clone().map(off).sum()
        })
    };
    let best = without(None);
    let left_out = rows.iter().enumerate();
    let errors: Vec<f64> =
        left_out.map(|(at, (&(to_host, bytes), t))| error(seconds(&without(Some(at)), to_host, bytes), *t)).collect();
    let source = format!("{}, pinned memory", measured.source(&[]));
    let floor = measured.floor(|what| matches!(what, What::HostCopy { .. }));
    let e = measured.evidence(&errors, rows.len(), floor, &source);
    let mut text = String::new();
    write_host(&mut text, best[0], [best[1], best[2]], &e);
    made.residuals.push(Residual::of("memory host copies", rows.len(), &errors));
    made.sections.push(("memory.host".to_owned(), text));
}
