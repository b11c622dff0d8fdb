//! Memory-bound kernels: a stream curve for each chip, and families as shares of it.
//!
//! The curve is of a pointwise kernel (bf16 in, fp8 out, operands read and written once). Families: copy from BabelStream; norms from GB200 and H200 against
//! their streams, on A100 from three reports; the rest are stated guesses, labelled `assumed`.

use windtunnel::cost::curve::Curve;

use super::chips::ChipSpec;
use super::tables::{Row, Tables};
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
    let (system, boards) = match chip.system {
        "a100_sxm" => ("h100_sxm", copy(tables, "H100 SXM")? / copy(tables, "A100-80GB SXM")?),
        system => (system, 1.0),
    };
    let scale = boards * chip.measured_bandwidth / chip.bandwidth;
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
    let floor = points.iter().map(|p| p.1).reduce(f64::min).unwrap_or(0.0);
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

/// Shares of a board's stream that a norm reaches on it, wide enough to matter: PyTorch's, eager or compiled.
fn norms(
    tables: &Tables,
    (gpu, stream): (&str, &Curve),
    (norm, backend): (&str, &str),
    pass: &str,
) -> Result<Vec<f64>, ImportError> {
    let table = tables.get("norms_cudnn.csv")?;
    let share = |row: &Row<'_>| {
        let (rate, ms) = (row.number(&format!("{pass}_gbps"))?, row.number(&format!("{pass}_time_ms"))?);
        fit::memory::share(stream, rate * 1e6 * ms, ms * 1e-3)
    };
    Ok(table
        .rows()
        .filter(|row| row.text("gpu_name") == gpu && row.text("backend") == backend && row.text("norm_type") == norm)
        .filter(|row| row.number("C").is_some_and(|columns| columns >= 2048.0))
        .filter_map(|row| share(&row))
        .collect())
}

/// PyTorch's LayerNorm on A100, by pass: numbers a row, GB/s of 4,096 rows in 16 bits (allenai/OLMo#258, September 2023; which
/// board is not said and is taken as the one with 80 GB). Forward and backward of 8,192 rows of 4,096 together take 509 us by
/// pytorch/pytorch#87445, 8 % less than these make.
const LAYER_NORM_A100: [(&str, [(f64, f64); 2]); 2] =
    [("fwd", [(4096.0, 936.228546), (8192.0, 949.797080)]), ("bwd", [(4096.0, 479.531698), (8192.0, 491.520012)])];

/// Shares of an A100's stream that PyTorch's LayerNorm reaches.
fn layer_norms_a100(stream: &Curve, pass: &str) -> Vec<f64> {
    let tensors = if pass == "fwd" { 2.0 } else { 3.0 };
    let points = LAYER_NORM_A100.iter().filter(|(own, _)| *own == pass).flat_map(|(_, points)| points);
    points
        .filter_map(|(width, rate)| {
            let bytes = tensors * 4096.0 * width * 2.0;
            fit::memory::share(stream, bytes, bytes / (rate * 1e9))
        })
        .collect()
}

/// Whose norms, by pass, milliseconds and GB/s: 32 sequences of 512 tokens, 1,024 wide, in fp16 on "GA100"
/// (NVIDIA/apex#1037, January 2021, when its 40 GB board was the one there was; the bytes say the width). They say nothing of
/// other chips: on H100 the same kernels take two to four times as long, forward and backward, as these shares would make
/// (ServiceNow/Fast-LLM#499).
const APEX: [(&str, f64, f64); 4] = [
    ("apex_norm", 0.0751, 895.7822),
    ("apex_norm_backward", 0.1762, 572.1678),
    ("persistent_norm", 0.0535, 1258.0318),
    ("persistent_norm_backward", 0.0866, 1163.4357),
];

