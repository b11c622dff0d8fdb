//! Memory-bound kernels: a stream curve for each chip, and families as shares of it.
//!
//! The curve is of a pointwise kernel (bf16 in, fp8 out, operands read and written once). Families: copy from BabelStream; norms from a GB200 against the B200 stream; the rest are stated
//! guesses, labelled `assumed`.

use windtunnel::cost::curve::Curve;

use super::chips::ChipSpec;
use super::tables::Tables;
use super::{ImportError, Residual, Section, chips, evidence, fit};
use crate::fit::memory::{Stream as Measured, write_family, write_host, write_stream};

/// The stream of a chip, and whence.
struct Stream {
    measured: Measured,
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
    let Measured { mut points, rows, errors } = fit::memory::stream(&rows).map_err(|why| table.error(&why))?;
    let moved = scale != 1.0;
    let source = format!(
        "elementwise_quantize_aic.csv.gz, {system} scale_matrix trtllm 1.3.0rc20 ({}){}",
        chips::collection(),
        if moved { format!("; bandwidth carried over by the factor {scale:.3}") } else { String::new() }
    );
    let basis = if moved { "extrapolated" } else { "published" };
    // The launch floor stays; what is above it stretches with the bandwidth.
    let floor = points.first().map_or(0.0, |p| p.1);
    for point in &mut points {
        point.1 = floor + (point.1 - floor) * scale;
    }
    Ok(Stream { measured: Measured { points, rows, errors }, source, basis })
}

/// The stream as a curve.
pub fn curve(tables: &Tables, chip: &ChipSpec) -> Result<Curve, ImportError> {
    let stream = stream(tables, chip)?;
    Curve::new(&stream.measured.points).map_err(|why| ImportError::Table { path: stream.source, why })
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
            let (bytes, seconds) = (rate * 1e6 * ms, ms * 1e-3);
            fit::memory::share(b200, bytes, seconds)
        })
        .collect();
    let centre = fit::median(&shares);
    Ok((centre, shares.iter().map(|s| fit::error(*s, centre)).collect()))
}

/// The section `memory`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let stream = stream(tables, chip)?;
    let b200 = curve(tables, &super::CHIPS[super::CHIPS.len() - 1])?;
    let mut text = String::new();
    let rows = stream.measured.rows;
    let residual = Residual::of("memory stream", rows, &stream.measured.errors);
    let e = evidence(stream.basis, rows, residual.median, residual.p90, &stream.source);
    write_stream(&mut text, &stream.measured, &e);
    let mut family = |name: &str, share: f64, evidence: String| write_family(&mut text, name, share, &evidence);
    family("elementwise", 1.0, evidence(stream.basis, rows, 0.03, 0.1, "the stream itself"));
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
    let end = stream.measured.points.last().map_or(1.0, |p| p.0 / p.1) * chip.bandwidth / chip.measured_bandwidth;
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
    write_host(
        &mut text,
        10e-6,
        chip.host.map(|rate| rate * 1e9),
        &evidence(
            "published",
            2,
            0.05,
            0.2,
            "memory_bandwidth.csv: nvbandwidth; latency assumed (A100 to host assumed 25 GB/s: its row, 6.27, is a fault of one node)",
        ),
    );
    Ok(Section { text, residuals: vec![residual] })
}
