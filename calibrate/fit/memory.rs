//! Memory-bound kernels: a stream curve, and families as shares of it.
//!
//! The curve is the median time by half powers of two of bytes of a streaming pointwise kernel. A family's share is the
//! number by which its bytes must be divided for the stream to take as long.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use windtunnel::cost::curve::Curve;

use crate::fit;

/// Sizes below this are launch floor \[B\].
const LEAST: f64 = 4096.0;

/// A stream: points of its curve (bytes, seconds), and errors of the rows against the curve through them.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Bytes and seconds, rising.
    pub points: Vec<(f64, f64)>,
    /// Rows behind them.
    pub rows: usize,
    /// Relative errors of the rows.
    pub errors: Vec<f64>,
}

/// The stream through rows of (bytes, seconds).
pub fn stream(rows: &[(f64, f64)]) -> Result<Stream, String> {
    let mut bins: BTreeMap<i64, Vec<(f64, f64)>> = BTreeMap::new();
    for &(bytes, seconds) in rows.iter().filter(|(bytes, _)| *bytes >= LEAST) {
        bins.entry(libm::round(2.0 * libm::log2(bytes)) as i64).or_default().push((bytes, seconds));
    }
    let points: Vec<(f64, f64)> = bins
        .iter()
        .map(|(bin, rows)| {
            let size = libm::round(libm::exp2(0.5 * *bin as f64));
            // Within a bin the time of large kernels goes with the bytes; that of small ones does not.
            let power = if *bin >= 48 { 1.0 } else { 0.0 };
            let times: Vec<f64> = rows.iter().map(|(bytes, t)| t * libm::pow(size / bytes, power)).collect();
            (size, fit::median(&times))
        })
        .collect();
    let curve = Curve::new(&points)?;
    let errors = rows.iter().filter(|(b, _)| *b >= LEAST).map(|(b, t)| fit::error(curve.seconds(*b), *t)).collect();
    Ok(Stream { points, rows: rows.len(), errors })
}

/// The share of a stream at which `bytes` take `seconds`; none where the kernel is below the stream's floor.
pub fn share(stream: &Curve, bytes: f64, seconds: f64) -> Option<f64> {
    let mut share = 1.0;
    for _ in 0..40 {
        share *= stream.seconds(bytes / share) / seconds;
    }
    share.is_finite().then_some(share)
}

/// The section `memory.stream`.
pub fn write_stream(text: &mut String, stream: &Stream, evidence: &str) {
    let _ = write!(
        text,
        "[memory.stream]\nevidence = {evidence}\nbytes = {:?}\nus = {:?}\n\n",
        stream.points.iter().map(|p| p.0 as u64).collect::<Vec<_>>(),
        stream.points.iter().map(|p| fit::rounded(p.1 * 1e6)).collect::<Vec<_>>(),
    );
}

/// The section of a family.
pub fn write_family(text: &mut String, name: &str, share: f64, evidence: &str) {
    let _ = write!(text, "[memory.{name}]\nshare = {}\nevidence = {evidence}\n\n", fit::rounded(share));
}

/// The section of copies over the host's link; latency \[s\], rates \[B/s\].
pub fn write_host(text: &mut String, latency: f64, rates: [f64; 2], evidence: &str) {
    let _ = write!(
        text,
        "[memory.host]\nlatency = \"{} us\"\nto_device = \"{} GB/s\"\nto_host = \"{} GB/s\"\nevidence = {evidence}\n",
        fit::rounded(latency * 1e6),
        fit::rounded(rates[0] / 1e9),
        fit::rounded(rates[1] / 1e9),
    );
}