/// Shares of the stream that Apex's kernels for norms reach.
fn apex_norms(tables: &Tables) -> Result<Vec<(&'static str, f64)>, ImportError> {
    let Some(chip) = super::CHIPS.iter().find(|chip| chip.name == "a100-sxm-40gb") else { return Ok(vec![]) };
    let stream = curve(tables, chip)?;
    let share = |&(name, ms, rate): &(&'static str, f64, f64)| {
        fit::memory::share(&stream, rate * 1e6 * ms, ms * 1e-3).map(|share| (name, share.min(1.0)))
    };
    Ok(APEX.iter().filter_map(share).collect())
}

/// The section `memory`.
pub fn section(tables: &Tables, chip: &ChipSpec) -> Result<Section, ImportError> {
    let stream = stream(tables, chip)?;
    let mut text = String::new();
    let rows = stream.measured.rows;
    let residual = Residual::of("memory stream", rows, &stream.measured.errors);
    let e = evidence(stream.basis, rows, residual.median, residual.p90, &stream.source);
    write_stream(&mut text, &stream.measured, &e);
    let mut family = |name: &str, share: f64, evidence: String| write_family(&mut text, name, share, &evidence);
    family("elementwise", 1.0, evidence(stream.basis, rows, 0.03, 0.1, "the stream itself"));
    // Norms were measured on GB200 and H200: another chip has the shares of the one nearer to it.
    let (gpu, board) = match (chip.fabric, chip.system) {
        ("b200_sxm", "b200_sxm") => ("NVIDIA GB200", "b200-sxm"),
        ("b200_sxm", _) => ("NVIDIA GB200", "gb200-nvl72"),
        _ => ("NVIDIA H200", "h200-sxm-141gb"),
    };
    let own = matches!(chip.system, "b200_sxm" | "h200_sxm" | "gb200");
    let board = super::CHIPS.iter().find(|chip| chip.name == board).expect("a chip of the table");
    let measured = curve(tables, board)?;
    for (family_name, norm, backend, what) in [
        ("norm", "rms_norm", "torch_compile", "compiled RMSNorm"),
        ("rms_norm", "rms_norm", "pytorch", "RMSNorm, eager,"),
        ("layer_norm", "layer_norm", "pytorch", "LayerNorm, eager,"),
    ] {
        for (suffix, pass) in [("", "fwd"), ("_backward", "bwd")] {
            let (mut basis, mut extra) = if own { ("published", 0.0) } else { ("extrapolated", 0.15) };
            let mut source =
                format!("norms_cudnn.csv: PyTorch's {what} on {gpu}, {pass}, over the stream of {}", board.name);
            let mut shares = norms(tables, (gpu, &measured), (norm, backend), pass)?;
            if chip.system == "a100_sxm" && norm == "layer_norm" {
                let a100 = super::CHIPS.iter().find(|chip| chip.name == "a100-sxm-80gb").expect("a chip of the table");
                shares = layer_norms_a100(&curve(tables, a100)?, pass);
                source = format!("allenai/OLMo#258: PyTorch's LayerNorm on A100, {pass}, two widths");
                (basis, extra) = ("published", 0.1);
            }
            let centre = fit::median(&shares);
            let errors: Vec<f64> = shares.iter().map(|share| fit::error(*share, centre)).collect();
            // One width is one width.
            let p90 = (fit::quantile(&errors, 0.9) + extra).max(if errors.len() < 3 { 0.2 } else { 0.0 });
            let median = fit::median(&errors).max(if errors.len() < 3 { 0.1 } else { 0.0 });
            // Elsewhere no norm is taken to beat the stream.
            let share = if own { centre } else { centre.min(1.0) };
            family(&format!("{family_name}{suffix}"), share, evidence(basis, errors.len(), median, p90, &source));
        }
    }
    if chip.system == "a100_sxm" {
        for (name, share) in apex_norms(tables)? {
            let source = "NVIDIA/apex#1037: one size on A100, 1,024 wide, over the stream of its 40 GB board";
            family(name, share, evidence("published", 1, 0.1, 0.2, source));
        }
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
    let strided = super::strided::family(tables, chip)?;
    for (name, share, evidence) in super::kernels::families(tables, chip)?.into_iter().chain([strided]) {
        family(name, share, evidence);
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
