//! Measured attention: a rate and a knee for each library, pass, head dimension and mask that was swept over the sequence.
//!
//! A sweep is fitted where queries and keys are as many, keys and values as wide, and there is no window; the other
//! points (windows, MLA's narrower values, cross-attention) are predicted by the fits and reported.

use std::collections::BTreeMap;

use windtunnel::cost::attention::Backend;

use super::{FitError, Made, Measured};
use crate::fit::attention::{Kernel, Point, fit_rate, flops, write};
use crate::fit::{Residual, evidence, median, quantile};
use crate::points::What;

/// Points that a rate and a knee need, to be fitted without one.
const ENOUGH: usize = 4;
/// Shorter sequences are mostly launch \[tokens\].
const SHORTEST: u64 = 512;

/// A plain sweep's point; none of other attention.
fn plain(what: &What, seconds: f64) -> Option<(Kernel, Point)> {
    let What::Attention {
        backend,
        backward,
        batch,
        heads,
        queries,
        keys,
        head_dim,
        value_dim,
        causal,
        window,
        dtype,
        ..
    } = what
    else {
        return None;
    };
    let square = queries == keys && head_dim == value_dim && window.is_none();
    let known = Backend::ALL.iter().any(|known| known.name() == backend);
    if !square || !known || !matches!(dtype.as_str(), "bf16" | "fp16") || *queries < SHORTEST {
        return None;
    }
    let (batch, heads, sequence) = (*batch as f64, *heads as f64, *queries as f64);
    let point = Point {
        flops: flops(batch, heads, sequence, *head_dim as f64, *causal, *backward),
        sequence,
        tiles: batch * heads * (sequence / 128.0).ceil(),
        seconds,
    };
    Some((Kernel { backend: backend.clone(), backward: *backward, head: *head_dim, causal: *causal }, point))
}

/// Makes sections `attention.kernels …`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    let mut sweeps: BTreeMap<Kernel, Vec<Point>> = BTreeMap::new();
    let mut other = 0;
    for (what, seconds) in measured.burst(|what| matches!(what, What::Attention { .. }).then_some(what)) {
        match plain(what, seconds) {
            Some((kernel, point)) => sweeps.entry(kernel).or_default().push(point),
            None => other += 1,
        }
    }
    if other > 0 {
        made.notes.push(format!(
            "attention: {other} points with windows, unequal lengths or widths, or in fp8 are not fitted"
        ));
    }
    let processors = f64::from(measured.machine.processors);
    let source = measured.source(&["cuda", "cudnn"]);
    for (kernel, points) in sweeps {
        let name = format!(
            "{} {} d{} {}",
            kernel.backend,
            if kernel.backward { "backward" } else { "forward" },
            kernel.head,
            if kernel.causal { "causal" } else { "full" }
        );
        if points.len() < ENOUGH {
            made.notes.push(format!("attention {name}: {} points, but a rate and a knee need {ENOUGH}", points.len()));
            continue;
        }
        let rate = fit_rate(&points, processors, 500.0);
        let e = evidence("measured", points.len(), median(&rate.errors), quantile(&rate.errors, 0.9), &source);
        let mut text = String::new();
        write(&mut text, &kernel, rate.rate, rate.knee, &e);
        made.residuals.push(Residual::of(format!("attention {name}"), points.len(), &rate.errors));
        made.sections.push((format!("attention.kernels {name}"), text));
    }
    Ok(())
}
