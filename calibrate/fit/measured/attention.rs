//! Measured attention: a rate and a knee for each library, pass, head dimension and mask that was swept over the sequence.
//!
//! A sweep is fitted where queries and keys are as many, keys and values as wide, and there is no window; other points
//! (windows, MLA's narrower values, cross-attention) are not used.

use std::collections::BTreeMap;

use super::{FitError, Made, Measured};
use crate::fit::Residual;
use crate::fit::attention::{Kernel, Point, fit_rate, flops, left_out, write};
use crate::points::What;

/// Points that a rate and a knee need, to be fitted without one.
const ENOUGH: usize = 4;
/// Shorter sequences are mostly launch \[tokens\].
const SHORTEST: u64 = 512;
/// Where fits begin \[TFLOP/s\].
const START: f64 = 500.0;

/// A plain sweep's point, or why it is none.
pub(super) fn plain(what: &What, seconds: f64) -> Result<(Kernel, Point), &'static str> {
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
        return Err("not attention");
    };
    if window.is_some() {
        return Err("sliding windows are not fitted");
    }
    if queries != keys || head_dim != value_dim {
        return Err("queries and keys of unequal lengths, or keys and values of unequal widths, are not fitted");
    }
    if !matches!(dtype.as_str(), "bf16" | "fp16") {
        return Err("only bf16 and fp16 are fitted");
    }
    if *queries < SHORTEST {
        return Err("sequences shorter than 512 tokens are mostly launch");
    }
    let (batch, heads, sequence) = (*batch as f64, *heads as f64, *queries as f64);
    let point = Point {
        flops: flops(batch, heads, sequence, *head_dim as f64, *causal, *backward),
        sequence,
        tiles: batch * heads * (sequence / 128.0).ceil(),
        seconds,
    };
    Ok((Kernel { backend: backend.clone(), backward: *backward, head: *head_dim, causal: *causal }, point))
}

/// Makes sections `attention.kernels …`.
pub(super) fn fit(measured: &Measured<'_>, made: &mut Made) -> Result<(), FitError> {
    let mut sweeps: BTreeMap<Kernel, Vec<Point>> = BTreeMap::new();
    for (what, seconds) in measured.burst(Some) {
        if let Ok((kernel, point)) = plain(what, seconds) {
            sweeps.entry(kernel).or_default().push(point);
        }
    }
    let processors = f64::from(measured.processors());
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
            made.leave(points.len(), format!("attention {name}: too few, a rate and a knee need {ENOUGH}"));
            continue;
        }
        let rate = fit_rate(&points, processors, START);
        let errors = left_out(&points, processors, START);
        let floor = measured.floor(|what| plain(what, 1.0).is_ok_and(|(own, _)| own == kernel));
        let e = measured.evidence(&errors, points.len(), floor, &source);
        let mut text = String::new();
        write(&mut text, &kernel, rate.rate, rate.knee, &e);
        made.residuals.push(Residual::of(format!("attention {name}"), points.len(), &errors));
        made.sections.push((format!("attention.kernels {name}"), text));
    }
    Ok(())
}
