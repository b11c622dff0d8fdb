//! Times matmuls through the [`xla`](https://crates.io/crates/xla) crate: a second way to a device, for whoever has XLA's C++
//! library (`xla_extension`) already.
//!
//! `calibrate xla` needs no such library and does more: the crate has no ahead-of-time compilation, memory statistics or cost
//! analysis. Building it takes `XLA_EXTENSION_DIR`; type-checking it takes libclang alone (`DOCS_RS=1`), as CI does: the library is in
//! no package registry, so no run of this program has been seen. What it prints are lines of a file of points, as `profile fit` reads
//! them: the machine, then the point.
//!
//! The crate says when a result is on the host, and not when it is made. So a program of the same result without the product is timed
//! beside it, and its time is taken off: what is left is the product's, without the copy to the host and the call.

#[allow(dead_code, reason = "shared with the calibrator, which says its own version")]
#[path = "../stamp.rs"]
mod stamp;
#[allow(dead_code, reason = "shared with the calibrator, which tells more of a timing")]
#[path = "../statistics.rs"]
mod statistics;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::json;
use statistics::summary;
use xla::{ElementType, PjRtBuffer, PjRtClient, PjRtLoadedExecutable, XlaBuilder};

/// The crate's version, as Cargo.toml pins it.
const XLA: &str = "0.5.4";

/// Times `C[m,n] = A[m,k]·B[k,n]` in bf16 through the xla crate.
#[derive(Debug, Parser)]
#[command(name = "windtunnel-xla", version)]
struct Cli {
    /// Rows of the result.
    m: usize,
    /// Columns of the result.
    n: usize,
    /// Length of the dot products.
    k: usize,
    /// The file of a PJRT plugin, as `calibrate plugins list` shows them; left out, the CPU of the C++ library.
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// Samples.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> xla::Result<String> {
    let client = match &cli.plugin {
        Some(plugin) => PjRtClient::plugin("plugin", plugin)?,
        None => PjRtClient::cpu()?,
    };
    let (program, without) = (matmul(cli, &client)?, copies(cli, &client)?);
    let operands = [operand(&client, &[cli.m, cli.k])?, operand(&client, &[cli.k, cli.n])?];
    sample(&program, &operands)?;
    sample(&without, &operands)?;
    // One after the other, so that what slows the host slows both.
    let pair = |_| Ok([sample(&program, &operands)?, sample(&without, &operands)?]);
    let pairs = (0..cli.samples).map(pair).collect::<xla::Result<Vec<[f64; 2]>>>()?;
    let copies: Vec<f64> = pairs.iter().map(|[_, without]| *without).collect();
    let Some(copied) = summary(&copies) else { return Ok(String::new()) };
    let times: Vec<f64> = pairs.iter().map(|[with, _]| with - copied.median).collect();
    let Some(timed) = summary(&times).filter(|timed| timed.median > copied.p90 - copied.p10) else {
        let why = format!(
            "the product takes less than copies of its result vary ({:.0} us): ask for a larger one",
            copied.median
        );
        return Err(xla::Error::XlaError { msg: why, backtrace: String::new() });
    };
    let machine = json!({"machine": {
        "chip": client.platform_name(),
        "processors": 0,
        "capability": "",
        "memory": 0,
        "memory_bandwidth": 0.0,
        "power_limit": null,
        "clock": null,
        "gpus": client.device_count(),
        "versions": {"pjrt": client.platform_version(), "xla": XLA},
        "date": stamp::now(),
        "tool": concat!("windtunnel-xla ", env!("CARGO_PKG_VERSION")),
        "source": "measured",
    }});
    let point = json!({"point": {
        "what": {"matmul": {"m": cli.m, "n": cli.n, "k": cli.k, "dtype": "bf16", "layout": "forward"}},
        "regime": "burst",
        "median": timed.median,
        "p10": timed.p10,
        "p90": timed.p90,
        "repeats": cli.samples,
        "outliers": timed.outliers,
    }});
    Ok(format!("{machine}\n{point}\n"))
}

/// A result of the same shape without the product: what is left of a run is the call, and the copy to the host.
fn copies(cli: &Cli, client: &PjRtClient) -> xla::Result<PjRtLoadedExecutable> {
    let builder = XlaBuilder::new("copies");
    let length = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    builder.parameter(0, ElementType::Bf16, &[length(cli.m), length(cli.k)], "a")?;
    builder.parameter(1, ElementType::Bf16, &[length(cli.k), length(cli.n)], "b")?;
    client.compile(&builder.one(ElementType::Bf16)?.broadcast(&[length(cli.m), length(cli.n)])?.build()?)
}

fn matmul(cli: &Cli, client: &PjRtClient) -> xla::Result<PjRtLoadedExecutable> {
    let builder = XlaBuilder::new("matmul");
    let length = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let a = builder.parameter(0, ElementType::Bf16, &[length(cli.m), length(cli.k)], "a")?;
    let b = builder.parameter(1, ElementType::Bf16, &[length(cli.k), length(cli.n)], "b")?;
    client.compile(&a.dot_general(&b, &[1], &[0], &[], &[])?.build()?)
}

/// An array of ones: 0x3f80 in bf16.
fn operand(client: &PjRtClient, dims: &[usize]) -> xla::Result<PjRtBuffer> {
    let ones = [0x80, 0x3f].repeat(dims.iter().product());
    client.buffer_from_host_raw_bytes(ElementType::Bf16, &ones, dims, None)
}

/// Microseconds of one run, its result brought to the host.
fn sample(program: &PjRtLoadedExecutable, operands: &[PjRtBuffer]) -> xla::Result<f64> {
    let began = Instant::now();
    for result in program.execute_b(operands)?.iter().flatten() {
        result.to_literal_sync()?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6)
}
