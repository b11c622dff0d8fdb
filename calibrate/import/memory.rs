//! Memory-bound kernels: a stream curve for each chip, and families as shares of it.
//!
//! The curve is the median time by half powers of two of bytes of a pointwise kernel (bf16 in, fp8 out, operands read and
//! written once). Families: copy from BabelStream; norms from a GB200 against the B200 stream; the rest are stated
//! guesses, labelled `assumed`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use windtunnel::cost::curve::Curve;

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, chips, evidence, fit};

/// The stream of a chip: points, and errors of the rows against the curve through them.
struct Stream {
    points: Vec<(f64, f64)>,
    rows: usize,
    errors: Vec<f64>,
    source: String,
    basis: &'static str,
}

fn stream(tables: &Tables, chip: &ChipSpec) -> Result<Stream, ImportError> {
    // There is no A100 sweep: the H100's, with the bandwidth axis scaled by the two boards' own copies.
    let (system, scale) = match chip.system {
        "a100_sxm" => ("h100_sxm", copy(tables, "H100 SXM")? / copy(tables, "A100-80GB SXM")?),
        system => (system, chip.measured_bandwidth / chip.bandwidth),
    };
    let table = tables.get("elementwise_quantize_aic.csv.gz")?;
    let rows: Vec<(f64, f64)> = table
        .rows()
        .filter(|row| {
            row.text("system") == system
                && row.text("op_name") == "scale_matrix"
                && row.text("fw") == "trtllm"
                && row.text("ver") == "1.3.0rc20"
        })
        .filter_map(|row| Some((row.number("bytes_rw")?, row.number("time_us")? * 1e-6)))
        .collect();
    let mut bins: BTreeMap<i64, Vec<(f64, f64)>> = BTreeMap::new();
    for &(bytes, seconds) in rows.iter().filter(|(bytes, _)| *bytes >= 4096.0) {
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
    let curve = Curve::new(&points).map_err(|why| table.error(&why))?;
    let errors = rows.iter().filter(|(b, _)| *b >= 4096.0).map(|(b, t)| fit::error(curve.seconds(*b), *t)).collect();
    let moved = scale != 1.0;
    let source = format!(
        "elementwise_quantize_aic.csv.gz, {system} scale_matrix trtllm 1.3.0rc20 ({}){}",
        chips::collection(),
        if moved { format!("; bandwidth carried over by the factor {scale:.3}") } else { String::new() }
    );
    let basis = if moved { "extrapolated" } else { "published" };
    // The launch floor stays; what is above it stretches with the bandwidth.
    let floor = points.first().map_or(0.0, |p| p.1);
    let points = points.iter().map(|&(b, t)| (b, floor + (t - floor) * scale)).collect();
    Ok(Stream { points, rows: rows.len(), errors, source, basis })
}

/// The stream as a curve.
pub fn curve(tables: &Tables, chip: &ChipSpec) -> Result<Curve, ImportError> {
    let stream = stream(tables, chip)?;
    Curve::new(&stream.points).map_err(|why| ImportError::Table { path: stream.source, why })
}

/// BabelStream copy [B/s].
fn copy(tables: &Tables, device: &str) -> Result<f64, ImportError> {
    let table = tables.get("memory_bandwidth.csv")?;
    let found = table
        .rows()
        .find(|row| row.text("device") == device && row.text("test") == "BabelStream Copy")
        .and_then(|row| row.number("GBps"));
    found.map(|v| v * 1e9).ok_or_else(|| table.error(&format!("no BabelStream copy of {device}")))
}

/// Share of the B200 stream that PyTorch's eager norms reach on a GB200, with errors around it.
fn norms(tables: &Tables, b200: &Curve, pass: &str) -> Result<(f64, Vec<f64>), ImportError> {
    let table = tables.get("norms_cudnn.csv")?;
    let shares: Vec<f64> = table
        .rows()
        .filter(|row| {
            row.text("gpu_name") == "NVIDIA GB200"
                && row.text("backend") == "pytorch"
                && row.text("norm_type") == "rms_norm"
                && row.number("C").is_some_and(|c| c >= 2048.0)
        })
        .filter_map(|row| {
            let (rate, ms) = (row.number(&format!("{pass}_gbps"))?, row.number(&format!("{pass}_time_ms"))?);
            // The share by which the bytes must be divided for the stream to take as long.
            let (bytes, seconds) = (rate * 1e6 * ms, ms * 1e-3);
            let mut share = 1.0;
            for _ in 0..40 {
                share *= b200.seconds(bytes / share) / seconds;
            }
            share.is_finite().then_some(share)
        })
        .collect();
    let centre = fit::median(&shares);
    Ok((centre, shares.iter().map(|s| fit::error(*s, centre)).collect()))
}

/// The section `memory`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let stream = stream(tables, chip)?;
    let b200 = curve(tables, &super::CHIPS[super::CHIPS.len() - 1])?;
    let (median, p90) = (fit::median(&stream.errors), fit::quantile(&stream.errors, 0.9));
    let mut text = format!(
        "[memory.stream]\nevidence = {}\nbytes = {:?}\nus = {:?}\n\n",
        evidence(stream.basis, stream.rows, median, p90, &stream.source),
        stream.points.iter().map(|p| p.0 as u64).collect::<Vec<_>>(),
        stream.points.iter().map(|p| fit::rounded(p.1 * 1e6)).collect::<Vec<_>>(),
    );
    let mut family = |name: &str, share: f64, evidence: String| {
        let _ = write!(text, "[memory.{name}]\nshare = {}\nevidence = {evidence}\n\n", fit::rounded(share));
    };
    family("elementwise", 1.0, evidence(stream.basis, stream.rows, 0.03, 0.1, "the stream itself"));
    for (name, pass) in [("norm", "fwd"), ("norm_backward", "bwd")] {
        let (share, errors) = norms(tables, &b200, pass)?;
        let own = chip.system == "b200_sxm";
        let (basis, extra) = if own { ("published", 0.0) } else { ("extrapolated", 0.15) };
        let source = format!("norms_cudnn.csv: PyTorch eager RMSNorm on GB200, {pass}, over the B200 stream");
        let p90 = fit::quantile(&errors, 0.9) + extra;
        // Elsewhere no norm is taken to beat the stream.
        let share = if own { share } else { share.min(1.0) };
        family(name, share, evidence(basis, errors.len(), fit::median(&errors), p90, &source));
    }
    let device = match chip.system {
        "a100_sxm" => Some("A100-80GB SXM"),
        "h100_sxm" => Some("H100 SXM"),
        "h200_sxm" => Some("H200 SXM"),
        _ => None,
    };
    let end = stream.points.last().map_or(1.0, |p| p.0 / p.1) * chip.bandwidth / chip.measured_bandwidth;
    match device {
        Some(device) if !chip.derived => {
            let share = copy(tables, device)? / end;
            family("copy", share, evidence("published", 1, 0.02, 0.08, "memory_bandwidth.csv: BabelStream copy"));
        }
        _ => family("copy", 0.94, evidence("extrapolated", 0, 0.05, 0.1, "BabelStream over stream on H100 and H200")),
    }
    for (name, share, p90, why) in [
        ("softmax", 0.8, 0.35, "assumed: row reductions in two passes, between stream and norm"),
        ("gather", 0.75, 0.4, "assumed: rows of a few kB, random order"),
        ("scatter", 0.35, 0.6, "assumed: sorted scatter-add, read-modify-write"),
        ("foreach", 0.9, 0.2, "assumed: multi-tensor kernels stream with chunk bookkeeping"),
        ("complex", 0.7, 0.4, "assumed: 8-byte interleaved accesses"),
    ] {
        family(name, share, evidence("assumed", 0, p90 / 2.0, p90, why));
    }
    let _ = write!(
        text,
        "[memory.host]\nlatency = \"10 us\"\nto_device = \"{} GB/s\"\nto_host = \"{} GB/s\"\nevidence = {}\n",
        chip.host[0],
        chip.host[1],
        evidence(
            "published",
            2,
            0.05,
            0.2,
            "memory_bandwidth.csv: nvbandwidth; latency assumed (A100 to host assumed 25 GB/s: its row, 6.27, is a fault of one node)"
        )
    );
    let residuals = vec![Residual { section: "memory stream".to_owned(), points: stream.rows, median, p90 }];
    Ok(Section { text, residuals })
}
