//! Splash attention on v6e, by blocks: one kernel-only sweep and the calls in traces of training steps.
//!
//! `attention.csv` holds the sweep's square blocks and, of each trace, the time of one call; in the sweep backward is both
//! passes less the forward of the same shape in blocks of 1,024. All have 32 heads of 128, causal.
//!
//! The knee is the block itself, for blocks on the diagonal are computed whole ([`windtunnel::cost::attention`]); where
//! sequences reach from one to at least four blocks, it is fitted with the rate. Nothing else was measured: head
//! dimension 64 is given half the rate (a block costs the vector unit as much, and the matrix unit loads 256 rows for
//! either), 256 four thirds of it, an open mask the rate of an endless causal sequence. Other chips have v6e's rate as far as
//! their vector units go ([`Tpu::vector`]) and their matrix units let them ([`OF_PEAK`]).

use std::collections::BTreeMap;

use super::super::tables::{Row, Table};
use super::super::{ImportError, Residual, Section, evidence, fit};
use super::Tpu;
use crate::fit::attention::{self, Kernel, LAUNCH, flops};

/// Share of the matrix units' peak that attention is not believed to pass on a chip where nobody measured it. On v6e it is
/// the vector units that keep it at 22 to 45 %.
const OF_PEAK: f64 = 0.65;

const CALLS: &str = include_str!("attention.csv");

/// Backend, backward, fused, block.
type Key = (String, bool, bool, u64);

/// Sequence and rate, causal pairs halved \[FLOP/s\].
type Calls = BTreeMap<Key, Vec<(f64, f64)>>;

fn calls() -> Result<Calls, ImportError> {
    let table = Table::parse("calibrate/import/tpu/attention.csv", CALLS.as_bytes())?;
    let number = |row: &Row<'_>, column: &str| {
        row.number(column).ok_or_else(|| table.error(&format!("line {}: no {column}", row.line())))
    };
    let mut forward: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for row in table.rows().filter(|row| row.text("pass") == "fwd" && row.text("block") == "1024") {
        forward.insert((number(&row, "batch")? as u64, number(&row, "seqlen")? as u64), number(&row, "time_ms")?);
    }
    let mut calls = Calls::new();
    for row in table.rows() {
        let [batch, heads, sequence, head, block] =
            ["batch", "heads", "seqlen", "head_dim", "block"].map(|column| number(&row, column));
        let (batch, heads, sequence, head, block) = (batch?, heads?, sequence?, head?, block?);
        let both = row.text("pass") == "fwd+bwd";
        let backward = row.text("pass") != "fwd";
        let before = if both { forward.get(&(batch as u64, sequence as u64)).copied() } else { Some(0.0) };
        let Some(before) = before else { continue };
        let seconds = (number(&row, "time_ms")? - before) * 1e-3 - LAUNCH;
        let key = (row.text("kernel").to_owned(), backward, row.text("backward") != "split", block as u64);
        let rate = flops(batch, heads, sequence, head, true, backward) / seconds;
        calls.entry(key).or_default().push((sequence, rate));
    }
    Ok(calls)
}

/// Rate of an endless sequence \[FLOP/s\] and knee.
fn fitted(points: &[(f64, f64)], block: f64, knee: Option<f64>) -> (f64, f64) {
    let of = |sequence: f64| points.iter().filter(|(s, _)| *s == sequence).map(|(_, rate)| *rate).collect::<Vec<_>>();
    let least = points.iter().map(|(s, _)| *s).fold(f64::MAX, f64::min);
    let most = points.iter().map(|(s, _)| *s).fold(0.0, f64::max);
    let knee = match knee {
        Some(knee) => knee,
        None if most >= 4.0 * least => {
            // rate = endless·s/(s + knee) through the medians of the shortest and the longest.
            let (slow, fast) = (fit::median(&of(least)), fit::median(&of(most)));
            (fast - slow) / (slow / least - fast / most)
        }
        None => block,
    };
    let endless: Vec<f64> = points.iter().map(|(s, rate)| rate * (s + knee) / s).collect();
    (fit::median(&endless), knee)
}

/// The section `attention`.
pub fn section(tpu: &Tpu) -> Result<Section, ImportError> {
    let calls = calls()?;
    let mut text = attention::head();
    let mut residuals = vec![];
    let knee_of = |backward: bool| {
        let key = ("splash".to_owned(), backward, true, 2048);
        calls.get(&key).map(|points| fitted(points, 2048.0, None).1)
    };
    for (key @ (backend, backward, fused, block), points) in calls.iter().rev() {
        // Of Tokamax one length is known: its knee is that of JAX's kernels.
        let (rate, knee) = fitted(points, *block as f64, knee_of(*backward).filter(|_| backend == "tokamax"));
        let errors: Vec<f64> = points.iter().map(|(s, own)| fit::error(rate * s / (s + knee), *own)).collect();
        let (median, p90) = (fit::median(&errors), fit::quantile(&errors, 0.9));
        residuals.push(Residual { section: format!("attention {key:?}"), points: points.len(), median, p90 });
        for (head, causal) in [(128, true), (128, false), (64, true), (64, false), (256, true), (256, false)] {
            let factor = match head {
                64 => 0.5,
                256 => 4.0 / 3.0,
                _ => 1.0,
            };
            let known = head == 128 && causal;
            let (basis, doubt) = match (known, tpu.derived) {
                (true, false) => ("published", 0.05),
                (true, true) => ("extrapolated", 0.25),
                _ => ("extrapolated", 0.3),
            };
            let rate = if tpu.derived { (tpu.vector * rate).min(OF_PEAK * tpu.peaks[0] * 1e12) } else { rate };
            let own = format!(
                "{backend} on v6e, 32 heads of 128, causal, blocks of {block} (calibrate/import/tpu/attention.csv)"
            );
            let source = if known { own } else { format!("{own}, carried over to other heads and masks") };
            let e = evidence(basis, points.len(), median.max(0.02), p90.max(0.03) + doubt, &source);
            let kernel = Kernel { backend: backend.clone(), backward: *backward, head, causal };
            let knee = if causal { knee } else { 0.0 };
            let blocks = format!("blocks = {{ size = {block}, fused = {fused} }}");
            attention::write_cut(&mut text, &kernel, (factor * rate * 1e-12, knee), &blocks, &e);
        }
    }
    Ok(Section { text, residuals })
}
